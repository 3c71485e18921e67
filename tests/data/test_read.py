"""Reading dialogue rows, from files and in memory: every form, compressed files, and rows that are wrong."""

import csv
import gzip
import io
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyreply.data.dialogue import BadRows, Dialogue
from polyreply.data.read import read_dialogues, read_rows
from polyreply.errors import DataError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip())


def read(path, **options):
    bad_rows = BadRows()
    return list(read_dialogues(path, bad_rows=bad_rows, **options)), bad_rows


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize(
    "row, dialogue",
    [
        ({"context": "a", "responses": ["b", "c"]}, Dialogue(("a",), ("b", "c"))),
        ({"context": ["x", "a"], "responses": ["b"]}, Dialogue(("x", "a"), ("b",))),
        ({"context": "a", "response": "b", "score": 3}, Dialogue(("a",), ("b",))),
        ({"context": "a", "responses": ["b"], "acts": ["joke"]}, Dialogue(("a",), ("b",), ("joke",))),
    ],
)
def test_jsonl_forms(tmp_path, write_rows, row, dialogue, ending):
    path = write_rows(tmp_path / f"d{ending}", [row])
    assert read(path) == ([dialogue], BadRows())


@pytest.mark.parametrize(
    "context_turns, contexts", [(1, [("a",), ("b",), ("c",)]), (2, [("a",), ("a", "b"), ("b", "c")])]
)
def test_each_turn_is_answered_by_the_next(tmp_path, write_rows, context_turns, contexts):
    path = write_rows(tmp_path / "d.jsonl", [{"turns": ["a", "b", "c", "d"]}])
    dialogues, _ = read(path, context_turns=context_turns)
    assert [dialogue.context for dialogue in dialogues] == contexts
    assert [dialogue.responses for dialogue in dialogues] == [("b",), ("c",), ("d",)]


def message(role, content):
    return {"role": role, "content": content}


A, B, C, D = (message(role, text) for role, text in zip(("user", "assistant") * 2, "abcd", strict=True))
SYSTEM = message("system", "Be brief.")


@pytest.mark.parametrize(
    "messages, dialogues",
    [
        ([A, B], [Dialogue(("a",), ("b",))]),
        ([SYSTEM, A, B, C, D], [Dialogue(("a",), ("b",)), Dialogue(("a", "b", "c"), ("d",))]),
        ([A, C, B], [Dialogue(("a\nc",), ("b",))]),
        ([A, SYSTEM, C, B, D, C], [Dialogue(("a\nc",), ("b\nd",))]),
        ([B, A, D], [Dialogue(("b", "a"), ("d",))]),
    ],
    ids=["pair", "system", "same role", "system between", "greeting"],
)
def test_each_assistant_message_answers_the_turns_before_it(tmp_path, write_rows, messages, dialogues):
    path = write_rows(tmp_path / "d.jsonl", [{"messages": messages}])
    assert read(path, context_turns=3) == (dialogues, BadRows())
    as_columns = {name: [one[name] for one in messages] for name in ("role", "content")}
    for row in ({"messages": messages}, {"messages": as_columns}, {"conversations": messages}):
        [record] = read_rows([row], "rows", BadRows(strict=True))
        assert list(record.dialogues(3)) == dialogues


@given(st.lists(st.tuples(TEXT, st.lists(TEXT, min_size=1, max_size=3)), min_size=1, max_size=5))
def test_jsonl_gives_back_any_text(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "d.jsonl"
    path.write_text("".join(json.dumps({"context": c, "responses": r}) + "\n" for c, r in rows))
    assert [(d.context[0], list(d.responses)) for d in read(path)[0]] == rows


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
def test_csv_gives_back_any_text(tmp_path_factory, rows):
    rows = [row for row in rows if not {"nan", "null", "none", "n/a", "<na>"} & {t.strip().lower() for t in row}]
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("", "context", "response"), *((i, *row) for i, row in enumerate([("a", "b"), *rows]))])
    path = tmp_path_factory.mktemp("rows") / "d.csv.gz"
    path.write_bytes(gzip.compress(text.getvalue().encode()))
    assert [(d.context[0], d.responses[0]) for d in read(path)[0]] == [("a", "b"), *rows]


GOOD = {"context": "a", "response": "b"}


