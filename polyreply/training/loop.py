"""The training loop: stage 1 (`mle`) and every EM variant of stage 2, on one or several processes.

What a step does is in `training/em_steps.py`; here it is repeated, measured, told, saved and gone on with.
"""

import importlib.util
import os
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import torch
from accelerate import Accelerator, InitProcessGroupKwargs

from polyreply.config import check_recipe, to_tree
from polyreply.distributed import Processes
from polyreply.em.em_step import EMSteps
from polyreply.errors import MissingExtraError, PolyReplyError
from polyreply.training import artifacts, run_folder
from polyreply.training.alarms import Alarm, Alarms
from polyreply.training.checkpoint import Origin
from polyreply.training.checkpoint_folder import go_on_from, remove_leftovers, save_best, save_checkpoint, save_frozen
from polyreply.training.interrupts import TrainingError, clear_errors, gentle_interrupt, resume_command
from polyreply.training.recipe import TrainRecipe
from polyreply.training.record import StepRecord, ValidationRecord
from polyreply.training.run_log import RunLog
from polyreply.training.setup import Setup, prepare_run
from polyreply.training.state import Standing
from polyreply.training.validation import Validation
from polyreply.training.view import SilentView, View

_LOGS = ("log.jsonl", "timings.jsonl")
_PATIENCE = timedelta(days=1)
"""The main process may prepare data for hours while the others wait for it."""


def train(recipe: TrainRecipe, *, resume: bool = False, allow_changes: bool = False, view: View | None = None) -> Path:
    """Runs a recipe, or goes on with its run folder; the folder of the finished model.

    `allow_changes` lets a run go on with other settings of the learning than it began with.
    """
    settings = {"resume": resume, "allow_changes": allow_changes}
    with clear_errors(recipe.out), Run(check_recipe(recipe), view, **settings) as run, gentle_interrupt(run.interrupt):
        run.loop()
        return run.finish()


