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

from polyreply.em.flow import CHUNK, Bools, Choices, Floats, Ints, distances, drain

import os
WF=int(os.environ.get('WF','64'))
AL=int(os.environ.get('AL','10000000'))
LOG=[]
def STALL(before, tied, K, N):
    if MODE==0: return -1 if tied>N//2 else before-2
    if MODE==1: return -1 if tied>N//2 else (before//2 if tied>4*K else before-2)
    if MODE==2: return -1 if tied>N//8 else (before//2 if tied>4*K else before-2)
MODE=int(os.environ.get('MODE','1'))
LARGE = 16384
"""Above this number of samples, prices are first found for an eighth of them."""
FEW = 32
"""Up to this number of samples for each decoder all take part."""
NEAR = 6
"""Samples near a boundary that take part, for each decoder and for each sample that is one too many somewhere."""
SHORT = 1024
"""Up to this length, sorting is faster than partitioning and looking for the neighbour."""


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
    """Sweeps until few samples are in the wrong place, then solves for those near a boundary."""
    num_decoders, number = cost_KN.shape
    if number <= FEW * num_decoders:
        return _settle(cost_KN, capacity_K, price_K.copy(), sweep=True)
    factor, before = 1, number
    while True:
        decoder_N, gap_N = _nearest(cost_KN, price_K)
        excess_K = np.bincount(decoder_N, minlength=num_decoders) - capacity_K
        wrong = int(np.abs(excess_K).sum()) // 2
        keep = factor * NEAR * (num_decoders + wrong)
        if keep < number // 2 and wrong <= number // WF:
            width_K = _widths(gap_N, decoder_N, keep, num_decoders, alike=factor == 1 and number <= AL)
            found = _solve_near(cost_KN, capacity_K, price_K, decoder_N, gap_N <= width_K.take(decoder_N), width_K)
            if found:
                return found
            factor *= 4
        elif wrong <= num_decoders // 2 or wrong > STALL(before, number - np.count_nonzero(gap_N), num_decoders, number):
            return _settle(cost_KN, capacity_K, price_K.copy(), sweep=False)
        before, price_K = wrong, price_K.copy()
        _sweep(cost_KN, capacity_K, price_K)


def _solve_near(
    cost_KN: Floats, capacity_K: Ints, price_K: Floats, decoder_N: Ints, near_N: Bools, width_K: Floats
) -> Solution | None:
    """Solves for the samples near a boundary; the others keep the decoder they prefer.

    That is right if no price rises, compared with any other, by more than the samples kept at that decoder can bear.
    None if one does.
    """
    near_M = np.flatnonzero(near_N)
    if len(near_M) > len(near_N) // 2:
        return _settle(cost_KN, capacity_K, price_K.copy(), sweep=False)
    rest_K = capacity_K - np.bincount(decoder_N[~near_N], minlength=len(price_K))
    found = None if rest_K.min() < 0 else _solve(cost_KN.take(near_M, 1), rest_K, price_K)
    if not found:
        return None
    rise_K = found.price_K - price_K
    if (rise_K - rise_K.min() > width_K).any():
        new_N, new_gap_N = _nearest(cost_KN, found.price_K)
        fixed=~near_N
        ok=bool(((new_N == decoder_N) & (new_gap_N > 0))[fixed].all())
        LOG.append(ok)
        if not ok: return None
    decoder_N[near_M] = found.decoder_N
    choices = found.choices and replace(found.choices, sample_M=near_M[found.choices.sample_M])
    return Solution(decoder_N, found.price_K, choices)


def _widths(gap_N: Floats, decoder_N: Ints, keep: int, num_decoders: int, *, alike: bool) -> Floats:
    """The gap up to which `keep` samples are near a boundary; if not `alike`, an equal share of them at each decoder."""
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


