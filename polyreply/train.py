"""The training loop: stage 1 (`mle`) and every EM variant of stage 2, on one or several processes.

What a step does is in `training/em_steps.py`; here it is repeated, measured, told, saved and gone on with.
"""

import importlib.util
import math
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from accelerate import Accelerator

from polyreply.config import check_recipe, to_tree
from polyreply.errors import MissingExtraError
from polyreply.training import results
from polyreply.training.alarms import Alarm, Alarms
from polyreply.training.checkpoint import (
    Checkpoint,
    latest_checkpoint,
    load_best,
    load_frozen,
    remove_leftovers,
    save_best,
    save_checkpoint,
    save_frozen,
    take_over,
)
from polyreply.training.em_steps import EMSteps, TrainingError
from polyreply.training.processes import ProcessError, Processes
from polyreply.training.recipe import TrainRecipe
from polyreply.training.record import StepRecord, ValidationRecord
from polyreply.training.run_log import RunLog
from polyreply.training.setup import Setup, prepare_run
from polyreply.training.usage import UsageStatistics
from polyreply.training.validation import Validation
from polyreply.training.view import SilentView, View

_LOGS = ("log.jsonl", "timings.jsonl")


def train(recipe: TrainRecipe, *, resume: bool = False, allow_changes: bool = False, view: View | None = None) -> Path:
    """Runs a recipe, or goes on with its run folder; the folder of the finished model.

    `allow_changes` lets a run go on with other settings of the learning than it began with.
    """
    settings = {"resume": resume, "allow_changes": allow_changes}
    with _clear_errors(recipe.out), Run(check_recipe(recipe), view, **settings) as run:
        with _gentle_interrupt(run):
            run.loop()
        if run.step < recipe.steps and not run.is_over():
            raise TrainingError(f"interrupted after step {run.step}; go on with: polyreply train --resume {run.folder}")
        return run.finish()