class Run:
    """A training run: its steps, what is known about them, and the folder all is written to."""

    def __init__(
        self, recipe: TrainRecipe, view: View | None = None, *, resume: bool = False, allow_changes: bool = False
    ) -> None:
        self.recipe, self.folder = recipe, Path(recipe.out)
        self.accelerator = _accelerator(recipe)
        self.processes = Processes.of(self.accelerator)
        self.view = view if view is not None and self.processes.is_main else SilentView()
        self._held = ExitStack()
        """What is let go of when the run ends: the lock on its folder, and its logs."""
        with ExitStack() as on_failure:
            on_failure.callback(self._held.close)
            self.processes.on_main(lambda: self._claim(resume, allow_changes))
            if not resume and self.processes.is_main:
                on_failure.callback(run_folder.give_up, self.folder)
            self._begin(resume)
            on_failure.pop_all()

    def _begin(self, resume: bool) -> None:
        if self.processes.size > 1:
            self.view.message(f"training on {self.processes.size} processes")
        recipe, run = self.recipe, self._id()
        self.setup: Setup = self.processes.main_first(lambda: prepare_run(recipe, self._tell))
        self.setup.poly.to(self.accelerator.device)
        self.steps = EMSteps(recipe, self.setup, self.processes)
        self.validation = Validation.of(self.setup, recipe, self.processes)
        alarms = Alarms(recipe.alarms, recipe.num_decoders, recipe.validation.tokenizer)
        measured = self.validation.measured if self.validation else ""
        self.standing = Standing(Origin(run, self.setup.identity()), self.steps, alarms, measured)
        self.saved_at, self.is_interrupted = -1, False
        self.log, self.timings = (self._held.enter_context(RunLog(self.folder / name)) for name in _LOGS)
        if resume:
            self._go_on()
        if recipe.trackers:
            self.accelerator.init_trackers("polyreply", config=run_folder.flat(to_tree(recipe)))

    def _id(self) -> str:
        """The id of the run; all processes have to find the one that the main process sees."""
        expected = self.processes.from_main(lambda: run_folder.run_id(self.folder))

        def look() -> None:
            if (found := run_folder.run_id(self.folder)) != expected:
                raise PolyReplyError(f"the run.json of another run, {found}")

        self.processes.all_find(look, self.folder)
        return expected

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

    def interrupt(self) -> None:
        """Lets the step end and be saved, and then the run."""
        self.is_interrupted = True

    def loop(self) -> None:
        """Steps until the recipe's number is reached, validation no longer improves, or somebody interrupts."""
        every = self.recipe.validation.every, self.recipe.checkpoint.every
        self.save()
        while self.step < self.recipe.steps and not self.is_over() and not self._someone_interrupts():
            alarms = self._note(self.steps.step())
            last = self.step == self.recipe.steps
            if last or self.step % every[0] == 0:
                alarms += self._validate()
            stops = bool(alarms) and self.recipe.alarms.stop
            if last or stops or self.step % every[1] == 0:
                self.save()
            if stops:
                self.standing.alarms.stop(alarms)
        self.save()

    def is_over(self) -> bool:
        """Whether validation has not improved for long enough."""
        patience = self.recipe.validation.patience
        return patience is not None and self.standing.validations_since_best >= patience

    def save(self) -> None:
        """Writes a checkpoint of this moment, unless there is one."""
        if self.saved_at != self.step:
            self.processes.on_main(self._save)
            self.saved_at = self.step

    def finish(self) -> Path:
        """Writes the model of the best validation (or of the last step), usage and plots, unless interrupted."""
        self._leave_if_interrupted()
        if self.recipe.validation.keep == "best":
            self.processes.all_find(lambda: self.standing.load_best(self.checkpoints), self.folder)
        self.steps.model.train(False)
        scores = self.validation.measure(self.step).metrics if self.validation else {}
        examples = self.validation.dialogues if self.validation else []
        self._leave_if_interrupted()
        self.processes.on_main(
            lambda: artifacts.write(self.folder, self.recipe, self.setup, self.standing.usage, scores, examples)
        )
        if self.recipe.trackers:
            self.accelerator.end_training()
        return self.folder / "model"

    def _claim(self, resume: bool, allow_changes: bool) -> None:
        lock = run_folder.claim(self.folder, self.recipe, resume=resume, allow_changes=allow_changes)
        if lock is not None:
            self._held.enter_context(lock)
        remove_leftovers(self.checkpoints)

    def _someone_interrupts(self) -> bool:
        return self.processes.any(self.is_interrupted)

    def _leave_if_interrupted(self) -> None:
        if self._someone_interrupts():
            raise TrainingError(f"interrupted after step {self.step}; go on with: {resume_command(self.folder)}")

    def _tell(self, stage: str, share: float) -> None:
        self.view.message(stage)

    def _note(self, record: StepRecord) -> list[Alarm]:
        self.standing.usage.add(record)
        if self.recipe.trackers:
            self.accelerator.log(artifacts.numbers(record), step=record.step)
        if self.processes.is_main:
            self.log.write("step", record.to_json())
            self.timings.write("step", record.times())
        self.view.update(record)
        return self._warn(self.standing.alarms.step(record))

    def _validate(self) -> list[Alarm]:
        if self.validation is None:
            return []
        record: ValidationRecord = self.validation.measure(self.step)
        if self.standing.is_best(record.nll):
            self.standing.keep_best(self.processes.from_main(self._save_best))
        if self.recipe.trackers:
            self.accelerator.log(
                {f"validation/{name}": value for name, value in record.metrics.items()}, step=self.step
            )
        if self.processes.is_main:
            self.log.write("validation", record.to_json())
            self.timings.write("validation", record.times())
        self.view.validation(record)
        by_decoder = [list(said) for said in zip(*(reply["responses"] for reply in record.replies), strict=True)]
        return self._warn(self.standing.alarms.validation(by_decoder, self.step))

    def _warn(self, alarms: list[Alarm]) -> list[Alarm]:
        for alarm in alarms:
            if self.processes.is_main:
                self.log.write("alarm", alarm.to_json())
            self.view.message(alarm.message)
        return alarms

    def _save_best(self) -> str:
        return save_best(self.checkpoints, self.steps.weights(), self.step)

    def _save(self) -> None:
        self.log.sync()
        self.timings.sync()
        if not self.standing.frozen:
            self.standing.frozen = save_frozen(self.checkpoints, self.steps.weights(trained=False))
        save_checkpoint(self.checkpoints, self.standing.checkpoint(), self.recipe.checkpoint.keep)

    def _go_on(self) -> None:
        """Takes over the latest whole checkpoint, the same on all processes, and forgets what was logged after it."""
        chosen = self.processes.from_main(self._choose)
        if chosen:
            self.processes.all_find(lambda: self._follow(self.checkpoints / chosen), self.folder)
            self.saved_at = self.step
        if self.recipe.steps < self.step:
            raise TrainingError(
                f"expected steps={self.step} or more, because {self.folder} has done so many, found "
                f"steps={self.recipe.steps}; name more steps, or start a new run"
            )
        self.processes.on_main(self._cut_logs)
        self.processes.on_main(lambda: run_folder.keep_recipe(self.folder, self.recipe))

    def _choose(self) -> str:
        """Takes over the latest checkpoint that can be; its name, or nothing if the run has not begun yet."""
        found, told = go_on_from(self.checkpoints, self.standing.take_over)
        for line in told:
            self.view.message(line)
        logged = self.log.last_step()
        if found is None and (logged or (self.folder / "model").exists()):
            raise TrainingError(
                f"expected checkpoints in {self.checkpoints}, because the run has begun ({logged} steps are in its "
                "log), found none; put them back, or start a new run with another out=…"
            )
        return "" if found is None else found.name

    def _follow(self, chosen: Path) -> None:
        """Takes over what the main process has chosen, and has taken over already."""
        if not self.processes.is_main:
            self.standing.take_over(chosen)

    def _cut_logs(self) -> None:
        self.timings.cut_after(self.step)
        if (last := self.log.cut_after(self.step)) < self.step:
            raise TrainingError(
                f"{self.log.path}: expected all {self.step} steps of the checkpoint, found "
                f"{last or 'none'}; put the whole log back, or start a new run with another out=…"
            )


def _accelerator(recipe: TrainRecipe) -> Accelerator:
    for tracker in recipe.trackers:
        if importlib.util.find_spec(tracker) is None:
            raise MissingExtraError(tracker, "track", f"logging to {tracker}")
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise TrainingError(
            "expected a launch without FSDP, found ACCELERATE_USE_FSDP=true; sharded weights are not supported, use "
            "--multi_gpu (docs/distributed.md)"
        )
    return Accelerator(
        cpu=recipe.device == "cpu" or not torch.accelerator.is_available(),  # else several processes stay strangers
        log_with=list(recipe.trackers) or None,
        project_dir=recipe.out,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)],
    )