def _sweep(cost_KN: Floats, capacity_K: Ints, price_K: Floats, rough: bool = False) -> int:
    """Sets each price in turn so that as many samples as the decoder may take prefer it to all others.

    Returns how many prices did not fit. If all did, no sample has changed its mind and the assignment is found.
    """
    num_decoders, number = cost_KN.shape
    later_KN = list(cost_KN + price_K[:, None])  # the best of the decoders from k on
    for k in range(num_decoders - 2, 0, -1):
        np.minimum(later_KN[k], later_KN[k + 1], out=later_KN[k])
    earlier_N = np.full(number, np.inf)  # the best of the decoders before k, at their new prices
    later_KN.append(earlier_N)
    places, prices, unfit = (number - capacity_K).tolist(), price_K.tolist(), 0
    for k, own_N in enumerate(cost_KN):
        margin_N = np.minimum(earlier_N, later_KN[k + 1])
        np.subtract(margin_N, own_N, out=margin_N)
        low, high = _around(margin_N, places[k], rough)
        unfit += not low < prices[k] < high
        prices[k] = price = _between(low, high, prices[k])
        next_N = own_N + price
        earlier_N = np.minimum(earlier_N, next_N, out=next_N)
    price_K[:] = prices
    return unfit


def _around(margin_N: Floats, place: int, rough: bool) -> tuple[float, float]:
    """The numbers at `place - 1` and `place` in sorted order, infinite beyond the ends; both the same when rough."""
    number = len(margin_N)
    if rough:
        margin_N.partition(min(place, number - 1))
        return (margin_N.item(min(place, number - 1)),) * 2
    if number <= SHORT:
        margin_N.sort()
    elif 0 < place < number:
        margin_N.partition(place)
        return np.maximum.reduce(margin_N[:place]).item(), margin_N.item(place)
    else:
        margin_N.sort()
    low = margin_N.item(place - 1) if place else -np.inf
    return low, margin_N.item(place) if place < number else np.inf


def _between(low: float, high: float, price: float) -> float:
    """A whole number between the two, or beyond the one that is finite; the old price where neither is."""
    if -np.inf < low < np.inf:
        return (low + high) // 2 if high < np.inf else max(price, low + 1)
    return min(price, high - 1) if -np.inf < high < np.inf else price


def _settle(cost_KN: Floats, capacity_K: Ints, price_K: Floats, *, sweep: bool) -> Solution | None:
    """Sweeps while that helps, then moves samples along shortest paths until all capacities are met."""
    fewest, stalled = len(price_K) + 1, 0
    while sweep and stalled < 2:
        unfit = _sweep(cost_KN, capacity_K, price_K)
        if not unfit:
            return Solution((cost_KN + price_K[:, None]).argmin(0), price_K, None)
        stalled += unfit >= fewest
        fewest = min(unfit, fewest)
    slack_KN, free_KN, decoder_N = _preferences(cost_KN, price_K)
    excess_K = np.bincount(decoder_N, minlength=len(price_K)) - capacity_K
    choices = drain(free_KN, decoder_N, excess_K)
    while excess_K.any():
        distance_K = distances(slack_KN, decoder_N, excess_K)
        if distance_K is None:
            return None
        price_K -= distance_K
        slack_KN -= distance_K[:, None]
        slack_KN += distance_K[decoder_N]
        choices = drain(slack_KN == 0, decoder_N, excess_K)
    return Solution(decoder_N, price_K, choices)


def _preferences(cost_KN: Floats, price_K: Floats) -> tuple[Floats, Bools, Ints]:
    """How much more each sample would pay than for its best decoder, where that is nothing, and the first of those."""
    number = cost_KN.shape[1]
    slack_KN, free_KN, decoder_N = np.empty_like(cost_KN), np.empty(cost_KN.shape, np.bool_), np.empty(number, np.intp)
    for begin in range(0, number, CHUNK):
        part = slice(begin, begin + CHUNK)
        slack_KC = np.add(cost_KN[:, part], price_K[:, None], out=slack_KN[:, part])
        slack_KC -= slack_KC.min(0)
        decoder_N[part] = np.equal(slack_KC, 0, out=free_KN[:, part]).argmax(0)
    return slack_KN, free_KN, decoder_N
