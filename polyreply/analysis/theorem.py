"""The paper's theorem on held-out samples: its two known terms as data grows, and all three where the modes are known.

The theorem (`polyreply.em.posterior`) bounds how far the mean posterior of a decoder is from 1/K by a Hoeffding term
and the posterior's own error. Here data sets of growing size are drawn from held-out samples, and both sides are
compared.

Legend: N samples, K decoders, D data sets that are drawn, A modes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from polyreply.arrays import Floats
from polyreply.em.posterior import deviation, hoeffding

_SEED = 3


@dataclass(frozen=True)
class BoundCurve:
    """The theorem's terms for data sets of several sizes."""

    sizes: list[int]
    deviation: list[float]
    """Largest deviation of a decoder's mean posterior from 1/K: the mean over random data sets of that size."""
    deviation_high: list[float]
    """The 95th percentile over these data sets."""
    hoeffding: list[float]
    """The part that chance explains, with probability 0.95."""
    violations: list[float]
    """Share of the data sets whose deviation exceeds the bound (with the posterior error, if that is known)."""
    posterior_error: list[float] | None = None
    """E|Q − p| of each decoder, (K,), if p is known."""


def bound_curve(
    posterior_NK: Floats, draws: int = 200, delta: float = 0.05, error_K: Floats | None = None
) -> BoundCurve:
    """Draw data sets of growing size without replacement from held-out samples, and compare both sides."""
    total, num_decoders = posterior_NK.shape
    random, rows = np.random.default_rng(_SEED), []
    sizes = [*(2**exponent for exponent in range(3, 30) if 2**exponent < total), total]
    for size in sizes:
        deviation_DK = np.array(
            [deviation(posterior_NK[random.permutation(total)[:size]]) for _ in range(draws if size < total else 1)]
        )
        chance = hoeffding(size, num_decoders, delta)
        limit_K = chance + (np.zeros(num_decoders) if error_K is None else error_K)
        worst_D = deviation_DK.max(1)
        violations = float((deviation_DK > limit_K).any(1).mean())
        rows.append((float(worst_D.mean()), float(np.quantile(worst_D, 0.95)), chance, violations))
    means, highs, chances, shares = (list(column) for column in zip(*rows, strict=True))
    return BoundCurve(sizes, means, highs, chances, shares, None if error_K is None else error_K.tolist())


def match_modes(posterior_NK: Floats, modes_N: Sequence[str], modes: Sequence[str]) -> list[int]:
    """The index of each decoder's mode, (K,): the one-to-one matching with the most posterior mass, for K modes."""
    index = {mode: place for place, mode in enumerate(modes)}
    mass_KA = np.zeros((posterior_NK.shape[1], len(modes)))
    np.add.at(mass_KA.T, [index[mode] for mode in modes_N], posterior_NK)
    _, matched_K = linear_sum_assignment(-mass_KA)
    return [int(mode) for mode in matched_K]


def posterior_error(posterior_NK: Floats, modes_N: Sequence[str], modes: Sequence[str]) -> Floats:
    """E|Q(z|c, r) − p(z|c, r)| of each decoder, (K,).

    Decoders are matched to modes, and p is 1 for the mode of the response.
    """
    decoder_of = {modes[mode]: k for k, mode in enumerate(match_modes(posterior_NK, modes_N, modes))}
    true_NK = np.zeros_like(posterior_NK)
    true_NK[np.arange(len(true_NK)), [decoder_of[mode] for mode in modes_N]] = 1
    return np.asarray(np.abs(posterior_NK - true_NK).mean(0))
