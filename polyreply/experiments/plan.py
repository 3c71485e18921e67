"""What a run would compute, and roughly how long that takes.

The estimate is the work of each missing task (such as samples × decoders × steps) times the pace of such work: measured
by the tasks that are done, or otherwise calibrated once, on one core of a two-core machine with the model of `mini`.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from polyreply.experiments.cache import Cache, Task

_CALIBRATED = {
    "stage 1": 1e-2,
    "adalabel": 1.5e-2,
    "dialogbert": 3e-2,
    "EM": 3.8e-3,
    "replies by decoders": 7e-3,
    "replies by mbr": 6.3e-2,
    "replies by beam": 1.3e-2,
    "replies by nucleus": 1.3e-2,
    "replies by top-k": 1.3e-2,
    "replies by min-p": 1.3e-2,
    "replies by diverse-beam": 1.3e-2,
    "speed": 1e-2,
    "bound": 1.5e-3,
    "posteriors": 1.2e-2,
    "recovery": 7e-2,
    "scores": 1e-3,
}
"""Seconds per sample in stage 1, per sample and decoder in an EM step, and per reply: processor time over 25 updates, 6
EM steps and 320 replies on DailyDialog. The others are assumptions: nucleus sampling and diverse beam search cost as
much as beam search, `mbr` nine replies, `speed` between beam search and decoders per reply, `bound` the E-step of a
sample under one decoder, `posteriors` that of eight, `recovery` ten decoders per pair or context, `scores` a
millisecond per reply."""
_LEAST_SECONDS = 0.5
"""Any task: loading a model, reading and writing."""


@dataclass(frozen=True)
class TaskPlan:
    """The tasks that are missing, each after those it depends on, and how long they may take."""

    missing: list[Task]
    done: int
    seconds: float
    basis: str
    """What the estimate is based on."""

    def seconds_with(self, jobs: int) -> float:
        """The estimate for several tasks at once, as far as there are cores for them."""
        return self.seconds / min(jobs, os.cpu_count() or 1)

    def lines(self, jobs: int = 1) -> Iterator[str]:
        """The plan in words."""
        for label, count in Counter(task.label for task in self.missing).items():
            yield f"  {count} × {label}" if count > 1 else f"  {label}"
        if not self.missing:
            yield f"all {self.done} tasks are done"
            return
        time = f"roughly {duration(self.seconds_with(jobs))}" + (f" with {jobs} tasks at once" if jobs > 1 else "")
        yield f"{len(self.missing)} tasks to do, {self.done} are done; {time} ({self.basis})"


def plan_tasks(tasks: Iterable[Task], cache: Cache) -> TaskPlan:
    """What is missing for these tasks, except for those that a diverged training makes impossible."""
    possible = [task for task in with_needs(tasks) if not is_impossible(task)]
    missing = [task for task in possible if not task.is_done]
    paces = cache.paces()
    seconds = 0.0
    for task in missing:
        work = task.work
        calibrated = _CALIBRATED.get(work.unit.partition(",")[0], 0.0) * work.model_size
        seconds += _LEAST_SECONDS + paces.get(work.unit, calibrated) * work.amount
    basis = "calibrated on one CPU core of another machine, and scaled to the size of the model"
    if any(task.work.unit in paces for task in missing):
        basis = "by the time that the finished tasks took"
    return TaskPlan(missing, len(possible) - len(missing), seconds, basis)


def with_needs(tasks: Iterable[Task]) -> list[Task]:
    """The tasks and everything they depend on or are chosen by, each once and after its own needs."""
    ordered: dict[str, Task] = {}

    def visit(task: Task) -> None:
        if task.name not in ordered:
            for need in (*task.trials, *task.needs):
                visit(need)
            ordered[task.name] = task

    for task in tasks:
        visit(task)
    return list(ordered.values())


def is_impossible(task: Task) -> bool:
    """Whether it depends on a training that diverged."""
    return any((need.is_done and need.diverged) or is_impossible(need) for need in task.needs)


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
