"""Overlap rules against brute force."""

import re
from collections import Counter
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyreply.data.overlap import NearDuplicateIndex, exact_key, tokens


def brute_tokens(text):
    return re.findall(r"[\u4e00-\u9fff]|[^\W_\u4e00-\u9fff]+", text.lower())


@cache
def counted(text):
    return Counter(brute_tokens(text))


def brute_overlap(a, b):
    a, b = counted(a), counted(b)
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 0.0


@pytest.mark.parametrize(
    "text, same",
    [
        ("Hello, World!", "hello world"),
        ("it 's OK .", "It's ok"),
        ("你好，世界。", "你好 世界"),
        ("Ünïcode…", "ünïcode"),
    ],
)
def test_equal_after_lower_casing_and_removing_punctuation(text, same):
    assert exact_key(pa.array([text])) == exact_key(pa.array([same]))


def test_a_text_of_punctuation_is_only_equal_to_itself():
    assert exact_key(pa.array(["?", "!", "?"])).to_pylist() == ["?", "!", "?"]


def test_tokens_are_words_and_chinese_characters():
    found = tokens(pa.array(["It's me, No no!", "我爱iPad。", "..."])).to_pylist()
    assert found == [["it", "s", "me", "no", "no"], ["我", "爱", "ipad"], []]


WORDS = st.lists(st.sampled_from("a b c d e f g h 你 好 no, no! A".split()), min_size=1, max_size=12).map(" ".join)


@settings(max_examples=150)
@given(st.lists(WORDS, max_size=8), st.lists(WORDS, max_size=8), st.sampled_from([0.3, 0.5, 0.75, 0.9]))
def test_near_duplicates_are_those_of_brute_force(held_out, train, threshold):
    index = NearDuplicateIndex(pa.array(held_out, pa.string()), threshold)
    found = index.find(pa.array(train, pa.string()))
    scores = np.array([[brute_overlap(a, b) for b in held_out] for a in train]).reshape(len(train), len(held_out))
    near = scores > threshold + 1e-12
    assert found.probe.tolist() == near.any(axis=1).tolist()
    assert index.hit.tolist() == near.any(axis=0).tolist()
    assert all(near[probe, indexed] for probe, indexed in found.links)
    everything = NearDuplicateIndex(pa.array(held_out, pa.string()), threshold)
    links = everything.find(pa.array(train, pa.string()), every_link=True).links
    assert {tuple(link) for link in links.tolist()} == set(zip(*np.nonzero(near), strict=True))


def test_natural_text_with_many_sizes_against_brute_force():
    """Skewed word frequencies and long texts, so that every filter has something to do."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(3000)])
    share = 1 / (np.arange(3000) + 2.7)
    texts = [" ".join(rng.choice(words, rng.integers(3, 80), p=share / share.sum())) for _ in range(400)]
    copies = [" ".join(rng.permutation(text.split())[: max(2, int(0.7 * len(text.split())))]) for text in texts[:60]]
    index = NearDuplicateIndex(pa.array(texts[:200]))
    probes = texts[200:] + copies
    near = np.array([[brute_overlap(a, b) > 0.75 for b in texts[:200]] for a in probes])
    assert near.any(axis=1).sum() >= 30
    assert index.find(pa.array(probes)).probe.tolist() == near.any(axis=1).tolist()


def test_the_threshold_is_exclusive():
    index = NearDuplicateIndex(pa.array(["a b c d"]))
    assert index.find(pa.array(["a b c x", "a b c d x", "a b c"])).probe.tolist() == [False, True, True]


def test_batches_find_what_one_pass_finds():
    texts = [f"the {i % 7} quick {i % 3} fox" for i in range(50)]
    whole, parts = NearDuplicateIndex(pa.array(texts[:9])), NearDuplicateIndex(pa.array(texts[:9]))
    once = whole.find(pa.array(texts)).probe.tolist()
    piecewise = [hit for text in texts for hit in parts.find(pa.array([text])).probe.tolist()]
    assert once == piecewise and whole.hit.tolist() == parts.hit.tolist()
