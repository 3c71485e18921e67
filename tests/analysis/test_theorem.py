"""The theorem's terms on held-out samples."""

import numpy as np
import pytest

from polyreply.analysis.theorem import bound_curve, match_modes, posterior_error
from polyreply.em.posterior import hoeffding


def test_decoders_are_matched_to_modes_and_the_bound_holds():
    random, modes = np.random.default_rng(0), ["x", "y", "z"]
    of_N = random.integers(0, 3, 400)
    posterior_NK = np.full((400, 3), 0.1)
    posterior_NK[np.arange(400), (of_N + 1) % 3] = 0.8
    names_N = [modes[mode] for mode in of_N]
    assert match_modes(posterior_NK, names_N, modes) == [2, 0, 1]
    error_K = posterior_error(posterior_NK, names_N, modes)
    share_K = np.bincount((of_N + 1) % 3) / 400
    assert error_K == pytest.approx(0.2 * share_K + 0.1 * (1 - share_K))
    curve = bound_curve(posterior_NK, draws=50, error_K=error_K)
    assert curve.sizes == [8, 16, 32, 64, 128, 256, 400] and max(curve.violations) == 0
    assert curve.hoeffding[0] == pytest.approx(hoeffding(8, 3)) and curve.deviation[0] > curve.deviation[-1]


def test_one_sided_posteriors_are_above_what_chance_explains():
    posterior_NK = np.tile([0.9, 0.05, 0.05], (500, 1))
    curve = bound_curve(posterior_NK, draws=5)
    assert curve.violations[-1] == 1 and curve.posterior_error is None
