"""Batches of a token corpus for one process: which samples go together, and in which order.

Shapes: N samples of the corpus, M batches of an epoch, B samples of a batch, S context tokens, T response
tokens, L tokens of either.

Sizes are global: a stream with `world_size` W yields the share of one rank, and the shares of one step
together are the batch that one process would see at that step. So every rank takes the same number of steps,
no sample is lost or repeated, and a run may be resumed with another number of processes.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from polyreply.arrays import Bools, Ints
from polyreply.data.context_format import Ids
from polyreply.errors import DataError

if TYPE_CHECKING:
    from polyreply.data.token_corpus import TokenCorpus


@dataclass(frozen=True)
class Batch:
    """Samples padded on the right to the longest of them; a mask is true where there is a token."""

    sample_ids_B: Ints
    context_BS: Ints
    context_mask_BS: Bools
    response_BT: Ints
    response_mask_BT: Bools


def collate(corpus: "TokenCorpus", sample_ids: Ints, pad_id: int) -> Batch:
    """Pad samples to the longest context and the longest response among them; no samples: 0 × 0 arrays."""
    samples = np.asarray(sample_ids, dtype=np.int64)
    contexts = _pad([corpus.context_ids(int(i)) for i in samples], pad_id)
    responses = _pad([corpus.response_ids(int(i)) for i in samples], pad_id)
    return Batch(samples, *contexts, *responses)


def _pad(rows: list[Ids], pad_id: int) -> tuple[Ints, Bools]:
    """Give the padded rows and where they hold tokens."""
    lengths_B = np.array([len(row) for row in rows], dtype=np.int64)
    mask_BL = np.arange(lengths_B.max(initial=0)) < lengths_B[:, None]
    padded_BL = np.full(mask_BL.shape, pad_id, dtype=np.int64)
    if rows:
        padded_BL[mask_BL] = np.concatenate(rows)
    return padded_BL, mask_BL


@dataclass(frozen=True)
class EpochPlan:
    """One epoch: every sample once, and where in that order each batch starts and stops."""

    order_N: Ints
    starts_M: Ints
    stops_M: Ints

    def batch(self, step: int) -> Ints:
        """Give the samples of the global batch at a step."""
        return self.order_N[self.starts_M[step] : self.stops_M[step]]


class SampleStream:
    """An endless stream over the sample ids of one rank, deterministic in (seed, epoch), resumable anywhere.

    `next` gives this rank's share of the next global batch; it may be empty when a batch has fewer samples
    than there are ranks. `epoch` and `step` say which batch comes next.
    """

    def __init__(
        self,
        plan: Callable[[np.random.Generator], EpochPlan],
        identity: dict[str, Any],
        seed: int,
        rank: int,
        world_size: int,
    ) -> None:
        """Stream what `plan` makes of a random generator; `identity` is all else that decides the order."""
        if not 0 <= rank < world_size:
            raise DataError(f"rank {rank} is not one of {world_size} processes; use 0 to {world_size - 1}")
        if identity["num_samples"] < 1:
            raise DataError("a stream needs at least one sample, and the corpus has none; check its file")
        if seed < 0:
            raise DataError(f"a seed is 0 or more, not {seed}")
        self._plan, self._identity = plan, {"seed": seed, **identity}
        self._seed, self._rank, self._world_size = seed, rank, world_size
        self._planned: tuple[int, EpochPlan] | None = None
        self.epoch, self.step = 0, 0

    def __iter__(self) -> Self:
        """Continue from the current position, epoch after epoch."""
        return self

    def __next__(self) -> Ints:
        """Give this rank's share of the next batch and move past it."""
        share = self._share(self.plan(self.epoch), self.step)
        self.step += 1
        if self.step == self.num_steps(self.epoch):
            self.epoch, self.step = self.epoch + 1, 0
        return share

    def num_steps(self, epoch: int) -> int:
        """Count the batches of an epoch: the same on every rank."""
        return len(self.plan(epoch).starts_M)

    def plan(self, epoch: int) -> EpochPlan:
        """Plan an epoch; the last plan is kept."""
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self._plan(np.random.default_rng([self._seed, epoch]))
        return self._planned[1]

    def state_dict(self) -> dict[str, Any]:
        """Give the position after the last batch taken, and what the order depends on, ready for JSON."""
        return {**self._identity, "epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved position; a state of another seed, size or corpus is refused."""
        for name, value in self._identity.items():
            if state.get(name) != value:
                raise DataError(
                    f"cannot resume the batches: the saved state has {name} {state.get(name)}, this run "
                    f"has {value}; use the same {name}, or start a new run"
                )
        epoch, step = int(state.get("epoch", -1)), int(state.get("step", -1))
        if epoch < 0 or not 0 <= step < self.num_steps(epoch):
            raise DataError(f"cannot resume the batches: epoch {epoch} has no step {step}; the state is damaged")
        self.epoch, self.step = epoch, step

    def _share(self, plan: EpochPlan, step: int) -> Ints:
        """Deal a batch out to the ranks, one sample to each in turn: counts differ by one at most."""
        return plan.batch(step)[self._rank :: self._world_size]


class DrawStream(SampleStream):
    """Random draws of `size` samples without replacement, for the E-step; an epoch's last may be smaller."""

    def __init__(self, num_samples: int, *, size: int, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        _check_size("size", size)
        identity = {"stream": "draws", "num_samples": num_samples, "size": size}
        super().__init__(lambda rng: _cut(rng.permutation(num_samples), size), identity, seed, rank, world_size)


class ContextDrawStream(SampleStream):
    """Random draws of whole contexts: all samples of a context in one draw, at most `size` samples together.

    `context_N` says which context each sample belongs to; equal neighbours share one. A draw takes contexts in random
    order as long as the next one fits, so draws differ in size. A context of more than `size` samples is cut.
    """

    def __init__(self, context_N: Ints, *, size: int, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        _check_size("size", size)
        context_N = np.asarray(context_N, dtype=np.int64)
        self._first_C = np.flatnonzero(np.diff(context_N, prepend=-1))
        self._count_C, self._size = np.diff(self._first_C, append=len(context_N)), size
        identity = {
            "stream": "context draws",
            "num_samples": len(context_N),
            "size": size,
            "contexts": hashlib.sha256(self._count_C.tobytes()).hexdigest()[:16],
        }
        super().__init__(self._plan_draws, identity, seed, rank, world_size)

    def _plan_draws(self, rng: np.random.Generator) -> EpochPlan:
        """Shuffle the contexts, lay their samples in a row, and cut it where the next context no longer fits."""
        order_C = rng.permutation(len(self._first_C))
        count_C, ends_C = self._count_C[order_C], np.cumsum(self._count_C[order_C])
        order_N = np.arange(ends_C[-1]) + np.repeat(self._first_C[order_C] - (ends_C - count_C), count_C)
        starts, start = [], 0
        while start < len(order_N):
            starts.append(start)
            fitting = int(np.searchsorted(ends_C, start + self._size, side="right")) - 1
            end = int(ends_C[fitting]) if fitting >= 0 else 0
            start = end if end > start else start + self._size
        starts_M = np.array(starts)
        return EpochPlan(order_N, starts_M, np.append(starts_M[1:], len(order_N)))


class BucketedStream(SampleStream):
    """Batches of similar context and response lengths, different ones in a different order each epoch.

    Sized by `rows` (64 by default) or by `max_tokens`: the most cells, padding included, of the context and response
    arrays together. A sample above that budget is a batch by itself.
    """

    def __init__(
        self,
        context_lengths: Ids,
        response_lengths: Ids,
        *,
        rows: int | None = None,
        max_tokens: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if rows is not None and max_tokens is not None:
            raise DataError(f"a batch is sized by rows or by max_tokens, not both; drop one of {rows}, {max_tokens}")
        if rows is None and max_tokens is None:
            rows = 64
        _check_size("max_tokens" if rows is None else "rows", rows if max_tokens is None else max_tokens)
        self._lengths_2N = np.stack([context_lengths, response_lengths]).astype(np.int32)
        self._rows, self._max_tokens = rows, max_tokens
        identity = {
            "stream": "buckets",
            "num_samples": self._lengths_2N.shape[1],
            "rows": rows,
            "max_tokens": max_tokens,
            "lengths": hashlib.sha256(self._lengths_2N.tobytes()).hexdigest()[:16],
        }
        super().__init__(self._plan_buckets, identity, seed, rank, world_size)

    def _plan_buckets(self, rng: np.random.Generator) -> EpochPlan:
        """Cut the samples into batches along a curve through their lengths, then shuffle the batches."""
        order_N = _along_curve(self._lengths_2N, rng)
        if self._rows is not None:
            plan = _cut(order_N, self._rows)
        else:
            assert self._max_tokens is not None
            plan = _cut_by_tokens(order_N, self._lengths_2N, self._max_tokens)
        shuffled_M = rng.permutation(len(plan.starts_M))
        return EpochPlan(order_N, plan.starts_M[shuffled_M], plan.stops_M[shuffled_M])

    def padding_share(self, epoch: int = 0) -> float:
        """Give the share of padding among all cells of an epoch's arrays, for one process."""
        plan = self.plan(epoch)
        order_M = np.argsort(plan.starts_M)
        starts_M, stops_M = plan.starts_M[order_M], plan.stops_M[order_M]
        longest_2M = np.maximum.reduceat(self._lengths_2N[:, plan.order_N], starts_M, axis=1)
        cells = int(((stops_M - starts_M) * longest_2M.sum(axis=0, dtype=np.int64)).sum())
        return 1.0 - int(self._lengths_2N.sum(dtype=np.int64)) / max(cells, 1)


def _check_size(name: str, size: int | None) -> None:
    if size is None or size < 1:
        raise DataError(f"{name} must be 1 or more, not {size}")


def _cut(order_N: Ints, size: int) -> EpochPlan:
    """Cut an order into batches of `size`; the last may be smaller."""
    starts_M = np.arange(0, len(order_N), size)
    return EpochPlan(order_N, starts_M, np.minimum(starts_M + size, len(order_N)))


def _cut_by_tokens(order_N: Ints, lengths_2N: Ids, max_tokens: int) -> EpochPlan:
    """Cut an order into the longest batches of at most `max_tokens` padded cells."""
    lengths_2N = lengths_2N[:, order_N]
    starts, start = [], 0
    while start < len(order_N):
        starts.append(start)
        most = max(max_tokens // max(int(lengths_2N[:, start].sum()), 1), 1)  # none is shorter than its longest
        longest = np.maximum.accumulate(lengths_2N[:, start : start + most], axis=1).sum(axis=0, dtype=np.int64)
        cells = longest * np.arange(1, len(longest) + 1)
        start += max(int(np.searchsorted(cells, max_tokens, side="right")), 1)
    starts_M = np.array(starts)
    return EpochPlan(order_N, starts_M, np.append(starts_M[1:], len(order_N)))


def _along_curve(lengths_2N: Ids, rng: np.random.Generator) -> Ints:
    """Order the samples along a Hilbert curve through the plane of (context length, response length).

    Neighbours on the curve are near in both lengths, so batches cut from it pad little: about a third of what
    sorting by one length and then the other leaves. The curve starts at a random place, and samples of equal
    lengths are shuffled, so that each epoch has different batches.
    """
    shuffled_N = rng.permutation(lengths_2N.shape[1])
    bits = int(lengths_2N.max()).bit_length() + 1
    shift_2 = rng.integers(0, 2 ** (bits - 1), size=2)
    x, y = lengths_2N[:, shuffled_N] + shift_2.astype(np.int32)[:, None]
    return shuffled_N[np.argsort(_hilbert_position(x, y, bits), kind="stable")]


def _hilbert_position(x: Ids, y: Ids, bits: int) -> Ints:
    """Give the place of points along the Hilbert curve that fills the square of side 2 ** bits."""
    position = np.zeros(len(x), dtype=np.int64)
    for bit in range(bits - 1, -1, -1):
        right, upper, rest = (x >> bit) & 1, (y >> bit) & 1, (1 << bit) - 1
        position = (position << 2) | ((3 * right) ^ upper)
        x, y = x & rest, y & rest
        mirrored, turned = (upper == 0) & (right == 1), upper == 0
        x, y = np.where(mirrored, rest - x, x), np.where(mirrored, rest - y, y)
        x, y = np.where(turned, y, x), np.where(turned, x, y)
    return position
