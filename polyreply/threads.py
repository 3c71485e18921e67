"""Threads: fewer of them while other processes want the processor.

The threads of one product wait for each other. If another process takes one of two cores, the thread without a core
holds up the one that has one, at every layer, and two threads become slower than one. So long work looks around every
now and then (`adapt`, called between chunks of scoring and between steps of decoding) and uses as many threads as there
are cores that nobody else keeps busy. On an idle machine nothing changes.

What the user has set stays: nothing is adapted where OMP_NUM_THREADS or MKL_NUM_THREADS is in the environment, or where
PyTorch has been given another number of threads than the machine's.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil
import torch

_WINDOW = 0.3
"""Seconds between two looks; processor times are counted in hundredths."""
_SLACK = 0.25
"""How many cores others may use before a thread gives way."""
_LOOKS_TO_FALL, _LOOKS_TO_RISE = 2, 3
"""Looks in a row that must find less, or more, room before the number of threads changes."""
_SET_BY_USER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Usage(NamedTuple):
    """Seconds so far: of the clock, of all processes on our cores together, and of this process alone."""

    clock: float
    everybody: float
    own: float


def usage_now() -> Usage:
    """What the system has counted, on the cores that this process may use."""
    cores = psutil.cpu_times(percpu=True)
    everybody = sum(sum(cores[number]) - _idle(cores[number]) for number in _own_cores() if number < len(cores))
    return Usage(time.perf_counter(), everybody, time.process_time())


def _idle(times: object) -> float:
    """Seconds that count as nobody's; guest time is part of user time."""
    return float(sum(getattr(times, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice")))


def _own_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


class Threads:
    """The number of threads for the load that others put on the cores."""

    def __init__(self, most: int, cores: int, read: Callable[[], Usage] = usage_now) -> None:
        self.most = self.now = most
        self._cores, self._read, self._last, self._looks = cores, read, read(), 0

    def look(self) -> int:
        """The number of threads to use from now on; the load is read once in a while."""
        if time.perf_counter() - self._last.clock >= _WINDOW:
            self._decide()
        return self.now

    def _decide(self) -> None:
        before, self._last = self._last, self._read()
        seconds = self._last.clock - before.clock
        others = (self._last.everybody - before.everybody) - (self._last.own - before.own)
        room = max(1, min(self.most, int(self._cores - others / seconds + _SLACK)))
        if room == self.now:
            self._looks = 0
            return
        self._looks = max(self._looks, 0) + 1 if room > self.now else min(self._looks, 0) - 1
        if self._looks in (_LOOKS_TO_RISE, -_LOOKS_TO_FALL):
            self.now, self._looks = room, 0


_threads: Threads | None = None
"""Of the work in progress."""


@contextmanager
def adaptive_threads() -> Iterator[None]:
    """Let `adapt` change the number of threads while the block lasts; afterwards it is what it was."""
    global _threads
    most, cores = torch.get_num_threads(), len(_own_cores())
    is_set = any(name in os.environ for name in _SET_BY_USER) or most != cores
    if _threads is not None or is_set or most == 1:
        yield
        return
    _threads = Threads(most, cores)
    try:
        yield
    finally:
        _threads = None
        torch.set_num_threads(most)


def adapt() -> None:
    """Look around, and use as many threads as there is room for; call it between pieces of long work."""
    if _threads is None:
        return
    before = _threads.now
    if _threads.look() != before:
        torch.set_num_threads(_threads.now)
