"""The exact solver behind the balanced assignment: N samples, K decoders, and K prices that make everybody content.

Sample i prefers the decoder with the lowest `cost_KN[k, i] + price_K[k]`. Prices at which each decoder is preferred by
exactly as many samples as it may take make that assignment the cheapest of all. They are found by sweeps over the
decoders, each price set at the quantile that fits the capacity; samples left over move along shortest paths. Only
samples near a boundary between two decoders take part in most of it: the others cannot change.

Costs and prices are whole numbers held in float64, small enough that every sum is exact: equal is equal, and no
tolerance is needed anywhere. A forbidden decoder costs infinity; every sample may go to two decoders or more.
"""

from dataclasses import dataclass, replace

import numpy as np

from polyreply.arrays import Bools, Floats, Ints
from polyreply.em.solver.flow import CHUNK, Choices, distances, drain

INF = float("inf")
LARGE = 16384
"""Above this number of samples, prices are first found for an eighth of them."""
FEW = 32
"""Up to this number of samples for each decoder all take part."""
NEAR, NEAR_PER_MOVE = 6, 12
"""Samples near a boundary that take part, for each decoder and for each sample that has to move."""
SHORT = 1024
"""Up to this length, sorting is faster than finding one place and its neighbour."""


@dataclass(frozen=True)
class Solution:
    """An optimal assignment, the prices that prove it, and the samples with a choice at these prices."""

    decoder_N: Ints
    price_K: Floats
    choices: Choices | None


def transport(cost_KN: Floats, capacity_K: Ints, price_K: Floats) -> Solution:
    """The cheapest assignment with exactly `capacity_K` samples for each decoder; any prices will do to start from."""
    found = _solve(cost_KN, capacity_K, price_K)
    assert found, "capacities that no assignment can meet"
    return found


def rough_prices(cost_KN: Floats, capacity_K: Ints) -> Floats:
    """Prices near the optimal ones: those of an eighth of the samples when there are many, else a sweep from zero."""
    num_decoders, number = cost_KN.shape
    if number > LARGE:
        some_KN = np.ascontiguousarray(cost_KN[:, ::8])
        bounds_K = np.rint(capacity_K.cumsum() * (some_KN.shape[1] / number)).astype(np.intp)
        share_K = np.diff(bounds_K, prepend=0)
        found = _solve(some_KN, share_K, rough_prices(some_KN, share_K))
        if found:
            return found.price_K
    price_K = np.zeros(num_decoders)
    _sweep(cost_KN, capacity_K, price_K, rough=True)
    return price_K


def _solve(cost_KN: Floats, capacity_K: Ints, price_K: Floats) -> Solution | None:
    """Sweeps until few samples have to move, then solves for those near a boundary; None if nothing is feasible."""
    num_decoders, number = cost_KN.shape
    price_K = price_K.copy()
    if number <= FEW * num_decoders:
        return _settle(cost_KN, capacity_K, price_K, sweep=True)
    factor, before = 1, number
    while True:
        decoder_N, gap_N = _nearest(cost_KN, price_K)
        wrong = _wrong(decoder_N, capacity_K)
        keep = factor * (NEAR * num_decoders + NEAR_PER_MOVE * wrong)
        if wrong <= number // 64 and keep < number // 2:
            width_K = _widths(gap_N, decoder_N, keep, num_decoders, alike=factor == 1)
            near_N = gap_N <= width_K.take(decoder_N)
            if np.count_nonzero(near_N) > number // 2:
                return _settle(cost_KN, capacity_K, price_K, sweep=False)
            if found := _solve_near(cost_KN, capacity_K, price_K, decoder_N, near_N, width_K):
                return found
            factor *= 4
        else:
            tied = number - np.count_nonzero(gap_N)  # sweeps do not help much where many samples are equal
            enough = before - 2 if tied <= 4 * num_decoders else before // 2
            if wrong <= num_decoders // 2 or wrong > enough or tied > number // 8:
                return _settle(cost_KN, capacity_K, price_K, sweep=False)
        before = wrong
        _sweep(cost_KN, capacity_K, price_K)


def _solve_near(
    cost_KN: Floats, capacity_K: Ints, price_K: Floats, decoder_N: Ints, near_N: Bools, width_K: Floats
) -> Solution | None:
    """Solves for the samples near a boundary while the others keep the decoder they prefer; None if they cannot.

    They can as long as no price rises, compared with any other, by more than the samples of that decoder can bear.
    """
    near_M = np.flatnonzero(near_N)
    rest_K = capacity_K - np.bincount(decoder_N[~near_N], minlength=len(price_K))
    found = None if rest_K.min() < 0 else _solve(cost_KN.take(near_M, 1), rest_K, price_K)
    if not found:
        return None
    rise_K = found.price_K - price_K
    if (rise_K - rise_K.min() > width_K).any():
        now_N, gap_N = _nearest(cost_KN, found.price_K)
        if not (near_N | ((now_N == decoder_N) & (gap_N > 0))).all():
            return None
    decoder_N[near_M] = found.decoder_N
    choices = found.choices and replace(found.choices, sample_M=near_M[found.choices.sample_M])
    return Solution(decoder_N, found.price_K, choices)


