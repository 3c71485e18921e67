"""The training loop: stage 1 (`mle`) and every EM variant of stage 2, on one or several processes.

An EM step draws N samples at random, scores them under all K decoders (E-step), assigns them (soft, hard, balanced, or
at random), and takes one optimizer step of each decoder on what it was given (M-step). Stage 1 is the same loop with
one decoder, which is given everything.

Legend: N samples of a step over all processes, n of this one, M of the corpus, K decoders.
"""

import importlib.util
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from polyreply.config import check_recipe, save_recipe, to_tree
from polyreply.em.assign import Assignment, assign, fixed_decoders
from polyreply.em.bound import UsageBound
from polyreply.em.e_step import Evidence, e_step
from polyreply.em.m_step import backward_decoders, backward_prior, token_mass
from polyreply.em.posterior import LikelihoodError
from polyreply.errors import MissingExtraError, PolyReplyError
from polyreply.model.score import Limits, Samples
from polyreply.training import results
from polyreply.training.alarms import Alarm, Alarms
from polyreply.training.checkpoint import (
    Checkpoint,
    latest_checkpoint,
    load_frozen,
    save_checkpoint,
    save_frozen,
    take_over,
)
from polyreply.training.optimizer import DecoderOptimizer, learning_rate_at
from polyreply.training.processes import Processes
from polyreply.training.recipe import TrainRecipe
from polyreply.training.record import StepRecord, ValidationRecord
from polyreply.training.run_log import RunLog
from polyreply.training.setup import Setup, prepare_run, sample_stream
from polyreply.training.usage import UsageStatistics
from polyreply.training.validation import Validation
from polyreply.training.view import SilentView, View

_PARTS = ("e-step", "m-step")


class TrainingError(PolyReplyError):
    """A run cannot go on."""


def train(recipe: TrainRecipe, *, resume: bool = False, view: View | None = None) -> Path:
    """Runs a recipe, or goes on with its run folder; the folder of the finished model."""
    run = Run(check_recipe(recipe), resume, view or SilentView())
    with _gentle_interrupt(run):
        run.loop()
    if run.is_interrupted and run.step < recipe.steps:
        run.save()
        raise TrainingError(f"interrupted after step {run.step}; go on with: polyreply train --resume {run.folder}")
    return run.finish()


