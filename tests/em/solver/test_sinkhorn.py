"""Balanced soft weights against a general convex solver, the exact assignment and their own definition."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from polyreply.em.solver.balanced import balanced_assignment
from polyreply.em.solver.sinkhorn import sinkhorn
from polyreply.errors import PolyReplyError

COSTS = st.tuples(st.integers(1, 12), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(0, 20).map(lambda value: round(value, 1)))
)
"""Rounded, so that ties are common."""


def balanced(found, shape, tolerance=1e-6):
    number, num_decoders = shape
    np.testing.assert_allclose(found.weights_NK.sum(1), 1, rtol=0, atol=1e-14)
    np.testing.assert_allclose(found.weights_NK.sum(0), number / num_decoders, rtol=1.1 * tolerance)
    return found.error <= tolerance


@settings(deadline=None, max_examples=300)
@given(COSTS, st.sampled_from([1e6, 100, 1, 0.1, 1e-2, 1e-4, 1e-6, 1e-12]))
def test_rows_and_columns_have_their_sums(cost_NK, temperature):
    assert balanced(sinkhorn(cost_NK, temperature), cost_NK.shape)


@settings(deadline=None)
@given(COSTS, st.sampled_from([100, 1, 0.1]))
def test_weights_have_the_form_that_makes_them_optimal(cost_NK, temperature):
    """A = exp(-(C + row + column) / T): with the right sums that is the optimum, and no other weights have it."""
    found = sinkhorn(cost_NK, temperature)
    log_NK = -(cost_NK + found.prices_K) / temperature
    expected_NK = np.exp(log_NK - np.logaddexp.reduce(log_NK, axis=1)[:, None])
    np.testing.assert_allclose(found.weights_NK, expected_NK, rtol=1e-9, atol=1e-300)
    assert abs(found.prices_K.mean()) < 1e-9


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_general_convex_solver_finds_the_same(temperature, seed):
    cost_NK = np.random.default_rng(seed).normal(size=(4, 2))

    def objective(first_N):
        weights_NK = np.column_stack([first_N, 1 - first_N])
        return (weights_NK * cost_NK).sum() + temperature * (weights_NK * np.log(weights_NK)).sum()

    best = minimize(
        objective,
        np.full(4, 0.5),
        bounds=[(1e-9, 1 - 1e-9)] * 4,
        constraints={"type": "eq", "fun": lambda first_N: first_N.sum() - 2},
        options={"ftol": 1e-14},
    )
    found = sinkhorn(cost_NK, temperature, tolerance=1e-12)
    np.testing.assert_allclose(found.weights_NK[:, 0], best.x, atol=1e-5)
    assert objective(found.weights_NK[:, 0]) <= best.fun + 1e-9


@pytest.mark.parametrize("kind", ["random", "one decoder is far better", "one decoder is hopeless", "tied"])
def test_cost_falls_to_that_of_the_exact_assignment(kind):
    cost_NK = np.random.default_rng(1).normal(0, 3, (640, 10))
    if kind == "one decoder is far better":
        cost_NK[:, 3] -= 100
    if kind == "one decoder is hopeless":
        cost_NK[:, 3] += 1000
    if kind == "tied":
        cost_NK = (cost_NK < -3).astype(float)
    exact = cost_NK[np.arange(640), balanced_assignment(cost_NK).decoder_N].sum()
    totals = []
    for temperature in 10.0 ** np.arange(3, -7, -1):
        found = sinkhorn(cost_NK, temperature)
        assert balanced(found, cost_NK.shape)
        totals.append((found.weights_NK * cost_NK).sum())
    slack = 1e-6 * np.abs(cost_NK).sum()  # columns are balanced to 1e-6 only
    assert all(colder <= hotter + slack for hotter, colder in pairwise(totals))
    assert totals[0] > exact + 100 * slack
    assert totals[-1] == pytest.approx(exact, abs=slack)


def test_cost_exceeds_the_exact_one_by_the_entropy_at_most():
    """The classical bound: temperature · N · log K."""
    cost_NK = np.random.default_rng(1).normal(size=(60, 5))
    exact = cost_NK[np.arange(60), balanced_assignment(cost_NK).decoder_N].sum()
    for temperature in (1, 0.1, 0.01):
        excess = (sinkhorn(cost_NK, temperature).weights_NK * cost_NK).sum() - exact
        assert -1e-4 < excess < temperature * 60 * np.log(5)


def test_hot_weights_are_uniform():
    cost_NK = np.random.default_rng(1).normal(size=(640, 10))
    np.testing.assert_allclose(sinkhorn(cost_NK, 1e9).weights_NK, 0.1, rtol=1e-6)
    np.testing.assert_array_equal(sinkhorn(cost_NK, np.inf).weights_NK, np.full((640, 10), 0.1))


def test_what_all_decoders_of_a_sample_cost_more_does_not_matter():
    cost_NK, rng = np.random.default_rng(1).normal(size=(64, 4)), np.random.default_rng(2)
    moved_NK = cost_NK + rng.normal(0, 1000, (64, 1)) + rng.normal(0, 10, 4)
    np.testing.assert_allclose(sinkhorn(moved_NK, 0.5).weights_NK, sinkhorn(cost_NK, 0.5).weights_NK, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_prices_of_a_similar_problem_save_sweeps(temperature):
    rng = np.random.default_rng(1)
    cost_NK = rng.normal(0, 3, (640, 10)) + 3 * np.arange(10)
    before = sinkhorn(cost_NK + rng.normal(0, 0.1, (640, 10)), temperature)
    cold, warm = sinkhorn(cost_NK, temperature), sinkhorn(cost_NK, temperature, prices_K=before.prices_K)
    np.testing.assert_allclose(warm.weights_NK, cold.weights_NK, atol=1e-5)
    assert warm.sweeps < cold.sweeps


@pytest.mark.parametrize("temperature", [1.0, 1e-3])
def test_misleading_prices_do_no_harm(temperature):
    rng = np.random.default_rng(1)
    cost_NK = rng.normal(0, 3, (640, 10))
    found = sinkhorn(cost_NK, temperature, prices_K=rng.normal(0, 1e6, 10))
    assert balanced(found, cost_NK.shape)


def test_too_few_sweeps_leave_columns_off_and_say_so():
    cost_NK = np.random.default_rng(1).normal(0, 3, (640, 10)) + 3 * np.arange(10)
    found = sinkhorn(cost_NK, 0.01, max_sweeps=1)
    np.testing.assert_allclose(found.weights_NK.sum(1), 1, rtol=0, atol=1e-14)
    assert found.error == pytest.approx(np.abs(found.weights_NK.sum(0) / 64 - 1).max())
    assert found.error > 0.1


def test_sweeps_stay_few():
    """A count of passes, because time depends on the machine; plain Sinkhorn needs thousands at the lower ones."""
    cost_NK = np.random.default_rng(1).normal(0, 3, (6400, 10)) + np.arange(10)
    assert all(sinkhorn(cost_NK, temperature).sweeps < 60 for temperature in (10, 1, 0.1, 0.01, 1e-3, 1e-4))


@pytest.mark.parametrize("temperature", [0, -1, np.nan])
def test_only_positive_temperatures(temperature):
    with pytest.raises(PolyReplyError, match="temperature: expected a number above 0"):
        sinkhorn([[1, 2], [3, 4]], temperature)
