"""What `evaluate` returns besides BLEU: kinds of responses, the signature, and clear errors."""

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest

from polyreply import __version__
from polyreply.errors import DataError
from polyreply.metrics import PAPER_NUMBERS, Scores, evaluate

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


def test_identical_short_responses_are_seen_where_pairwise_bleu_is_0():
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


def test_progress_is_reported():
    told = []
    evaluate(RESPONSES, REFERENCES, notify=lambda stage, share: told.append((stage, share)))
    assert told == [("scoring", 0.0)]


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