def _widths(gap_N: Floats, decoder_N: Ints, keep: int, num_decoders: int, *, alike: bool) -> Floats:
    """The gap up to which `keep` samples are near a boundary: the same for all decoders, or each with an equal share.

    The former is faster, the latter right where some boundaries are crowded and others deserted.
    """
    if alike:
        return np.full(num_decoders, np.partition(gap_N, keep)[keep])
    share = keep // num_decoders
    gaps = (gap_N[decoder_N == k] for k in range(num_decoders))
    return np.array([np.partition(gap, share)[share] if len(gap) > share else np.inf for gap in gaps])


def _nearest(cost_KN: Floats, price_K: Floats) -> tuple[Ints, Floats]:
    """The preferred decoder of each sample, and how much more the second choice costs."""
    number = cost_KN.shape[1]
    decoder_N, gap_N = np.empty(number, np.intp), np.empty(number)
    for begin in range(0, number, CHUNK):
        part = slice(begin, begin + CHUNK)
        total_KC = cost_KN[:, part] + price_K[:, None]
        best_C = total_KC.min(0)
        decoder_N[part] = decoder_C = (total_KC == best_C).argmax(0)  # faster than argmin of the numbers
        total_KC.put(decoder_C * len(best_C) + np.arange(len(best_C)), np.inf)
        np.subtract(total_KC.min(0), best_C, out=gap_N[part])
    return decoder_N, gap_N


def _sweep(cost_KN: Floats, capacity_K: Ints, price_K: Floats, rough: bool = False) -> None:
    """Sets each price in turn so that as many samples as the decoder may take prefer it to all others.

    Every call counts here: few samples are the usual case. A rough sweep takes the end of the range of such prices,
    which is faster to find than the middle.
    """
    num_decoders, number = cost_KN.shape
    minimum, subtract = np.minimum, np.subtract
    later_KN = list(cost_KN + price_K[:, None])  # the best of the decoders from k on
    for k in range(num_decoders - 2, 0, -1):
        minimum(later_KN[k], later_KN[k + 1], out=later_KN[k])
    earlier_N = np.full(number, np.inf)  # the best of the decoders before k, at their new prices
    later_KN.append(earlier_N)
    sort, prices, places = number <= SHORT and not rough, price_K.tolist(), (number - capacity_K).tolist()
    for k, own_N in enumerate(cost_KN):
        margin_N = minimum(earlier_N, later_KN[k + 1])
        subtract(margin_N, own_N, out=margin_N)
        place = places[k]
        if sort and 0 < place < number:
            margin_N.sort()
            low, high = margin_N.item(place - 1), margin_N.item(place)
        else:
            low, high = _around(margin_N, place, rough)
        price = (low + high) // 2 if low > -INF and high < INF else _beyond(low, high, prices[k])
        prices[k] = price
        next_N = own_N + price
        earlier_N = minimum(earlier_N, next_N, out=next_N)
    price_K[:] = prices


def _around(margin_N: Floats, place: int, rough: bool) -> tuple[float, float]:
    """The numbers at `place - 1` and `place` in sorted order, infinite beyond the ends; if rough, the latter twice."""
    if not 0 < place < len(margin_N):
        return (-INF, margin_N.min().item()) if place <= 0 else (margin_N.max().item(), INF)
    margin_N.partition(place)
    high = margin_N.item(place)
    return high if rough else np.maximum.reduce(margin_N[:place]).item(), high


def _beyond(low: float, high: float, price: float) -> float:
    """A price above the lower end where there is no upper one, and the other way round."""
    if -INF < low < INF:
        return max(price, low + 1)
    return min(price, high - 1) if -INF < high < INF else price


def _settle(cost_KN: Floats, capacity_K: Ints, price_K: Floats, *, sweep: bool) -> Solution | None:
    """Sweeps while that helps, then moves samples along shortest paths until all capacities are met."""
    fewest, stalled = cost_KN.shape[1], 0
    while sweep and fewest and stalled < 3:
        _sweep(cost_KN, capacity_K, price_K)
        wrong = _wrong((cost_KN + price_K[:, None]).argmin(0), capacity_K)
        stalled += wrong >= fewest
        fewest = min(wrong, fewest)
    free_KN = _free(cost_KN, price_K)
    decoder_N = free_KN.argmax(0)
    excess_K = np.bincount(decoder_N, minlength=len(price_K)) - capacity_K
    choices = drain(free_KN, decoder_N, excess_K)
    while excess_K.any():
        distance_K = distances(cost_KN, price_K, decoder_N, excess_K)
        if distance_K is None:
            return None
        price_K -= distance_K
        choices = drain(_free(cost_KN, price_K), decoder_N, excess_K)
    return Solution(decoder_N, price_K, choices)


def _wrong(decoder_N: Ints, capacity_K: Ints) -> int:
    """How many samples have to move at least."""
    excess_K: list[int] = (np.bincount(decoder_N, minlength=len(capacity_K)) - capacity_K).tolist()
    return sum(map(abs, excess_K)) // 2


def _free(cost_KN: Floats, price_K: Floats) -> Bools:
    """Which decoders each sample likes best."""
    free_KN = np.empty(cost_KN.shape, np.bool_)
    for begin in range(0, cost_KN.shape[1], CHUNK):
        part = slice(begin, begin + CHUNK)
        total_KC = cost_KN[:, part] + price_K[:, None]
        np.equal(total_KC, total_KC.min(0), out=free_KN[:, part])
    return free_KN
