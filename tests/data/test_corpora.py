"""Corpora by name: the documented way to add one works from outside the package."""

import re
from pathlib import Path

import pytest

from polyreply.data.corpora import CORPORA, EMBEDDED, Corpus
from polyreply.data.dialogue import Dialogue
from polyreply.data.folder import data_folder
from polyreply.data.prepare import prepare
from polyreply.data.read import read_dialogues
from polyreply.errors import DataError

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def code_of(heading):
    """The first Python block under a heading of docs/data.md."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


@pytest.fixture(autouse=True)
def own_corpora(monkeypatch, tmp_path):
    """The corpora as they were, and relative paths below tmp_path."""
    monkeypatch.chdir(tmp_path)
    before = dict(CORPORA)
    yield
    CORPORA.clear()
    CORPORA.update(before)


def test_the_documented_corpus_is_prepared(tmp_path, capsys):
    exec(code_of("Add a corpus"), {})
    assert capsys.readouterr().out == "6 pairs to train on\n"
    rows = list(read_dialogues(tmp_path / "data/weather/train.jsonl.gz"))
    assert rows[0] == Dialogue(("What is the weather in Oslo?",), ("Snow since dawn.", "Ask me when I am in Oslo."))
    assert EMBEDDED == ("chitchat", "messages", "smalltalk-explicit", "smalltalk-implicit")


def test_the_documented_rows_become_a_data_folder(tmp_path):
    exec(code_of("Dialogues in memory"), {})
    contexts = [row.context for row in read_dialogues(tmp_path / "data/mine/train.jsonl.gz")]
    assert contexts == [("How are you?",), ("Any plans?",), ("We are off to the coast.",), ("It rains.",)]


def test_a_corpus_is_called_with_each_split_and_the_seed(tmp_path):
    calls = []

    def rows(split, seed):
        calls.append((split, seed))
        return [Dialogue((f"a {split} question {seed}",), (f"some {split} reply",))]

    CORPORA["mine"] = Corpus(rows, templated=True)
    splits = data_folder("mine", tmp_path / "folder", seed=7)
    assert calls == [("train", 7), ("valid", 7), ("test", 7)]
    assert sorted(path.name for path in splits.iterdir()) == ["test.jsonl.gz", "train.jsonl.gz", "valid.jsonl.gz"]
    with pytest.raises(DataError, match="chitchat, messages, smalltalk-explicit, smalltalk-implicit, mine"):
        prepare("other", tmp_path / "out")
