"""From NLL to weights: what each method promises, and that neither order nor chance favours a decoder."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment

from polyreply.em.assign import METHODS, Evidence, assign
from polyreply.em.posterior import posterior
from polyreply.em.settings import EMSettings
from polyreply.errors import DivergedError, PolyReplyError

HARD = ["eqhard-em", "hard-em", "eqrandom-fixed", "eqrandom-dynamic"]
BALANCED = ["eqhard-em", "eqrandom-dynamic", "eqsoft-em"]
K = 4


def nll_of(number, seed=0, num_decoders=K):
    rng = np.random.default_rng(seed)
    return rng.gamma(5, 8, (number, 1)) + rng.normal(0, 2, (number, num_decoders))


def uniform(nll_NK):
    return np.full(nll_NK.shape, -np.log(nll_NK.shape[1]))


def run(method, nll_NK, ids_N=None, **settings):
    ids_N = np.arange(len(nll_NK)) if ids_N is None else np.asarray(ids_N)
    log_prior_NK = settings.pop("log_prior_NK", uniform(nll_NK))
    return assign(method, Evidence(nll_NK, log_prior_NK, ids_N, **{"num_corpus": 1000, **settings}))


# The posterior.


@given(arrays(np.float64, (3, K), elements=st.floats(0, 50)), arrays(np.float64, (3, K), elements=st.floats(-9, 0)))
def test_posterior_is_bayes_rule(nll_NK, log_prior_NK):
    joint_NK = np.exp(-nll_NK) * np.exp(log_prior_NK)
    np.testing.assert_allclose(posterior(nll_NK, log_prior_NK), joint_NK / joint_NK.sum(1, keepdims=True), rtol=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e8])
def test_posterior_is_stable_for_huge_nll(offset):
    found_NK = posterior(offset + np.array([[0.0, 1.0], [5.0, 5.0], [0.0, 1e9]]), np.log([[0.5, 0.5]] * 3))
    np.testing.assert_allclose(found_NK, [[1 / (1 + np.exp(-1)), 1 / (1 + np.e)], [0.5, 0.5], [1, 0]], atol=1e-15)
    assert found_NK.dtype == np.float64
    np.testing.assert_array_equal(posterior([[1e308, -1e308]], [[0, 0]]), [[0, 1]])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", METHODS)
def test_a_likelihood_that_is_not_finite_is_named(value, method):
    nll_NK = nll_of(8)
    nll_NK[5, 2] = value
    with pytest.raises(DivergedError, match=r"row 5: .* decoder 2 is -?(nan|inf)"):
        posterior(nll_NK, uniform(nll_NK))
    with pytest.raises(DivergedError, match=r"row 5 \(sample 45\): "):
        run(method, nll_NK, 50 - np.arange(8))


def test_bad_priors_and_shapes_are_refused():
    nll_NK = nll_of(3)
    with pytest.raises(DivergedError, match=r"row 1: .* decoder 0 is -inf"):
        posterior(nll_NK, [[0] * K, [-np.inf] + [0] * (K - 1), [0] * K])
    with pytest.raises(PolyReplyError, match=r"found \(3, 4\) and \(3, 5\)"):
        posterior(nll_NK, np.zeros((3, 5)))
    with pytest.raises(PolyReplyError, match=r"found \(4,\) and \(4,\)"):
        posterior(nll_NK[0], np.zeros(4))
    with pytest.raises(PolyReplyError, match=r"3 sample ids, found shape \(2,\)"):
        run("soft-em", nll_NK, np.arange(2))


def test_unknown_names_are_refused():
    with pytest.raises(PolyReplyError, match=r"soft-em, .*'hardem'"):
        run("hardem", nll_of(8))


# What all methods have in common.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", [0, 1, 3, 40, 43])
def test_rows_sum_to_one_and_hard_ones_are_one_hot(method, number):
    nll_NK = nll_of(number)
    found = run(method, nll_NK)
    assert found.weights_NK.dtype == np.float64 and found.weights_NK.shape == nll_NK.shape
    np.testing.assert_allclose(found.weights_NK.sum(1), 1, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(found.posterior_NK, posterior(nll_NK, uniform(nll_NK)))
    if method in HARD:
        assert set(np.unique(found.weights_NK)) <= {0, 1}


@pytest.mark.parametrize("method", BALANCED)
@pytest.mark.parametrize("number", [3, 40, 43])
def test_every_decoder_has_its_share(method, number):
    shares_K = run(method, nll_of(number) + np.arange(K)).weights_NK.sum(0)
    assert shares_K.max() - shares_K.min() <= (1e-5 * number if method == "eqsoft-em" else number % K != 0)


@pytest.mark.parametrize("cost", ["posterior", "nll"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ties", ["none", "some", "all"])
def test_permuting_the_samples_permutes_the_result(method, ties, cost):
    """Bit by bit, ties included: chance follows the ids, not the places."""
    nll_NK = {"none": nll_of(50), "some": nll_of(50).round(-1), "all": np.zeros((50, K))}[ties]
    rng = np.random.default_rng(5)
    ids_N, order_N = rng.permutation(1000)[:50], rng.permutation(50)
    settings = {"cost": cost, "seed": 3, "step": 7, "temperature": 0.1}
    first = run(method, nll_NK, ids_N, **settings)
    second = run(method, nll_NK[order_N], ids_N[order_N], **settings)
    np.testing.assert_array_equal(second.weights_NK, first.weights_NK[order_N])
    np.testing.assert_array_equal(second.posterior_NK, first.posterior_NK[order_N])


@pytest.mark.parametrize("method", [method for method in METHODS if "random" not in method])
def test_without_ties_relabelling_the_decoders_relabels_the_result(method):
    nll_NK, order_K = nll_of(50), np.array([2, 0, 3, 1])
    first, second = run(method, nll_NK, step=1), run(method, nll_NK[:, order_K], step=2)
    np.testing.assert_allclose(second.weights_NK, first.weights_NK[:, order_K], atol=1e-5)


@pytest.mark.parametrize(
    "method, by",
    [(method, by) for method in HARD for by in ("seed", "step") if (method, by) != ("eqrandom-fixed", "step")],
)
def test_where_the_costs_say_nothing_no_place_and_no_decoder_is_favoured(method, by):
    """Over many draws every sample has every decoder about equally often, also where K does not divide N."""
    draws, number = 400, 11
    mean_NK = sum(run(method, np.full((number, K), 3.0), **{by: draw}).weights_NK for draw in range(draws)) / draws
    five_sigma = 5 * np.sqrt(0.25 * 0.75 / draws)
    assert np.abs(mean_NK - 1 / K).max() < five_sigma
    assert np.abs(mean_NK.mean(0) - 1 / K).max() < five_sigma / np.sqrt(number)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_and_step_give_the_same(method):
    nll_NK = np.zeros((20, K))
    first, second = (run(method, nll_NK, seed=1, step=2).weights_NK for _ in range(2))
    np.testing.assert_array_equal(first, second)
    if method in HARD:
        assert (first != run(method, nll_NK, seed=2, step=2).weights_NK).any()
        assert (first != run(method, nll_NK, seed=1, step=3).weights_NK).any() == (method != "eqrandom-fixed")


# Each method.


def test_soft_em_is_the_posterior():
    found = run("soft-em", nll_of(30))
    np.testing.assert_array_equal(found.weights_NK, found.posterior_NK)
    assert found.prices_K is None


def test_hard_em_takes_the_most_likely_decoder():
    nll_NK, rng = nll_of(30), np.random.default_rng(0)
    log_prior_NK = np.log(rng.dirichlet(np.ones(K), 30))
    found = run("hard-em", nll_NK, log_prior_NK=log_prior_NK)
    np.testing.assert_array_equal(found.weights_NK.argmax(1), found.posterior_NK.argmax(1))


@given(arrays(np.float64, (5, K), elements=st.floats(0, 50)), st.floats(0, 0.99))
def test_relaxed_wta_leaves_epsilon_to_the_others(nll_NK, epsilon):
    weights_NK = run("relaxed-wta", nll_NK, epsilon=epsilon).weights_NK
    winner_N = weights_NK.argmax(1) if epsilon < 0.74 else None  # above, ε / (K − 1) is more than 1 − ε
    for row in weights_NK:
        np.testing.assert_allclose(sorted(row), sorted([1 - epsilon, *[epsilon / (K - 1)] * (K - 1)]))
    if winner_N is not None:
        np.testing.assert_allclose(nll_NK[np.arange(5), winner_N], nll_NK.min(1), atol=1e-12)


def test_relaxed_wta_without_epsilon_and_with_one_decoder_is_hard():
    nll_NK = nll_of(20)
    np.testing.assert_array_equal(run("relaxed-wta", nll_NK, epsilon=0.0).weights_NK, run("hard-em", nll_NK).weights_NK)
    assert run("relaxed-wta", nll_NK[:, :1]).weights_NK.tolist() == [[1.0]] * 20


@given(arrays(np.float64, (5, K), elements=st.floats(0, 50)), st.floats(0.05, 10))
def test_annealed_wta_is_a_softmax_of_the_mean_nll(nll_NK, temperature):
    lengths_N = np.array([1, 2, 5, 10, 20])
    found = run("annealed-wta", nll_NK, lengths_N=lengths_N, temperature=temperature, step=7, anneal_steps=8)
    expected_NK = np.exp(-(nll_NK - nll_NK.min(1, keepdims=True)) / lengths_N[:, None] / temperature)
    np.testing.assert_allclose(found.weights_NK, expected_NK / expected_NK.sum(1, keepdims=True), atol=1e-12)
    already_mean = run("annealed-wta", nll_NK / lengths_N[:, None], temperature=temperature)
    np.testing.assert_allclose(found.weights_NK, already_mean.weights_NK, atol=1e-9)


def test_annealed_wta_becomes_hard():
    nll_NK = nll_of(20)
    soft, hard = (run("annealed-wta", nll_NK, step=step, anneal_steps=8).weights_NK for step in (7, 8))
    assert soft.max() < 1
    np.testing.assert_array_equal(hard, run("hard-em", nll_NK).weights_NK)


def test_hard_em_breaks_ties_among_the_best_only():
    nll_NK = np.tile([1.0, 0.0, 2.0, 0.0], (200, 1))
    used_K = run("hard-em", nll_NK).weights_NK.sum(0)
    assert used_K[0] == used_K[2] == 0 and 60 < used_K[1] < 140


@pytest.mark.parametrize("cost", ["posterior", "nll"])
@pytest.mark.parametrize("seed", range(5))
def test_eqhard_em_has_the_cost_of_the_papers_duplicated_decoders(cost, seed):
    nll_NK = nll_of(24, seed)
    log_prior_NK = np.log(np.random.default_rng(seed).dirichlet(np.ones(K), 24))
    found = run("eqhard-em", nll_NK, log_prior_NK=log_prior_NK, cost=cost)
    cost_NK = -found.posterior_NK if cost == "posterior" else nll_NK - log_prior_NK
    duplicated_NN = np.repeat(cost_NK, 24 // K, axis=1)
    best = duplicated_NN[linear_sum_assignment(duplicated_NN)].sum()
    assert (found.weights_NK * cost_NK).sum() == pytest.approx(best, abs=1e-10)


@pytest.mark.parametrize("scale", [1000, 50])
def test_eqhard_em_breaks_ties_of_the_posterior_by_likelihood(scale):
    """Decoder 0 is certain for everybody, exactly or nearly: who has to leave is decided by what it costs in NLL."""
    nll_NK = np.column_stack([np.zeros(8), np.array([8, 3, 7, 2, 6, 1, 5, 4]) * float(scale)])
    found = run("eqhard-em", nll_NK)
    assert (found.posterior_NK == [1, 0]).all() == (scale == 1000)
    np.testing.assert_array_equal(found.weights_NK.argmax(1), [0, 1, 0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize("cost", ["posterior", "nll"])
@pytest.mark.parametrize("method", ["eqhard-em", "eqsoft-em"])
def test_prices_of_the_last_e_step_change_nothing_but_the_time(method, cost):
    nll_NK = nll_of(200)
    cold = run(method, nll_NK + 0.1 * nll_of(200, 1), cost=cost)
    warm = run(method, nll_NK, cost=cost, prices_K=cold.prices_K)
    assert warm.prices_K.shape == (K,)
    np.testing.assert_allclose(warm.weights_NK, run(method, nll_NK, cost=cost).weights_NK, atol=1e-5)


def test_fixed_decoders_are_balanced_and_follow_the_sample():
    def fixed(ids_N, **settings):
        nll_NK = nll_of(len(ids_N), 1, 10)
        return run("eqrandom-fixed", nll_NK, ids_N, num_corpus=103, **settings).weights_NK.argmax(1)

    fixed_M = fixed(np.arange(103), seed=4)
    assert sorted(np.bincount(fixed_M)) == [10] * 7 + [11] * 3
    assert (fixed_M != fixed(np.arange(103), seed=5)).any()
    for step, ids_N in enumerate([[7, 100, 3], [100, 7, 7]]):
        np.testing.assert_array_equal(fixed(ids_N, seed=4, step=step), fixed_M[ids_N])


@pytest.mark.parametrize("num_corpus", [0, 7])
def test_eqrandom_fixed_needs_the_size_of_the_corpus(num_corpus):
    with pytest.raises(PolyReplyError, match=rf"num_corpus above .* 7, found {num_corpus}"):
        run("eqrandom-fixed", nll_of(8), num_corpus=num_corpus)


def test_weights_of_another_shape_or_sum_are_refused(monkeypatch):
    for weights_NK in (np.ones((8, K - 1)) / (K - 1), np.ones((8, K))):
        monkeypatch.setitem(METHODS, "wrong", lambda evidence, weights_NK=weights_NK: weights_NK)
        with pytest.raises(PolyReplyError, match="wrong: expected weights"):
            run("wrong", nll_of(8))


def test_eqrandom_dynamic_ignores_the_costs():
    first, second = (run("eqrandom-dynamic", nll_of(40, seed), step=3).weights_NK for seed in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("cost", ["posterior", "nll"])
def test_eqsoft_em_lies_between_eqhard_em_and_uniform(cost):
    nll_NK = nll_of(200) + np.arange(K)
    exact = run("eqhard-em", nll_NK, cost=cost)
    cost_NK = -exact.posterior_NK if cost == "posterior" else nll_NK + np.log(K)
    totals = [
        (run("eqsoft-em", nll_NK, cost=cost, temperature=temperature).weights_NK * cost_NK).sum()
        for temperature in (1e6, 10, 1, 0.1, 0.01, 1e-4)
    ]
    assert totals[0] == pytest.approx(cost_NK.mean() * 200, rel=1e-4)
    assert all(colder < hotter for hotter, colder in pairwise(totals))
    assert totals[-1] == pytest.approx((exact.weights_NK * cost_NK).sum(), rel=1e-5)


def test_eqsoft_em_with_nll_at_temperature_one_is_a_posterior_under_another_prior():
    nll_NK = nll_of(200) + np.arange(K)
    found = run("eqsoft-em", nll_NK, cost="nll")
    np.testing.assert_allclose(found.weights_NK, posterior(nll_NK, np.tile(-found.prices_K, (200, 1))), atol=1e-12)


@pytest.mark.parametrize(
    "step, start, end, anneal_steps, expected",
    [
        (0, 10.0, 0.1, 100, 10.0),
        (50, 10.0, 0.1, 100, 1.0),
        (75, 10.0, 0.1, 100, 10**-0.5),
        (100, 10.0, 0.1, 100, 0.1),
        (5000, 10.0, 0.1, 100, 0.1),
        (3, 2.0, 2.0, 10, 2.0),
    ],
)
def test_temperature_falls_by_a_constant_factor(step, start, end, anneal_steps, expected):
    settings = EMSettings(temperature=start, final_temperature=end, anneal_steps=anneal_steps)
    assert settings.temperature_at(step, "eqsoft-em") == pytest.approx(expected, rel=1e-12)
    assert not list(settings.problems())


def test_temperature_zero_is_refused():
    assert any("above 0" in problem for problem in EMSettings(final_temperature=-1.0).problems())
    with pytest.raises(PolyReplyError, match="found 0"):
        run("eqsoft-em", nll_of(8), temperature=0)


def test_annealed_wta_falls_by_a_constant_factor_to_a_hundredth_by_default():
    taus = [EMSettings(temperature=2.0, anneal_steps=50).temperature_at(step, "annealed-wta") for step in range(60)]
    assert taus[0] == 2.0 and taus[50:] == [pytest.approx(0.02)] * 10
    assert all(after / before == pytest.approx(0.01 ** (1 / 50)) for before, after in pairwise(taus[:51]))
