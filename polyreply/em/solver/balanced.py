"""The balanced assignment of EqHard-EM: each decoder gets its share of the samples, at the lowest total cost.

It is solved exactly by `transport`, without duplicating decoders. Among the assignments of the lowest cost, the one of
the lowest secondary cost is taken; among those, one is drawn by a seed. Costs are first rounded to whole numbers (see
`_whole`), so that sums are exact and ties are real.

Legend: N samples, K decoders, M samples that are still undecided.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from polyreply.arrays import Bools, Floats, Ints
from polyreply.em.solver.transport import CHUNK, Choices, drain, rough_prices, several, transport
from polyreply.errors import PolyReplyError

HUGE = 1e300
"""Costs must be smaller than this, so that differences between them are finite."""


@dataclass(frozen=True)
class Balanced:
    """An assignment: the decoder of each sample, and prices that speed up the next, similar problem.

    Each sample has a decoder for which its cost plus the decoder's price is lowest. Only differences between prices
    matter; the lowest is 0.
    """

    decoder_N: Ints
    prices_K: Floats


def balanced_assignment(
    cost_NK: ArrayLike,
    capacities: Sequence[int] | Ints | None = None,
    *,
    tie_NK: ArrayLike | None = None,
    prices_K: ArrayLike | None = None,
    seed: int = 0,
) -> Balanced:
    """The assignment of the lowest total cost in which decoder k gets exactly `capacities[k]` samples.

    Without capacities the sizes differ by at most one, and the cost also decides which decoders get one more.
    Assignments of equal cost are compared by their total in `tie_NK`; among those equal in both, `seed` draws, so that
    neither the order of the samples nor that of the decoders matters. `prices_K` from an earlier, similar problem save
    time and change nothing else, except the draw.

    To make every sum exact, costs are rounded to a fraction of the widest difference between two costs of a sample:
    2⁻⁴⁶ for ten decoders. "Lowest" and "equal" refer to the rounded costs.
    """
    matrix_NK = _matrix(cost_NK, "cost_NK")
    number, num_decoders = matrix_NK.shape
    capacity_K = _capacities(capacities, number, num_decoders)
    secondary_NK = None if tie_NK is None else _matrix(tie_NK, "tie_NK")
    if secondary_NK is not None and secondary_NK.shape != matrix_NK.shape:
        raise PolyReplyError(f"tie_NK must have the shape of cost_NK, {matrix_NK.shape}; found {secondary_NK.shape}")
    if not number or num_decoders == 1:
        return Balanced(np.zeros(number, np.intp), np.zeros(num_decoders))
    cost_KN, scale = _whole(matrix_NK)
    price_K = rough_prices(cost_KN, capacity_K) if prices_K is None else _whole_prices(prices_K, scale, num_decoders)
    if capacities is None and number % num_decoders:
        cost_KN, capacity_K, price_K = _with_spare_places(cost_KN, price_K)
    decoder_N, price_K = _lexicographic(cost_KN, capacity_K, price_K, secondary_NK, seed)
    price_K = price_K[:num_decoders]
    return Balanced(decoder_N[:number], (price_K - price_K.min()) / scale)


def _matrix(values: ArrayLike, name: str) -> Floats:
    matrix_NK = np.asarray(values, np.float64)
    if matrix_NK.ndim != 2 or not matrix_NK.shape[1]:
        raise PolyReplyError(
            f"{name} must have a row for each sample and a column for each decoder; found {matrix_NK.shape}"
        )
    if matrix_NK.size and not (matrix_NK.min() > -HUGE and matrix_NK.max() < HUGE):
        row, column = np.argwhere(~(np.abs(matrix_NK) < HUGE))[0]
        found = matrix_NK[row, column]
        raise PolyReplyError(
            f"{name} must be finite, below {HUGE:g}; found {found:g} in row {row}, for decoder {column}"
        )
    return matrix_NK


def _capacities(capacities: Sequence[int] | Ints | None, number: int, num_decoders: int) -> Ints:
    if capacities is None:
        size, extra = divmod(number, num_decoders)
        return np.array([size + 1] * extra + [size] * (num_decoders - extra))
    capacity_K = np.asarray(capacities)
    if capacity_K.shape != (num_decoders,) or capacity_K.dtype.kind not in "iu" or capacity_K.min() < 0:
        raise PolyReplyError(
            f"capacities must be {num_decoders} whole numbers, one for each decoder; found {capacities}"
        )
    if capacity_K.sum() != number:
        raise PolyReplyError(f"capacities must add up to the {number} samples; found {capacity_K.sum()}")
    return capacity_K.astype(np.intp)


def _whole_prices(prices_K: ArrayLike, scale: float, num_decoders: int) -> Floats:
    price_K = np.asarray(prices_K, np.float64)
    if price_K.shape != (num_decoders,) or not np.isfinite(price_K).all():
        raise PolyReplyError(f"prices_K must be {num_decoders} finite numbers, one for each decoder; found {price_K}")
    highest = num_decoders * 2.0 ** _bits(num_decoders)  # no optimal price is higher
    whole_K: Floats = np.rint(np.minimum((price_K - price_K.min()) * scale, highest))
    return whole_K


def _bits(num_decoders: int) -> int:
    """Binary digits of a cost: a price can be K times as high, and float64 is exact up to 53 digits."""
    return 50 - num_decoders.bit_length()


def _whole(cost_NK: Floats) -> tuple[Floats, float]:
    """Costs above each sample's lowest as whole numbers, (K, N), and the factor they were multiplied by."""
    number, num_decoders = cost_NK.shape
    cost_KN, widest = np.empty((num_decoders, number)), 0.0
    for begin in range(0, number, CHUNK):
        cost_KC = cost_KN[:, begin : begin + CHUNK]
        cost_KC[...] = cost_NK[begin : begin + CHUNK].T
        cost_KC -= cost_KC.min(0)
        widest = max(widest, cost_KC.max().item())
    scale = math.ldexp(1.0, min(_bits(num_decoders) - math.frexp(widest)[1], 1000))
    for begin in range(0, number, CHUNK):
        cost_KC = cost_KN[:, begin : begin + CHUNK]
        cost_KC *= scale
        np.rint(cost_KC, out=cost_KC)
    return cost_KN, scale


