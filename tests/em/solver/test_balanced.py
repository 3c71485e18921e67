"""The balanced assignment against SciPy on duplicated columns, brute force, and its own prices as a proof."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from polyreply.em.solver.balanced import balanced_assignment
from polyreply.errors import PolyReplyError


def softmax(logits_NK):
    weights_NK = np.exp(logits_NK - logits_NK.max(1, keepdims=True))
    return weights_NK / weights_NK.sum(1, keepdims=True)


def one_hot(logits_NK):
    return (logits_NK == logits_NK.max(1, keepdims=True)).astype(float)


def repeated(rng, matrix_NK):
    """A few of the rows, each many times."""
    return matrix_NK[rng.integers(0, 1 + len(matrix_NK) // 8, len(matrix_NK))]


KINDS = {
    "normal": lambda rng, x: x,
    "posterior": lambda rng, x: -softmax(x),
    "sharp and biased posterior": lambda rng, x: -softmax(6 * x + 3 * rng.normal(size=x.shape[1])),
    "saturated posterior": lambda rng, x: -one_hot(x),
    "nearly saturated posterior": lambda rng, x: -softmax(300 * x),
    "constant": lambda rng, x: np.full(x.shape, x[0, 0]),
    "constant rows": lambda rng, x: np.repeat(x[:, :1], x.shape[1], 1),
    "some constant rows": lambda rng, x: np.where(rng.random((len(x), 1)) < 0.5, 0.1, x),
    "equal rows": repeated,
    "small whole numbers": lambda rng, x: np.rint(x),
    "large offset": lambda rng, x: x + 1e6,
    "huge": lambda rng, x: x * 1e12,
    "huge and tiny rows": lambda rng, x: x * 10.0 ** rng.integers(-12, 13, (len(x), 1)),
    "huge and tiny numbers": lambda rng, x: x * 10.0 ** rng.integers(-12, 13, x.shape),
    "along a line": lambda rng, x: np.abs(x[:, :1] - np.arange(x.shape[1])),
}


def total(cost_NK, decoder_N):
    return cost_NK[np.arange(len(decoder_N)), decoder_N].sum()


def scipy_total(cost_NK, capacities=None):
    """The lowest cost there is. Where sizes may differ by one, rows that cost nothing take a place at some decoders."""
    number, num_decoders = cost_NK.shape
    size, extra = divmod(number, num_decoders)
    if capacities is not None or not extra:
        columns_NN = np.repeat(cost_NK, [size] * num_decoders if capacities is None else capacities, 1)
        return columns_NN[linear_sum_assignment(columns_NN)].sum()
    spare = np.full((num_decoders - extra, num_decoders * (size + 1)), 1e4 * num_decoders * (1 + np.abs(cost_NK).max()))
    spare[:, :: size + 1] = 0.0
    rows, columns = linear_sum_assignment(np.vstack([np.repeat(cost_NK, size + 1, 1), spare]))
    return total(cost_NK, columns[rows < number] // (size + 1))


def random_capacities(rng, number, num_decoders):
    """Often very different from each other; some are zero."""
    return rng.multinomial(number, rng.dirichlet(np.full(num_decoders, rng.choice([0.2, 2.0]))))


def assert_sizes(decoder_N, num_decoders, capacities=None):
    sizes = np.bincount(decoder_N, minlength=num_decoders)
    if capacities is None:
        assert sizes.max() - sizes.min() <= 1
    else:
        assert sizes.tolist() == list(capacities)


def assert_proven(cost_NK, found):
    """No sample would be better off elsewhere at the prices, and no decoder with a place more is cheaper than others.

    Summed up over all samples, that is the proof that no assignment of these sizes costs less.
    """
    paid_NK = cost_NK + found.prices_K
    slack_N = paid_NK[np.arange(len(cost_NK)), found.decoder_N] - paid_NK.min(1)
    width = np.ptp(cost_NK, axis=1).max()
    assert slack_N.max() <= 1e-12 * width
    sizes = np.bincount(found.decoder_N, minlength=cost_NK.shape[1])
    if np.ptp(sizes) == 1:
        assert found.prices_K[sizes == sizes.max()].min() >= found.prices_K[sizes == sizes.min()].max() - 1e-12 * width


@pytest.mark.parametrize("kind", KINDS)
def test_total_cost_is_that_of_scipy(kind):
    rng = np.random.default_rng(len(kind))
    for trial in range(160):
        number, num_decoders = rng.integers(1, 61), rng.integers(1, 10)
        if trial % 20 == 0:
            number = num_decoders
        cost_NK = KINDS[kind](rng, rng.normal(size=(number, num_decoders)))
        capacities = None if trial % 2 else random_capacities(rng, number, num_decoders)
        tie_NK = rng.normal(size=cost_NK.shape) if trial % 3 else None
        found = balanced_assignment(cost_NK, capacities, tie_NK=tie_NK, seed=trial)
        assert_sizes(found.decoder_N, num_decoders, capacities)
        expected = scipy_total(cost_NK, capacities)
        assert abs(total(cost_NK, found.decoder_N) - expected) <= 1e-11 * number * np.abs(cost_NK).max()


@pytest.mark.parametrize(
    "number, num_decoders", [(600, 2), (700, 10), (645, 10), (480, 40), (300, 100), (37, 100), (1, 5)]
)
def test_many_decoders_and_many_samples_against_scipy(number, num_decoders):
    rng = np.random.default_rng(number)
    for kind in ("posterior", "sharp and biased posterior", "saturated posterior", "equal rows", "along a line"):
        cost_NK = KINDS[kind](rng, rng.normal(size=(number, num_decoders)))
        found = balanced_assignment(cost_NK)
        assert_sizes(found.decoder_N, num_decoders)
        assert total(cost_NK, found.decoder_N) == pytest.approx(scipy_total(cost_NK), rel=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_large_problems_prove_themselves(kind):
    rng = np.random.default_rng(1)
    number = 4003 if kind == "along a line" else 40_003
    for num_decoders, capacities in ((10, None), (7, random_capacities(rng, number, 7))):
        cost_NK = KINDS[kind](rng, rng.normal(size=(number, num_decoders)))
        found = balanced_assignment(cost_NK, capacities)
        assert_sizes(found.decoder_N, num_decoders, capacities)
        assert_proven(cost_NK, found)


@pytest.mark.parametrize("kind", ["saturated posterior", "constant rows", "equal rows", "small whole numbers"])
def test_ties_are_broken_by_the_secondary_cost(kind):
    """Whole numbers, so that SciPy can weigh the first cost so heavily that the second decides only between equals."""
    rng = np.random.default_rng(0)
    for trial in range(150):
        number, num_decoders = rng.integers(1, 50), rng.integers(1, 8)
        x_NK = rng.normal(size=(number, num_decoders))
        cost_NK, tie_NK = (
            KINDS[kind](rng, np.rint(2 * x_NK)),
            np.rint(10.0 ** (trial % 4) * rng.normal(size=x_NK.shape)),
        )
        capacities = None if trial % 2 else random_capacities(rng, number, num_decoders)
        found = balanced_assignment(cost_NK, capacities, tie_NK=tie_NK)
        both_NK = 2.0**24 * cost_NK + tie_NK
        assert total(both_NK, found.decoder_N) == scipy_total(both_NK, capacities)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_nothing_is_better_by_brute_force(data):
    """Numbers of few binary digits, which are not rounded: the best pair of totals is found exactly."""
    num_decoders, number = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    numbers = st.sampled_from([0.0, -1.0, 0.5, 0.25, 3.0, 1e9])
    size = 2 * number * num_decoders
    values = data.draw(st.lists(numbers, min_size=size, max_size=size))
    cost_NK, tie_NK = np.array(values).reshape(2, number, num_decoders)

    def totals(decoders):
        return tuple(sum(Fraction(matrix[i, k]) for i, k in enumerate(decoders)) for matrix in (cost_NK, tie_NK))

    low, high = number // num_decoders, -(-number // num_decoders)
    every = itertools.product(range(num_decoders), repeat=number)
    allowed = (one for one in every if all(low <= one.count(k) <= high for k in range(num_decoders)))
    found = balanced_assignment(cost_NK, tie_NK=tie_NK).decoder_N.tolist()
    assert totals(found) == min(map(totals, allowed))


def test_equal_costs_are_drawn_evenly():
    """Every sample gets every decoder equally often, and pairs of samples meet as often as chance has it."""
    number, draws = 12, 1200
    found = np.array([balanced_assignment(np.zeros((number, 3)), seed=seed).decoder_N for seed in range(draws)])
    for k in range(3):
        assert np.abs((found == k).mean(0) - 1 / 3).max() < 5 * np.sqrt(2 / 9 / draws)
    meet = (found[:, :, None] == found[:, None, :]).mean(0)[~np.eye(number, dtype=bool)]
    assert np.abs(meet - 3 / 11).max() < 5 * np.sqrt(24 / 121 / draws)


def test_who_has_to_leave_a_crowded_decoder_is_drawn_evenly():
    cost_NK = np.array([[-1.0, 0.0, 0.0]] * 8)
    found = np.array([balanced_assignment(cost_NK, [4, 2, 2], seed=seed).decoder_N for seed in range(800)])
    assert np.abs((found == 0).mean(0) - 1 / 2).max() < 5 * np.sqrt(1 / 4 / 800)
    assert np.abs((found == 1).mean(0) - 1 / 4).max() < 5 * np.sqrt(3 / 16 / 800)


def test_the_order_of_the_decoders_does_not_decide():
    """Two assignments are possible, as mirror images; and which decoder gets one more when all are alike."""
    cycle_NK = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    found = [balanced_assignment(cycle_NK, seed=seed).decoder_N.tolist() for seed in range(400)]
    assert {tuple(decoders) for decoders in found} == {(0, 1, 2), (1, 2, 0)}
    assert 150 < sum(decoders == [0, 1, 2] for decoders in found) < 250
    larger = [np.bincount(balanced_assignment(np.zeros((4, 3)), seed=seed).decoder_N).argmax() for seed in range(600)]
    assert np.bincount(larger).min() > 150


def test_the_same_seed_draws_the_same():
    cost_NK = np.zeros((600, 4))
    first, again, other = (balanced_assignment(cost_NK, seed=seed).decoder_N for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


def test_neither_first_nor_last_samples_are_favoured():
    """A thousand equal samples for a decoder half as large: who stays has nothing to do with the position."""
    stays_N = balanced_assignment(np.array([[-1.0, 0.0]] * 1000)).decoder_N == 0
    assert 200 < stays_N[:500].sum() < 300 and np.abs(np.diff(stays_N.astype(int))).sum() > 400


@pytest.mark.parametrize("kind", ["posterior", "sharp and biased posterior", "saturated posterior", "equal rows"])
@pytest.mark.parametrize("number", [50, 900, 20_000])
def test_prices_to_start_from_change_no_cost(kind, number):
    rng = np.random.default_rng(number)
    cost_NK = KINDS[kind](rng, rng.normal(size=(number, 6)))
    cold = balanced_assignment(cost_NK)
    expected = pytest.approx(total(cost_NK, cold.decoder_N), rel=1e-12)
    near_NK = cost_NK + 0.01 * rng.normal(size=cost_NK.shape)
    starts = (
        cold.prices_K,
        balanced_assignment(near_NK).prices_K,
        rng.normal(size=6),
        np.array([1e9, -1e9, 0, 0, 0, 0]),
    )
    for prices_K in starts:
        warm = balanced_assignment(cost_NK, prices_K=prices_K)
        assert_sizes(warm.decoder_N, 6)
        assert total(cost_NK, warm.decoder_N) == expected


def test_a_random_problem_has_one_answer_from_any_prices_and_in_any_order():
    rng = np.random.default_rng(0)
    cost_NK = rng.normal(size=(997, 10))
    decoder_N = balanced_assignment(cost_NK).decoder_N
    assert (balanced_assignment(cost_NK, prices_K=rng.normal(size=10), seed=5).decoder_N == decoder_N).all()
    order_N, order_K = rng.permutation(997), rng.permutation(10)
    moved_N = balanced_assignment(cost_NK[order_N][:, order_K]).decoder_N
    assert (order_K[moved_N] == decoder_N[order_N]).all()


def test_what_is_added_to_a_row_does_not_matter():
    rng = np.random.default_rng(0)
    cost_NK = rng.integers(0, 1000, (300, 5)).astype(float)
    shifted_NK = cost_NK + rng.integers(-1_000_000, 1_000_000, (300, 1))
    assert (balanced_assignment(shifted_NK).decoder_N == balanced_assignment(cost_NK).decoder_N).all()


def test_small_and_empty_problems():
    assert balanced_assignment(np.empty((0, 3))).decoder_N.tolist() == []
    assert balanced_assignment([[3.0], [1.0]]).decoder_N.tolist() == [0, 0]
    assert balanced_assignment([[0.5, 0.1, 0.3]]).decoder_N.tolist() == [1]
    assert balanced_assignment([[0.5, 0.1, 0.3]], [0, 0, 1]).decoder_N.tolist() == [2]
    assert balanced_assignment(np.float32([[1, 2], [1, 3]])).decoder_N.tolist() == [1, 0]
    tiny, vast = balanced_assignment([[1e-290, 0.0], [2e-290, 0.0]]), balanced_assignment([[1e299, 0.0], [-1e299, 0.0]])
    assert tiny.decoder_N.tolist() == [0, 1] and vast.decoder_N.tolist() == [1, 0]


def test_the_input_is_left_alone():
    cost_NK = np.asfortranarray(np.random.default_rng(0).normal(size=(50, 5)))
    before_NK, prices_K = cost_NK.copy(), np.ones(5)
    balanced_assignment(cost_NK, tie_NK=cost_NK, prices_K=prices_K)
    assert (cost_NK == before_NK).all() and (prices_K == 1).all()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"cost_NK": [[0.0, 1.0], [np.nan, 0.0]]}, "cost_NK must be finite.*found nan in row 1, for decoder 0"),
        ({"cost_NK": [[0.0, 1.0], [2.0, 0.0], [0.0, -np.inf]]}, "found -inf in row 2, for decoder 1"),
        ({"cost_NK": [[0.0, np.inf]]}, "found inf in row 0"),
        ({"cost_NK": [[0.0, 1.0]], "tie_NK": [[0.0, np.nan]]}, "tie_NK must be finite.*row 0, for decoder 1"),
        (
            {"cost_NK": [[0.0, 1.0]], "tie_NK": [[0.0]]},
            r"tie_NK must have the shape of cost_NK, \(1, 2\); found \(1, 1\)",
        ),
        ({"cost_NK": [0.0, 1.0]}, r"row for each sample and a column for each decoder; found \(2,\)"),
        ({"cost_NK": np.empty((3, 0))}, "column for each decoder"),
        ({"cost_NK": np.zeros((3, 2)), "capacities": [1, 1]}, "add up to the 3 samples; found 2"),
        ({"cost_NK": np.zeros((3, 2)), "capacities": [4, -1]}, r"2 whole numbers.*found \[4, -1\]"),
        ({"cost_NK": np.zeros((3, 2)), "capacities": [3]}, "2 whole numbers"),
        ({"cost_NK": np.zeros((3, 2)), "capacities": [1.5, 1.5]}, "2 whole numbers"),
        ({"cost_NK": np.zeros((4, 2)), "prices_K": [0.0, np.nan]}, "prices_K must be 2 finite numbers"),
        ({"cost_NK": np.zeros((4, 2)), "prices_K": [0.0]}, "prices_K must be 2 finite numbers"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(PolyReplyError, match=message):
        balanced_assignment(**arguments)