class Run:
    """A training run: everything that changes from step to step, and the folder it is written to."""

    def __init__(self, recipe: TrainRecipe, resume: bool, view: View) -> None:
        self.recipe, self.view, self.folder = recipe, view, Path(recipe.out)
        results.claim(self.folder, recipe, resume)
        self.accelerator = _accelerator(recipe)
        self.processes = Processes(self.accelerator)
        self.setup: Setup = prepare_run(recipe, lambda stage, share: view.message(stage))
        self.model = self.setup.poly.to(self.accelerator.device).model
        train_shared = recipe.method == "mle" or not recipe.em.freeze_shared
        self.optimizer = DecoderOptimizer(self.model, recipe.optimizer, train_shared=train_shared)
        self.stream = sample_stream(recipe, self.setup.train, self.processes)
        self.validation = Validation.of(self.setup, recipe)
        self.limits = Limits(max_tokens=recipe.optimizer.max_tokens)
        self.usage, self.alarms = (
            UsageStatistics(recipe.num_decoders),
            Alarms(recipe.alarms, recipe.num_decoders, recipe.validation.tokenizer),
        )
        self.bound = UsageBound(recipe.num_decoders)
        self.step, self.saved_at, self.is_interrupted = 0, -1, False
        self.prices_K: np.ndarray[Any, np.dtype[np.float64]] | None = None
        self.corpus: dict[str, Tensor] = {}
        """With an E-step over the corpus: weights and posterior of all samples, (M, K), for this epoch."""
        self.best_nll, self.best_step, self.validations_since_best = math.inf, -1, 0
        self.fixed_M = None
        if recipe.method == "eqrandom-fixed":
            self.fixed_M = fixed_decoders(len(self.setup.train), recipe.num_decoders, recipe.seed)
        self.log = RunLog(self.folder / "log.jsonl")
        if resume:
            self._go_on()
        elif self.processes.is_main:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_frozen(self.folder / "checkpoints", self._weights(trained=False))
        if self.processes.is_main:
            save_recipe(recipe, self.folder / "recipe.yaml")  # also when going on, perhaps with more steps
        if recipe.trackers:
            self.accelerator.init_trackers("polyreply", config=results.flat(to_tree(recipe)))

    def loop(self) -> None:
        """Steps until the recipe's number is reached, or validation no longer improves."""
        every = self.recipe.validation.every, self.recipe.checkpoint.every
        if self.saved_at < 0:
            self.save()
        while self.step < self.recipe.steps and not self._is_over() and not self.is_interrupted:
            record = self.em_step()
            self.step += 1
            self._note(record)
            last = self.step == self.recipe.steps
            if last or self.step % every[0] == 0:
                self._validate()
            if last or self.step % every[1] == 0:
                self.save()
        self.save()

    def em_step(self) -> StepRecord:
        """One draw: E-step, assignment, M-step."""
        epoch, place = self.stream.epoch, self.stream.step
        ids_N = self.stream.plan(epoch).batch(place)
        clock = _Clock()
        if self.recipe.em.e_step_scope == "corpus" and self.recipe.method != "mle" and place == 0:
            self._assign_corpus(clock)
        ids_n = next(self.stream)
        samples = self.setup.samples(self.setup.train, ids_n)
        weights_nK, assignment = self._weights_of(samples, ids_n, ids_N, clock)
        loss, norm, usage_K = self._m_step(samples, weights_nK, len(ids_N))
        m_seconds = clock.lap()
        return StepRecord(
            step=self.step + 1,
            epoch=epoch,
            loss=loss,
            learning_rate=self._learning_rate(),
            samples=len(ids_N),
            e_seconds=clock.e_seconds,
            assign_seconds=clock.assign_seconds,
            m_seconds=m_seconds,
            usage_K=() if self.recipe.method == "mle" else tuple(usage_K),
            weight_std_K=() if assignment is None else tuple(assignment.weights_NK.std(0).tolist()),
            gradient_norm=norm,
            **self._about(assignment),
        )

    def _weights_of(
        self, samples: Samples, ids_n: Any, ids_N: Any, clock: "_Clock"
    ) -> tuple[Tensor, Assignment | None]:
        """How much each decoder learns from each of this process's samples, (n, K)."""
        if self.recipe.method == "mle":
            return torch.ones(len(samples), 1, dtype=torch.float64), None
        if self.corpus:
            weights_NK, posterior_NK = (self.corpus[name][ids_N].double() for name in ("weights_MK", "posterior_MK"))
            assignment = Assignment(weights_NK.numpy(), posterior_NK.numpy())
            return self.processes.own(weights_NK), assignment
        evidence = self._e_step(samples)
        number = len(ids_N)
        nll_NK, log_prior_NK = (self.processes.gather(x, number) for x in (evidence.nll_NK, evidence.log_prior_NK))
        clock.e_seconds = clock.lap()
        assignment = self._assign(Evidence(nll_NK, log_prior_NK), ids_N)
        clock.assign_seconds = clock.lap()
        return self.processes.own(torch.from_numpy(assignment.weights_NK)), assignment

    def _e_step(self, samples: Samples) -> Evidence:
        settings = self.recipe.em
        self._seed("e-step")
        with self._autocast():
            evidence = e_step(
                self.model,
                samples,
                likelihood=settings.likelihood,
                dropout=settings.e_step_dropout,
                max_tokens=settings.e_step_max_tokens,
                limits=self.limits,
            )
        return Evidence(evidence.nll_NK.cpu(), evidence.log_prior_NK.cpu())

    def _assign(self, evidence: Evidence, ids_N: Any) -> Assignment:
        settings = self.recipe.em
        try:
            assignment = assign(
                self.recipe.method,  # type: ignore[arg-type]
                evidence.nll_NK.numpy(),
                evidence.log_prior_NK.numpy(),
                ids_N,
                cost=settings.cost,
                seed=self.recipe.seed,
                step=self.step,
                temperature=settings.temperature_at(self.step),
                prices_K=self.prices_K,
                fixed_decoder_M=self.fixed_M,
            )
        except LikelihoodError as error:
            raise TrainingError(f"step {self.step + 1}: {error}; {self._how_to_go_on()}") from error
        self.prices_K = assignment.prices_K
        self.bound.add(assignment.posterior_NK)
        return assignment

    def _assign_corpus(self, clock: "_Clock") -> None:
        """Scores and assigns a whole epoch at once; each process scores its share."""
        total = len(self.setup.train)
        ids_M = torch.arange(total)
        own = self.processes.own(ids_M)
        parts = [self._e_step(self.setup.samples(self.setup.train, part.numpy())) for part in own.split(1024)]
        nll, prior = (torch.cat([getattr(part, name) for part in parts]) for name in ("nll_NK", "log_prior_NK"))
        evidence = Evidence(self.processes.gather(nll, total), self.processes.gather(prior, total))
        clock.e_seconds = clock.lap()
        found = self._assign(evidence, ids_M.numpy())
        parts_MK = {"weights_MK": found.weights_NK, "posterior_MK": found.posterior_NK}
        self.corpus = {name: torch.from_numpy(part_MK).float() for name, part_MK in parts_MK.items()}
        clock.assign_seconds = clock.lap()

    def _m_step(self, samples: Samples, weights_nK: Tensor, number: int) -> tuple[float, float, list[float]]:
        """One optimizer step; the loss per token, the gradient's norm, and each decoder's share of the samples."""
        self._seed("m-step")
        self.model.train()
        weights_nK = weights_nK.to(self.model.device)
        mass_K, share_K = token_mass(samples, weights_nK), weights_nK.sum(0)
        self.processes.sum_((mass_K, share_K))
        with self._autocast():
            total_K = backward_decoders(self.model, samples, weights_nK, mass_K, self.limits)
            backward_prior(self.model, samples, weights_nK, number, self.limits)
        self.processes.sum_((total_K,))
        loss = float(total_K.sum() / mass_K.sum())
        self.processes.sum_(self.optimizer.gradients() if self.processes.number > 1 else ())
        self._check("loss", loss)
        norm = self.optimizer.step((share_K > 0).tolist(), self._learning_rate())
        self._check("norm of the gradient", norm)
        self.model.train(False)
        return loss, norm, (share_K / share_K.sum()).tolist()

    def _check(self, name: str, value: float) -> None:
        """Before weights are changed by a number that is none."""
        if not math.isfinite(value):
            raise TrainingError(f"the {name} is {value} at step {self.step + 1}; {self._how_to_go_on()}")

    def _how_to_go_on(self) -> str:
        return (
            "the last good checkpoint is intact: go on with a lower learning rate or clipped gradients, as in "
            f"polyreply train --resume {self.folder} optimizer.learning_rate=1e-4 optimizer.clip_norm=1.0"
        )

    def _about(self, assignment: Assignment | None) -> dict[str, float | None]:
        """What the posterior says about how the decoders differ."""
        if assignment is None:
            return dict.fromkeys(("max_posterior", "posterior_distance", "deviation", "hoeffding"))
        posterior_NK = assignment.posterior_NK
        return {
            "max_posterior": float(posterior_NK.max(1).mean()),
            "posterior_distance": float(np.abs(posterior_NK - 1 / posterior_NK.shape[1]).sum(1).mean() / 2),
            "deviation": float(self.bound.deviation_K.max()),
            "hoeffding": self.bound.hoeffding,
        }

    def _autocast(self) -> torch.autocast:
        """The type of the computation; weights, gradients and log-likelihoods stay in float32."""
        wanted, device = self.recipe.precision, self.accelerator.device.type
        has_bf16 = device == "cuda" and torch.cuda.is_bf16_supported()
        return torch.autocast(device, torch.bfloat16, enabled=wanted == "bfloat16" or (wanted == "auto" and has_bf16))

    def _learning_rate(self) -> float:
        return learning_rate_at(self.step, self.recipe.steps, self.recipe.optimizer)

    def _seed(self, part: str) -> None:
        """Dropout is decided by the step, not by what ran before it: a resumed run draws the same."""
        number = [self.recipe.seed, self.step, self.processes.rank, _PARTS.index(part)]
        torch.manual_seed(int(np.random.SeedSequence(number).generate_state(1, np.uint64)[0]) >> 1)

    def _note(self, record: StepRecord) -> None:
        self.usage.add(record)
        if self.recipe.trackers:
            self.accelerator.log(results.numbers(record), step=record.step)
        if self.processes.is_main:
            self.log.write("step", record.to_json())
            self.view.update(record)
        self._warn(self.alarms.step(record))

    def _validate(self) -> None:
        if self.validation is None:
            return
        record: ValidationRecord = self.validation.measure(self.step)
        if record.nll < self.best_nll:
            self.best_nll, self.best_step, self.validations_since_best = record.nll, self.step, 0
            if self.processes.is_main:
                results.save_best(self.folder, self._weights(trained=True), self.step)
        else:
            self.validations_since_best += 1
        if self.recipe.trackers:
            self.accelerator.log(
                {f"validation/{name}": value for name, value in record.metrics.items()}, step=self.step
            )
        if self.processes.is_main:
            self.log.write("validation", record.to_json())
            self.view.validation(record)
        if record.replies:
            by_decoder = [list(said) for said in zip(*(reply["responses"] for reply in record.replies), strict=True)]
            self._warn(self.alarms.validation(by_decoder, self.step))

    def _warn(self, alarms: list[Alarm]) -> None:
        """Tells of alarms; where they are to end the run, what it has learnt is saved first."""
        for alarm in alarms if self.processes.is_main else []:
            self.log.write("alarm", alarm.to_json())
            self.view.message(alarm.message)
        if alarms and self.recipe.alarms.stop:
            self.save()
            self.alarms.stop(alarms)

    def _is_over(self) -> bool:
        patience = self.recipe.validation.patience
        return patience is not None and self.validations_since_best >= patience

    def save(self) -> None:
        """Writes a checkpoint of this moment, unless there is one."""
        if self.saved_at == self.step:
            return
        if self.processes.is_main:
            self.log.sync()
            state = {
                "stream": self.stream.state_dict(),
                "prices_K": None if self.prices_K is None else list(map(float, self.prices_K)),
                "best": [self.best_nll if math.isfinite(self.best_nll) else None, self.best_step],
                "validations_since_best": self.validations_since_best,
                "usage": self.usage.state_dict(),
                "alarms": self.alarms.state_dict(),
                "bound": self.bound.state_dict(),
            }
            weights, moments = self._weights(trained=True), self.optimizer.state_dict()
            made = Checkpoint(self.step, weights, moments, self.corpus, state)
            save_checkpoint(self.folder / "checkpoints", made, self.recipe.checkpoint.keep)
        self.processes.wait()
        self.saved_at = self.step

    def _go_on(self) -> None:
        """Takes over the latest whole checkpoint, and forgets what was logged after it."""
        folder = self.folder / "checkpoints"
        take_over(self.model, load_frozen(folder))
        found, damaged = latest_checkpoint(folder)
        take_over(self.model, found.weights)
        self.optimizer.load_state_dict(found.optimizer)
        state = found.state
        self.step = self.saved_at = found.step
        self.stream.load_state_dict(state["stream"])
        self.prices_K = None if state["prices_K"] is None else np.array(state["prices_K"])
        best_nll, self.best_step = state["best"]
        self.best_nll = math.inf if best_nll is None else best_nll
        self.validations_since_best = state["validations_since_best"]
        self.corpus = found.extra
        for part in ("usage", "alarms", "bound"):
            getattr(self, part).load_state_dict(state[part])
        if self.processes.is_main:
            self.log.cut_after(self.step)
            for line in damaged:
                self.view.message(line)

    def _weights(self, *, trained: bool) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad == trained}

    def finish(self) -> Path:
        """Writes the model of the best validation (or of the last step), usage and plots."""
        if self.processes.is_main:
            if self.recipe.validation.keep == "best" and self.best_step >= 0:
                take_over(self.model, results.load_best(self.folder))
            results.write(self.folder, self.recipe, self.setup, self.usage, self.validation, self.step, self.view)
        self.processes.wait()
        if self.recipe.trackers:
            self.accelerator.end_training()
        return self.folder / "model"


class _Clock:
    """Seconds since the last lap, and those of the parts of a step."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self.e_seconds = self.assign_seconds = 0.0

    def lap(self) -> float:
        now = time.perf_counter()
        elapsed, self._begin = now - self._begin, now
        return elapsed


def _accelerator(recipe: TrainRecipe) -> Accelerator:
    for tracker in recipe.trackers:
        if importlib.util.find_spec(tracker) is None:
            raise MissingExtraError(tracker, "track", f"logging to {tracker}")
    return Accelerator(
        cpu=recipe.device == "cpu",
        log_with=list(recipe.trackers) or None,
        project_dir=recipe.out,
    )


@contextmanager
def _gentle_interrupt(run: Run) -> Iterator[None]:
    """The first Ctrl-C lets the step end and be saved; a second one leaves at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        run.is_interrupted = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
