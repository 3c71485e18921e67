"""The processes that reply to one file together, as torchrun or accelerate launch starts them.

They meet twice: the main one says what is to do, and it hears when all are through. No tensors are exchanged, so the
meetings go over gloo, which unlike nccl notices at once that a process is gone. One process alone needs none of it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from polyreply.errors import PolyReplyError

T = TypeVar("T")
_PATIENCE = timedelta(days=14)
"""Processes may be through hours apart."""
_LOST = (
    "another process has ended, or the launcher was told to stop, before all was done. Finished batches are kept: "
    "start the same command again, with any number of processes, and it goes on"
)


@dataclass(frozen=True)
class Team:
    """The place of this process among those that share the work."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this one writes the output and talks."""
        return self.rank == 0

    def device(self, device: str) -> str:
        """A GPU for each process, unless a certain device was asked for; they share when there are too few."""
        if self.size == 1 or device not in ("auto", "cuda"):
            return device
        import torch

        if not torch.cuda.is_available():
            return device
        return f"cuda:{int(os.environ.get('LOCAL_RANK', self.rank)) % torch.cuda.device_count()}"

    def from_main(self, make: Callable[[], T]) -> T:
        """What the main process makes, for all; a mistake of the user's that it finds ends all of them alike."""
        if self.size == 1:
            return make()
        import torch.distributed as group

        told: list[Any] = [None, None]
        if self.is_main:
            try:
                told[0] = make()
            except PolyReplyError as error:
                told[1] = str(error)
        with _lost_is_clear():
            group.broadcast_object_list(told)
        made, mistake = told
        if mistake is not None:
            raise PolyReplyError(mistake)
        return made  # type: ignore[no-any-return]

    def wait(self) -> None:
        """Returns when all processes have come here."""
        if self.size == 1:
            return
        import torch.distributed as group

        with _lost_is_clear():  # of all barriers, this one lets the others leave while the main process goes on
            group.monitored_barrier(timeout=_PATIENCE)


def team_size() -> int:
    """How many processes a launcher has started."""
    return int(os.environ.get("WORLD_SIZE") or 1)


@contextmanager
def gathered() -> Iterator[Team]:
    """The team of this process, connected while the block lasts."""
    if team_size() == 1:
        yield Team()
        return
    import torch.distributed as group

    try:
        group.init_process_group("gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise PolyReplyError(
            f"expected {team_size()} processes, as WORLD_SIZE says, but they cannot find each other "
            f"({str(error).splitlines()[0]}); start them by torchrun or accelerate launch, or unset WORLD_SIZE"
        ) from error
    try:
        yield Team(group.get_rank(), group.get_world_size())
    except SystemExit as stop:  # SIGTERM, by which launchers end the others when a process has died
        raise PolyReplyError(_LOST) from stop
    finally:
        group.destroy_process_group()


@contextmanager
def _lost_is_clear() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PolyReplyError(_LOST) from error
