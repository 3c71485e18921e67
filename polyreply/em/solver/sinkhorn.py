"""Entropy-regularised balanced assignment: soft weights, yet every decoder receives the same share.

Minimises Σ A·C + temperature · Σ A·log A over weights whose rows sum to 1 and whose columns sum to N/K. The answer has
K prices: A_nk ∝ exp(−(C_nk + price_k) / temperature), normalised over k. Sinkhorn's algorithm corrects the prices by
temperature · log(column sum · K/N), over and over, and needs ten times as many sweeps at a tenth of the temperature.
With few decoders, Newton's method on the same K prices costs one K×K system more per sweep and needs only a handful.
From a cold start it would diverge where nearly every weight is 0 or 1, so it starts hot and cools down, starting each
temperature from the prices of the one before.

Legend: N samples, K decoders. Arrays are (K, N) inside: sums over few decoders are faster that way.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from polyreply.arrays import Floats
from polyreply.errors import PolyReplyError

CHUNK = 4096
"""Samples processed at a time, few enough for the processor's cache."""
COOLING = 10.0
"""How much colder each temperature is than the one before."""
NEAR = 1e-2
"""Relative error of the column sums at which to cool down further; but never more than half a sample."""
LONGEST = 4.0
"""Largest move of a price in one step, in temperatures: farther away the curvature is meaningless."""
COLDEST = 1e-9
"""Lowest temperature relative to the spread of the costs: below, rounding in float64 decides the column sums."""


@dataclass(frozen=True)
class SoftBalanced:
    """Balanced soft weights, the prices that give them, and how far from balanced they still are."""

    weights_NK: Floats
    """Rows sum to one."""
    prices_K: Floats
    """To start from next time; their mean is zero."""
    error: float
    """The largest deviation of a column sum from N/K, relative to N/K."""
    sweeps: int
    """Passes over the costs, at all temperatures together."""


