"""Rows: which (context, decoder) pair each row of a batch computes.

K decoders on B contexts are not K passes over B rows but one pass over up to B·K rows. Two things must not be repeated
in it, and the order of the rows makes both cheap:

- *Adapters.* Rows are sorted by decoder (the invariant of this module). So the rows of one decoder are a slice, a
  *segment*, and neighbouring decoders with rows form a *run*: their adapters are one slice of the stacked (K, …)
  parameters. Where all decoders of a run have equally many rows, the run is a reshape to (decoders, rows) and one
  batched product. Where they do not, because some rows have ended, the shorter segments may be padded with copies of
  their last row; the copies' results are dropped.
- *Contexts.* Everything computed from a context alone exists once per context, not once per row. `to_grid` lays the
  rows of a context next to each other, (contexts, slots, …), so that they meet it in one product; `from_grid` brings
  the results back. While every decoder still has every context this is a transpose; later it is an indexed copy into a
  grid whose unused places are zero and are never read back.

Both are exact: a row is only moved, and its result depends on its own values and its decoder's weights alone.

Legend: R rows, one for each (context, decoder) pair; B contexts; K decoders, A of them in a run; X places of a padded
run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class OneDecoder:
    """All rows use one decoder, however many they are: for stock `generate`."""

    k: int
    last_tokens: int | None = None
    """Where adapters act on the response alone, in decoder-only models: the number of context tokens they act on too,
    which are the last of the first call; later calls have one token. None means that they act on every token."""


@dataclass(frozen=True)
class Run:
    """The rows of neighbouring decoders, whose adapters are neighbours in memory."""

    begin: int
    end: int
    """Its rows among all rows."""
    segments: tuple[tuple[int, int, int], ...]
    """(decoder, first row, row after the last) for each of its decoders, counted from the run's first row."""
    device: torch.device

    @cached_property
    def decoders(self) -> slice:
        """Its decoders among all decoders."""
        return slice(self.segments[0][0], self.segments[-1][0] + 1)

    @cached_property
    def most_rows(self) -> int:
        """The most rows that one decoder has."""
        return max(end - begin for _, begin, end in self.segments)

    @cached_property
    def is_even(self) -> bool:
        """Whether all its decoders have equally many rows."""
        return all(end - begin == self.most_rows for _, begin, end in self.segments)

    @cached_property
    def may_pad(self) -> bool:
        """Whether padding every decoder to the most rows costs little compared with reading the adapters."""
        return self.most_rows <= 16 or len(self.segments) * self.most_rows <= 2 * (self.end - self.begin)

    @cached_property
    def padded_index(self) -> Tensor:
        """The row at each place of (decoders, most rows); surplus places repeat the last row of their decoder."""
        places = [min(begin + i, end - 1) for _, begin, end in self.segments for i in range(self.most_rows)]
        return torch.tensor(places, device=self.device)

    @cached_property
    def place_X(self) -> Tensor:
        """The place of each row in (decoders, most rows)."""
        places = [a * self.most_rows + i for a, (_, begin, end) in enumerate(self.segments) for i in range(end - begin)]
        return torch.tensor(places, device=self.device)

    @cached_property
    def own_RA(self) -> Tensor:
        """Which of its decoders each row uses."""
        decoder_R = torch.tensor([a for a, (_, begin, end) in enumerate(self.segments) for _ in range(end - begin)])
        return (decoder_R[:, None] == torch.arange(len(self.segments))).to(self.device)


