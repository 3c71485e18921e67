"""`train`: stage 1 (`mle`) and every EM method of stage 2, on one or several processes.

What a step does is in `em/em_step.py`. Here steps are repeated, measured, reported and saved: see `Run.loop`.
"""

import importlib.util
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from accelerate import Accelerator, InitProcessGroupKwargs

from polyreply.config import check_recipe, to_tree
from polyreply.data.folder import Dialogues, data_folder
from polyreply.distributed import Processes
from polyreply.em.em_step import StepRecord, em_step
from polyreply.errors import MissingExtraError, PolyReplyError
from polyreply.models.sharded import ShardedLayers
from polyreply.reply import PolyReply
from polyreply.threads import adaptive_threads
from polyreply.training import artifacts, run_folder
from polyreply.training.alarms import Alarm, Alarms, CollapseError
from polyreply.training.callbacks import Callback, Callbacks
from polyreply.training.checkpoint import Origin, best_name, remove_leftovers, resume_from
from polyreply.training.interrupts import TrainingError, graceful_interrupt, resumable_errors, resume_command
from polyreply.training.recipe import TrainRecipe
from polyreply.training.run_log import RunLog, log_values, timing_values
from polyreply.training.setup import Setup, prepare_run
from polyreply.training.state import RunState
from polyreply.training.validation import Validation
from polyreply.training.view import default_view

_LONGEST_WAIT = timedelta(days=1)
"""The main process may prepare data for hours while the others wait."""


def train(
    recipe: TrainRecipe,
    dialogues: Dialogues | None = None,
    *,
    resume: bool = False,
    allow_changes: bool = False,
    callbacks: Sequence[Callback] | None = None,
) -> PolyReply:
    """Train as a recipe says, or resume its run folder; the finished model, which is also in `recipe.out`/model.

    `dialogues` is the data: a folder of splits, a dialogue file, rows such as {"context": …, "responses": […]},
    {"turns": […]} or {"messages": […]}, or a `datasets.Dataset`; None means `recipe.data`. `allow_changes` resumes with
    other settings of the learning than the run began with. `callbacks` follow the run and may stop it; None shows
    progress on a terminal or in a notebook, [] shows nothing.
    """
    if dialogues is not None:
        where = dialogues if isinstance(dialogues, str | Path) else Path(recipe.out, "data")
        recipe = replace(recipe, data=str(where))
    recipe = check_recipe(recipe)
    chosen = [default_view()] if callbacks is None else callbacks
    with (
        resumable_errors(recipe.out),
        Run(recipe, dialogues, resume=resume, allow_changes=allow_changes, callbacks=chosen) as run,
        graceful_interrupt(run.interrupt),
        adaptive_threads(),
    ):
        run.loop()
        return run.finish()


