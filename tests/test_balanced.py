"""The balanced assignment is exact: equal in cost to SciPy's on duplicated columns, whatever the costs."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from polyreply.em.balanced import balanced_assignment
from polyreply.errors import PolyReplyError


def posterior_costs(random, number, num_decoders, spread=3.0):
    score = spread * random.standard_normal((number, num_decoders))
    share = np.exp(score - score.max(1, keepdims=True))
    return -share / share.sum(1, keepdims=True)


def saturated(random, number, num_decoders):
    cost = np.zeros((number, num_decoders))
    cost[np.arange(number), random.integers(0, num_decoders, number)] = -1.0
    return cost


KINDS = {
    "posterior": posterior_costs,
    "peaked posterior": lambda random, n, k: posterior_costs(random, n, k, 60.0),
    "saturated": saturated,
    "constant": lambda random, n, k: np.full((n, k), random.normal()),
    "equal rows": lambda random, n, k: np.repeat(random.normal(size=(1, k)), n, 0),
    "few values": lambda random, n, k: random.integers(-2, 3, (n, k)).astype(float),
    "negative": lambda random, n, k: -random.random((n, k)) * 100,
    "huge": lambda random, n, k: random.normal(size=(n, k)) * 1e12,
    "tiny": lambda random, n, k: random.normal(size=(n, k)) * 1e-12,
    "mixed sizes": lambda random, n, k: random.normal(size=(n, k)) * 10.0 ** random.integers(-6, 6, (n, 1)),
}


def total(cost, decoders):
    return cost[np.arange(len(cost)), decoders].sum()


def scipy_total(cost, capacities):
    owner = np.repeat(np.arange(cost.shape[1]), capacities)
    rows, columns = linear_sum_assignment(cost[:, owner])
    return cost[rows, owner[columns]].sum()


@pytest.mark.parametrize("kind", KINDS)
def test_cost_equals_scipys(kind):
    random = np.random.default_rng(len(kind))
    for _ in range(250):
        num_decoders = int(random.integers(1, 9))
        number = int(random.choice([num_decoders, random.integers(1, 50)]))
        cost = KINDS[kind](random, number, num_decoders)
        capacities = random.multinomial(number, random.dirichlet(np.ones(num_decoders)))
        found = balanced_assignment(cost, capacities, seed=3)
        assert (np.bincount(found.decoder_N, minlength=num_decoders) == capacities).all()
        tolerance = 1e-9 * max(np.abs(cost).max(), 1e-300) * number
        assert total(cost, found.decoder_N) <= scipy_total(cost, capacities) + tolerance
        again = balanced_assignment(cost, capacities, seed=4, prices_K=found.prices_K)
        assert total(cost, again.decoder_N) <= total(cost, found.decoder_N) + tolerance, "warm start changed the cost"


def test_sizes_differ_by_one_at_most_and_the_cost_decides_who_gets_more():
    random = np.random.default_rng(0)
    for _ in range(100):
        number, num_decoders = int(random.integers(0, 14)), int(random.integers(1, 5))
        cost = posterior_costs(random, number, num_decoders)
        found = balanced_assignment(cost)
        sizes = np.bincount(found.decoder_N, minlength=num_decoders)
        assert sizes.sum() == number and sizes.max() - sizes.min() <= 1
        low, more = divmod(number, num_decoders)
        choices = itertools.combinations(range(num_decoders), more)
        capacities = ([low + (k in chosen) for k in range(num_decoders)] for chosen in choices)
        best = min((scipy_total(cost, c) for c in capacities), default=0.0) if number else 0.0
        assert total(cost, found.decoder_N) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("kind", ["saturated", "constant", "few values"])
def test_ties_are_broken_by_the_second_cost(kind):
    """Exactly: of the assignments of the lowest cost, the lowest second cost. The oracle adds it, weighted lightly."""
    random = np.random.default_rng(1)
    for _ in range(150):
        num_decoders = int(random.integers(2, 6))
        number = num_decoders * int(random.integers(1, 7))
        cost = np.round(KINDS[kind](random, number, num_decoders))
        second = random.integers(0, 50, (number, num_decoders)).astype(float)
        found = balanced_assignment(cost, tie_NK=second, seed=int(random.integers(100)))
        capacities = [number // num_decoders] * num_decoders
        joint = cost * 1e4 + second
        assert total(joint, found.decoder_N) == pytest.approx(scipy_total(joint, capacities), abs=1e-6)


def test_the_seeded_order_is_unbiased_and_repeatable():
    cost = np.zeros((40, 4))
    first = np.array([balanced_assignment(cost, seed=seed).decoder_N for seed in range(400)])
    shares = np.stack([(first == k).mean(0) for k in range(4)])
    assert np.abs(shares - 0.25).max() < 0.12, "a sample's place decides its decoder"
    again = balanced_assignment(cost, seed=7).decoder_N
    assert (again == first[7]).all() and (first[7] != first[8]).any()


def test_the_order_of_the_samples_does_not_matter():
    random = np.random.default_rng(2)
    cost = posterior_costs(random, 60, 5)
    order = random.permutation(60)
    assert (balanced_assignment(cost[order]).decoder_N == balanced_assignment(cost).decoder_N[order]).all()


@pytest.mark.parametrize("kind", ["posterior", "saturated", "constant"])
@pytest.mark.parametrize("num_decoders", [2, 10, 40])
def test_large_problems_have_prices_that_prove_them_optimal(kind, num_decoders):
    cost = KINDS[kind](np.random.default_rng(5), 40_000, num_decoders)
    found = balanced_assignment(cost)
    assert (np.bincount(found.decoder_N, minlength=num_decoders) == 40_000 // num_decoders).all()
    priced = cost + found.prices_K
    assert (total(priced, found.decoder_N) - priced.min(1).sum()) / 40_000 < 1e-11


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_cost_that_is_no_number_names_its_row(value):
    cost = np.zeros((9, 3))
    cost[5, 1] = value
    with pytest.raises(PolyReplyError, match="row 5"):
        balanced_assignment(cost)
    with pytest.raises(PolyReplyError, match="row 5"):
        balanced_assignment(np.zeros((9, 3)), tie_NK=cost)


def test_capacities_have_to_fit():
    for capacities in ([1, 1], [2, 2, 2], [5, -1, 0], [1.5, 1.5, 1]):
        with pytest.raises(PolyReplyError, match="capacities"):
            balanced_assignment(np.zeros((4, 3)), capacities)