@dataclass(frozen=True)
class Rows:
    """Rows sorted by decoder; many rows may share a context."""

    context_R: Tensor
    """The context of each row."""
    segments: tuple[tuple[int, int, int], ...]
    """(decoder, first row, row after the last) for each decoder that has rows, in order."""
    num_contexts: int
    is_grid: bool = False
    """Whether every one of these decoders has every context, in order, so that rows are (decoders, contexts)."""

    @staticmethod
    def grid(num_contexts: int, decoders: Sequence[int], device: torch.device | None = None) -> "Rows":
        """The given decoders on all contexts; a decoder named several times in a row gets several rows per context."""
        context_R = torch.arange(num_contexts, device=device).repeat(len(decoders))
        segments, begin = list[tuple[int, int, int]](), 0
        for k, named in groupby(decoders):
            end = begin + num_contexts * len(list(named))
            segments.append((k, begin, end))
            begin = end
        return Rows(context_R, tuple(segments) if num_contexts else (), num_contexts, is_grid=True)

    @staticmethod
    def pairs(context_R: Tensor, decoder_R: Tensor, num_contexts: int) -> "Rows":
        """Chosen pairs of context and decoder, sorted by decoder."""
        decoders, counts = torch.unique_consecutive(decoder_R.cpu(), return_counts=True)
        segments, begin = [], 0
        for k, count in zip(decoders.tolist(), counts.tolist(), strict=True):
            segments.append((k, begin, begin + count))
            begin += count
        assert all(a[0] < b[0] for a, b in pairwise(segments)), "rows are not sorted by decoder"
        return Rows(context_R, tuple(segments), num_contexts)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.context_R)

    @cached_property
    def decoder_R(self) -> Tensor:
        """The decoder of each row."""
        ids = [k for k, begin, end in self.segments for _ in range(end - begin)]
        return torch.tensor(ids, dtype=torch.long, device=self.context_R.device)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The rows in runs of neighbouring decoders."""
        runs: list[list[tuple[int, int, int]]] = []
        for segment in self.segments:
            if runs and runs[-1][-1][0] == segment[0] - 1:
                runs[-1].append(segment)
            else:
                runs.append([segment])
        return tuple(
            Run(
                segments[0][1],
                segments[-1][2],
                tuple((k, begin - segments[0][1], end - segments[0][1]) for k, begin, end in segments),
                self.context_R.device,
            )
            for segments in runs
        )

    @cached_property
    def slot_R(self) -> Tensor:
        """The number of each row among the rows of its context: 0 for the first, 1 for the second, …"""
        order = torch.argsort(self.context_R, stable=True)
        sorted_context = self.context_R[order]
        start = torch.searchsorted(sorted_context, sorted_context)
        slot_R = torch.empty_like(order)
        slot_R[order] = torch.arange(len(order), device=order.device) - start
        return slot_R

    @cached_property
    def num_slots(self) -> int:
        """The most rows that one context has."""
        return int(self.slot_R.max()) + 1 if len(self) else 0

    def keep(self, keep_R: Tensor) -> "Rows":
        """The rows that a mask selects, in the same order."""
        return Rows.pairs(self.context_R[keep_R], self.decoder_R[keep_R], self.num_contexts)

    def join(self, other: "Rows") -> tuple["Rows", Tensor]:
        """These rows and those of `other`, whose contexts follow ours; and where each was among both, ours first."""
        decoder = torch.cat([self.decoder_R, other.decoder_R])
        order = torch.argsort(decoder, stable=True)
        context = torch.cat([self.context_R, other.context_R + self.num_contexts])[order]
        return Rows.pairs(context, decoder[order], self.num_contexts + other.num_contexts), order

    def drop_idle(self) -> tuple["Rows", Tensor]:
        """The same rows with contexts numbered anew without those that have no rows; and the contexts that are left."""
        used_B = torch.unique(self.context_R)
        return Rows(torch.searchsorted(used_B, self.context_R), self.segments, len(used_B), self.is_grid), used_B

    def distinct(self) -> "Rows":
        """The same pairs of context and decoder, each once, sorted by decoder and then by context."""
        pair = torch.unique(self.decoder_R * self.num_contexts + self.context_R)
        return Rows.pairs(pair % self.num_contexts, pair // self.num_contexts, self.num_contexts)

    def among(self, entries: "Rows") -> "Rows":
        """The same rows with the place of each one's pair among `entries`, which are `distinct`, as its context."""
        pair_E, pair_R = (rows.decoder_R * rows.num_contexts + rows.context_R for rows in (entries, self))
        place_R = torch.searchsorted(pair_E, pair_R)
        return Rows(place_R, self.segments, len(entries), is_grid=torch.equal(pair_E, pair_R))

    def segment(self, index: int) -> "Rows":
        """The rows of one decoder alone."""
        k, begin, end = self.segments[index]
        return Rows(self.context_R[begin:end], ((k, 0, end - begin),), self.num_contexts, self.is_grid)

    @cached_property
    def place_R(self) -> Tensor:
        """The place of each row in (contexts, slots)."""
        return self.context_R * self.num_slots + self.slot_R

    def to_grid(self, x_R: Tensor) -> Tensor:
        """(R, …) -> (B, slots, …): the rows of a context next to each other; unused places are zero."""
        if self.is_grid or self.num_contexts == 1:
            return x_R.view(-1, self.num_contexts, *x_R.shape[1:]).transpose(0, 1)
        grid = x_R.new_zeros(self.num_contexts * self.num_slots, *x_R.shape[1:])
        return grid.index_copy(0, self.place_R, x_R).view(self.num_contexts, self.num_slots, *x_R.shape[1:])

    def from_grid(self, grid: Tensor) -> Tensor:
        """(B, slots, …) -> (R, …): the inverse of `to_grid`."""
        if self.is_grid or self.num_contexts == 1:
            return grid.transpose(0, 1).reshape(-1, *grid.shape[2:])
        return grid.flatten(0, 1).index_select(0, self.place_R)
