"""A content-addressed cache of results (data, trained models, responses, scores), and the runner that fills it.

The result of a task is a folder named after its kind and a digest of all its inputs, so that equal work is done once,
whichever table or figure asks for it. `done.json` in the folder records the inputs, the time and the machine, an id of
this result, and the ids of the results it was computed from.

Invariant: a task is done only while the results it was computed from are the ones that are there now. So removing a
folder is enough to have it, and everything that was computed from it, computed again.

An interrupted task continues from what its folder holds, as training and replying do, but only if it was begun with the
results that are there now. `NAME.begun.json` remembers which those were. It is next to the folder, because training
needs an empty one.
"""

import hashlib
import json
import os
import platform
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyreply import __version__
from polyreply.errors import DivergedError
from polyreply.files import write_file
from polyreply.progress import Notify, silent
from polyreply.training.callbacks import Callback

REVISIONS = {
    "data": 0,
    "splits": 0,
    "final": 0,
    "selection": 0,
    "training": 0,
    "responses": 0,
    "scores": 0,
    "recovery": 0,
    "bound": 0,
    "posteriors": 0,
    "speed": 0,
}
"""The kinds of tasks. Raise a number when a fix changes what such tasks compute: they are then computed again."""
_DONE = "done.json"
_DIGEST = 12


@dataclass(frozen=True)
class Work:
    """How much a task has to do, for an estimate of its time."""

    unit: str = ""
    """What is counted, such as "EM, mini 16x1": tasks of one unit have one pace. Empty: the time is negligible."""
    amount: float = 0.0
    model_size: float = 1.0
    """Weights a token passes through, relative to the model of preset `mini`; scales a pace that was not measured."""


@dataclass(frozen=True)
class Task:
    """Something to compute: the folder of its result, what goes into it, and how."""

    path: Path
    inputs: Mapping[str, Any]
    compute: Callable[[Path], None]
    needs: tuple["Task", ...] = ()
    """Tasks whose results it reads."""
    work: Work = Work()
    scratch: str = ""
    """A folder inside that only an unfinished task needs."""
    trials: tuple["Task", ...] = ()
    """Trainings by which one of its settings is chosen. It reads nothing of them, but they have to run first."""
    is_provisional: bool = False
    """Whether its trials are not all done, so that another task may take its place: nothing may be built on it yet."""
    is_trial: bool = False
    """Whether it is itself one of its trials, and has to run whichever setting is chosen."""
    runs_alone: bool = False
    """Whether it measures time, so that nothing else should run at the same time."""
    repair: Callable[[Path], None] | None = None
    """Corrects what may have moved since it was computed, such as a link to data."""

    @property
    def name(self) -> str:
        """Label and digest."""
        return self.path.name

    @property
    def label(self) -> str:
        """Kind and detail, such as "training-eqhard-em"."""
        return self.name.rpartition("-")[0]

    @property
    def is_done(self) -> bool:
        """Whether its result is complete and was computed from the results that its needs hold now."""
        record = self.record()
        return bool(record) and all(need.is_done for need in self.needs) and record["needs"] == self.need_ids()

    @property
    def diverged(self) -> str:
        """Why its result cannot be used, if it is a training that diverged."""
        return str(self.record().get("diverged", ""))

    @property
    def seconds(self) -> float:
        """The time it took, all attempts together."""
        return float(self.record().get("seconds", 0.0))

    def record(self) -> dict[str, Any]:
        """The content of `done.json`; empty if the task is not finished."""
        return _read_json(self.path / _DONE)

    def need_ids(self) -> dict[str, str]:
        """The ids of the results that its needs hold now."""
        return {need.name: str(need.record().get("id", "")) for need in self.needs}


