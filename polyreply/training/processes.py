"""What several processes of one run do together; with one process all of it is free.

Legend: N samples of a step over all processes, n of this one, W processes.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from torch import Tensor

from polyreply.errors import PolyReplyError

T = TypeVar("T")
_BUCKET = 1 << 24
"""Numbers that are sent at once: few collectives for many small tensors, and little memory for many large ones."""


class ProcessError(PolyReplyError):
    """Another process of the run has failed, so this one cannot go on."""


class MainFailedError(ProcessError):
    """The main process has failed, and says why."""

    def __init__(self) -> None:
        super().__init__("the main process cannot go on; what it says is the reason")


class NotSharedError(PolyReplyError):
    """Processes do not see the same files; all of them find it out together."""


class Processes:
    """The processes of a run. Samples are dealt out in turn: sample i of a step belongs to process i mod W."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.rank, self.number = accelerator.process_index, accelerator.num_processes
        self.bytes_sent, self.seconds = 0, 0.0
        """What this process has handed to the others so far, and the time it has spent on it, waiting included."""

    @property
    def is_main(self) -> bool:
        """Whether this one writes the files."""
        return bool(self.rank == 0)

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Adds tensors up over all processes, in place."""
        if self.number == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            with self._together(flat):
                torch.distributed.all_reduce(flat)
            for tensor, summed in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def gather(self, own_nK: Tensor, total: int) -> Tensor:
        """Rows of all processes in the order of the samples, (N, K), from each one's share."""
        if self.number == 1:
            return own_nK
        most = -(-total // self.number)
        padded = torch.zeros(most, *own_nK.shape[1:], dtype=own_nK.dtype, device=self._accelerator.device)
        padded[: len(own_nK)] = own_nK
        parts = [torch.empty_like(padded) for _ in range(self.number)]
        with self._together(padded):
            torch.distributed.all_gather(parts, padded)
        return torch.stack(parts, 1).flatten(0, 1)[:total].to(own_nK.device)

    def gather_texts(self, own: Sequence[Sequence[str]], total: int) -> list[list[str]]:
        """The same for lists of texts, one list for each sample."""
        if self.number == 1:
            return [list(texts) for texts in own]
        packed = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        sizes = self.gather(torch.tensor([len(packed)]), self.number)
        padded = torch.zeros(1, int(sizes.max()), dtype=torch.uint8)
        padded[0, : len(packed)] = packed
        rows = self.gather(padded, self.number)
        parts = [json.loads(bytes(row[:size].tolist())) for row, size in zip(rows, sizes.tolist(), strict=True)]
        return [parts[place % self.number][place // self.number] for place in range(total)]

    def own(self, rows_NK: Tensor) -> Tensor:
        """The share of this process of such rows."""
        return rows_NK[self.rank :: self.number]

    def any(self, happened: bool) -> bool:
        """Whether something happened on some process: all get the same answer, so that all do the same next."""
        if self.number == 1:
            return happened
        count = torch.tensor([float(happened)], device=self._accelerator.device)
        self.sum_((count,))
        return bool(count.item() > 0)

    def main_first(self, make: Callable[[], T]) -> T:
        """Does something on the main process and then on the others, which may find what it left in a cache.

        When it fails on the main process, that one says why and the others end, too.
        """
        if self.number == 1:
            return make()
        made, failure = [], None
        if self.is_main:
            try:
                made.append(make())
            except Exception as error:
                failure = error
        if self.any(failure is not None):
            raise failure or MainFailedError
        return made[0] if made else make()

    def on_main(self, act: Callable[[], object]) -> None:
        """Does something on the main process alone while the others wait; all end if it fails."""
        self.main_first(lambda: act() if self.is_main else None)

    def from_main(self, make: Callable[[], str]) -> str:
        """The text that the main process makes, on all; all end if it fails."""
        own = self.main_first(lambda: make() if self.is_main else "")
        return self.gather_texts([[own]], self.number)[0][0]

    def all_find(self, look: Callable[[], object], folder: Path) -> None:
        """Has every process look for what the main one wrote to a folder; if one does not find it, all end alike."""
        failure: Exception | None = None
        try:
            look()
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            failure = error
        reason = "" if failure is None else f"process {self.rank}: {str(failure).partition('; ')[0]}"
        told = [texts[0] for texts in self.gather_texts([[reason]], self.number)]
        if told[0]:
            raise failure if failure is not None and self.is_main else MainFailedError
        if any(told):
            raise NotSharedError(
                f"expected all {self.number} processes to find in {folder} what the main one wrote, found in "
                f"{next(filter(None, told))}; `out` has to be on a disk that all processes see"
            )

    @contextmanager
    def _together(self, sent: Tensor) -> Iterator[None]:
        """Counts what is sent; a process that has died becomes one clear line instead of a lost connection."""
        begin = time.perf_counter()
        self.bytes_sent += sent.numel() * sent.element_size()
        try:
            yield
            if sent.is_cuda:
                torch.cuda.synchronize(sent.device)
        except RuntimeError as error:
            reason = re.sub(r"^\[.*?\] ", "", str(error).splitlines()[0]).partition(". ")[0]
            raise ProcessError(
                f"process {self.rank} has lost the others: one of the {self.number} has died or cannot be reached "
                f"({reason}); see its own message, then go on with --resume"
            ) from error
        self.seconds += time.perf_counter() - begin


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one type that are sent together."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (size + tensor.numel() > _BUCKET or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket
