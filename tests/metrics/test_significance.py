"""The tests keep their promised error rate, find real differences, and compute F anew from resampled P and R."""

import numpy as np
import pytest

from polyreply.errors import PolyReplyError
from polyreply.metrics.significance import has_number, intervals, paired_test

NUMBERS = ("bleu1_f", "bleu1_p", "bleu1_r", "pairwise_bleu")


def columns(seed, shift=0.0, contexts=200):
    generator = np.random.default_rng(seed)
    base = np.random.default_rng(0).gamma(2, 10, (3, contexts))  # hard and easy contexts are so for every system
    values = base + generator.normal(shift, 8, (3, contexts))
    return dict(zip(("bleu1_p", "bleu1_r", "pairwise_bleu"), values, strict=True))


def naive_f(p, r):
    return 2 * p.mean() * r.mean() / (p.mean() + r.mean())


@pytest.mark.parametrize("test", ["bootstrap", "permutation"])
def test_a_difference_is_found_and_its_absence_too(test):
    found = paired_test(columns(1, 3), columns(2), NUMBERS, test=test)
    assert all(one.p_value < 0.01 and one.low > 0 for one in found.values())
    same = paired_test(columns(1), columns(1), NUMBERS, test=test)
    assert all(one.value == 0 and one.p_value == 1 for one in same.values())


@pytest.mark.parametrize("test", ["bootstrap", "permutation"])
def test_luck_is_called_significant_about_as_often_as_promised(test):
    trials = [
        paired_test(columns(n, contexts=60), columns(1000 + n, contexts=60), NUMBERS, test=test, samples=200)
        for n in range(200)
    ]
    for number in NUMBERS:
        assert 0.01 < np.mean([trial[number].p_value < 0.05 for trial in trials]) < 0.11, number


def test_f_is_recomputed_from_the_same_resample_as_p_and_r():
    system = columns(3)
    found = intervals(system, NUMBERS, samples=400, seed=7)
    draws = np.random.default_rng(7).integers(200, size=(400, 200))
    expected = [naive_f(system["bleu1_p"][draw], system["bleu1_r"][draw]) for draw in draws]
    assert found["bleu1_f"] == pytest.approx(tuple(np.quantile(expected, [0.025, 0.975])))


def test_permutation_swaps_p_and_r_of_a_context_together():
    ours, theirs = columns(4, 1), columns(5)
    found = paired_test(ours, theirs, ["bleu1_f"], test="permutation", samples=300, seed=3)["bleu1_f"]
    coins = np.random.default_rng(3).integers(2, size=(300, 200)).astype(bool)

    def f_of(swap, one, two):
        return naive_f(*(np.where(swap, two[name], one[name]) for name in ("bleu1_p", "bleu1_r")))

    null = [f_of(swap, ours, theirs) - f_of(swap, theirs, ours) for swap in coins]
    assert found.value == pytest.approx(f_of(False, ours, theirs) - f_of(False, theirs, ours))
    assert found.p_value == pytest.approx((1 + np.sum(np.abs(null) >= abs(found.value))) / 301)


def test_chunks_do_not_matter(monkeypatch):
    arguments = (columns(1, 1), columns(2), NUMBERS)
    whole = [paired_test(*arguments, test=test, seed=5) for test in ("bootstrap", "permutation")]
    monkeypatch.setattr("polyreply.metrics.significance._CELLS", 1000)
    parts = [paired_test(*arguments, test=test, seed=5) for test in ("bootstrap", "permutation")]
    for one, two in zip(whole, parts, strict=True):
        assert {name: vars(value) for name, value in one.items()} == {
            name: pytest.approx(vars(value)) for name, value in two.items()
        }


def test_the_seed_decides():
    run = [paired_test(columns(1, 0.5), columns(2), NUMBERS, seed=seed)["bleu1_p"].p_value for seed in (1, 1, 2)]
    assert run[0] == run[1] != run[2]


def test_contexts_without_a_value_do_not_count():
    ours, theirs = columns(1, 5), columns(2)
    ours["pairwise_bleu"][:50] = theirs["pairwise_bleu"][:50] = np.nan
    found = paired_test(ours, theirs, ["pairwise_bleu"])["pairwise_bleu"]
    assert found.value == pytest.approx(np.nanmean(ours["pairwise_bleu"]) - np.nanmean(theirs["pairwise_bleu"]))
    low, high = intervals(ours, ["pairwise_bleu"])["pairwise_bleu"]
    assert low < np.nanmean(ours["pairwise_bleu"]) < high


def test_numbers_that_a_system_lacks_are_left_out():
    ours, theirs = columns(1), columns(2)
    del theirs["bleu1_r"]
    ours["pairwise_bleu"][:] = np.nan
    assert set(paired_test(ours, theirs, NUMBERS)) == {"bleu1_p"}
    assert not has_number(theirs, "bleu1_f") and has_number(ours, "bleu1_f")
    assert paired_test(ours, theirs, ["dist9"]) == {}


@pytest.mark.parametrize("test", ["bootstrap", "permutation"])
def test_one_context_tests_nothing(test):
    ours, theirs = columns(1, 5, contexts=1), columns(2, contexts=1)
    for one in paired_test(ours, theirs, NUMBERS, test=test).values():
        assert (one.low, one.high, one.p_value) == (None, None, None) and one.value != 0
    assert intervals(ours, NUMBERS) == {}


def test_one_context_with_a_value_in_both_tests_nothing_either():
    ours, theirs = columns(1, 5), columns(2)
    ours["pairwise_bleu"][2:] = theirs["pairwise_bleu"][1:] = np.nan
    found = paired_test(ours, theirs, NUMBERS)
    assert found["pairwise_bleu"].p_value is None and found["bleu1_f"].p_value is not None
    assert "pairwise_bleu" in intervals(ours, NUMBERS) and "pairwise_bleu" not in intervals(theirs, NUMBERS)


def test_different_contexts_cannot_be_paired():
    with pytest.raises(PolyReplyError, match="needs the same contexts, found 200 and 100"):
        paired_test(columns(1), columns(2, contexts=100), NUMBERS)
    with pytest.raises(PolyReplyError, match="at least 1 resample"):
        paired_test(columns(1), columns(2), NUMBERS, samples=0)