@pytest.mark.parametrize(
    "row, reason",
    [
        (b"{not json", "not JSON"),
        (b'{"context": "a", "response": "\xff"}', "invalid UTF-8"),
        (b'{"context": "a", "response": NaN}', "not JSON"),
        (b'[["a", "b"]]', "wrong type"),
        ({"response": "b"}, "no context"),
        ({"context": "a"}, "no response"),
        ({"context": 1, "response": "b"}, "wrong type"),
        ({"context": "a", "responses": "b"}, "wrong type"),
        ({"context": "a", "responses": ["b", None]}, "wrong type"),
        ({"context": " ", "response": "b"}, "empty context"),
        ({"context": "a", "response": " \n"}, "empty response"),
        ({"context": "a", "responses": []}, "empty response"),
        ({"context": [], "response": "b"}, "empty context"),
        ({"turns": ["a"]}, "at least 2 turns"),
        ({"turns": ["a", "", "b"]}, "empty turn"),
        ({"context": "a", "responses": ["b", "c"], "acts": ["joke"]}, "2 responses but 1 acts"),
        ({"messages": []}, "no response"),
        ({"messages": [B, A]}, "no response"),
        ({"messages": "a"}, "wrong type"),
        ({"messages": [A, "b"]}, "message 2: expected an object"),
        ({"messages": [A, message("tool", "b")]}, "message 2: expected the role"),
        ({"messages": [A, {"content": "b"}]}, "message 2: expected the role"),
        ({"messages": [A, {"role": "assistant"}]}, "message 2: expected content"),
        ({"messages": [A, message("assistant", [{"text": "b"}])]}, "message 2: expected content"),
        ({"messages": [A, message("assistant", " ")]}, "message 2: empty content"),
    ],
)
def test_a_bad_row_is_counted_with_its_line(tmp_path, write_rows, row, reason):
    path = write_rows(tmp_path / "d.jsonl", [GOOD, b"", row, GOOD])
    dialogues, bad_rows = read(path)
    assert len(dialogues) == 2 and bad_rows.count == 1
    assert bad_rows.first[0]["line"] == 3 and reason in bad_rows.first[0]["reason"]
    with pytest.raises(DataError, match=r"d\.jsonl, line 3"):
        list(read_dialogues(path, bad_rows=BadRows(strict=True)))
    with pytest.raises(DataError, match=r"only_bad\.jsonl.*1 bad rows: line 1"):
        read(write_rows(tmp_path / "only_bad.jsonl", [row]))
    if isinstance(row, dict) and row.get("responses") != "b":  # in memory, a text counts as a list of one
        bad_rows = BadRows()
        assert len(list(read_rows([GOOD, row], "rows", bad_rows))) == bad_rows.count == 1
        assert bad_rows.first[0]["line"] == 2 and reason in bad_rows.first[0]["reason"]


@given(st.lists(st.binary(max_size=30).filter(lambda row: b"\n" not in row), max_size=8))
def test_no_bytes_break_the_reader(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "d.jsonl"
    path.write_bytes(b"\n".join([json.dumps(GOOD).encode(), *rows]))
    dialogues, bad_rows = read(path)
    assert len(dialogues) == 1
    assert bad_rows.count == sum(bool(row.strip()) for row in rows)


@pytest.mark.parametrize(
    "cells, reason",
    [
        (b"a,", "missing value: the response is ''"),
        (b"nan,b", "missing value: the context is 'nan'"),
        (b"a,NaN", "missing value: the response is 'NaN'"),
        (b"only", "too few columns: found 1"),
        (b"a,\xff", "invalid UTF-8"),
        (b'"a"x,b', "not CSV up to line 4: ',' expected after '\"'; an unclosed quote?"),
    ],
)
def test_a_bad_row_of_a_csv(tmp_path, cells, reason):
    path = tmp_path / "d.csv"
    path.write_bytes(b'\xef\xbb\xbfContext, response \n"two\nlines",b\n' + cells + b"\nc,d\n")
    dialogues, bad_rows = read(path)
    assert [d.context for d in dialogues] == [("two\nlines",), ("c",)]
    assert bad_rows.first == [{"source": str(path), "line": 4, "reason": reason}]


def test_an_unclosed_quote_in_a_csv_does_not_swallow_rows_in_silence(tmp_path):
    lines = ["context,response", *(f"question {n},answer {n}" for n in range(20)), '"open,x', *["later,row"] * 5]
    (tmp_path / "d.csv").write_text("\n".join(lines))
    dialogues, bad_rows = read(tmp_path / "d.csv")
    assert len(dialogues) == 20
    assert bad_rows.first[0]["line"] == 22 and "up to line 27" in bad_rows.first[0]["reason"]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("d.csv", b"question,answer\na,b\n", "expected a first line with the columns context and response"),
        ("d.txt", b"a\tb\n", "expected a name ending in"),
        ("d.jsonl", b"", "the file is empty"),
        (
            "d.jsonl.gz",
            gzip.compress(b'{"context": "a", "response": "b"}\n' * 999, mtime=0)[:-20],
            "gzip data is broken",
        ),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "none.jsonl")


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(rows: int) -> int:
        path = tmp_path / f"{rows}.jsonl"
        path.write_text((json.dumps({"context": "how are you " * 5, "response": "fine " * 10}) + "\n") * rows)
        tracemalloc.start()
        for _ in read_dialogues(path):
            pass
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    peak(100)
    assert peak(20_000) < 2 * peak(2_000)
