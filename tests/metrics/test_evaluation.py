"""What `evaluate` returns beside BLEU: kinds of responses, signatures, files, and clear errors."""

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from polyreply import __version__
from polyreply.errors import DataError, PolyReplyError
from polyreply.files import write_files
from polyreply.metrics import PAPER_NUMBERS, Scores, Signature, evaluate, load_scores

RESPONSES = [["hello there", "how are you?", "hello there"], ["no", "yes", ""]]
REFERENCES = [["hello", "how do you do?"], ["yes", "of course", "no way"]]


def test_the_nine_numbers_and_their_signature():
    scores = evaluate(RESPONSES, REFERENCES)
    assert list(scores.numbers)[:6] == "bleu1_f bleu1_p bleu1_r bleu2_f bleu2_p bleu2_r".split()
    assert all(isinstance(scores[name], float) for name in PAPER_NUMBERS)
    assert str(scores.signature) == "tok:wordpunct|case:lower|smooth:none|avg:contexts|k:3|refs:2-3|v:" + __version__
    assert scores.num_contexts == 2 and all(len(column) == 2 for column in scores.per_context.values())


def test_responses_alone_give_diversity_alone():
    scores = evaluate(RESPONSES)
    assert scores["bleu1_f"] is None and "bleu1_p" not in scores.per_context
    assert scores["dist1"] == evaluate(RESPONSES, REFERENCES)["dist1"]
    assert scores.signature.references == "none"


def test_one_response_has_no_pairs():
    scores = evaluate([["hi there"], ["ok"]], [["hi"], ["ok"]])
    assert (
        scores["pairwise_bleu"] is scores["self_bleu"] is scores["identical"] is scores["corpus_pairwise_bleu"] is None
    )
    assert np.isnan(scores.per_context["pairwise_bleu"]).all()


def test_identical_short_responses_show_beside_pairwise_bleu():
    scores = evaluate([["ok .", "ok .", "OK."]])
    assert scores["pairwise_bleu"] < 1e-70 and scores["identical"] == 100
    assert "100.0 % of the pairs of responses are identical" in scores.notes[0]
    assert evaluate([["this is long enough here", "this is long enough here"]])["pairwise_bleu"] == pytest.approx(100)


def test_a_context_without_a_pair_does_not_count_in_pairwise_bleu():
    same = ["one two three four"] * 2
    scores = evaluate([same, ["one"]], variable_k=True)
    assert scores["pairwise_bleu"] == pytest.approx(100)
    assert str(scores.signature.k) == "variable(1-2)"


@pytest.mark.parametrize(
    "text, question",
    [("Why?", 1), ('He said "why?"', 1), ("Really?!", 1), ("你在哪里？", 1), ("Why? Because.", 0), ("why", 0), ("", 0)],
)
def test_questions(text, question):
    assert evaluate([[text, "no"]])["questions"] == 50 * question


@pytest.mark.parametrize(
    "text, repeats",
    [
        ("what what what what", 1),
        ("what what what", 0),
        ("well, no no no no", 1),
        ("i know i know i know i know", 1),
        ("i know i know i know", 0),
        ("a b c d e f g h " * 4, 1),
        ("a b c d e f g h i " * 4, 0),
        ("a a b a a b a a", 0),
        ("", 0),
    ],
)
def test_repeating(text, repeats):
    scores = evaluate([[text, "fine", "fine too"]])
    assert scores["repeating"] == pytest.approx(100 * repeats / 3)


def test_repetition_does_not_reach_over_responses():
    assert evaluate([["a a", "a a", "a a"]])["repeating"] == 0


def test_lengths_and_empty_responses():
    scores = evaluate([["", " ", "one two", "one, two"]])
    assert scores["length"] == 5 / 4 and scores["empty"] == 50


@pytest.mark.parametrize(
    "responses, references, message",
    [
        ([], [], "at least one context"),
        ([["a"]], [["a"], ["b"]], "expected references for 1 contexts, .* found 2"),
        ([["a"], []], None, "row 2: expected a list of at least one response, found none"),
        ([["a"]], [[]], "row 1: expected a list of at least one reference, found none"),
        (["a b"], None, "row 1: expected a list of at least one response, found a text"),
        ([["a"], [None]], None, "row 2: expected a list of at least one response, found None among the texts"),
        (
            [["a"], ["b"]],
            [["a"], ["b", 3]],
            "row 2: expected a list .* one reference, found 3 among the texts",
        ),
        ([["a"], None], None, "row 2: expected a list of at least one response, found none"),
        ([7], None, "row 1: expected a list of at least one response, found 7"),
        ([["a"], ["a", "b"]], None, "row 2: expected 1 responses as in row 1, found 2; .*--variable-k"),
    ],
)
def test_bad_input_names_the_row(responses, references, message):
    with pytest.raises(DataError, match=message):
        evaluate(responses, references)


def test_progress_is_told():
    told = []
    evaluate(RESPONSES, REFERENCES, notify=lambda stage, share: told.append((stage, share)))
    assert told == [("scoring", 0.0)]


