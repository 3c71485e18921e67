"""Data folders: every form of dialogues becomes the same folder, split by context, complete or absent."""

import gzip
import json
import warnings
from pathlib import Path

import pytest

from polyreply.data.dialogue import BadRows, Dialogue
from polyreply.data.folder import data_folder, split_files, write_dialogues
from polyreply.data.read import read_dialogues
from polyreply.errors import DataError, PolyReplyError

ROWS = [{"context": f"question {n}", "responses": [f"answer {n}", f"other answer {n}"]} for n in range(40)]
DIALOGUES = [Dialogue((row["context"],), tuple(row["responses"])) for row in ROWS]


def read(folder):
    return {split: list(read_dialogues(path)) for split, path in split_files(folder).items()}


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def csv_file(folder):
    lines = [f"question {n},{word} {n}" for n in range(40) for word in ("answer", "other answer")]
    (folder / "rows.csv").write_text("\n".join(["context,response", *lines]))
    return folder / "rows.csv"


def json_file(folder):
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))
    return folder / "rows.jsonl.gz"


def dataset(folder):
    import datasets

    return datasets.Dataset.from_list(ROWS)


def dataset_dict(folder):
    import datasets

    return datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})


@pytest.mark.parametrize(
    "dialogues",
    [
        lambda folder: ROWS,
        lambda folder: iter(ROWS),
        lambda folder: DIALOGUES,
        lambda folder: {"train": ROWS},
        lambda folder: json_file(folder),
        lambda folder: str(json_file(folder)),
        dataset,
        dataset_dict,
    ],
    ids=["rows", "iterator", "Dialogue", "mapping", "Path", "str", "Dataset", "DatasetDict"],
)
def test_every_form_of_the_same_dialogues_gives_the_same_bytes(tmp_path, dialogues):
    expected = content(data_folder(ROWS, tmp_path / "expected"))
    assert content(data_folder(dialogues(tmp_path), tmp_path / "out")) == expected
    assert set(expected) == {"train.jsonl.gz", "valid.jsonl.gz"}


@pytest.mark.parametrize(
    "row, dialogue",
    [
        ({"context": ["x", "a"], "response": "b"}, Dialogue(("x", "a"), ("b",))),
        (
            {"context": "a", "responses": ["b", "c"], "acts": ["joke", "ask"]},
            Dialogue(("a",), ("b", "c"), ("joke", "ask")),
        ),
        ({"turns": ["a", "b"]}, Dialogue(("a",), ("b",))),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            Dialogue(("a",), ("b",)),
        ),
        (Dialogue(("a",), ("b",), ("joke",)), Dialogue(("a",), ("b",), ("joke",))),
        ({"question": "a", "answer": "b", "id": 3}, Dialogue(("a",), ("b",))),
    ],
)
def test_every_form_of_a_row(tmp_path, row, dialogue):
    assert read(data_folder([row], tmp_path / "out")) == {"train": [dialogue]}


def test_a_csv_file(tmp_path):
    splits = read(data_folder(csv_file(tmp_path), tmp_path / "out"))
    assert sum(map(len, splits.values())) == 80
    assert {d.context for d in splits["train"]}.isdisjoint({d.context for d in splits["valid"]})


def test_a_folder_is_returned_as_it_is(tmp_path):
    write_dialogues(tmp_path / "mine/train.jsonl", DIALOGUES)
    assert data_folder(tmp_path / "mine", tmp_path / "out") == tmp_path / "mine"
    assert data_folder(str(tmp_path / "mine"), tmp_path / "out") == tmp_path / "mine"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rows, held_out", [(19, 0), (20, 1), (40, 2), (500, 25), (30_000, 1000)])
def test_about_a_twentieth_of_the_contexts_is_held_out(tmp_path, rows, held_out):
    splits = read(data_folder(({"context": f"{n}", "response": "yes"} for n in range(rows)), tmp_path / "out"))
    assert len(splits.get("valid", [])) == held_out
    assert len(splits["train"]) == rows - held_out


def test_equal_contexts_are_on_the_same_side_in_the_order_of_the_input(tmp_path):
    rows = [{"context": f"question {n % 50}", "response": f"answer {n}"} for n in range(500)]
    splits = read(data_folder(rows, tmp_path / "out"))
    contexts = {split: {d.context for d in dialogues} for split, dialogues in splits.items()}
    assert len(contexts["train"]) == 48 and len(contexts["valid"]) == 2
    assert not contexts["train"] & contexts["valid"]
    for dialogues in splits.values():
        numbers = [int(d.responses[0].split()[1]) for d in dialogues]
        assert numbers == sorted(numbers)
    assert read(data_folder(rows, tmp_path / "other", seed=1))["valid"] != splits["valid"]


