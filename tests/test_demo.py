"""`polyreply demo` and the model it starts from."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from polyreply import EMSettings, demo
from polyreply.config import load_recipe
from polyreply.data import chitchat
from polyreply.data.overlap import exact_key
from polyreply.data.prepare import PrepareRecipe, prepare

ROOT = Path(__file__).parent.parent


CONVERSATIONS = 300


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory):
    """The demo on a few conversations, with two EM steps and six contexts: its folder and results."""
    out = tmp_path_factory.mktemp("demo")
    rows = islice(chitchat.conversations("train"), CONVERSATIONS)
    (out / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare([str(out / "some.jsonl")], out / "data", demo.CHITCHAT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "NUM_CONTEXTS", 6)
        patch.setattr(demo, "prepare", None)
        patch.setattr(demo, "RECIPE", replace(demo.RECIPE, steps=2, em=EMSettings(e_step_size=20)))
        return out, demo.run_demo(out)


def test_everything_is_saved(small_demo):
    out, done = small_demo
    assert {path.name for path in out.iterdir()} == {
        *("some.jsonl", "data", "model", "quality-diversity.png", "replies.json", "responses", "run", "scores")
    }
    assert json.loads((out / "replies.json").read_text()) == done.replies
    assert list(done.replies) == list(demo.MESSAGES)
    for replies in done.replies.values():
        assert {name: len(texts) for name, texts in replies.items()} == dict.fromkeys(demo.SYSTEMS, demo.NUM_REPLIES)
    assert [system.name for system in done.comparison.systems] == list(demo.SYSTEMS)


def test_started_again_it_trains_nothing(small_demo, monkeypatch):
    monkeypatch.setattr(demo, "train", None)
    monkeypatch.setattr(demo, "prepare", None)
    monkeypatch.setattr(demo, "NUM_CONTEXTS", 6)
    assert demo.run_demo(small_demo[0]).replies == small_demo[1].replies


def test_the_first_look_shows_the_shipped_model_beside_the_raw_one(monkeypatch):
    monkeypatch.setattr(demo, "MESSAGES", demo.MESSAGES[:1])
    [(message, replies)] = demo.first_look().items()
    assert message == demo.MESSAGES[0] and list(replies) == ["smollm2-10", demo.RAW]
    assert all(len(set(texts)) >= 8 for texts in replies.values())


def test_the_messages_are_not_in_the_training_data():
    turns = [turn for row in chitchat.conversations("train") for turn in row["turns"]]
    messages, seen = (set(exact_key(pa.array(texts)).to_pylist()) for texts in (demo.MESSAGES, turns))
    assert len(seen) > 50_000 and not messages & seen


def test_its_data_settings_equal_the_shipped_recipe():
    assert load_recipe(PrepareRecipe, ROOT / "polyreply" / "recipes" / "prepare-chitchat.yaml") == demo.CHITCHAT


@pytest.mark.slow
def test_ten_decoders_differ_and_meet_more_references_than_beam_search(tmp_path):
    """Their F is about that of beam search: two machines gave 2.94 and 3.17, against 3.06."""
    done = demo.run_demo(tmp_path)
    ours, beam = (system.seeds[0].numbers for system in done.comparison.systems[:2])
    rows = [json.loads(line) for line in (tmp_path / "responses" / "eqhard-em.jsonl").read_text().splitlines()]
    assert sum(len(set(row["responses"])) for row in rows) / len(rows) >= 8
    assert ours["empty"] + ours["repeating"] < 2 and ours["bleu2_f"] >= 0.85 * beam["bleu2_f"]
    assert ours["bleu2_r"] >= 1.3 * beam["bleu2_r"] and ours["dist2"] >= 2 * beam["dist2"]
