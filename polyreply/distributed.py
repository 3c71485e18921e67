"""Several processes that work on one run: training, and replies to a whole file. With one process all of it is free.

Launchers (torchrun, accelerate launch) start the processes and describe them in the environment. Items are dealt out in
turn: item i belongs to process i mod W. What processes exchange is tensors and JSON, never pickles.

Legend: N items (samples, batches) over all processes, n of this one, W processes.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from polyreply.errors import PolyReplyError

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor

T = TypeVar("T")
_BUCKET = 1 << 24
"""Numbers sent in one collective: few collectives for many small tensors, and little memory for large ones."""
_LONGEST_WAIT = timedelta(days=14)
"""Processes that reply to a file may finish hours apart."""


class ProcessError(PolyReplyError):
    """Another process of the run has failed, so this one cannot continue."""


class MainFailedError(ProcessError):
    """The main process has failed; it reports the reason itself."""

    def __init__(self) -> None:
        super().__init__("the main process failed; see its message for the reason")


class NotSharedError(PolyReplyError):
    """The processes do not see the same files; every one of them raises this."""


def world_size() -> int:
    """How many processes a launcher has started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def rank(name: str = "RANK") -> int:
    """The rank a launcher gave this process (`RANK`, or `LOCAL_RANK` on its machine); 0 without a launcher."""
    return int(os.environ.get(name) or 0)


