"""The theorem's terms: by hand, against simulation, and accumulated."""

import json

import numpy as np
import pytest

from polyreply.em.posterior import UsageBound, deviation, hoeffding
from polyreply.errors import PolyReplyError


def test_deviation_by_hand():
    np.testing.assert_allclose(deviation([[0.9, 0.1], [0.7, 0.3]]), [0.3, 0.3])
    np.testing.assert_allclose(deviation(np.eye(3)), 0, atol=1e-15)
    np.testing.assert_allclose(deviation([[1, 0, 0, 0]]), [0.75, 0.25, 0.25, 0.25])


@pytest.mark.parametrize(
    "num_samples, num_decoders, delta, expected",
    [
        (640, 10, 0.05, 0.068411),  # sqrt(log(400) / 1280)
        (1, 1, 0.5, 0.832555),  # sqrt(log(4) / 2)
        (1_000_000, 10, 0.05, 0.0017308),
    ],
)
def test_hoeffding_by_hand(num_samples, num_decoders, delta, expected):
    assert hoeffding(num_samples, num_decoders, delta) == pytest.approx(expected, rel=1e-4)


def test_hoeffding_inverts_the_lemma():
    """δ = 2K exp(−2 ε² N), as the proof chooses ε."""
    assert 2 * 7 * np.exp(-2 * hoeffding(123, 7, 0.01) ** 2 * 123) == pytest.approx(0.01)


def test_a_perfect_posterior_stays_within_the_term():
    """Samples of a mixture with equal weights, judged by its true posterior, hard or soft: it fails in fewer than δ."""
    rng, delta, trials = np.random.default_rng(0), 0.2, 500
    for sharpness in (0.5, 50.0):
        failed = 0
        for _ in range(trials):
            centre_K = np.arange(4.0)
            sample_N = centre_K[rng.integers(4, size=100)] + rng.normal(size=100) / sharpness
            density_NK = np.exp(-((sharpness * (sample_N[:, None] - centre_K)) ** 2) / 2)
            found_K = deviation(density_NK / density_NK.sum(1, keepdims=True))
            failed += found_K.max() > hoeffding(100, 4, delta)
        assert failed / trials <= delta


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 10), "one sample and one decoder or more, found 0 and 10"),
        ((10, 0), "found 10 and 0"),
        ((10, 10, 0.0), "expected a probability between 0 and 1, found 0.0"),
        ((10, 10, 1.0), "found 1.0"),
    ],
)
def test_nonsense_is_refused(arguments, message):
    with pytest.raises(PolyReplyError, match=message):
        hoeffding(*arguments)


def posteriors(number, seed):
    return np.random.default_rng(seed).dirichlet([1, 2, 3, 4, 5], number)


def test_the_running_bound_is_that_of_all_samples():
    usage = UsageBound(5, 0.1)
    parts = [posteriors(number, number) for number in (40, 1, 0, 17)]
    for part_NK in parts:
        usage.add(part_NK)
    np.testing.assert_allclose(usage.deviation_K, deviation(np.concatenate(parts)), atol=1e-12)
    assert usage.num_samples == 58
    assert usage.hoeffding == hoeffding(58, 5, 0.1)


def test_before_the_first_sample_nothing_is_claimed():
    usage = UsageBound(5)
    assert np.isnan(usage.deviation_K).all()
    assert usage.hoeffding == np.inf


def test_state_goes_through_json_unchanged():
    usage, other, straight = UsageBound(5), UsageBound(5), UsageBound(5)
    usage.add(posteriors(33, 0))
    other.load_state_dict(json.loads(json.dumps(usage.state_dict())))
    assert other.state_dict() == usage.state_dict()
    other.add(posteriors(9, 1))
    straight.add(posteriors(33, 0))
    straight.add(posteriors(9, 1))
    np.testing.assert_array_equal(other.mass_K, straight.mass_K)
    assert usage.num_samples == 33  # a copy, not a view


def test_the_state_of_other_decoders_is_refused():
    with pytest.raises(PolyReplyError, match="usage of 5 decoders expected, found that of 3"):
        UsageBound(5).load_state_dict(UsageBound(3).state_dict())
