"""Medians of several runs, and the memory a piece of work needs."""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Ways = Mapping[str, Callable[[], Any]]


def medians(alternatives: Ways, repeats: int, warm_up: Ways | None = None) -> dict[str, float]:
    """Median seconds of each alternative over `repeats` runs in a row.

    Before them comes one that is not counted (or a smaller `warm_up`): the first run after another alternative's pays
    for memory that the system has put away meanwhile.
    """
    seconds: dict[str, list[float]] = {name: [] for name in alternatives}
    for name, run in alternatives.items():
        (warm_up or alternatives)[name]()
        for _ in range(repeats):
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found) for name, found in seconds.items()}


def peak_growth(work: Callable[[Callable[[], None]], None]) -> float:
    """Megabytes by which the peak memory of a process of its own grows while it works (Linux only).

    `work` sets up and then calls its argument at the point from which on memory counts.
    """
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    process = context.Process(target=_measure, args=(work, queue))
    process.start()
    grown: float = queue.get()
    process.join()
    return grown


def _measure(work: Callable[[Callable[[], None]], None], queue: Any) -> None:
    before: list[float] = []
    work(lambda: before.append(_forget_peak()))
    queue.put(_status_mb("VmHWM") - before[0])


def _forget_peak() -> float:
    """Makes the kernel count the peak anew; the megabytes in use now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_mb("VmRSS")


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
