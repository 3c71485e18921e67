"""Balanced load, balanced sides, spaced repeats."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from polyreply.study.balance import balanced_sides, in_order, most_repeats, share_out


@given(st.integers(1, 7), st.data(), st.integers(0, 9))
def test_every_comparison_gets_its_votes_and_nobody_works_more(annotators, data, seed):
    votes = data.draw(st.integers(1, annotators))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    numbers = iter(range(sum(sizes)))
    strata = [[next(numbers) for _ in range(size)] for size in sizes]
    loads = share_out(strata, annotators, votes, random.Random(seed))
    assert Counter(one for load in loads for one in load) == dict.fromkeys(range(sum(sizes)), votes)
    assert all(len(set(load)) == len(load) for load in loads)
    assert max(map(len, loads)) - min(map(len, loads)) <= 1
    for stratum in strata:
        own = [len(set(load) & set(stratum)) for load in loads]
        assert max(own) - min(own) <= 2


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=60), st.integers(0, 9))
def test_sides_are_even_for_every_annotator_and_every_comparison(edges, seed):
    edges = sorted(edges)
    swapped = balanced_sides(edges, random.Random(seed))
    assert len(swapped) == len(edges)
    for half in (0, 1):
        surplus = Counter()
        for edge, side in zip(edges, swapped, strict=True):
            surplus[edge[half]] += 1 if side else -1
        assert all(abs(count) <= 1 for count in surplus.values())


def test_sides_are_random():
    edges = [(annotator, comparison) for annotator in range(5) for comparison in range(20)]
    shares = Counter()
    for seed in range(200):
        for edge, side in zip(edges, balanced_sides(edges, random.Random(seed)), strict=True):
            shares[edge] += side
    assert all(60 < shares[edge] < 140 for edge in edges)


@given(st.integers(0, 60), st.integers(0, 5), st.data(), st.integers(0, 9))
def test_repeats_come_long_after_their_originals(comparisons, checks, data, seed):
    repeats = data.draw(st.integers(0, most_repeats(comparisons)))
    gold = [f"gold {n}" for n in range(checks)]
    order, are_repeats = in_order(range(comparisons), repeats, gold, random.Random(seed))
    assert Counter(order) == Counter(range(comparisons)) + Counter(gold) + Counter(
        one for one, again in zip(order, are_repeats, strict=True) if again
    )
    assert sum(are_repeats) == repeats
    for place, (one, again) in enumerate(zip(order, are_repeats, strict=True)):
        if again:
            assert place - order.index(one) >= 0.2 * comparisons - 1 and not are_repeats[order.index(one)]
