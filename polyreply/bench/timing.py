"""What all benchmarks share: median times, the cost of a command, a busy machine, and the memory that work needs."""

import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from polyreply.errors import PolyReplyError
from polyreply.threads import adaptive_threads

Result = TypeVar("Result")
Alternatives = Mapping[str, Callable[[], Any]]


class Measured(float):
    """The median of several runs, with the lowest and the highest."""

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> "Measured":
        """A float that knows its spread."""
        found = super().__new__(cls, value)
        found.low, found.high = low, high
        return found

    @classmethod
    def of(cls, runs: Sequence[float]) -> "Measured":
        """The median of some runs."""
        return cls(statistics.median(runs), min(runs), max(runs))

    def per(self, other: "Measured") -> "Measured":
        """How many times the other it is; the spread is the widest that the runs allow."""
        return Measured(self / other, self.low / other.high, self.high / other.low)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """The result of `work` and the seconds it took."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def medians(alternatives: Alternatives, repeats: int, warm_up: Alternatives | None = None) -> dict[str, Measured]:
    """Median seconds of each alternative over `repeats` consecutive runs.

    One run that is not counted (or a smaller `warm_up`) comes first: the first run after another alternative pays for
    memory that the system has reclaimed in the meantime.
    """
    seconds: dict[str, list[float]] = {name: [] for name in alternatives}
    for name, run in alternatives.items():
        (warm_up or alternatives)[name]()
        for _ in range(repeats):
            seconds[name].append(timed(run)[1])
    return {name: Measured.of(runs) for name, runs in seconds.items()}


@contextmanager
def busy_process(nice: int = 0) -> Iterator[None]:
    """Another process that keeps one core busy while the block lasts."""
    process = subprocess.Popen([sys.executable, "-c", f"import os; os.nice({nice})\nwhile True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def rate(work: Callable[[], Any], seconds: float) -> float:
    """Calls of `work` per second, over at least some seconds; as many before them are not counted."""
    for counted in (False, True):
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < (seconds if counted else seconds / 2):
            work()
            calls += 1
    return calls / (time.perf_counter() - start)


def busy_slowdown(work: Callable[[], Any], seconds: float, rounds: int = 3) -> dict[str, Measured]:
    """How many times slower work is beside a busy process, of equal priority and at nice 10.

    `idle_cost` is how many times slower an idle machine is because the work adapts its threads.
    """
    runs: dict[str, list[float]] = {"busy_slowdown": [], "busy_slowdown_nice10": [], "idle_cost": []}
    for _ in range(rounds):
        fixed = rate(work, seconds)
        with adaptive_threads():
            idle = rate(work, seconds)
            for name, nice in (("busy_slowdown", 0), ("busy_slowdown_nice10", 10)):
                with busy_process(nice):
                    runs[name].append(idle / rate(work, seconds))
        runs["idle_cost"].append(fixed / idle)
    return {name: Measured.of(found) for name, found in runs.items()}


# Linux counts the memory of the process that starts a command into the command's peak (fork shares it until exec). So
# a small process of its own starts the command and reports the command's exit code and peak.
_MEASURE = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss]))
"""


def command_cost(command: Sequence[str]) -> tuple[float, float]:
    """Wall seconds and peak megabytes of a command; PolyReplyError if it fails."""
    measured, seconds = timed(lambda: subprocess.run((sys.executable, "-c", _MEASURE, *command), capture_output=True))
    exit_code, peak = json.loads(measured.stdout)
    if exit_code:
        errors = measured.stderr.decode().strip()
        raise PolyReplyError(f"a command failed inside the benchmark: {' '.join(command)}: {errors}")
    scale = 1 << 20 if sys.platform == "darwin" else 1 << 10  # ru_maxrss is in bytes there, in kilobytes elsewhere
    return seconds, peak / scale


def peak_growth(work: Callable[[Callable[[], None]], None]) -> float:
    """Megabytes by which the peak memory of a new process grows while it works (Linux only).

    `work` sets up, then calls its argument at the moment from which memory counts.
    """
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    process = context.Process(target=_measure_growth, args=(work, queue))
    process.start()
    megabytes: float = queue.get()
    process.join()
    return megabytes


def _measure_growth(work: Callable[[Callable[[], None]], None], queue: Any) -> None:
    before: list[float] = []

    def start() -> None:
        restart_peak()
        before.append(memory_mb("VmRSS"))

    work(start)
    queue.put(memory_mb("VmHWM") - before[0])


def restart_peak() -> None:
    """Have the kernel restart its count of this process's peak memory (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")


def memory_mb(name: str) -> float:
    """Megabytes of this process: `VmRSS` now, `VmHWM` at most (Linux only)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
