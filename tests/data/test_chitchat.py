"""The embedded corpus of real conversations."""

import json
import sys

import pytest

from polyreply.data import chitchat
from polyreply.data.prepare import OverlapSettings, PrepareRecipe, prepare
from polyreply.data.read import read_dialogues
from polyreply.errors import MissingExtraError


def test_splits_are_fixed_by_conversation():
    sizes = {split: len(list(chitchat.conversations(split))) for split in ("train", "valid", "test")}
    assert sizes == {"train": 3622, "valid": 190, "test": 205}


def test_what_one_person_sends_in_a_row_is_one_turn():
    message = [{"text": "Hello"}, {"text": " "}, {"text": "How are you?"}, {"text": "Fine here"}]
    assert list(chitchat._turns([message, [{"text": ""}], [{"text": "hi"}]])) == [
        "Hello. How are you? Fine here",
        "hi",
    ]


def test_it_is_prepared_clean_and_without_overlap(tmp_path):
    exact_only = PrepareRecipe(overlap=OverlapSettings(near=False))
    report = prepare(["chitchat"], tmp_path / "out", exact_only)
    assert report["bad_rows"]["count"] == 0
    assert report["splits"]["train"]["pairs"] > 100_000
    assert all(c[what]["found"] == 0 for c in report["overlap"]["after"].values() for what in ("pairs", "contexts"))
    first = next(read_dialogues(tmp_path / "out/train.jsonl.gz"))
    assert first.context and first.responses
    assert json.loads((tmp_path / "out/report.json").read_text())["inputs"] == ["chitchat"]


@pytest.mark.slow
def test_it_has_the_documented_size(tmp_path):
    report = prepare("chitchat", tmp_path / "out")
    pairs = {split: numbers["pairs"] for split, numbers in report["splits"].items()}
    assert pairs == {"train": 109_450, "valid": 6_703, "test": 5_710}


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    chitchat._all_conversations.cache_clear()
    monkeypatch.setitem(sys.modules, "chitchat_dataset", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'polyreply\[demo\]'"):
        list(chitchat.conversations("train"))