def test_a_single_context_is_not_held_out(tmp_path):
    rows = [{"context": "hello", "response": f"{n}"} for n in range(100)]
    assert set(read(data_folder(rows, tmp_path / "out"))) == {"train"}


def test_splits_of_a_dataset_are_kept(tmp_path):
    splits = {"train": ROWS, "validation": [{"turns": ["a", "b"]}], "test": [{"turns": ["c", "d"]}]}
    found = read(data_folder(splits, tmp_path / "out"))
    assert found["train"] == DIALOGUES
    assert found["valid"] == [Dialogue(("a",), ("b",))] and found["test"] == [Dialogue(("c",), ("d",))]
    without_valid = read(data_folder({"train": ROWS, "test": [{"turns": ["c", "d"]}]}, tmp_path / "other"))
    assert len(without_valid["valid"]) == 2 and len(without_valid["test"]) == 1


def test_conversations_have_as_many_turns_of_context_as_asked_for(tmp_path):
    found = read(data_folder([{"turns": ["a", "b", "c", "d"]}], tmp_path / "out", context_turns=2))
    assert [d.context for d in found["train"]] == [("a",), ("a", "b"), ("b", "c")]


def test_bad_rows_are_left_out_and_reported(tmp_path):
    rows = [*ROWS, {"context": "no answer"}, {"context": "a", "response": 3}, "text", {"turns": ["a", "\ud800"]}]
    with pytest.warns(UserWarning, match=r"4 bad rows .* line 41: no response"):
        folder = data_folder(rows, tmp_path / "out")
    assert content(folder) == content(data_folder(ROWS, tmp_path / "expected"))
    bad_rows = BadRows()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data_folder(rows, tmp_path / "out", bad_rows=bad_rows)
    assert bad_rows.count == 4 and [row["line"] for row in bad_rows.first] == [41, 42, 43, 44]


@pytest.mark.parametrize(
    "dialogues, facts",
    [
        ([{"context": "a"}, {"response": "b"}], "2 bad rows: line 1, no response"),
        ([], "empty"),
        ({"context": "a", "response": "b"}, "context, response"),
        ({"validation": ROWS, "test": ROWS}, "valid, test"),
        ("missing.jsonl", "missing.jsonl"),
    ],
)
def test_what_cannot_be_used_is_one_clear_error(tmp_path, dialogues, facts):
    with pytest.raises(DataError, match=facts):
        data_folder(dialogues, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_replaced_by_its_equal_only(tmp_path):
    before = content(data_folder(ROWS, tmp_path / "out"))
    assert content(data_folder(ROWS, tmp_path / "out")) == before
    with pytest.raises(DataError, match="other data"):
        data_folder(ROWS[:30], tmp_path / "out")
    (tmp_path / "out/notes.txt").write_text("keep")
    with pytest.raises(DataError, match="other data"):
        data_folder(ROWS, tmp_path / "out")
    assert content(tmp_path / "out") == {**before, "notes.txt": b"keep"}
    (tmp_path / "file").write_text("keep")
    with pytest.raises(PolyReplyError, match="found a file"):
        data_folder(ROWS, tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz"])
def test_what_is_written_reads_back(tmp_path, name):
    dialogues = [Dialogue(("早上好", "hi\nthere"), ("“ok”",)), Dialogue(("a",), ("b", "c"), ("joke", "ask"))]
    assert write_dialogues(tmp_path / name, iter(dialogues)) == 2
    assert list(read_dialogues(tmp_path / name, bad_rows=BadRows(strict=True))) == dialogues


def test_split_files(tmp_path):
    for name in ("train.jsonl", "train.csv", "valid.csv.gz"):
        (tmp_path / name).touch()
    assert split_files(tmp_path) == {"train": tmp_path / "train.jsonl", "valid": tmp_path / "valid.csv.gz"}
    assert split_files(tmp_path / "train.csv") == {"train": tmp_path / "train.csv"}
    with pytest.raises(DataError, match="nothing"):
        split_files(Path("nothing"))
