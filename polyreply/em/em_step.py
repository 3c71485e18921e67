"""One step of EM, in the paper's order: draw, E-step, assignment, M-step, optimizer step.

`em_step` is the algorithm. `EM` holds what its steps read and what they change; checkpoints keep the latter. Stage 1
(`mle`) is the same step with a single decoder that gets every sample, so nothing has to be scored or assigned. Other
methods with a single decoder (`adalabel`, `dialogbert`) put an objective of their own in the place of the M-step.

Legend: N samples of a step over all processes, n of this one, M samples of the corpus, K decoders.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyreply.arrays import Floats, Ints
from polyreply.data.batches import SampleStream, collate
from polyreply.data.token_corpus import TokenCorpus
from polyreply.distributed import Processes
from polyreply.em.assign import Assignment, Evidence, assign
from polyreply.em.e_step import Likelihoods, e_step
from polyreply.em.m_step import DecoderTotals, m_step
from polyreply.em.objective import Objective
from polyreply.em.optimizer import DecoderOptimizer, learning_rate_at
from polyreply.em.posterior import UsageBound
from polyreply.em.settings import SINGLE_DECODER, EMSettings
from polyreply.errors import DivergedError
from polyreply.models.model import PolyReplyModel
from polyreply.models.score import Limits, Samples
from polyreply.precision import computing_in

_OBJECTIVE = 11
"""Keeps the random numbers of an objective apart from all others of a run."""


@dataclass
class EM:
    """A training in progress."""

    method: str
    model: PolyReplyModel
    corpus: TokenCorpus
    stream: SampleStream
    optimizer: DecoderOptimizer
    settings: EMSettings
    total_steps: int
    seed: int = 0
    pad_id: int = 0
    autocast: torch.dtype | None = None
    """The type of the computation, where it is not that of the weights."""
    objective: Objective | None = None
    """What is minimised in place of the NLL; a part of the model."""
    processes: Processes = field(default_factory=Processes)

    # What steps change:
    step: int = 0
    """Steps so far."""
    prices_K: Floats | None = None
    """Of the last balanced assignment; the next one starts from them."""
    epoch: dict[str, Tensor] = field(default_factory=dict)
    """With `e_step_scope: corpus`, weights and posterior of all samples, (M, K), for the current epoch."""

    def __post_init__(self) -> None:
        self.bound = UsageBound(self.model.num_decoders)
        settings = self.optimizer.settings
        self.limits = Limits(max_tokens=settings.max_tokens, max_activations=settings.max_activations)

    def draw(self) -> Ints:
        """The ids of the next N samples, the same on every process."""
        ids_N: Ints = self.stream.plan(self.stream.epoch).batch(self.stream.step)
        next(self.stream)
        return ids_N

    def samples(self, ids_n: Ints) -> Samples:
        """Some samples of the corpus, on the model's device."""
        return Samples.of(collate(self.corpus, ids_n, self.pad_id), self.model.device)

    def scored_lengths(self, ids_N: Ints) -> Ints | None:
        """Tokens of some samples whose NLL the E-step sums; None if it takes their mean."""
        if self.settings.likelihood == "mean":
            return None
        longest = self.settings.e_step_max_tokens if self.settings.e_step_candidates is None else None
        return np.minimum(self.corpus.response_lengths[ids_N], longest or np.iinfo(np.int32).max)

    def rng(self) -> np.random.Generator:
        """The random numbers of an objective at this step, the same on every process."""
        return np.random.default_rng([self.seed, self.step, _OBJECTIVE])

    @contextmanager
    def computing(self, part: str, update: int = 0) -> Iterator[None]:
        """Set the type of the computation, and seed dropout by the step so that a resumed run draws the same.

        `update` is the number of the optimizer step, where an EM step has several.
        """
        number = [self.seed, self.step, self.processes.rank, ("e-step", "m-step").index(part)]
        number += [update] if update else []
        torch.manual_seed(int(np.random.SeedSequence(number).generate_state(1, np.uint64)[0]) >> 1)
        exact = [self.model.vocabulary] if part == "e-step" else []
        with computing_in(self.autocast, self.model, self.model.device, exact=exact):
            yield

    def weights(self, *, trained: bool = True) -> dict[str, Tensor]:
        """The model's trained weights, or its frozen ones, which are gathered if they are sharded."""
        found = {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad == trained}
        return found if trained else {**found, **self.model.sharded_weights()}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps besides tensors, as plain JSON values."""
        return {
            "stream": self.stream.state_dict(),
            "prices_K": None if self.prices_K is None else list(map(float, self.prices_K)),
            "bound": self.bound.state_dict(),
        }

    def load_state_dict(self, step: int, optimizer: dict[str, Tensor], epoch: dict[str, Tensor], state: Any) -> None:
        """Restore what a checkpoint kept; the weights are in the model already."""
        self.step, self.epoch = step, epoch if self.settings.e_step_scope == "corpus" else {}
        self.optimizer.load_state_dict(optimizer)
        self.stream.load_state_dict(state["stream"])
        self.prices_K = None if state["prices_K"] is None else np.array(state["prices_K"])
        self.bound.load_state_dict(state["bound"])


@dataclass(frozen=True)
class StepRecord:
    """What one EM step (or, in stage 1, one update) did."""

    step: int
    epoch: int
    loss: float
    """Mean NLL per token of the samples under the decoders they were given."""
    learning_rate: float
    samples: int
    e_seconds: float
    """Zero in stage 1, as is `assign_seconds`."""
    assign_seconds: float
    m_seconds: float
    usage_K: tuple[float, ...] = ()
    """Share of this step's samples (or of their posterior mass) each decoder was trained on, or what `em.usage` counts;
    empty in stage 1."""
    max_posterior: float | None = None
    """Mean over samples of the largest posterior."""
    posterior_distance: float | None = None
    """Mean total-variation distance of the posterior from uniform: near 0 when training is synchronous."""
    deviation: float | None = None
    """Largest deviation from 1/K of the running mean posterior: the left side of the paper's theorem."""
    hoeffding: float | None = None
    """The theorem's term for a finite number of samples."""
    gradient_norm: float | None = None
    weight_std_K: tuple[float, ...] = ()
    """Standard deviation over this step's samples of each decoder's weights, as in the paper's figure of the
    assignment: about 0 when training is synchronous, √(1/K − 1/K²) for equal hard assignments."""
    losses: dict[str, float] = field(default_factory=dict)
    """What an objective reports besides the NLL, by name."""

    @property
    def seconds(self) -> float:
        """Duration of the step, without reading data."""
        return self.e_seconds + self.assign_seconds + self.m_seconds


