"""Relevance: own context first of 50, people's beside it, and copied words."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyreply.errors import DataError
from polyreply.metrics import evaluate, relevance
from polyreply.metrics.tokenize import tokenizer_named

CONTEXTS = [
    "Do you like pizza?",
    ("Hi!", "Is the train late again?"),
    "Have you fed the cat?",
    "Can you play the piano?",
]


@pytest.fixture
def near_by_first_letter(monkeypatch):
    """Embeddings in which texts are near that begin with the same letter."""

    def embed(texts, report=None):
        vectors = np.zeros((len(texts), 128), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            if text:
                row[ord(text[0]) % 128] = 1
        return vectors

    monkeypatch.setattr(relevance, "embed", embed)


def test_own_context_first_by_hand(near_by_first_letter):
    contexts = ["apples", "bread", "cheese"]
    responses = [["a pie", "b", "", "an apple"], ["cake", "c", "c", "c"], ["c", "cream", "c", "c"]]
    found = relevance.relevance_columns(contexts, responses, [["a"], ["x", "b"], ["b"]], str.split)
    assert found["relevance"].tolist() == [50, 0, 100]
    assert found["relevance_references"].tolist() == [100, 50, 0]


def test_copied_words_by_hand(near_by_first_letter):
    found = relevance.relevance_columns(
        ["Do you like pizza?", "Hm."],
        [["I like pizza, you know.", "Do you?"], ["...", "?"]],
        None,
        tokenizer_named("wordpunct", "lower"),
    )
    assert found["copied"][0] == pytest.approx(100 * 5 / 7) and np.isnan(found["copied"][1])


@given(st.lists(st.sampled_from([f"context {n}" for n in range(80)]), min_size=1, max_size=120))
def test_candidates_are_the_own_context_and_others_with_other_texts(contexts):
    for own, candidates in enumerate(relevance.draw_candidates(contexts)):
        texts = [contexts[number] for number in candidates]
        assert texts[0] == contexts[own] and len(set(texts)) == len(texts)
        assert len(texts) == min(relevance.CANDIDATES, len(set(contexts)))


def test_real_replies_are_more_relevant_than_shuffled_ones():
    own = [["I love pizza.", "Only with olives."], ["Trains are always late.", "Ten minutes."]]
    own += [["The cat has eaten.", "Not yet."], ["I had piano lessons.", "A little."]]
    right = evaluate(own, own, contexts=CONTEXTS)
    wrong = evaluate([*own[1:], own[0]], own, contexts=CONTEXTS)
    assert right["relevance"] == right["relevance_references"] >= 50 > wrong["relevance"]
    assert wrong["relevance_references"] == right["relevance_references"]
    assert "|emb:all-MiniLM-L6-v2|rel:first-of-4|" in str(right.signature)
    assert type(right.signature).parse(str(right.signature)) == right.signature
    assert "relevance" in right.shown and "relevance" not in evaluate(own, own).numbers


def test_the_command_shows_it_beside_peoples(tmp_path, write_rows, polyreply_here):
    rows = [{"context": text, "responses": ["Yes.", "No."]} for text in CONTEXTS if isinstance(text, str)]
    files = [write_rows(tmp_path / name, rows) for name in ("responses.jsonl", "references.jsonl")]
    done = polyreply_here("evaluate", files[0], "-r", files[1], "--relevance", "--json")
    scores = json.loads(done.stdout)
    assert scores["relevance"] == scores["relevance_references"] and scores["copied"] == 0
    assert "Relevance" in polyreply_here("evaluate", files[0], "-r", files[1], "--relevance").stdout


def test_another_number_of_contexts_is_refused():
    with pytest.raises(DataError, match=r"expected 1 contexts.*found 2"):
        evaluate([["a"]], contexts=["b", "c"])