def sinkhorn(
    cost_NK: ArrayLike,
    temperature: float,
    *,
    prices_K: ArrayLike | None = None,
    tolerance: float = 1e-6,
    max_sweeps: int = 200,
) -> SoftBalanced:
    """The weights at this temperature: nearly the exact assignment when it is cold, uniform when it is hot.

    Prices of a similar problem save the cooling; where they do not help, it starts again without. A temperature that
    has not converged after `max_sweeps` passes is left as it is, and `error` says how far the columns are off; rows sum
    to one in any case. Temperatures below 1e-9 of the costs' spread are raised to that.
    """
    if not temperature > 0:
        raise PolyReplyError(f"temperature: expected a number above 0, found {temperature}; for 0 use eqhard-em")
    cost_KN = np.array(np.asarray(cost_NK, np.float64).T, order="C")
    cost_KN -= cost_KN.min(0)
    spread = float(cost_KN.max(initial=0.0))
    temperature = max(temperature, COLDEST * spread)
    found, sweeps = None, 0
    if prices_K is not None:
        found = _balance(cost_KN, np.asarray(prices_K, np.float64), temperature, tolerance, max_sweeps // 4)
        sweeps = found.sweeps
    if found is None or found.error > tolerance:
        found = _cool_down(cost_KN, spread, temperature, tolerance, max_sweeps)
        sweeps += found.sweeps
    price_K = found.price_K - found.price_K.mean()
    return SoftBalanced(_weights(cost_KN, price_K, temperature), price_K, found.error, sweeps)


@dataclass(frozen=True)
class _Found:
    price_K: Floats
    error: float
    sweeps: int


def _cool_down(cost_KN: Floats, spread: float, temperature: float, tolerance: float, max_sweeps: int) -> _Found:
    """Prices at the given temperature, by way of hotter ones."""
    num_decoders, number = cost_KN.shape
    near = max(tolerance, min(NEAR, 0.5 * num_decoders / max(number, 1)))
    found = _Found(np.zeros(num_decoders), np.inf, 0)
    sweeps = 0
    for hotter in _hotter(spread, temperature):
        found = _balance(cost_KN, found.price_K, hotter, near, max_sweeps)
        sweeps += found.sweeps
    found = _balance(cost_KN, found.price_K, temperature, tolerance, max_sweeps)
    return _Found(found.price_K, found.error, sweeps + found.sweeps)


def _hotter(spread: float, temperature: float) -> Iterator[float]:
    """From the spread of the costs, where weights are nearly uniform, down to just above the temperature."""
    while spread > temperature:
        yield spread
        spread /= COOLING


def _balance(cost_KN: Floats, price_K: Floats, temperature: float, tolerance: float, max_sweeps: int) -> _Found:
    """Newton's method on the dual, which is concave in the prices; its gradient is the excess of each column."""
    num_decoders, number = cost_KN.shape
    capacity = number / num_decoders
    excess_K, overlap_KK = _columns(cost_KN, price_K, temperature)
    sweeps = 1
    while (error := _largest(excess_K) / max(capacity, 1e-300)) > tolerance and sweeps < max_sweeps:
        step_K = _newton(excess_K, overlap_KK, capacity, temperature)
        uphill, length = float(excess_K @ step_K), 1.0
        while True:
            excess_K, overlap_KK = _columns(cost_KN, price_K + length * step_K, temperature)
            sweeps += 1
            slope = float(excess_K @ step_K)
            if slope >= -uphill / 2 or sweeps >= max_sweeps:
                break
            length *= min(0.5, max(0.1, uphill / (uphill - slope)))  # overshot: go back to where the slope vanishes
        price_K = price_K + length * step_K
    return _Found(price_K, error, sweeps)


def _newton(excess_K: Floats, overlap_KK: Floats, capacity: float, temperature: float) -> Floats:
    """The change of prices that would remove the excess if column sums were linear in them.

    The matrix is a Laplacian: equal changes of all prices change nothing, hence the constant added to it, and decoders
    that share no undecided sample are not connected, hence the tiny ridge.
    """
    matrix_KK = capacity / len(excess_K) - overlap_KK
    matrix_KK.flat[:: len(excess_K) + 1] += excess_K + capacity * (1 + 1e-9)
    step_K: Floats = np.linalg.solve(matrix_KK, excess_K).astype(np.float64) * temperature
    return step_K * min(1.0, LONGEST * temperature / max(_largest(step_K), 1e-300))


def _columns(cost_KN: Floats, price_K: Floats, temperature: float) -> tuple[Floats, Floats]:
    """The excess of each column sum over N/K, and the sums of products of two columns."""
    num_decoders, number = cost_KN.shape
    sum_K, overlap_KK = np.zeros(num_decoders), np.zeros((num_decoders, num_decoders))
    for begin in range(0, number, CHUNK):
        part_KC = _softmax(cost_KN[:, begin : begin + CHUNK], price_K, temperature)
        sum_K += part_KC.sum(1)
        overlap_KK += part_KC @ part_KC.T
    return sum_K - number / num_decoders, overlap_KK


def _softmax(cost_KC: Floats, price_K: Floats, temperature: float) -> Floats:
    """Weights at these prices; each sample's sum to one."""
    part_KC = cost_KC + price_K[:, None]
    part_KC -= part_KC.min(0)
    part_KC *= -1 / temperature
    with np.errstate(under="ignore"):
        np.exp(part_KC, out=part_KC)
    part_KC /= part_KC.sum(0)
    return part_KC


def _weights(cost_KN: Floats, price_K: Floats, temperature: float) -> Floats:
    weights_NK = np.empty(cost_KN.shape[::-1])
    for begin in range(0, len(weights_NK), CHUNK):
        weights_NK[begin : begin + CHUNK] = _softmax(cost_KN[:, begin : begin + CHUNK], price_K, temperature).T
    return weights_NK


def _largest(vector_K: Floats) -> float:
    return float(np.abs(vector_K).max(initial=0.0))