class Run:
    """A training run: its state, its folder, and who is informed about it."""

    def __init__(
        self,
        recipe: TrainRecipe,
        dialogues: Dialogues | None = None,
        *,
        resume: bool = False,
        allow_changes: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Lock the run folder, load data and model, and restore the latest checkpoint of a resumed run."""
        self.recipe, self.folder = recipe, Path(recipe.out)
        self.checkpoints = self.folder / "checkpoints"
        self.accelerator = _accelerator(recipe)
        self.processes = Processes.of(self.accelerator)
        self.callbacks = Callbacks(callbacks if self.processes.is_main else ())
        self.is_interrupted = self.is_stopped = False
        self._saved_at = self._validated_at = -1
        self._last_replies: list[dict[str, Any]] | None = None
        """Those of the validation at the last step, if this process has seen it."""
        self._resources = ExitStack()
        """Released when the run ends: the display, the lock on its folder, the logs."""
        with ExitStack() as on_failure:
            on_failure.callback(self._resources.close)
            self.callbacks.on_start(recipe)
            self._resources.callback(self.callbacks.on_end)
            self.processes.on_main(lambda: self._claim(resume, allow_changes))
            if not resume and self.processes.is_main:
                on_failure.callback(run_folder.abandon, self.folder)
            self._load(dialogues)
            if resume:
                self._resume()
            on_failure.pop_all()

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    @property
    def step(self) -> int:
        """Steps so far."""
        return self.em.step

    def interrupt(self) -> None:
        """Let the current step end, save a checkpoint, and raise."""
        self.is_interrupted = True

    # The outline of a training.

    def loop(self) -> None:
        """Repeat EM steps until the recipe's number is reached, validation stops improving, or someone stops it."""
        recipe = self.recipe
        self.save()
        while self.step < recipe.steps and not self.is_over():
            record = em_step(self.em)
            alarms = self.report_step(record)
            if self.step % recipe.validation.every == 0 or self.step == recipe.steps:
                alarms += self.validate()
            stop = bool(alarms) and recipe.alarms.stop
            if self.step % recipe.checkpoint.every == 0 or stop:
                self.save()
            if stop:
                raise CollapseError(alarms)
        if self.is_stopped and self._validated_at != self.step:
            self.validate()
        self.save()

    def finish(self) -> PolyReply:
        """Write the model of the best validation (or of the last step), usage and plots, unless interrupted."""
        self._raise_if_interrupted()
        keep = self.recipe.validation.keep
        if keep == "best":
            self.processes.all_find(lambda: self.state.load_best(self.checkpoints), self.folder)
        self.poly.model.objective = None
        scores = self.state.metrics.get(keep)
        if scores is None:  # the run was resumed with other validation samples
            scores = self.validation.measure().metrics if self.validation else {}
        replies = self._last_replies if keep == "last" else None
        if replies is None:
            replies = self.validation.replies() if self.validation and not self.recipe.has_one_decoder else []
        self._raise_if_interrupted()
        usage = self.state.usage
        self.processes.on_main(
            lambda: artifacts.write_results(self.folder, self.recipe, self.poly, usage, scores, replies)
        )
        self._report_memory()
        if self.recipe.trackers:
            self.accelerator.end_training()
        return self.poly

    def is_over(self) -> bool:
        """Whether to end before the last step: stopped on any process, or validation has stopped improving."""
        if self.processes.any(self.is_interrupted or self.is_stopped):
            self.is_stopped = True
            return True
        patience = self.recipe.validation.patience
        return patience is not None and self.state.validations_since_best >= patience

    def report_step(self, record: StepRecord) -> list[Alarm]:
        """Log a step, pass it to usage, callbacks and trackers; the alarms it raises."""
        self.state.usage.add(record)
        if self.recipe.trackers:
            self.accelerator.log(artifacts.tracker_values(record), step=record.step)
        if self.processes.is_main:
            self.log.write("step", log_values(record))
            self.timings.write("step", timing_values(record))
        self.is_stopped |= self.callbacks.on_step(record)
        return self._report_alarms(self.state.alarms.step(record))

    def validate(self) -> list[Alarm]:
        """Measure and log a validation, and keep its weights if it is the best; the alarms it raises."""
        if self.validation is None:
            return []
        record = self.validation.measure()
        self._validated_at, self._last_replies = self.step, record.replies
        if self.state.add_validation(record):
            self.state.best = {best_name(self.step): self.processes.from_main(self._save_best)}
        if self.recipe.trackers:
            values = {f"validation/{name}": value for name, value in record.metrics.items()}
            self.accelerator.log(values, step=self.step)
        if self.processes.is_main:
            self.log.write("validation", log_values(record))
            self.timings.write("validation", timing_values(record))
        self.is_stopped |= self.callbacks.on_validation(record)
        by_decoder = [list(texts) for texts in zip(*(reply["responses"] for reply in record.replies), strict=True)]
        return self._report_alarms(self.state.alarms.validation(by_decoder, self.step))

    def save(self) -> None:
        """Write a checkpoint, unless this step has one."""
        if self._saved_at != self.step:
            self.processes.on_main(self._save)
            self._saved_at = self.step

    # How a run starts and resumes.

    def _claim(self, resume: bool, allow_changes: bool) -> None:
        lock = run_folder.claim(self.folder, self.recipe, resume=resume, allow_changes=allow_changes)
        self._resources.enter_context(lock)
        for folder in (self.folder, self.checkpoints):
            remove_leftovers(folder)

    def _load(self, dialogues: Dialogues | None) -> None:
        if self.processes.size > 1:
            self.callbacks.on_message(f"training on {self.processes.size} processes")
        recipe, run = self.recipe, self._find_id()
        source = recipe.data if dialogues is None else dialogues
        data = self.processes.from_main(lambda: str(data_folder(source, self.folder / "data", seed=recipe.seed)))
        setup = self.processes.main_first(lambda: self._prepare(Path(data)), one_by_one=self._shards)
        self.poly = setup.poly.to(self.accelerator.device)
        if self.poly.model.sharded is not None:
            self.processes.before_exchange = self.poly.model.sharded.help_others
        self.em = setup.start_em(recipe, self.processes)
        self.validation = Validation.draw(self.em, self.poly, recipe.validation, setup.valid, setup.valid_file)
        alarms = Alarms(recipe.alarms, recipe.num_decoders, recipe.validation.tokenizer)
        measured = self.validation.measured if self.validation else ""
        self.state = RunState(Origin(run, setup.identity()), self.em, alarms, measured)
        self.log, self.timings = (
            self._resources.enter_context(RunLog(self.folder / name)) for name in ("log.jsonl", "timings.jsonl")
        )
        if recipe.trackers:
            self.accelerator.init_trackers("polyreply", config=run_folder.flatten(to_tree(recipe)))

    @property
    def _shards(self) -> bool:
        return self.recipe.model.shard and self.processes.size > 1

    def _prepare(self, data: Path) -> Setup:
        """Load what the run works with; of a backbone that is to be sharded this process keeps its share alone."""
        setup = prepare_run(self.recipe, data, lambda stage, share: self.callbacks.on_message(stage))
        if self._shards:
            setup.poly.model.sharded = ShardedLayers(setup.poly.model, self.processes)
        return setup

    def _find_id(self) -> str:
        """The id of the run; every process has to find the one that the main process sees."""
        expected = self.processes.from_main(lambda: run_folder.run_id(self.folder))

        def look() -> None:
            if (found := run_folder.run_id(self.folder)) != expected:
                raise PolyReplyError(f"the run.json of another run, {found}")

        self.processes.all_find(look, self.folder)
        return expected

    def _resume(self) -> None:
        """Restore the latest usable checkpoint, the same on all processes, and drop what was logged after it."""
        name = self.processes.from_main(self._restore_latest)
        if name:
            # The main process has restored it already.
            restore = (lambda: None) if self.processes.is_main else lambda: self.state.restore(self.checkpoints / name)
            self.processes.all_find(restore, self.folder)
            self._saved_at = self.step
        if self.recipe.steps < self.step:
            raise TrainingError(
                f"expected steps={self.step} or more, because {self.folder} has done that many, found "
                f"steps={self.recipe.steps}; set more steps, or start a new run"
            )
        self.processes.on_main(self._cut_logs)
        self.processes.on_main(lambda: run_folder.update_recipe(self.folder, self.recipe))

    def _restore_latest(self) -> str:
        """Restore the latest usable checkpoint; its name, or nothing if the run has not started yet."""
        path, messages = resume_from(self.checkpoints, self.state.restore)
        for message in messages:
            self.callbacks.on_message(message)
        logged = self.log.last_step()
        if path is None and (logged or (self.folder / "model").exists()):
            raise TrainingError(
                f"expected checkpoints in {self.checkpoints}, because the run has started ({logged} steps are in its "
                "log), found none; restore them, or start a new run with another out=…"
            )
        return "" if path is None else path.name

    def _cut_logs(self) -> None:
        self.timings.cut_after(self.step)
        if (last := self.log.cut_after(self.step)) < self.step:
            raise TrainingError(
                f"{self.log.path}: expected all {self.step} steps of the checkpoint, found "
                f"{last or 'none'}; restore the log, or start a new run with another out=…"
            )

    # Details.

    def _save(self) -> None:
        self.log.sync()
        self.timings.sync()
        self.state.save(self.checkpoints, self.recipe.checkpoint.keep)

    def _save_best(self) -> str:
        return self.state.save_best(self.checkpoints)

    def _report_alarms(self, alarms: list[Alarm]) -> list[Alarm]:
        for alarm in alarms:
            if self.processes.is_main:
                self.log.write("alarm", alarm.to_json())
            self.callbacks.on_message(alarm.message)
        return alarms

    def _report_memory(self) -> None:
        """Log the most memory that each process has held, loading and saving included."""
        peaks = self.processes.peak_memory()
        if self.processes.is_main:
            self.timings.write("memory", {"step": self.step, "peak_bytes": peaks})
        if self.processes.size > 1:
            each = ", ".join(f"{peak / 1e9:.2f}" for peak in peaks)
            self.callbacks.on_message(f"peak memory of each process: {each} GB")

    def _raise_if_interrupted(self) -> None:
        if self.processes.any(self.is_interrupted):
            raise TrainingError(f"interrupted after step {self.step}; resume with: {resume_command(self.folder)}")


def _accelerator(recipe: TrainRecipe) -> Accelerator:
    for tracker in recipe.trackers:
        if importlib.util.find_spec(tracker) is None:
            raise MissingExtraError(tracker, "track", f"logging to {tracker}")
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise TrainingError(
            "expected a launch without FSDP, found ACCELERATE_USE_FSDP=true; to shard the backbone, launch with "
            "--multi_gpu (or torchrun) and set model.shard=true (docs/distributed.md)"
        )
    return Accelerator(
        cpu=recipe.device == "cpu" or not torch.accelerator.is_available(),  # otherwise CPU runs get no process group
        log_with=list(recipe.trackers) or None,
        project_dir=recipe.out,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_LONGEST_WAIT)],
    )
