"""Responses and references are joined by position, and a mismatch is named with its row and its fix."""

import gzip
import json
import re

import pytest

from polyreply.errors import DataError
from polyreply.metrics.response_files import join_files, read_responses


def row(context, *responses, **more):
    return {"context": context, "responses": list(responses), **more}


SAID = [row("a", "1", "2"), row("b", "3", ""), row("a", "5", "6", decoders=[0, 1], logprobs=[-1.5, -2.0])]
GOLD = [row("a", "x"), row("b", "y", "z"), row("a", "w")]


@pytest.fixture
def join(tmp_path, write_rows):
    def run(said, gold, names=("said.jsonl", "gold.jsonl"), **options):
        return join_files(write_rows(tmp_path / names[0], said), write_rows(tmp_path / names[1], gold), **options)

    return run


def test_repeated_contexts_are_joined_by_position(join):
    joined = join(SAID, GOLD, names=("said.jsonl.gz", "gold.jsonl.gz"))
    assert joined.contexts == [("a",), ("b",), ("a",)]
    assert joined.responses == [("1", "2"), ("3", ""), ("5", "6")]
    assert joined.references == [("x",), ("y", "z"), ("w",)]
    assert joined.left_out == ""


def test_a_context_of_one_turn_may_be_a_text_or_a_list(join):
    assert join([row(["a"], "1"), row(["a", "b"], "1")], [row("a", "x"), row(["a", "b"], "x")]).contexts[1] == (
        "a",
        "b",
    )


def test_conversations_and_csv_are_references_too(tmp_path, write_rows, join):
    said = [row("a", "1"), row(["a", "b"], "2")]
    assert join(said, [{"turns": ["a", "b", "c"]}], context_turns=2).references == [("b",), ("c",)]
    table = tmp_path / "gold.csv"
    table.write_text("context,response\na,x\nb,y\n")
    joined = join_files(write_rows(tmp_path / "s.jsonl", [row("a", "1"), row("b", "2")]), table)
    assert joined.references == [("x",), ("y",)]


def test_a_bad_row_of_the_references_is_left_out_as_reply_leaves_it_out(join):
    joined = join([row("a", "1"), row("b", "1")], [row("a", "x"), b"{", row("b", "y")])
    assert joined.references == [("x",), ("y",)]
    assert "1 bad row of" in joined.left_out and "line 2, not JSON" in joined.left_out
    with pytest.raises(DataError, match=r"line 2: not JSON.*evaluate without --strict"):
        join([row("a", "1"), row("b", "1")], [row("a", "x"), b"{", row("b", "y")], strict=True)


def test_empty_references_are_scored_where_the_responses_have_rows_for_them(join):
    gold = [row("a", "x"), row("b", "", "y"), {"context": "c", "response": ""}, row("d", "z")]
    everything = join([row(name, "1") for name in "abcd"], gold)
    assert everything.references == [("x",), ("", "y"), ("",), ("z",)] and everything.left_out == ""
    fewer = join([row("a", "1"), row("d", "1")], gold)
    assert fewer.references == [("x",), ("z",)] and "2 bad rows" in fewer.left_out
    assert "the first: line 2, empty response" in fewer.left_out
    assert join([row(name, "1") for name in "abcd"], gold, strict=True).references == everything.references
    with pytest.raises(DataError, match="line 2: empty response; fix the row or evaluate without --strict"):
        join([row("a", "1"), row("d", "1")], gold, strict=True)


def test_references_may_all_be_empty(join):
    assert join([row("a", "1"), row("b", "1")], [row("a", ""), row("b", "", " ")]).references == [("",), ("", " ")]


def test_empty_references_in_csv(tmp_path, write_rows):
    gold = tmp_path / "gold.csv"
    gold.write_text("context,response\na,x\nb,\nc,nan\n")
    said = write_rows(tmp_path / "said.jsonl", [row("a", "1"), row("b", "1")])
    joined = join_files(said, gold)
    assert joined.references == [("x",), ("",)] and "1 bad row of" in joined.left_out
    assert join_files(write_rows(tmp_path / "one.jsonl", [row("a", "1")]), gold).references == [("x",)]


@pytest.mark.parametrize(
    "said, gold, message",
    [
        (
            [row("a", "1"), row("c", "1")],
            [row("a", "x"), row("b", "x")],
            "line 2 (row 2): expected the context 'b' of {gold}, line 2, found 'c'; reply to that file again",
        ),
        (
            [row("b", "1"), row("a", "1")],
            [row("a", "x"), row("b", "x")],
            "line 1 (row 1): expected the context 'a' of {gold}, line 1, found 'b'; the contexts are the same in "
            "another order: sort one file like the other",
        ),
        (
            [row("a", "1")],
            [row("a", "x"), row("b", "x")],
            "expected 2 rows, one for each context of {gold}, found 1; the first without a partner is line 2 of "
            "{gold}, 'b'; reply to that file again",
        ),
        (
            [row("a", "1"), b"", row(["b", "c"], "1")],
            [row("a", "x")],
            "expected 1 rows, one for each context of {gold}, found 2; the first without a partner is line 3 of "
            "{said}, ['b', 'c']; reply to that file again",
        ),
        (
            [row("a", "1"), row("b", "1")],
            [row("a", "x"), b"{", row("c", "x")],
            "found 'b'; reply to that file again, or name the references these responses were made for; 1 bad row of",
        ),
        (
            [row("a", "1", "2"), row("b", "1")],
            [row("a", "x"), row("b", "x")],
            "line 2: expected 2 responses as in line 1, found 1;",
        ),
        (
            [b"", row("word " * 40, "1")],
            [row("a", "x")],
            "line 2 (row 1): expected the context 'a' of {gold}, line 1, found 'word word",
        ),
    ],
)
def test_a_mismatch_names_the_row_and_the_fix(tmp_path, join, said, gold, message):
    with pytest.raises(DataError) as caught:
        join(said, gold)
    text = str(caught.value)
    assert text.startswith(str(tmp_path / "said.jsonl")) and "\n" not in text
    assert message.format(gold=tmp_path / "gold.jsonl", said=tmp_path / "said.jsonl") in text