def em_step(em: EM) -> StepRecord:
    """Draw N samples, find the decoder that explains each, and train every decoder on its own samples."""
    epoch, first_of_epoch, clock = em.stream.epoch, em.stream.step == 0, _Clock()

    # Draw N samples at random. Every process scores and trains on its own n of them.
    ids_N = em.draw()
    samples = em.samples(em.processes.own(ids_N))

    # E-step: how well does each decoder explain each sample? Then assign samples to decoders.
    if em.method in SINGLE_DECODER:
        assignment = Assignment(np.ones((len(ids_N), 1)), np.ones((len(ids_N), 1)))
    elif em.settings.e_step_scope == "corpus":
        if first_of_epoch:
            em.epoch = _assign_corpus(em, clock)
        assignment = Assignment(*(em.epoch[name][ids_N].double().numpy() for name in ("weights_MK", "posterior_MK")))
    else:
        with em.computing("e-step"):
            likelihoods = e_step(em.model, samples, em.settings, em.limits)
        assignment = _assign(em, likelihoods, ids_N, clock)
    usage_K = _usage(em, samples, ids_N, assignment)

    # M-step and optimizer step: each decoder learns from its own samples, all of them together or in several steps.
    rate = learning_rate_at(em.step, em.total_steps, em.optimizer.settings)
    nll = tokens = squares = 0.0
    em.model.train()
    for number, part_NK in enumerate(_parts(em, assignment.weights_NK)):
        totals, norm = _update(em, samples, part_NK, rate, number)
        nll, tokens, squares = nll + float(totals.nll_K.sum()), tokens + float(totals.tokens_K.sum()), squares + norm**2
    em.model.train(False)
    em.step += 1

    seconds = clock.e_seconds, clock.assign_seconds, clock.lap()
    losses = {name: float(part) for name, part in totals.parts.items()}
    norm = math.sqrt(squares)
    record = StepRecord(em.step, epoch, nll / tokens, rate, len(ids_N), *seconds, gradient_norm=norm, losses=losses)
    return record if em.method in SINGLE_DECODER else _with_statistics(record, em, assignment, usage_K)


def _parts(em: EM, weights_NK: Floats) -> Iterator[Floats]:
    """The weights of each optimizer step of a draw, zero for the samples (or decoders) of the others."""
    for _ in range(em.settings.m_step_passes):
        if em.settings.updates == "in-turn":
            yield from _in_turn(weights_NK)
        else:
            place_N = np.argsort(np.argsort(weights_NK.argmax(1), kind="stable"))
            for part in range(em.settings.m_step_parts):  # each has equally many samples of every decoder
                yield weights_NK * (place_N % em.settings.m_step_parts == part)[:, None]


def _update(em: EM, samples: Samples, weights_NK: Floats, rate: float, number: int) -> tuple[DecoderTotals, float]:
    """The M-step on weighted samples and one optimizer step; sums over all processes, and the norm of the gradient.

    The gradients of all processes are summed. Decoders without samples keep their weights and moments, or drift.
    """
    weights_nK, weighted = torch.from_numpy(em.processes.own(weights_NK)).to(em.model.device), weights_NK.any(1)
    if not weighted.all():
        index = torch.from_numpy(em.processes.own(weighted).nonzero()[0]).to(em.model.device)
        samples, weights_nK = samples.select(index), weights_nK[index]
    reduce, shared = em.optimizer.settings.loss, (em.processes, em.limits)
    with em.computing("m-step", number):
        if em.objective is None:
            totals = m_step(em.model, samples, weights_nK, int(weighted.sum()), *shared, reduce=reduce)
        else:
            totals = em.objective.backward(em.model, samples, len(weights_NK), em.rng(), *shared)
    em.processes.sum_(chain((totals.nll_K, *totals.parts.values()), em.optimizer.gradients()))
    _check_finite("loss", float(totals.nll_K.sum() / totals.tokens_K.sum()), em.step + 1)
    norm = em.optimizer.step((totals.samples_K > 0).tolist(), rate)
    _check_finite("norm of the gradient", norm, em.step + 1)
    return totals, norm