@pytest.mark.parametrize("name", ["scores.json", "scores.json.gz"])
def test_a_saved_file_reads_back(tmp_path, name):
    scores = evaluate([*RESPONSES, ["x", "y", "z"]], [*REFERENCES, ["x y"]], system="ours")
    scores.save(tmp_path / name)
    again = load_scores(tmp_path / name)
    assert again.numbers == scores.numbers and again.signature == scores.signature
    assert (again.system, again.data, again.num_contexts) == ("ours", scores.data, 3)
    for column, values in scores.per_context.items():
        np.testing.assert_allclose(again.per_context[column], values, atol=5e-5)
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def test_a_file_is_plain_json(tmp_path):
    evaluate([["a"]], [["a"]]).save(tmp_path / "s.json")
    tree = json.loads((tmp_path / "s.json").read_text())
    assert tree["schema_version"] == 1 and set(PAPER_NUMBERS) < set(tree)
    assert tree["pairwise_bleu"] is None and tree["per_context"]["pairwise_bleu"] == [None]
    assert load_scores(tmp_path / "s.json").system == ""


def test_a_file_is_not_replaced_unasked(tmp_path):
    scores, path = evaluate(RESPONSES), tmp_path / "s.json"
    path.write_text("mine")
    with pytest.raises(PolyReplyError, match="--overwrite"):
        scores.save(path)
    assert path.read_text() == "mine"
    scores.save(path, overwrite=True)
    assert load_scores(path)["dist1"] == scores["dist1"]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        evaluate(RESPONSES).save(tmp_path / "s.json")
    assert not list(tmp_path.iterdir())


def broken(**changes):
    scores = evaluate([["a", "b"]], [["a"]])
    columns = {name: column.tolist() for name, column in scores.per_context.items()}
    return {**scores.summary(), "per_context": columns, **changes}


@pytest.mark.parametrize(
    "content, message",
    [
        (b"not json", "expected a score file as `polyreply evaluate --output` writes it"),
        (b"not json", "found something else (JSON is malformed"),
        (b'{"context": "a", "responses": ["b"]}\n', "object missing required field `schema_version`"),
        (b"[]", "expected a score file"),
        (b"\x1f\x8bxx", "expected a score file"),
        (broken(schema_version=9), "has schema version 9, and this polyreply reads up to 1; upgrade polyreply"),
        (broken(contexts=2), "expected 2 values of bleu1_p, one per context, found 1"),
        (broken(contexts=0, per_context={}), "expected the scores of at least 1 context, found 0; evaluate"),
        (
            broken(per_context={}),
            "behind bleu1_f, found no bleu1_p, bleu1_r; evaluate",
        ),
        (broken(bleu1_f="x"), "expected a number or null under bleu1_f, found 'x'"),
        (broken(dist2=True), "expected a number or null under dist2, found 'True'"),
        (broken(self_bleu=[1]), "expected a number or null under self_bleu, found '[1]'"),
        (broken(signature="new"), "expected a signature such as tok:…"),
        ({key: value for key, value in broken().items() if key != "dist1"}, "found no dist1"),
    ],
)
def test_a_file_that_is_no_score_file_is_one_clear_line(tmp_path, content, message):
    path = tmp_path / "s.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(PolyReplyError) as caught:
        load_scores(path)
    assert str(path) in str(caught.value) and message in str(caught.value) and "\n" not in str(caught.value)


def test_a_remark_of_ones_own_in_a_score_file_does_not_matter(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(broken(remark="mine", bleu1_f=None)))
    scores = load_scores(tmp_path / "s.json")
    assert "remark" not in scores.numbers and scores["bleu1_f"] is None


def test_several_files_are_written_together_or_not_at_all(tmp_path):
    with pytest.raises(OSError, match="File name too long"):
        write_files({tmp_path / "a": b"1", tmp_path / ("b" * 300): b"2"})
    assert not list(tmp_path.iterdir())
    write_files({tmp_path / "a": b"1", tmp_path / "new" / "b": b"2"})
    assert [path.read_bytes() for path in (tmp_path / "a", tmp_path / "new" / "b")] == [b"1", b"2"]


def test_signatures_read_back_and_tell_their_differences():
    one = Signature("wordpunct", "lower", "10", "1-5")
    assert Signature.parse(str(one)) == one
    other = Signature("zh", "lower", "variable(3-10)", "1-5", embeddings="m")
    assert Signature.parse(str(other)) == other
    assert one.differences(other) == ["tok: wordpunct and zh", "k: 10 and variable(3-10)"]
    assert other.differences(Signature("zh", "lower", "variable(3-10)", "1-5", embeddings="n")) == ["emb: m and n"]


def test_the_digest_follows_the_references():
    def digest(references) -> str:
        scores: Scores = evaluate([["a"]] * len(references), references)
        return scores.data

    assert digest([["a"], ["b"]]) == digest([["a"], ["b"]]) != digest([["b"], ["a"]])
    assert digest([["a", "b"], ["c"]]) != digest([["a"], ["b", "c"]])


def test_the_example_of_the_documentation_prints_what_it_says():
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert examples
    for code, expected in examples:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, {})
        assert printed.getvalue() == re.sub(r"v:[\d.]+", f"v:{__version__}", expected)
