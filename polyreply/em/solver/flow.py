"""Samples change places along paths in a graph of K nodes, one for each decoder.

Every sample has a decoder with the lowest cost plus price; where it has several such decoders it may move for free.
All numbers are whole, so that equal is equal.

Legend: N samples, C of them in a chunk, M of them with a choice; K decoders.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from polyreply.arrays import Bools, Floats, Ints

CHUNK = 4096
"""Samples worked on at a time where all are passed through: few enough for the processor's cache."""


@dataclass(frozen=True)
class Choices:
    """Samples that may have more than one decoder for free, and how many of decoder j (row) may have k (column)."""

    sample_M: Ints
    free_KM: Bools
    arcs_KK: Floats


def several(free_KN: Bools) -> Ints:
    """The samples that are free to have more than one decoder."""
    return np.flatnonzero(np.add.reduce(free_KN, 0, dtype=np.uint16) > 1)


def drain(free_KN: Bools, decoder_N: Ints, excess_K: Ints) -> Choices | None:
    """Moves samples for free, in bulk, from decoders with too many to decoders with too few, as far as that goes.

    Changes `decoder_N` and `excess_K`. Of samples that could move equally well the first ones do.
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
    """How many samples of decoder j (row) may go to decoder k (column) for free."""
    num_decoders, number = free_KM.shape
    identity_KK, arcs_KK = np.eye(num_decoders, dtype=np.float32), np.zeros((num_decoders, num_decoders))
    for begin in range(0, number, CHUNK):
        part = slice(begin, begin + CHUNK)
        arcs_KK += np.dot(free_KM[:, part].astype(np.float32), identity_KK.take(decoder_M[part], 0)).T
    return arcs_KK


def _path(arcs_KK: Floats, excess: list[int]) -> list[int] | None:
    """The fewest steps from a decoder with too many samples to one with too few."""
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


def distances(cost_KN: Floats, price_K: Floats, decoder_N: Ints, excess_K: Ints) -> Floats | None:
    """The cost of the cheapest path to each decoder from any with too many samples, as far as those with too few.

    Lowering each price by it leaves everybody content and opens a free path to every decoder with too few. None when
    one of them cannot be reached: there is no assignment.
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
    """How much more the cheapest switch to decoder k (row) costs among the samples of decoder j (column)."""
    num_decoders = len(price_K)
    switch_KK = np.full((num_decoders, num_decoders), np.inf)
    switch_KK.flat[:: num_decoders + 1] = 0.0
    for begin in range(0, len(decoder_N), CHUNK):
        decoder_C = decoder_N[begin : begin + CHUNK]
        order_C = decoder_C.astype(np.uint16).argsort(kind="stable")  # numbers this short are sorted in linear time
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