def _in_turn(weights_NK: Floats) -> Iterator[Floats]:
    """The weights of one decoder after the other, zero for all others; decoders without samples are left out."""
    for k in np.flatnonzero(weights_NK.any(0)):
        yield np.where(np.arange(weights_NK.shape[1]) == k, weights_NK, 0.0)


def _usage(em: EM, samples: Samples, ids_N: Ints, assignment: Assignment) -> Floats:
    """The share of samples that each decoder is trained on, or would be trained on without dropout in the E-step."""
    weights_NK = assignment.weights_NK
    if em.settings.usage == "eval" and em.settings.e_step_dropout and em.method not in SINGLE_DECODER:
        with em.computing("e-step"):
            own = e_step(em.model, samples, replace(em.settings, e_step_dropout=False), em.limits)
        weights_NK = assign(em.method, _evidence(em, own, ids_N)).weights_NK
    samples_K = weights_NK.sum(0)
    usage_K: Floats = samples_K / samples_K.sum()
    return usage_K


def _assign(em: EM, own: Likelihoods, ids_N: Ints, clock: "_Clock") -> Assignment:
    """Gather the likelihoods of all processes and assign; every process computes the same."""
    evidence = _evidence(em, own, ids_N)
    clock.e_seconds = clock.lap()
    try:
        assignment = assign(em.method, evidence)
    except DivergedError as error:
        raise DivergedError(f"step {em.step + 1}: {error}") from error
    em.prices_K = assignment.prices_K
    em.bound.add(assignment.posterior_NK)
    clock.assign_seconds = clock.lap()
    return assignment


def _evidence(em: EM, own: Likelihoods, ids_N: Ints) -> Evidence:
    """What an assigner sees: the likelihoods of all processes, and the settings."""
    nll_NK, log_prior_NK = (em.processes.gather(part_nK.cpu(), len(ids_N)).numpy() for part_nK in own)
    return Evidence(
        nll_NK,
        log_prior_NK,
        ids_N,
        num_corpus=len(em.corpus),
        seed=em.seed,
        step=em.step,
        cost=em.settings.cost,
        temperature=em.settings.temperature_at(em.step, em.method),
        anneal_steps=em.settings.anneal_steps,
        epsilon=em.settings.epsilon,
        lengths_N=em.scored_lengths(ids_N),
        prices_K=em.prices_K,
    )


def _assign_corpus(em: EM, clock: "_Clock") -> dict[str, Tensor]:
    """Score and assign all M samples at once; each process scores its share."""
    ids_M = np.arange(len(em.corpus))
    parts = []
    for ids in torch.from_numpy(em.processes.own(ids_M)).split(1024):
        with em.computing("e-step"):
            parts.append(e_step(em.model, em.samples(ids.numpy()), em.settings, em.limits))
    own = Likelihoods(*(torch.cat([part.cpu() for part in column]) for column in zip(*parts, strict=True)))
    assignment = _assign(em, own, ids_M, clock)
    columns = {"weights_MK": assignment.weights_NK, "posterior_MK": assignment.posterior_NK}
    return {name: torch.from_numpy(column_MK).float() for name, column_MK in columns.items()}


def _check_finite(name: str, value: float, step: int) -> None:
    """Raise DivergedError if the value is not finite; it is called before the weights change."""
    if not math.isfinite(value):
        raise DivergedError(f"the {name} is {value} at step {step}")


def _with_statistics(record: StepRecord, em: EM, assignment: Assignment, usage_K: Floats) -> StepRecord:
    """Add how the samples were shared out, and what the posterior says about how the decoders differ."""
    posterior_NK = assignment.posterior_NK
    statistics = {
        "usage_K": tuple(usage_K.tolist()),
        "weight_std_K": tuple(assignment.weights_NK.std(0).tolist()),
        "max_posterior": float(posterior_NK.max(1).mean()),
        "posterior_distance": float(np.abs(posterior_NK - 1 / posterior_NK.shape[1]).sum(1).mean() / 2),
        "deviation": float(em.bound.deviation_K.max()),
        "hoeffding": em.bound.hoeffding,
    }
    return StepRecord(**{**vars(record), **statistics})


class _Clock:
    """Seconds since the last lap, and those of the parts of a step."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.e_seconds = self.assign_seconds = 0.0

    def lap(self) -> float:
        now = time.perf_counter()
        elapsed, self._start = now - self._start, now
        return elapsed
