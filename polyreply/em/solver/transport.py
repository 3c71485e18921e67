"""The exact solver behind the balanced assignment: N samples, K decoders, and K prices.

The problem: give decoder k exactly capacity_K[k] samples at the lowest total cost. The paper solves it as an N×N
assignment with every decoder duplicated; here it is a transportation problem with K sinks.

The idea: put a price on each decoder. Sample i prefers the decoder with the lowest `cost_KN[k, i] + price_K[k]`. If at
some prices every decoder is preferred by exactly as many samples as it has places, that assignment is the cheapest of
all: any other one with the same sizes pays the same prices in total, and no sample pays less than at its preferred
decoder (LP duality). So the search is over K prices instead of over assignments:

1. `_sweep` sets each price in turn to the quantile of the samples' margins at which the decoder gets its capacity.
   A few sweeps leave a handful of samples too many here and too few there.
2. Only samples whose first and second choice cost nearly the same can still change. `_solve_near` solves the problem
   for those alone and then verifies that all others still prefer their decoder; if not, it takes more samples in.
3. `_settle` finishes exactly, in a graph with one node per decoder. An edge j → k costs what the cheapest switch of a
   sample from j to k costs at the current prices. Shortest paths from decoders with too many samples to decoders with
   too few (`_distances`) say by how much to lower prices so that these switches become free, and `drain` moves samples
   along free paths. The invariant: every sample keeps a cheapest decoder throughout, so the end is optimal.

Why it is exact: costs and prices are whole numbers held in float64, small enough that every sum is exact, so two costs
are equal or they are not and no tolerance is needed. A forbidden decoder costs infinity; every sample may go to at
least two decoders.

Legend: N samples, C of them in a chunk, M of them with a choice or near a boundary; K decoders.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from polyreply.arrays import Bools, Floats, Ints

CHUNK = 4096
"""Samples processed at a time where all are passed through: few enough for the processor's cache."""
_INF = float("inf")
_LARGE = 16384
"""Above this number of samples, prices are first found for an eighth of them."""
_FEW = 32
"""Up to this number of samples for each decoder, all take part in `_settle`."""
_NEAR, _NEAR_PER_MOVE = 6, 12
"""Samples near a boundary that take part, for each decoder and for each sample that has to move."""
_SHORT = 1024
"""Up to this length, sorting is faster than finding one place and its neighbour."""


@dataclass(frozen=True)
class Choices:
    """Samples that may switch for free, and how many of decoder j's (row) may switch to k (column)."""

    sample_M: Ints
    free_KM: Bools
    arcs_KK: Floats


@dataclass(frozen=True)
class Solution:
    """An optimal assignment, the prices that prove it, and the samples that have a choice at these prices."""

    decoder_N: Ints
    price_K: Floats
    choices: Choices | None


def transport(cost_KN: Floats, capacity_K: Ints, price_K: Floats) -> Solution:
    """The cheapest assignment with exactly `capacity_K` samples for each decoder, starting from any prices."""
    found = _solve(cost_KN, capacity_K, price_K)
    assert found, "no assignment can meet the capacities"
    return found


def rough_prices(cost_KN: Floats, capacity_K: Ints) -> Floats:
    """Prices near the optimal ones: those of an eighth of the samples if there are many, else one sweep from zero."""
    num_decoders, number = cost_KN.shape
    if number > _LARGE:
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
    """Sweep until few samples have to move, then solve for those near a boundary; None if nothing is feasible."""
    num_decoders, number = cost_KN.shape
    price_K = price_K.copy()
    if number <= _FEW * num_decoders:
        return _settle(cost_KN, capacity_K, price_K, sweep=True)
    factor, before = 1, number
    while True:
        decoder_N, gap_N = _nearest(cost_KN, price_K)
        wrong = _wrong(decoder_N, capacity_K)
        keep = factor * (_NEAR * num_decoders + _NEAR_PER_MOVE * wrong)
        if wrong <= number // 64 and keep < number // 2:
            width_K = _widths(gap_N, decoder_N, keep, num_decoders, alike=factor == 1)
            near_N = gap_N <= width_K.take(decoder_N)
            if np.count_nonzero(near_N) > number // 2:
                return _settle(cost_KN, capacity_K, price_K, sweep=False)
            if found := _solve_near(cost_KN, capacity_K, price_K, decoder_N, near_N, width_K):
                return found
            factor *= 4
        else:
            tied = number - np.count_nonzero(gap_N)  # sweeps help little where many samples are tied
            enough = before - 2 if tied <= 4 * num_decoders else before // 2
            if wrong <= num_decoders // 2 or wrong > enough or tied > number // 8:
                return _settle(cost_KN, capacity_K, price_K, sweep=False)
        before = wrong
        _sweep(cost_KN, capacity_K, price_K)


