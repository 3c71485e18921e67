"""m diverse responses, against the definition."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyreply.decoding.select import diverse_subset, similarity
from polyreply.errors import PolyReplyError

TOKENS = st.lists(st.integers(0, 2), max_size=3)
RESPONSES = st.lists(st.tuples(TOKENS, st.integers(-3, 0)), min_size=1, max_size=8)
"""Few tokens and few log-probabilities, so that equal responses and ties are common."""


def chosen(pairs, m):
    return diverse_subset([tokens for tokens, _ in pairs], m, logprobs=[float(logprob) for _, logprob in pairs])


@given(RESPONSES, st.integers(1, 10))
def test_each_step_takes_the_least_similar(pairs, m):
    """Every other choice at a step would be a repeat, more similar, less likely, or later."""
    taken = chosen(pairs, m)
    assert len(taken) == min(m, len(pairs))

    def rank(place, before):
        tokens, logprob = pairs[place]
        shared = [similarity(Counter(tokens), Counter(pairs[other][0])) for other in before]
        return (tokens in [pairs[other][0] for other in before], max(shared, default=0.0), -logprob, place)

    for step, place in enumerate(taken):
        left = [other for other in range(len(pairs)) if other not in taken[:step]]
        assert place == min(left, key=lambda other: rank(other, taken[:step]))


@given(RESPONSES, st.integers(1, 9))
def test_the_first_m_of_more_are_the_choice_of_m(pairs, m):
    assert chosen(pairs, m + 1)[:m] == chosen(pairs, m)
    assert sorted(chosen(pairs, len(pairs))) == list(range(len(pairs)))


@given(RESPONSES, st.integers(1, 8))
def test_no_response_twice_while_others_are_left(pairs, m):
    distinct = {tuple(tokens) for tokens, _ in pairs}
    found = {tuple(pairs[place][0]) for place in chosen(pairs, m)}
    assert len(found) == min(m, len(distinct))


@given(RESPONSES)
def test_one_is_the_most_likely(pairs):
    [place] = chosen(pairs, 1)
    assert pairs[place][1] == max(logprob for _, logprob in pairs)


@given(TOKENS, TOKENS)
def test_similarity_is_a_share_that_is_one_for_equal_bags_only(a, b):
    value = similarity(Counter(a), Counter(b))
    assert 0 <= value <= 1 and value == similarity(Counter(b), Counter(a))
    assert (value == 1) == (sorted(a) == sorted(b))
    assert (value == 0) == (not set(a) & set(b) and bool(a or b))


@pytest.mark.parametrize(
    "texts, logprobs, m, expected",
    [
        (["I am fine .", "I am fine!", "Not so good", "I am not fine"], [-1.0, -0.5, -4.0, -3.0], 3, [1, 2, 3]),
        (["Yes.", "yes", "No."], None, 2, [0, 2]),
        (["Yes.", "yes", "No."], None, 5, [0, 2, 1]),
        (["我很好", "我很好啊", "不知道"], [-2.0, -1.0, -9.0], 2, [1, 2]),
        (["a b", "b a", "a b"], [-1.0, -3.0, -2.0], 2, [0, 1]),
        ([], None, 3, []),
    ],
)
def test_texts_are_compared_by_their_words(texts, logprobs, m, expected):
    assert diverse_subset(texts, m, logprobs=logprobs) == expected


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: diverse_subset(["a"], 0), "m must be 1 or more, found 0"),
        (lambda: diverse_subset(["a", "b"], 1, logprobs=[0.0]), "each of 2 responses, found 1"),
        (lambda: diverse_subset(["a", [1]], 1), "found 1 of 2 texts"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(PolyReplyError, match=message):
        call()