class Processes:
    """The processes of a run, as seen by one of them."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        device: "torch.device | str" = "cpu",
        advice: str = "see its own message, then run again with --resume",
    ) -> None:
        """`advice` ends the message about a lost process: what the user should do next."""
        self.rank, self.size, self.device, self.advice = rank, size, device, advice
        self.bytes_sent, self.seconds = 0, 0.0
        """What this process has sent so far, and the time it has spent on that, waiting included."""
        self.before_exchange: Callable[[], None] = lambda: None
        """Called before each collective, for what other processes may still have to compute together with this one."""
        self._numbers: Any = None

    @staticmethod
    def of(accelerator: "Accelerator") -> "Processes":
        """The processes that Accelerate has connected."""
        return Processes(accelerator.process_index, accelerator.num_processes, accelerator.device)

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    def own(self, items: Any) -> Any:
        """The share of this process of a sequence of N items, or of the rows of a tensor or an array."""
        return items[self.rank :: self.size]

    def own_device(self, device: str) -> str:
        """A GPU for each process, unless a specific device is asked for; processes share when there are too few."""
        if self.size == 1 or device not in ("auto", "cuda"):
            return device
        import torch

        if not torch.cuda.is_available():
            return device
        return f"cuda:{int(os.environ.get('LOCAL_RANK', self.rank)) % torch.cuda.device_count()}"

    # Collectives: every process has to call them, in the same order.

    def sum_(self, tensors: "Iterable[Tensor]") -> None:
        """Sum tensors over all processes, in place."""
        if self.size == 1:
            return
        import torch

        self.before_exchange()
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            with self._communicating(flat):
                torch.distributed.all_reduce(flat)
            for tensor, summed in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def gather(self, own_nK: "Tensor", total: int) -> "Tensor":
        """The rows of all processes in the order of the items, (N, K), from each one's share (n, K)."""
        if self.size == 1:
            return own_nK
        import torch

        self.before_exchange()
        most = -(-total // self.size)
        padded = torch.zeros(most, *own_nK.shape[1:], dtype=own_nK.dtype, device=self.device)
        padded[: len(own_nK)] = own_nK
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        with self._communicating(padded):
            torch.distributed.all_gather(parts, padded)
        return torch.stack(parts, 1).flatten(0, 1)[:total].to(own_nK.device)

    def gather_json(self, own: Any) -> list[Any]:
        """One JSON value from each process, in the order of their ranks."""
        if self.size == 1:
            return [own]
        import torch

        packed = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        sizes = self.gather(torch.tensor([len(packed)]), self.size)
        padded = torch.zeros(1, int(sizes.max()), dtype=torch.uint8)
        padded[0, : len(packed)] = packed
        rows = self.gather(padded, self.size)
        return [json.loads(bytes(row[:length].tolist())) for row, length in zip(rows, sizes.tolist(), strict=True)]

    def gather_items(self, own: Sequence[T], total: int) -> list[T]:
        """JSON values of all N items in their order, from each process's share."""
        parts = self.gather_json(list(own))
        return [parts[place % self.size][place // self.size] for place in range(total)]

    def any(self, happened: bool) -> bool:
        """Whether something happened on some process; all get the same answer, so that all do the same next."""
        if self.size == 1:
            return happened
        import torch

        count = torch.tensor([float(happened)], device=self.device)
        self.sum_((count,))
        return bool(count.item() > 0)

    def least(self, number: int) -> int:
        """The smallest of all processes' numbers. Unlike the other collectives it does not call `before_exchange`."""
        import torch

        if self._numbers is None:  # over gloo, so that a GPU need not finish its work before the answer is known
            self._numbers = torch.distributed.new_group(backend="gloo", timeout=_LONGEST_WAIT)
        own = torch.tensor([number])
        with self._communicating(own):
            torch.distributed.all_reduce(own, torch.distributed.ReduceOp.MIN, self._numbers)
        return int(own)

    def together(self, act: Callable[[], object], num_bytes: int) -> None:
        """Do something that itself sends `num_bytes`; all processes have to do it, and `before_exchange` may."""
        with self._communicating():
            act()
        self.bytes_sent += num_bytes

    def peak_memory(self) -> list[int]:
        """The most memory that each process has held so far, in bytes: of its GPU, or of the machine."""
        import resource

        import torch

        device = torch.device(self.device)
        if device.type == "cuda":
            return self.gather_json(torch.cuda.max_memory_allocated(device))
        scale = 1 if sys.platform == "darwin" else 1 << 10  # ru_maxrss is in bytes there, in kilobytes elsewhere
        return self.gather_json(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale)

    def main_first(self, make: Callable[[], T], *, one_by_one: bool = False) -> T:
        """Call `make` on the main process and then on the others, which may find its result in a cache.

        If it fails on the main process, that one raises the error and the others raise MainFailedError. With
        `one_by_one` the processes of a machine take turns, so that only one of them at a time needs the memory.
        """
        if self.size == 1:
            return make()
        made, failure = [], None
        if self.is_main:
            try:
                made.append(make())
            except Exception as error:
                failure = error
        if self.any(failure is not None):
            raise failure or MainFailedError
        for turn in range(self.size if one_by_one else 0):
            if not made and turn == rank("LOCAL_RANK"):
                made.append(make())
            self.any(False)
        return made[0] if made else make()

    def on_main(self, act: Callable[[], object]) -> None:
        """Call `act` on the main process alone while the others wait; all of them raise if it fails."""
        self.main_first(lambda: act() if self.is_main else None)

    def from_main(self, make: Callable[[], T]) -> T:
        """The JSON value that the main process makes, on all of them; all of them raise if it fails."""
        own = self.main_first(lambda: make() if self.is_main else None)
        return self.gather_json(own)[0]  # type: ignore[no-any-return]

    def all_find(self, look: Callable[[], object], folder: Path) -> None:
        """Have every process look for what the main one wrote into a folder; all of them raise if one fails."""
        from safetensors import SafetensorError

        failure: Exception | None = None
        try:
            look()
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            failure = error
        reasons = self.gather_json("" if failure is None else str(failure).partition("; ")[0])
        if reasons[0]:
            raise failure if failure is not None and self.is_main else MainFailedError
        for other, reason in enumerate(reasons):
            if reason:
                raise NotSharedError(
                    f"expected all {self.size} processes to find in {folder} what the main one wrote, but process "
                    f"{other} found: {reason}; `out` has to be on a disk that all processes share"
                )

    def wait_for_all(self) -> None:
        """Return when every process has called this; the main one returns last."""
        if self.size == 1:
            return
        import torch

        self.before_exchange()
        with self._communicating():  # of all barriers, this one lets the others leave while the main process continues
            torch.distributed.monitored_barrier(timeout=_LONGEST_WAIT)

    @contextmanager
    def _communicating(self, sent: "Tensor | None" = None) -> Iterator[None]:
        """Count what is sent, and turn a lost connection into one clear line."""
        begin = time.perf_counter()
        try:
            yield
            if sent is not None and sent.is_cuda:
                import torch

                torch.cuda.synchronize(sent.device)
        except RuntimeError as error:
            reason = re.sub(r"^\[.*?\] ", "", str(error).splitlines()[0]).partition(". ")[0]
            raise ProcessError(
                f"process {self.rank} lost the connection: one of the {self.size} processes has died or cannot be "
                f"reached ({reason}); {self.advice}"
            ) from error
        self.bytes_sent += 0 if sent is None else sent.numel() * sent.element_size()
        self.seconds += time.perf_counter() - begin


@contextmanager
def connected(advice: str) -> Iterator[Processes]:
    """The processes that a launcher has started, connected over gloo while the block lasts; or this one alone.

    Over gloo because little is exchanged, and because unlike NCCL it notices at once when a process is gone.
    """
    if world_size() == 1:
        yield Processes()
        return
    import torch.distributed as group

    try:
        group.init_process_group("gloo", timeout=_LONGEST_WAIT)
    except (RuntimeError, ValueError) as error:
        raise PolyReplyError(
            f"expected {world_size()} processes, as WORLD_SIZE says, but they cannot find each other "
            f"({str(error).splitlines()[0]}); start them with torchrun or accelerate launch, or unset WORLD_SIZE"
        ) from error
    try:
        yield Processes(group.get_rank(), group.get_world_size(), advice=advice)
    except SystemExit as stop:  # SIGTERM, with which launchers end the other processes when one has died
        raise ProcessError(f"another process has ended, or the launcher was stopped; {advice}") from stop
    finally:
        group.destroy_process_group()


def _buckets(tensors: "Iterable[Tensor]") -> "Iterator[list[Tensor]]":
    """Groups of tensors of one type that are sent together."""
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