def _solve_near(
    cost_KN: Floats, capacity_K: Ints, price_K: Floats, decoder_N: Ints, near_N: Bools, width_K: Floats
) -> Solution | None:
    """Solve for the samples near a boundary while the others keep their preferred decoder; None if they would switch.

    They keep it as long as no price rises, relative to any other, by more than the gap of that decoder's samples.
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

    The former is faster, the latter right where some boundaries have many samples and others few.
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
        decoder_N[part] = decoder_C = (total_KC == best_C).argmax(0)  # faster than argmin
        total_KC.put(decoder_C * len(best_C) + np.arange(len(best_C)), np.inf)
        np.subtract(total_KC.min(0), best_C, out=gap_N[part])
    return decoder_N, gap_N


def _sweep(cost_KN: Floats, capacity_K: Ints, price_K: Floats, rough: bool = False) -> None:
    """Set each price in turn so that exactly as many samples prefer the decoder as it has places.

    Usually there are few samples, so the number of NumPy calls matters. A rough sweep takes the end of the range of
    such prices, which is faster to find than its middle.
    """
    num_decoders, number = cost_KN.shape
    minimum, subtract = np.minimum, np.subtract
    later_KN = list(cost_KN + price_K[:, None])  # the best of the decoders from k on
    for k in range(num_decoders - 2, 0, -1):
        minimum(later_KN[k], later_KN[k + 1], out=later_KN[k])
    earlier_N = np.full(number, np.inf)  # the best of the decoders before k, at their new prices
    later_KN.append(earlier_N)
    sort, prices, places = number <= _SHORT and not rough, price_K.tolist(), (number - capacity_K).tolist()
    for k, own_N in enumerate(cost_KN):
        margin_N = minimum(earlier_N, later_KN[k + 1])
        subtract(margin_N, own_N, out=margin_N)
        place = places[k]
        if sort and 0 < place < number:
            margin_N.sort()
            low, high = margin_N.item(place - 1), margin_N.item(place)
        else:
            low, high = _around(margin_N, place, rough)
        price = (low + high) // 2 if low > -_INF and high < _INF else _beyond(low, high, prices[k])
        prices[k] = price
        next_N = own_N + price
        earlier_N = minimum(earlier_N, next_N, out=next_N)
    price_K[:] = prices


def _around(margin_N: Floats, place: int, rough: bool) -> tuple[float, float]:
    """The numbers at `place - 1` and `place` in sorted order, infinite beyond the ends; if rough, the latter twice."""
    if not 0 < place < len(margin_N):
        return (-_INF, margin_N.min().item()) if place <= 0 else (margin_N.max().item(), _INF)
    margin_N.partition(place)
    high = margin_N.item(place)
    return high if rough else np.maximum.reduce(margin_N[:place]).item(), high


def _beyond(low: float, high: float, price: float) -> float:
    """A price above the lower end where there is no upper one, and vice versa."""
    if -_INF < low < _INF:
        return max(price, low + 1)
    return min(price, high - 1) if -_INF < high < _INF else price


def _settle(cost_KN: Floats, capacity_K: Ints, price_K: Floats, *, sweep: bool) -> Solution | None:
    """Sweep while that helps, then move samples along shortest paths until all capacities are met."""
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
        distance_K = _distances(cost_KN, price_K, decoder_N, excess_K)
        if distance_K is None:
            return None
        price_K -= distance_K
        choices = drain(_free(cost_KN, price_K), decoder_N, excess_K)
    return Solution(decoder_N, price_K, choices)


def _wrong(decoder_N: Ints, capacity_K: Ints) -> int:
    """The least number of samples that have to move."""
    excess_K: list[int] = (np.bincount(decoder_N, minlength=len(capacity_K)) - capacity_K).tolist()
    return sum(map(abs, excess_K)) // 2


def _free(cost_KN: Floats, price_K: Floats) -> Bools:
    """Which decoders are cheapest for each sample."""
    free_KN = np.empty(cost_KN.shape, np.bool_)
    for begin in range(0, cost_KN.shape[1], CHUNK):
        part = slice(begin, begin + CHUNK)
        total_KC = cost_KN[:, part] + price_K[:, None]
        np.equal(total_KC, total_KC.min(0), out=free_KN[:, part])
    return free_KN


def several(free_KN: Bools) -> Ints:
    """The samples with more than one free decoder."""
    return np.flatnonzero(np.add.reduce(free_KN, 0, dtype=np.uint16) > 1)


def drain(free_KN: Bools, decoder_N: Ints, excess_K: Ints) -> Choices | None:
    """Move samples for free, in bulk, from decoders with too many to decoders with too few, as far as possible.

    Changes `decoder_N` and `excess_K`. Of samples that could move equally well, the first ones do.
    """
    sample_M = several(free_KN)
    if not len(sample_M):
        return None
    if 4 * len(sample_M) > len(decoder_N):
        sample_M, free_KM, decoder_M = np.arange(len(decoder_N)), free_KN, decoder_N.copy()
    else:
        free_KM, decoder_M = free_KN.take(sample_M, 1), decoder_N[sample_M]
    arcs_KK = _arcs(free_KM, decoder_M)
    excess = excess_K.tolist()
    while path := _path(arcs_KK, excess):
        amount = min(excess[path[0]], -excess[path[-1]], *(int(arcs_KK[step]) for step in pairwise(path)))
        for j, k in pairwise(path):
            moved = np.flatnonzero(free_KM[k] & (decoder_M == j))[:amount]
            free_K = np.add.reduce(free_KM.take(moved, 1), 1)
            arcs_KK[j] -= free_K
            arcs_KK[k] += free_K
            decoder_M[moved] = k
        excess[path[0]] -= amount
        excess[path[-1]] += amount
    decoder_N[sample_M] = decoder_M
    excess_K[:] = excess
    return Choices(sample_M, free_KM, arcs_KK)


def _arcs(free_KM: Bools, decoder_M: Ints) -> Floats:
    """How many samples of decoder j (row) may move to decoder k (column) for free."""
    num_decoders, number = free_KM.shape
    identity_KK, arcs_KK = np.eye(num_decoders, dtype=np.float32), np.zeros((num_decoders, num_decoders))
    for begin in range(0, number, CHUNK):
        part = slice(begin, begin + CHUNK)
        arcs_KK += np.dot(free_KM[:, part].astype(np.float32), identity_KK.take(decoder_M[part], 0)).T
    return arcs_KK


def _path(arcs_KK: Floats, excess: list[int]) -> list[int] | None:
    """A shortest path from a decoder with too many samples to one with too few."""
    parent = {k: -1 for k, extra in enumerate(excess) if extra > 0}
    queue = list(parent)
    table = arcs_KK.tolist() if queue else []
    for j in queue:
        for k, number in enumerate(table[j]):
            if number and k not in parent:
                parent[k] = j
                if excess[k] < 0:
                    return _back(parent, k)
                queue.append(k)
    return None


def _back(parent: dict[int, int], last: int) -> list[int]:
    path = [last]
    while parent[path[-1]] >= 0:
        path.append(parent[path[-1]])
    return path[::-1]


def _distances(cost_KN: Floats, price_K: Floats, decoder_N: Ints, excess_K: Ints) -> Floats | None:
    """The cost of the cheapest path to each decoder from any with too many samples, up to those with too few.

    Lowering each price by it keeps every sample at a cheapest decoder and opens a free path to every decoder with too
    few. None if one of them cannot be reached: there is no assignment.
    """
    switch_KK = _switches(cost_KN, price_K, decoder_N)
    distance_K = np.where(excess_K > 0, 0.0, np.inf)
    while True:
        closer_K = np.minimum.reduce(switch_KK + distance_K, 1)
        if closer_K.tolist() == distance_K.tolist():
            break
        distance_K = closer_K
    farthest = distance_K[excess_K < 0].max()
    return np.minimum(distance_K, farthest) if farthest < np.inf else None


def _switches(cost_KN: Floats, price_K: Floats, decoder_N: Ints) -> Floats:
    """The extra cost of the cheapest switch to decoder k (row) among the samples of decoder j (column)."""
    num_decoders = len(price_K)
    switch_KK = np.full((num_decoders, num_decoders), np.inf)
    switch_KK.flat[:: num_decoders + 1] = 0.0
    for begin in range(0, len(decoder_N), CHUNK):
        decoder_C = decoder_N[begin : begin + CHUNK]
        order_C = decoder_C.astype(np.uint16).argsort(kind="stable")  # 16-bit integers are sorted in linear time
        total_KC = cost_KN[:, begin : begin + CHUNK].take(order_C, 1) + price_K[:, None]
        total_KC -= total_KC.min(0)
        count_K = np.bincount(decoder_C, minlength=num_decoders)
        some_K = np.flatnonzero(count_K)
        cheapest_KK = np.minimum.reduceat(total_KC, (count_K.cumsum() - count_K)[some_K], 1)
        if len(some_K) == num_decoders:
            np.minimum(switch_KK, cheapest_KK, out=switch_KK)
        else:
            switch_KK[:, some_K] = np.minimum(switch_KK[:, some_K], cheapest_KK)
    return switch_KK