class Cache:
    """A folder of results."""

    def __init__(self, folder: Path, notify: Notify = silent, callbacks: Sequence[Callback] = ()) -> None:
        """`notify` is called when a task starts and as it progresses; `callbacks` follow every training."""
        self.folder, self.notify, self.callbacks = folder, notify, callbacks

    def task(
        self,
        kind: str,
        detail: str,
        inputs: Mapping[str, Any],
        compute: Callable[[Path], None],
        needs: Sequence[Task] = (),
        work: Work | None = None,
        scratch: str = "",
    ) -> Task:
        """A task whose result belongs into this folder; an input that is itself a task's result is given by its name.

        `kind` is one of REVISIONS; `detail` only makes the folder's name easier to read.
        """
        inputs = {**inputs, "revision": REVISIONS[kind]}
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()[:_DIGEST]
        path = self.folder / "-".join(filter(None, (kind, detail, digest)))
        return Task(path, inputs, compute, tuple(needs), work or Work(), scratch)

    def get(self, task: Task) -> Path:
        """The folder of a task's result; computes it, and what it needs, where that is missing.

        Raises DivergedError for a training that diverged: that is kept as its result, since it would diverge again.
        """
        for need in task.needs:
            self.get(need)
        if not task.is_done:
            self._compute(task)
        elif task.repair:
            task.repair(task.path)
        if task.diverged:
            raise DivergedError(f"{task.diverged}; use a lower learning rate, or remove {task.path} to try it again")
        return task.path

    def _compute(self, task: Task) -> None:
        self.notify(task.label, 0.0)
        is_resumed, seconds_before = self._begin(task)
        start, diverged = time.perf_counter(), ""
        try:
            task.compute(task.path)
        except DivergedError as error:
            diverged = str(error)
        except BaseException:
            self._write_begun(task, seconds_before + time.perf_counter() - start)
            raise
        record = {
            "schema_version": 2,
            "id": uuid.uuid4().hex,
            "inputs": task.inputs,
            "needs": task.need_ids(),
            "seconds": round(seconds_before + time.perf_counter() - start, 1),
            "work": {"unit": task.work.unit, "amount": task.work.amount},
            "resumed": is_resumed,
            "diverged": diverged,
            "version": __version__,
            "machine": machine(),
        }
        write_file(task.path / _DONE, json.dumps(record, indent=2, default=str), overwrite=True)
        _begun_file(task).unlink(missing_ok=True)
        if task.scratch:
            shutil.rmtree(task.path / task.scratch, ignore_errors=True)

    def _begin(self, task: Task) -> tuple[bool, float]:
        """Whether there is an unfinished result to continue from, and the seconds it took so far.

        Removes a finished result that is no longer valid, and an unfinished one that has read other results.
        """
        begun = _read_json(_begun_file(task))
        if task.path.exists() and (task.record() or (begun and begun["needs"] != task.need_ids())):
            shutil.rmtree(task.path)
        is_resumed = task.path.exists()
        seconds = float(begun.get("seconds", 0.0)) if is_resumed else 0.0
        self._write_begun(task, seconds)
        return is_resumed, seconds

    def _write_begun(self, task: Task, seconds: float) -> None:
        record = {"needs": task.need_ids(), "seconds": seconds}
        write_file(_begun_file(task), json.dumps(record), overwrite=True)

    def paces(self) -> dict[str, float]:
        """Seconds per unit of work, measured by the tasks here that ran without an interruption."""
        totals: dict[str, tuple[float, float]] = {}
        for path in sorted(self.folder.glob(f"*/{_DONE}")):
            record = _read_json(path)
            work = record.get("work", {})
            if work.get("amount") and not record.get("resumed") and not record.get("diverged"):
                seconds, amount = totals.get(work["unit"], (0.0, 0.0))
                totals[work["unit"]] = seconds + record["seconds"], amount + work["amount"]
        return {unit: seconds / amount for unit, (seconds, amount) in totals.items()}


def _begun_file(task: Task) -> Path:
    return task.path.with_name(f"{task.name}.begun.json")


def _read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing or damaged."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def machine() -> dict[str, str]:
    """The hardware and software that decide how fast this process is, and how its arithmetic rounds."""
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "processor": next(models, platform.processor() or platform.machine()),
        "cores": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU",
        "system": platform.platform(terse=True),
        "python": f"Python {platform.python_version()}",
        "torch": f"torch {torch.__version__}",
    }