class Run:
    """A training run: its steps, what is known about them, and the folder all is written to."""

    def __init__(
        self, recipe: TrainRecipe, view: View | None = None, *, resume: bool = False, allow_changes: bool = False
    ) -> None:
        self.recipe, self.folder = recipe, Path(recipe.out)
        self.accelerator = _accelerator(recipe)
        self.processes = Processes(self.accelerator)
        self.view = view if view is not None and self.processes.is_main else SilentView()
        self._held = ExitStack()
        """What is let go of when the run ends: the lock on its folder, and its logs."""
        with ExitStack() as on_failure:
            on_failure.callback(self._held.close)
            self.processes.on_main(lambda: self._claim(resume, allow_changes))
            if not resume and self.processes.is_main:
                on_failure.callback(results.give_up, self.folder)
            self._begin(resume)
            on_failure.pop_all()

    def _begin(self, resume: bool) -> None:
        recipe = self.recipe
        self.setup: Setup = self.processes.main_first(lambda: prepare_run(recipe, self._tell))
        self.setup.poly.to(self.accelerator.device)
        self.steps = EMSteps(recipe, self.setup, self.processes)
        self.validation = Validation.of(self.setup, recipe, self.processes)
        self.usage = UsageStatistics(recipe.num_decoders)
        self.alarms = Alarms(recipe.alarms, recipe.num_decoders, recipe.validation.tokenizer)
        self.saved_at, self.is_interrupted = -1, False
        self.best_nll, self.best_step, self.validations_since_best = math.inf, -1, 0
        self.log, self.timings = (self._held.enter_context(RunLog(self.folder / name)) for name in _LOGS)
        if resume:
            self._go_on()
        if recipe.trackers:
            self.accelerator.init_trackers("polyreply", config=results.flat(to_tree(recipe)))

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    @property
    def step(self) -> int:
        """Steps so far."""
        return self.steps.done

    @property
    def checkpoints(self) -> Path:
        """Their folder."""
        return self.folder / "checkpoints"

    def loop(self) -> None:
        """Steps until the recipe's number is reached, validation no longer improves, or somebody interrupts."""
        every = self.recipe.validation.every, self.recipe.checkpoint.every
        if self.saved_at < 0:
            self.processes.on_main(lambda: save_frozen(self.checkpoints, self.steps.weights(trained=False)))
            self.save()
        while self.step < self.recipe.steps and not self.is_over() and not self._someone_interrupts():
            self._note(self.steps.step())
            last = self.step == self.recipe.steps
            if last or self.step % every[0] == 0:
                self._validate()
            if last or self.step % every[1] == 0:
                self.save()
        self.save()

    def is_over(self) -> bool:
        """Whether validation has not improved for long enough."""
        patience = self.recipe.validation.patience
        return patience is not None and self.validations_since_best >= patience

    def save(self) -> None:
        """Writes a checkpoint of this moment, unless there is one."""
        if self.saved_at != self.step:
            self.processes.on_main(self._save)
            self.saved_at = self.step

    def finish(self) -> Path:
        """Writes the model of the best validation (or of the last step), usage and plots."""
        if self.recipe.validation.keep == "best" and self.best_step >= 0:
            take_over(self.steps.model, load_best(self.checkpoints, self.best_step))
        self.steps.model.train(False)
        scores = self.validation.measure(self.step).metrics if self.validation else {}
        examples = self.validation.dialogues if self.validation else []
        self.processes.on_main(
            lambda: results.write(self.folder, self.recipe, self.setup, self.usage, scores, examples)
        )
        if self.recipe.trackers:
            self.accelerator.end_training()
        return self.folder / "model"

    def _claim(self, resume: bool, allow_changes: bool) -> None:
        lock = results.claim(self.folder, self.recipe, resume=resume, allow_changes=allow_changes)
        if lock is not None:
            self._held.enter_context(lock)
        remove_leftovers(self.checkpoints)

    def _someone_interrupts(self) -> bool:
        return self.processes.any(self.is_interrupted)

    def _tell(self, stage: str, share: float) -> None:
        self.view.message(stage)

    def _note(self, record: StepRecord) -> None:
        self.usage.add(record)
        if self.recipe.trackers:
            self.accelerator.log(results.numbers(record), step=record.step)
        if self.processes.is_main:
            self.log.write("step", record.to_json())
            self.timings.write("step", record.times())
        self.view.update(record)
        self._warn(self.alarms.step(record))

    def _validate(self) -> None:
        if self.validation is None:
            return
        record: ValidationRecord = self.validation.measure(self.step)
        if record.nll < self.best_nll:
            self.best_nll, self.best_step, self.validations_since_best = record.nll, self.step, 0
            self.processes.on_main(lambda: save_best(self.checkpoints, self.steps.weights(), self.step))
        else:
            self.validations_since_best += 1
        if self.recipe.trackers:
            self.accelerator.log(
                {f"validation/{name}": value for name, value in record.metrics.items()}, step=self.step
            )
        if self.processes.is_main:
            self.log.write("validation", record.to_json())
            self.timings.write("validation", record.times())
        self.view.validation(record)
        if record.replies:
            by_decoder = [list(said) for said in zip(*(reply["responses"] for reply in record.replies), strict=True)]
            self._warn(self.alarms.validation(by_decoder, self.step))

    def _warn(self, alarms: list[Alarm]) -> None:
        """Tells of alarms; where they are to end the run, what it has learnt is saved first."""
        for alarm in alarms:
            if self.processes.is_main:
                self.log.write("alarm", alarm.to_json())
            self.view.message(alarm.message)
        if alarms and self.recipe.alarms.stop:
            self.save()
            self.alarms.stop(alarms)

    def _save(self) -> None:
        self.log.sync()
        self.timings.sync()
        state: dict[str, Any] = {
            "steps": self.steps.state_dict(),
            "best_nll": self.best_nll if math.isfinite(self.best_nll) else None,
            "validations_since_best": self.validations_since_best,
            "usage": self.usage.state_dict(),
            "alarms": self.alarms.state_dict(),
        }
        identity, tensors = self.setup.identity(), self.steps.tensors()
        made = Checkpoint(self.step, **tensors, identity=identity, best_step=self.best_step, state=state)
        save_checkpoint(self.checkpoints, made, self.recipe.checkpoint.keep)

    def _go_on(self) -> None:
        """Takes over the latest whole checkpoint, and forgets what was logged after it."""
        found, unusable = latest_checkpoint(self.checkpoints, self.setup.identity())
        for line in unusable:
            self.view.message(line)
        if found is not None:
            take_over(self.steps.model, load_frozen(self.checkpoints))
            take_over(self.steps.model, found.weights)
            state = found.state
            self.steps.load_state_dict(found.step, found.optimizer, found.extra, state["steps"])
            self.saved_at = found.step
            self.best_nll = math.inf if state["best_nll"] is None else state["best_nll"]
            self.best_step, self.validations_since_best = found.best_step, state["validations_since_best"]
            self.usage.load_state_dict(state["usage"])
            self.alarms.load_state_dict(state["alarms"])
        self.processes.on_main(lambda: [log.cut_after(self.step) for log in (self.log, self.timings)])


def _accelerator(recipe: TrainRecipe) -> Accelerator:
    for tracker in recipe.trackers:
        if importlib.util.find_spec(tracker) is None:
            raise MissingExtraError(tracker, "track", f"logging to {tracker}")
    return Accelerator(
        cpu=recipe.device == "cpu" or not torch.accelerator.is_available(),  # else several processes stay strangers
        log_with=list(recipe.trackers) or None,
        project_dir=recipe.out,
    )


@contextmanager
def _clear_errors(out: str) -> Iterator[None]:
    """A disk that is full or may not be written becomes one line that says how to go on."""
    try:
        yield
    except OSError as error:
        place = error.filename or out
        raise TrainingError(
            f"cannot go on: {place}: {error.strerror or error}; the last checkpoint is intact: mend it and go on with "
            f"polyreply train --resume {out}"
        ) from error


@contextmanager
def _gentle_interrupt(run: Run) -> Iterator[None]:
    """The first Ctrl-C, or a launcher's SIGTERM, lets the step end and be saved; a second Ctrl-C leaves at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        run.is_interrupted = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, before[signal.SIGINT])

    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    except ProcessError:
        before[signal.SIGTERM] = signal.SIG_IGN  # a launcher tells us to end: we do, but our message comes first
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
