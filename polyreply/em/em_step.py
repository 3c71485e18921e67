"""The steps of a run: draw, E-step, assignment, M-step, on one or several processes.

An EM step draws N samples at random, scores them under all K decoders, assigns them (soft, hard, balanced, or at
random), and takes one optimizer step of each decoder on what it was given. Stage 1 is the same with one decoder, which
is given everything.

Legend: N samples of a step over all processes, n of this one, M of the corpus, K decoders.
"""

import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyreply.distributed import Processes
from polyreply.em.assign import Assignment, assign, fixed_decoders
from polyreply.em.bound import UsageBound
from polyreply.em.e_step import Evidence, e_step
from polyreply.em.m_step import backward_decoders, backward_prior, token_mass
from polyreply.em.optimizer import DecoderOptimizer, learning_rate_at
from polyreply.em.posterior import LikelihoodError
from polyreply.models.score import Limits, Samples
from polyreply.training.interrupts import DivergedError, resume_command
from polyreply.training.recipe import TrainRecipe
from polyreply.training.record import StepRecord
from polyreply.training.setup import Setup, autocast, sample_stream

_PARTS = ("e-step", "m-step")


class EMSteps:
    """Everything that a step changes or depends on: weights, moments, the batch stream, prices, the epoch's plan."""

    def __init__(self, recipe: TrainRecipe, setup: Setup, processes: Processes) -> None:
        self.recipe, self.setup, self.processes = recipe, setup, processes
        self.model = setup.poly.model
        train_shared = recipe.method == "mle" or not recipe.em.freeze_shared
        self.optimizer = DecoderOptimizer(self.model, recipe.optimizer, train_shared=train_shared)
        self.stream = sample_stream(recipe, setup.train, processes)
        self.limits = Limits(max_tokens=recipe.optimizer.max_tokens)
        self.bound = UsageBound(recipe.num_decoders)
        self.done = 0
        """Steps so far."""
        self.prices_K: np.ndarray[Any, np.dtype[np.float64]] | None = None
        self.corpus: dict[str, Tensor] = {}
        """With an E-step over the corpus: weights and posterior of all samples, (M, K), for this epoch."""
        self.fixed_M = None
        if recipe.method == "eqrandom-fixed":
            self.fixed_M = fixed_decoders(len(setup.train), recipe.num_decoders, recipe.seed)

    def step(self) -> StepRecord:
        """One draw: E-step, assignment, M-step."""
        epoch, place = self.stream.epoch, self.stream.step
        ids_N = self.stream.plan(epoch).batch(place)
        clock = _Clock()
        if self.recipe.em.e_step_scope == "corpus" and self.recipe.method != "mle" and place == 0:
            self._assign_corpus(clock)
        ids_n = next(self.stream)
        samples = self.setup.samples(self.setup.train, ids_n)
        weights_nK, assignment = self._weights_of(samples, ids_N, clock)
        rate = learning_rate_at(self.done, self.recipe.steps, self.recipe.optimizer)
        loss, norm, usage_K = self._m_step(samples, weights_nK, len(ids_N), rate)
        m_seconds = clock.lap()
        self.done += 1
        return StepRecord(
            step=self.done,
            epoch=epoch,
            loss=loss,
            learning_rate=rate,
            samples=len(ids_N),
            e_seconds=clock.e_seconds,
            assign_seconds=clock.assign_seconds,
            m_seconds=m_seconds,
            usage_K=() if self.recipe.method == "mle" else tuple(usage_K),
            weight_std_K=() if assignment is None else tuple(assignment.weights_NK.std(0).tolist()),
            gradient_norm=norm,
            **self._about(assignment),
        )

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint keeps of all this, as tensors."""
        return {"weights": self.weights(), "optimizer": self.optimizer.state_dict(), "extra": self.corpus}

    def state_dict(self) -> dict[str, Any]:
        """And as plain JSON values."""
        return {
            "stream": self.stream.state_dict(),
            "prices_K": None if self.prices_K is None else list(map(float, self.prices_K)),
            "bound": self.bound.state_dict(),
        }

    def load_state_dict(self, step: int, optimizer: dict[str, Tensor], extra: dict[str, Tensor], state: Any) -> None:
        """Goes on from what `tensors` and `state_dict` gave, with the weights already in the model."""
        self.done, self.corpus = step, extra if self.recipe.em.e_step_scope == "corpus" else {}
        self.optimizer.load_state_dict(optimizer)
        self.stream.load_state_dict(state["stream"])
        self.prices_K = None if state["prices_K"] is None else np.array(state["prices_K"])
        self.bound.load_state_dict(state["bound"])

    def weights(self, *, trained: bool = True) -> dict[str, Tensor]:
        """The weights that are trained, or the others."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad == trained}

    def _weights_of(self, samples: Samples, ids_N: Any, clock: "_Clock") -> tuple[Tensor, Assignment | None]:
        """How much each decoder learns from each of this process's samples, (n, K)."""
        if self.recipe.method == "mle":
            return torch.ones(len(samples), 1, dtype=torch.float64), None
        if self.corpus:
            weights_NK, posterior_NK = (self.corpus[name][ids_N].double() for name in ("weights_MK", "posterior_MK"))
            assignment = Assignment(weights_NK.numpy(), posterior_NK.numpy())
            return self.processes.own(weights_NK), assignment
        evidence = self._gathered(self._e_step(samples), len(ids_N))
        clock.e_seconds = clock.lap()
        assignment = self._assign(evidence, ids_N)
        clock.assign_seconds = clock.lap()
        return self.processes.own(torch.from_numpy(assignment.weights_NK)), assignment

    def _assign_corpus(self, clock: "_Clock") -> None:
        """Scores and assigns a whole epoch at once; each process scores its share."""
        total = len(self.setup.train)
        own = self.processes.own(torch.arange(total))
        parts = [self._e_step(self.setup.samples(self.setup.train, part.numpy())) for part in own.split(1024)]
        nll_nK, log_prior_nK = (torch.cat(column) for column in zip(*map(_both, parts), strict=True))
        evidence = self._gathered(Evidence(nll_nK, log_prior_nK), total)
        clock.e_seconds = clock.lap()
        found = self._assign(evidence, np.arange(total))
        parts_MK = {"weights_MK": found.weights_NK, "posterior_MK": found.posterior_NK}
        self.corpus = {name: torch.from_numpy(part_MK).float() for name, part_MK in parts_MK.items()}
        clock.assign_seconds = clock.lap()

    def _e_step(self, samples: Samples) -> Evidence:
        settings = self.recipe.em
        self._seed("e-step")
        with autocast(self.recipe, self.model.device):
            evidence = e_step(
                self.model,
                samples,
                likelihood=settings.likelihood,
                dropout=settings.e_step_dropout,
                max_tokens=settings.e_step_max_tokens,
                limits=self.limits,
            )
        return Evidence(evidence.nll_NK.cpu(), evidence.log_prior_NK.cpu())

    def _gathered(self, own: Evidence, total: int) -> Evidence:
        return Evidence(*(self.processes.gather(part_nK, total) for part_nK in _both(own)))

    def _assign(self, evidence: Evidence, ids_N: Any) -> Assignment:
        """The same on every process: all have the same costs, prices and seed."""
        settings = self.recipe.em
        try:
            assignment = assign(
                self.recipe.method,  # type: ignore[arg-type]
                evidence.nll_NK.numpy(),
                evidence.log_prior_NK.numpy(),
                ids_N,
                cost=settings.cost,
                seed=self.recipe.seed,
                step=self.done,
                temperature=settings.temperature_at(self.done),
                prices_K=self.prices_K,
                fixed_decoder_M=self.fixed_M,
            )
        except LikelihoodError as error:
            raise DivergedError(f"step {self.done + 1}: {error}; {self._how_to_go_on()}") from error
        self.prices_K = assignment.prices_K
        self.bound.add(assignment.posterior_NK)
        return assignment

    def _m_step(
        self, samples: Samples, weights_nK: Tensor, number: int, rate: float
    ) -> tuple[float, float, list[float]]:
        """One optimizer step; the loss per token, the gradient's norm, and each decoder's share of the samples."""
        self._seed("m-step")
        self.model.train()
        weights_nK = weights_nK.to(self.model.device)
        mass_K, share_K = token_mass(samples, weights_nK), weights_nK.sum(0)
        self.processes.sum_((mass_K, share_K))
        with autocast(self.recipe, self.model.device):
            total_K = backward_decoders(self.model, samples, weights_nK, mass_K, self.limits)
            backward_prior(self.model, samples, weights_nK, number, self.limits)
        self.processes.sum_((total_K, *(self.optimizer.gradients() if self.processes.size > 1 else ())))
        loss = float(total_K.sum() / mass_K.sum())
        self._check("loss", loss)
        norm = self.optimizer.step((share_K > 0).tolist(), rate)
        self._check("norm of the gradient", norm)
        self.model.train(False)
        return loss, norm, (share_K / share_K.sum()).tolist()

    def _check(self, name: str, value: float) -> None:
        """Before weights are changed by a number that is none."""
        if not math.isfinite(value):
            raise DivergedError(f"the {name} is {value} at step {self.done + 1}; {self._how_to_go_on()}")

    def _how_to_go_on(self) -> str:
        return (
            "the last good checkpoint is intact: go on with a lower learning rate or clipped gradients, as in "
            f"{resume_command(self.recipe.out)} --allow-changes optimizer.learning_rate=1e-4 "
            "optimizer.clip_norm=1.0"
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

    def _seed(self, part: str) -> None:
        """Dropout is decided by the step, not by what ran before it: a resumed run draws the same."""
        number = [self.recipe.seed, self.done, self.processes.rank, _PARTS.index(part)]
        torch.manual_seed(int(np.random.SeedSequence(number).generate_state(1, np.uint64)[0]) >> 1)


def _both(evidence: Evidence) -> tuple[Tensor, Tensor]:
    return evidence.nll_NK, evidence.log_prior_NK


class _Clock:
    """Seconds since the last lap, and those of the parts of a step."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self.e_seconds = self.assign_seconds = 0.0

    def lap(self) -> float:
        now = time.perf_counter()
        elapsed, self._begin = now - self._begin, now
        return elapsed
