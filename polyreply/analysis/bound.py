"""The paper's theorem on held-out samples: its two known terms as data grows, and all three where the modes are known.

Legend: N samples, K decoders, S sizes of a data set.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from polyreply.arrays import Floats
from polyreply.em.usage_bound import deviation, hoeffding

_SEED = 3


@dataclass(frozen=True)
class BoundCurve:
    """The theorem's terms for data sets of several sizes."""

    sizes: list[int]
    deviation: list[float]
    """Largest deviation of a decoder's mean posterior from 1/K: a mean over random data sets of that size."""
    deviation_high: list[float]
    """What 95 % of these data sets stay below."""
    hoeffding: list[float]
    """How much of it chance explains, with probability 0.95."""
    violations: list[float]
    """Share of the data sets whose deviation is larger than the whole bound (posterior error included, if known)."""
    posterior_error: list[float] | None = None
    """E|Q − p| of each decoder, where p is known, (K,)."""


def bound_curve(
    posterior_NK: Floats, draws: int = 200, delta: float = 0.05, error_K: Floats | None = None
) -> BoundCurve:
    """Draws data sets of growing size without replacement from held-out samples, and compares."""
    total, num_decoders = posterior_NK.shape
    random, found = np.random.default_rng(_SEED), []
    sizes = _sizes(total)
    for size in sizes:
        deviation_DK = np.array(
            [deviation(posterior_NK[random.permutation(total)[:size]]) for _ in range(draws if size < total else 1)]
        )
        allowed = hoeffding(size, num_decoders, delta)
        limit_K = allowed + (np.zeros(num_decoders) if error_K is None else error_K)
        worst_D = deviation_DK.max(1)
        broken = float((deviation_DK > limit_K).any(1).mean())
        found.append((float(worst_D.mean()), float(np.quantile(worst_D, 0.95)), allowed, broken))
    mean, high, chance, violations = (list(column) for column in zip(*found, strict=True))
    return BoundCurve(sizes, mean, high, chance, violations, None if error_K is None else error_K.tolist())


def _sizes(total: int) -> list[int]:
    powers = [2**exponent for exponent in range(3, 30) if 2**exponent < total]
    return [*powers, total]


def match_modes(posterior_NK: Floats, modes_N: Sequence[str], modes: Sequence[str]) -> list[int]:
    """The mode of each decoder, (K,): the matching with the most posterior mass. There have to be K modes."""
    number = {mode: place for place, mode in enumerate(modes)}
    mass_KA = np.zeros((posterior_NK.shape[1], len(modes)))
    np.add.at(mass_KA.T, [number[mode] for mode in modes_N], posterior_NK)
    _, matched_K = linear_sum_assignment(-mass_KA)
    return [int(mode) for mode in matched_K]


def posterior_error(posterior_NK: Floats, modes_N: Sequence[str], modes: Sequence[str]) -> Floats:
    """E|Q(z|c, r) − p(z|c, r)| of each decoder, (K,), with decoders matched to modes; p is 1 for the response's own."""
    place = {modes[mode]: decoder for decoder, mode in enumerate(match_modes(posterior_NK, modes_N, modes))}
    true_NK = np.zeros_like(posterior_NK)
    true_NK[np.arange(len(true_NK)), [place[mode] for mode in modes_N]] = 1
    return np.asarray(np.abs(posterior_NK - true_NK).mean(0))