@pytest.mark.parametrize(
    "expected, found, message",
    [
        (
            "caf\u00e9",
            "cafe\u0301",
            r"the context 'caf\xe9' of * found 'cafe\u0301'; they differ only in their Unicode form",
        ),
        (
            " a  b",
            "a b",
            "the context ' a  b' of * found 'a b'; they differ only in white space: write both files alike",
        ),
        ("a\u200bb", "ab", r"'a\u200bb' of * found 'ab'; they differ only in invisible characters"),
        ("Hi", "hi", "'Hi' of * found 'hi'; they differ only in upper and lower case"),
        (["a", "b / c"], ["a / b", "c"], "['a', 'b / c'] of * found ['a / b', 'c']; reply to that file again"),
        (["a"], ["a", "b"], "['a'] of * found ['a', 'b']; reply"),
        ("x" * 80 + "1 end", "x" * 80 + "2", f"the context …'{'x' * 30}1 end' of * found …'{'x' * 30}2'; reply"),
        ("y" + "x" * 99, "z", f"the context 'y{'x' * 59}'… of * found 'z'; reply"),
        (["a" * 70, "b"], ["a" * 70, "c"], f"…{'a' * 26}', 'b'] of * found …{'a' * 26}', 'c']; reply"),
        ("e\u0301 x", "\u00e9 y", "the context 'e\u0301 x' of * found '\u00e9 y'; reply"),
        ("e\u0301" + "x" * 90 + "1", "\u00e9" + "x" * 90, rf"'e\u0301{'x' * 58}'… of * found '\xe9{'x' * 59}'…; reply"),
        ("你好", "你", "the context '你好' of * found '你'; reply"),
    ],
)
def test_a_mismatch_shows_the_difference(tmp_path, join, expected, found, message):
    with pytest.raises(DataError) as caught:
        join([row(found, "1")], [row(expected, "x")])
    shown = str(caught.value).replace(f"{tmp_path / 'gold.jsonl'}, line 1,", "*")
    assert message in shown


@pytest.mark.parametrize(
    "name, content, message",
    [
        (".", None, "expected a file, found a folder; name a file in it"),
        ("gold.jsonl", b"", "the file is empty; name a file with rows such as"),
        ("gold.jsonl", b"hello\n", "1 bad rows: line 1, not JSON: * name a file with rows such as"),
        ("gold.txt", b"hello\n", "(or one of these with .gz); rename or convert it"),
    ],
)
def test_references_that_cannot_be_read_come_with_a_fix(tmp_path, write_rows, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=".*".join(map(re.escape, message.split("*")))):
        join_files(write_rows(tmp_path / "said.jsonl", [row("a", "1")]), tmp_path / name)


def test_k_may_vary_when_asked(join):
    assert join([row("a", "1", "2"), row("b", "1")], [row("a", "x"), row("b", "x")], variable_k=True).responses[1] == (
        "1",
    )


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "expected rows such as"),
        (b"plain text\n", "line 1: not JSON"),
        (b'\n["a"]\n', "line 2: expected `object`, got `array`"),
        (b'{"context": "a", "response": "b"}\n', "line 1: object missing required field `responses`"),
        (b'{"context": "a", "responses": "b"}\n', "line 1: expected `array`, got `str` - at `$.responses`"),
        (b'{"context": "a", "responses": ["b", null]}\n', "line 1: expected `str`, got `null` - at `$.responses[1]`"),
        (b'{"context": "a", "responses": []}\n', "line 1: no response"),
        (b'{"context": "\xff", "responses": ["b"]}\n', "line 1: invalid UTF-8"),
        (b'{"context": "a", "responses": ["\\ud800"]}\n', "line 1: half of a surrogate pair"),
        (b'{"context": "a", "responses": ["\\ud83d\\ude00"]\n', "line 1: not JSON"),
        (gzip.compress(b'{"context": "a", "responses": ["b"]}\n', mtime=0)[:-9], "the gzip data is broken"),
    ],
)
def test_a_responses_file_in_the_wrong_format_is_one_clear_line(tmp_path, content, message):
    path = tmp_path / "said.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_responses(path)
    assert str(path) in str(caught.value) and message in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_and_folders(tmp_path):
    for path, message in ((tmp_path / "none", "there is no such file"), (tmp_path, "found a folder")):
        with pytest.raises(DataError, match=message):
            read_responses(path)


def test_a_byte_order_mark_is_no_part_of_the_row(tmp_path):
    (tmp_path / "s.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(row("a", "b")).encode())
    assert read_responses(tmp_path / "s.jsonl")[0].texts == ("b",)
