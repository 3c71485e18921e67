"""`prepare` end to end: splits kept or drawn, every rule counted, no overlap left, complete or absent."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import product

import duckdb
import pytest
from test_overlap import brute_overlap

from polyreply.config import load_recipe
from polyreply.data.corpora import CORPORA, Corpus
from polyreply.data.dialogue import BadRows
from polyreply.data.prepare import PrepareRecipe, prepare
from polyreply.data.read import read_dialogues
from polyreply.errors import DataError, PolyReplyError, RecipeError
from polyreply.files import new_folder


def rows_of(path):
    return [json.loads(line) for line in gzip.open(path, "rt", encoding="utf-8")]


def configure(*overrides):
    return load_recipe(PrepareRecipe, None, overrides)


def pair(context, *responses):
    return {"context": context, "responses": list(responses)}


@pytest.fixture
def folder(tmp_path, write_rows):
    """Splits with every kind of overlap between them."""
    train = [
        pair("Where do you live now?", "In a small town near the sea."),
        pair("HOW ARE YOU", "Fine, thanks; and yourself, my friend?"),  # context of test
        pair("what is your name", "my name is Tom"),  # pair of valid
        pair("I went to the big market with my sister today", "What did you two buy there then?"),  # near test
        pair("Where do you live now?", "In a small town near the sea."),  # duplicate
        pair("Do you like music?", "Yes, jazz above all."),
    ]
    valid = [pair("What is your name?", "My name is Tom."), pair("Is it late?", "It is past nine.")]
    test = [
        pair("How are you?", "I have never been better."),
        pair("I went to the big market with my brother today", "What did you two buy there then?"),
    ]
    for name, rows in (("train.jsonl", train), ("dev.csv", valid), ("test.jsonl.gz", test)):
        if name.endswith("csv"):
            lines = ["context,response", *(f'"{r["context"]}","{r["responses"][0]}"' for r in rows)]
            (tmp_path / "in" / name).write_text("\n".join(lines))
        else:
            write_rows(tmp_path / "in" / name, rows)
    return tmp_path / "in"


def test_overlap_is_counted_and_gone(folder, tmp_path):
    report = prepare([str(folder)], tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "recipe.yaml",
        "report.json",
        "test.jsonl.gz",
        "train.jsonl.gz",
        "valid.jsonl.gz",
    ]
    assert [row["context"] for row in rows_of(tmp_path / "out/train.jsonl.gz")] == [
        "Where do you live now?",
        "Do you like music?",
    ]
    assert len(rows_of(tmp_path / "out/valid.jsonl.gz")) == len(rows_of(tmp_path / "out/test.jsonl.gz")) == 2
    before, after = report["overlap"]["before"], report["overlap"]["after"]
    assert before["valid_in_train"]["pairs"] == {"found": 1, "share": 0.5}
    assert before["test_in_train"]["contexts"] == {"found": 1, "share": 0.5}
    assert all(couple[what]["found"] == 0 for couple in after.values() for what in ("pairs", "contexts"))
    assert report["overlap"]["dropped"]["train"]["near"]["dialogues"] == 2
    assert report["duplicates"]["pairs"] == 1
    assert json.loads((tmp_path / "out/report.json").read_text()) == report
    assert load_recipe(PrepareRecipe, tmp_path / "out/recipe.yaml") == PrepareRecipe()


def test_each_kind_of_overlap_has_its_switch(folder, tmp_path):
    def contexts(name, *overrides):
        prepare([str(folder)], tmp_path / name, configure(*overrides))
        return {row["context"] for row in rows_of(tmp_path / name / "train.jsonl.gz")}

    everything = contexts("report", "overlap.mode=report")
    assert len(everything) == 5
    only_pairs = contexts("pairs", "overlap.near=false", "overlap.contexts=false")
    assert everything - only_pairs == {"what is your name"}
    only_contexts = contexts("contexts", "overlap.near=false", "overlap.pairs=false")
    assert everything - only_contexts == {"what is your name", "HOW ARE YOU"}
    only_near = contexts("near", "overlap.pairs=false", "overlap.contexts=false")
    assert everything - only_near == {"what is your name", "I went to the big market with my sister today"}


@pytest.mark.parametrize("mode", ["drop", "resplit"])
def test_no_overlap_is_left_by_brute_force(tmp_path, write_rows, mode):
    """Conversations with many chance overlaps; the written splits are compared pair by pair."""
    people, things = "Ann Bob Cleo Dan Eve Finn".split(), "tea milk rice soup bread fish corn nuts".split()
    rows = [
        {"turns": [f"does {a} like {x} and {y}", f"{a} likes {x} but {y} not", f"then buy {x} for {a} soon"]}
        for a, x, y in product(people, things, things)
    ]
    path = write_rows(tmp_path / "d.jsonl", rows)
    config = configure(f"overlap.mode={mode}", "overlap.threshold=0.9")
    report = prepare([str(path)], tmp_path / "out", config)
    splits = {name: rows_of(tmp_path / f"out/{name}.jsonl.gz") for name in report["splits"]}
    assert set(splits) == {"train", "valid", "test"}
    for low, high in (("train", "valid"), ("train", "test"), ("valid", "test")):
        assert not {r["context"] for r in splits[low]} & {r["context"] for r in splits[high]}
    # Each conversation is named by its first turn, so the conversation behind a row can be found again.
    conversations = {turn: " ".join(row["turns"]) for row in rows for turn in row["turns"][:2]}
    texts = {
        name: {conversations[row["context"]] for row in rows if row["context"] in conversations}
        for name, rows in splits.items()
    }
    worst = max(brute_overlap(a, b) for a in texts["train"] for b in texts["test"] | texts["valid"])
    assert worst <= 0.9


def test_resplit_keeps_near_duplicates_together(tmp_path, write_rows):
    """Ten near-identical copies of each of 40 conversations: a drop would lose nine of ten, a resplit loses none."""
    rows = [
        {
            "turns": [
                f"{topic} one two three four five six {topic}",
                f"seven {topic} eight {topic} nine copy{copy}",
            ]
        }
        for topic in (f"topic{n}" for n in range(40))
        for copy in range(10)
    ]
    path = write_rows(tmp_path / "d.jsonl", rows)
    report = prepare([str(path)], tmp_path / "out", configure("overlap.mode=resplit"))
    found = {
        name: {row["context"].split()[0] for row in rows_of(tmp_path / f"out/{name}.jsonl.gz")}
        for name in report["splits"]
    }
    assert (
        not found["train"] & found["test"]
        and not found["train"] & found["valid"]
        and not found["valid"] & found["test"]
    )
    assert {name: numbers["pairs"] for name, numbers in report["splits"].items()} == {
        "train": 360,
        "valid": 20,
        "test": 20,
    }


def test_files_are_split_by_dialogue(tmp_path, write_rows):
    path = write_rows(tmp_path / "d.jsonl", [{"turns": [f"t{n} a", f"t{n} b", f"t{n} c"]} for n in range(200)])
    for name in ("one", "two"):
        prepare([str(path)], tmp_path / name, configure("overlap.near=false", "split.valid=0.1"))
    found = {}
    for split in ("train", "valid", "test"):
        assert (tmp_path / f"one/{split}.jsonl.gz").read_bytes() == (tmp_path / f"two/{split}.jsonl.gz").read_bytes()
        found[split] = {row["context"].split()[0] for row in rows_of(tmp_path / f"one/{split}.jsonl.gz")}
    assert [len(found[split]) for split in ("train", "valid", "test")] == [170, 20, 10]
    assert len(set.union(*found.values())) == 200
    prepare([str(path)], tmp_path / "other", configure("overlap.near=false", "seed=1"))
    assert {row["context"].split()[0] for row in rows_of(tmp_path / "other/test.jsonl.gz")} != found["test"]


def test_grouping_puts_equal_contexts_into_one_row(tmp_path, write_rows):
    rows = [pair("hello there", f"reply {n}") for n in range(3)] + [pair("good bye", "see you", "reply 0")]
    write_rows(tmp_path / "in/train.jsonl", rows)
    prepare([str(tmp_path / "in")], tmp_path / "apart")
    assert rows_of(tmp_path / "apart/train.jsonl.gz") == rows
    prepare([str(tmp_path / "in")], tmp_path / "grouped", configure("group=true"))
    assert rows_of(tmp_path / "grouped/train.jsonl.gz") == [
        pair("hello there", "reply 0", "reply 1", "reply 2"),
        pair("good bye", "see you", "reply 0"),
    ]


def test_generic_responses_are_capped_and_train_is_limited_by_whole_rows(tmp_path, write_rows):
    rows = [pair(f"What about number {i}?", "That's cool!", f"I like {i}.", "that's COOL") for i in range(40)]
    for split in ("train", "valid"):
        write_rows(tmp_path / "in" / f"{split}.jsonl", [{**row, "context": split + row["context"]} for row in rows])
    overrides = ("overlap.mode=report", "clean.duplicates=false")
    report = prepare(str(tmp_path / "in"), tmp_path / "capped", configure("clean.max_uses=3", *overrides))
    for split in ("train", "valid"):
        said = [text for row in rows_of(tmp_path / "capped" / f"{split}.jsonl.gz") for text in row["responses"]]
        assert len(said) == 43 and sum("cool" in text.lower() for text in said) == 3
    assert report["limits"]["max_uses"]["pairs"] == 2 * 77 and report["limits"]["max_uses"]["examples"]

    report = prepare(str(tmp_path / "in"), tmp_path / "fewer", configure("train_pairs=31", *overrides))
    train, valid = (rows_of(tmp_path / "fewer" / f"{split}.jsonl.gz") for split in ("train", "valid"))
    assert [len(row["responses"]) for row in train] == [3] * 10 and len(valid) == 40
    assert report["limits"] == {"train_pairs": {"pairs": 90}}
    pairs = [{"context": row["context"], "response": text} for row in rows for text in row["responses"]]
    write_rows(tmp_path / "single" / "train.jsonl", pairs)
    prepare(str(tmp_path / "single"), tmp_path / "grouped", configure("train_pairs=31", "group=true", *overrides))
    assert [len(row["responses"]) for row in rows_of(tmp_path / "grouped" / "train.jsonl.gz")] == [3] * 10
    again = prepare(str(tmp_path / "in"), tmp_path / "other", configure("train_pairs=31", "seed=1", *overrides))
    assert again["limits"] == report["limits"]
    assert rows_of(tmp_path / "other" / "train.jsonl.gz") != train


def test_turns_acts_and_other_scripts_survive(tmp_path, write_rows):
    rows = [
        {"context": ["早上 好", "你 好 吗"], "responses": ["很 好"]},
        {"context": "天气 不错", "responses": ["是 的", "不 是"], "acts": ["agree", "disagree"]},
    ]
    write_rows(tmp_path / "in/train.jsonl", rows)
    prepare([str(tmp_path / "in")], tmp_path / "out", configure("language=zh"))
    assert rows_of(tmp_path / "out/train.jsonl.gz") == [
        {"context": ["早上好", "你好吗"], "responses": ["很好"], "acts": None},
        {"context": "天气不错", "responses": ["是的", "不是"], "acts": ["agree", "disagree"]},
    ]


def test_what_is_written_reads_back_without_a_bad_row(tmp_path, write_rows):
    rows = [
        {
            "context": f"hello {n} there",
            "responses": [f"one {n}", f"two {n}"],
            **({"acts": ["a", "b"]} if n % 2 else {}),
        }
        for n in range(40)
    ]
    write_rows(tmp_path / "in/train.jsonl", rows)
    prepare([str(tmp_path / "in")], tmp_path / "out", configure("group=true"))
    read = list(read_dialogues(tmp_path / "out/train.jsonl.gz", bad_rows=BadRows(strict=True)))
    assert [dialogue.acts for dialogue in read] == [("a", "b") if n % 2 else () for n in range(40)]


def test_grouped_rows_go_to_one_split_and_none_is_lost(tmp_path, write_rows):
    """Ten replies to each of 100 contexts, one in a row: splitting by row would tear every context apart."""
    words = "amber birch cedar dune elm fern grove heath iris jade".split()
    rows = [pair(f"{a} {b} question?", f"{c} {n} {b}") for n, c in enumerate(words) for a, b in product(words, words)]
    path = write_rows(tmp_path / "d.jsonl", rows)
    report = prepare([str(path)], tmp_path / "out", configure("group=true", "overlap.near=false"))
    assert sum(numbers["pairs"] for numbers in report["splits"].values()) == 1000
    for split in ("train", "valid", "test"):
        assert all(len(row["responses"]) == 10 for row in rows_of(tmp_path / f"out/{split}.jsonl.gz"))


def test_a_dropped_turn_takes_its_pairs_along_and_is_counted(tmp_path, write_rows):
    turns = ["hello", "hi", "see www.example.com", "no", "well then", "bye"]
    write_rows(tmp_path / "in/train.jsonl", [{"turns": turns}, b"{"])
    report = prepare([str(tmp_path / "in")], tmp_path / "out", configure("context_turns=2"))
    contexts = [row["context"] for row in rows_of(tmp_path / "out/train.jsonl.gz")]
    assert contexts == ["hello", ["no", "well then"]]
    assert report["rules"]["urls"] == {"rewrites": False, "utterances": 1, "pairs": 3, "examples": [turns[2]]}
    assert report["read"] == {"rows": 1, "conversations": 1, "pairs": 5, "pairs_after_cleaning": 2}
    assert report["bad_rows"]["count"] == 1 and report["bad_rows"]["first"][0]["line"] == 2


def test_what_cannot_be_prepared(tmp_path, write_rows):
    train = write_rows(tmp_path / "in/train.jsonl", [pair("hello", "hi")])
    for name in ("mixed/train.jsonl", "mixed/notes.jsonl", "headless/test.jsonl", "empty_valid/train.jsonl"):
        write_rows(tmp_path / name, [pair("hello", "hi")])
    write_rows(tmp_path / "empty_valid/valid.jsonl", [pair("hello", "♪")])
    for inputs, overrides, message in (
        ([str(tmp_path / "none.jsonl")], [], "no such file or folder"),
        ([str(tmp_path / "in"), str(train)], [], "found both"),
        ([str(train)], [], "too few to split"),
        ([str(tmp_path / "in")], ["language=zh"], "all 1 pairs were dropped"),
        ([str(tmp_path)], [], "expected files named train, valid or test"),
        (["smalltalk-implicit"], ["overlap.mode=resplit"], "smalltalk-implicit are fixed"),
        ([str(tmp_path / "mixed")], [], "found also notes.jsonl"),
        ([str(tmp_path / "headless")], [], "expected a file named train"),
        ([str(tmp_path / "empty_valid")], [], "nothing is left of valid"),
    ):
        with pytest.raises(DataError, match=message):
            prepare(inputs, tmp_path / "out", configure(*overrides))
        assert not (tmp_path / "out").exists()
        assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_only_an_earlier_result_is_replaced_and_only_on_demand(tmp_path, write_rows):
    write_rows(tmp_path / "in/train.jsonl", [pair("hello", "hi")])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    prepare(str(tmp_path / "in"), str(tmp_path / "out"))
    for name, overwrite, message in (
        ("out", False, "not empty"),
        ("mine", False, "not empty"),
        ("mine", True, "an earlier result"),
        ("in", True, "an earlier result"),
        ("file", True, "found a file or a link"),
        ("link", True, "found a file or a link"),
    ):
        with pytest.raises(PolyReplyError, match=message):
            prepare([str(tmp_path / "in")], tmp_path / name, overwrite=overwrite)
    assert (tmp_path / "mine/thesis.txt").read_text() == (tmp_path / "file").read_text() == "keep"
    write_rows(tmp_path / "in/train.jsonl", [pair("good", "bye")])
    prepare([str(tmp_path / "in")], tmp_path / "out", overwrite=True)
    assert rows_of(tmp_path / "out/train.jsonl.gz") == [pair("good", "bye")]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "in", "link", "mine", "out"]


def test_a_folder_filled_meanwhile_is_not_replaced(tmp_path):
    with pytest.raises(OSError), new_folder(tmp_path / "out") as scratch:
        (scratch / "out").mkdir()
        (tmp_path / "out").mkdir()
        (tmp_path / "out/theirs.txt").write_text("keep")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out/theirs.txt").read_text() == "keep"


@pytest.mark.parametrize("name", ["it's", "a b", "ünï"])
def test_any_folder_name_will_do(tmp_path, write_rows, name):
    write_rows(tmp_path / name / "train.jsonl", [pair("hello", "hi")])
    prepare([str(tmp_path / name)], tmp_path / f"{name} out")
    assert rows_of(tmp_path / f"{name} out/train.jsonl.gz") == [pair("hello", "hi")]


def test_a_recipe_made_in_python_is_checked(tmp_path):
    with pytest.raises(RecipeError, match="language: input should be 'en', 'zh' or 'any'"):
        prepare(["chitchat"], tmp_path / "out", PrepareRecipe(language="fr"))
    with pytest.raises(RecipeError, match="context_turns"):
        prepare(["chitchat"], tmp_path / "out", PrepareRecipe(context_turns=0))


def test_an_interrupt_during_a_query_is_an_interrupt(tmp_path, monkeypatch):
    def rows(split, seed):
        yield pair("Where are you?", "At home.")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        slow = "SELECT count(*) FROM range(1000000) a, range(20000) b WHERE (a.range * b.range) % 7 = 3"
        duckdb.connect().execute(slow).fetchall()

    monkeypatch.setitem(CORPORA, "slow", Corpus(rows))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            prepare("slow", tmp_path / "out")
    finally:
        signal.signal(signal.SIGINT, before)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_output_folder(tmp_path, write_rows, how):
    write_rows(tmp_path / "in/train.jsonl", [pair(f"hello {n}", "hi") for n in range(200_000)])
    command = [
        sys.executable,
        "-m",
        "polyreply",
        "prepare",
        str(tmp_path / "in"),
        "--out",
        str(tmp_path / "out"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.*/work.duckdb")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, how)
    _, errors = process.communicate()
    assert process.returncode != 0
    assert not (tmp_path / "out").exists()
    if how != signal.SIGKILL:
        assert not list(tmp_path.glob(".out.*"))
    if how == signal.SIGTERM:
        assert process.returncode == 143 and b"interrupted" not in errors
    if how == signal.SIGINT:
        assert process.returncode == 130 and b"interrupted" in errors