def _with_spare_places(cost_KN: Floats, price_K: Floats) -> tuple[Floats, Ints, Floats]:
    """Sizes that differ by one, as a problem with fixed sizes.

    Every decoder has the larger size and one placeholder sample, which may occupy a place there or in an additional
    decoder. The latter has one place for each decoder that is to have one real sample more.
    """
    num_decoders, number = cost_KN.shape
    extra = number % num_decoders
    wide_KN = np.full((num_decoders + 1, number + num_decoders), np.inf)
    wide_KN[:-1, :number] = cost_KN
    wide_KN[-1, number:] = wide_KN[range(num_decoders), range(number, number + num_decoders)] = 0.0
    capacity_K = np.array([number // num_decoders + 1] * num_decoders + [extra])
    ordered_K = np.sort(price_K)[::-1]
    return wide_KN, capacity_K, np.append(price_K, (ordered_K[extra - 1] + ordered_K[extra]) // 2)


def _lexicographic(
    cost_KN: Floats, capacity_K: Ints, price_K: Floats, secondary_NK: Floats | None, seed: int
) -> tuple[Ints, Floats]:
    """The cheapest assignment; of several, the cheapest by the secondary cost; of several, one by the seed."""
    found = transport(cost_KN, capacity_K, price_K)
    sample_M, open_KM = _undecided(found.choices)
    if len(sample_M):
        rest_K = np.bincount(found.decoder_N[sample_M], minlength=len(capacity_K))
        if secondary_NK is None:
            found.decoder_N[sample_M] = _drawn(open_KM, rest_K, seed)
        else:
            cost_KM = _whole(_rows(secondary_NK, sample_M, len(capacity_K)))[0]
            np.copyto(cost_KM, np.inf, where=~open_KM)
            decoder_M, _ = _lexicographic(cost_KM, rest_K, rough_prices(cost_KM, rest_K), None, seed)
            found.decoder_N[sample_M] = decoder_M
    return found.decoder_N, found.price_K


def _rows(secondary_NK: Floats, sample_M: Ints, num_columns: int) -> Floats:
    """The secondary costs of some samples; they are zero for placeholders and for the additional decoder."""
    number, num_decoders = secondary_NK.shape
    cost_MK = np.zeros((len(sample_M), num_columns))
    real_M = sample_M < number
    cost_MK[real_M, :num_decoders] = secondary_NK[sample_M[real_M]]
    return cost_MK


def _undecided(choices: Choices | None) -> tuple[Ints, Bools]:
    """The samples with a choice and their choices, if there is another assignment of the same cost.

    There is one if samples can move for free along a cycle of decoders, that is, if some walk has more steps than there
    are decoders.
    """
    none = np.empty(0, np.intp), np.empty((0, 0), np.bool_)
    if not choices:
        return none
    walk_KK = np.minimum(choices.arcs_KK, 1.0)
    walk_KK.flat[:: len(walk_KK) + 1] = 0.0
    for _ in range(len(walk_KK).bit_length()):
        walk_KK = np.minimum(walk_KK @ walk_KK, 1.0)
    if not walk_KK.any():
        return none
    some_M = several(choices.free_KM)
    return choices.sample_M[some_M], choices.free_KM.take(some_M, 1)


def _drawn(open_KM: Bools, capacity_K: Ints, seed: int) -> Ints:
    """An assignment to open decoders: the first one found after samples and decoders have been shuffled."""
    generator = np.random.default_rng(seed)
    order_K, order_M = (generator.permutation(size) for size in open_KM.shape)
    free_KM = open_KM[order_K].take(order_M, 1)
    decoder_M = free_KM.argmax(0)
    excess_K = np.bincount(decoder_M, minlength=len(order_K)) - capacity_K[order_K]
    drain(free_KM, decoder_M, excess_K)
    assert not excess_K.any()
    drawn_M = np.empty(len(order_M), np.intp)
    drawn_M[order_M] = order_K[decoder_M]
    return drawn_M
