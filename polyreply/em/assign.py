"""The E-step's second half: from likelihoods to weights, one function for each method.

An assigner takes the `Evidence` of one E-step and returns weights (N, K), whose rows sum to one: how much each decoder
learns from each sample. To add a method, write such a function and register it in `METHODS`.

Rows reach an assigner in the order of their sample ids, and its random numbers depend on (method, seed, step) alone. So
every process computes the same weights, whatever order the samples were gathered in, and neither the position of a
sample nor that of a decoder gives it an advantage.

Legend: N samples of an E-step, M samples of the corpus, K decoders.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from zlib import crc32

import numpy as np

from polyreply.arrays import Floats, Ints
from polyreply.em.posterior import log_joint, normalise
from polyreply.em.settings import Cost
from polyreply.em.solver.balanced import balanced_assignment
from polyreply.em.solver.sinkhorn import sinkhorn
from polyreply.errors import PolyReplyError


@dataclass(frozen=True)
class Evidence:
    """What an assigner sees of an E-step."""

    nll_NK: Floats
    """−log p(response | z=k, context)."""
    log_prior_NK: Floats
    """log p(z=k | context)."""
    ids_N: Ints
    """The place of each sample in the corpus."""
    num_corpus: int = 0
    """M; only eqrandom-fixed needs it."""
    seed: int = 0
    step: int = 0
    """E-steps before this one."""
    cost: Cost = "posterior"
    """What a balanced assignment sums."""
    temperature: float = 1.0
    """For eqsoft-em the weight of the entropy, for annealed-wta τ."""
    anneal_steps: int = 200
    """annealed-wta: E-steps until the winner takes all."""
    epsilon: float = 0.05
    """relaxed-wta: what the decoders that do not win share."""
    lengths_N: Ints | None = None
    """Tokens of each response whose NLL was summed; None if the NLL is already a mean over tokens."""
    prices_K: Floats | None = None
    """Prices that an earlier E-step of the same method returned; they only save time."""

    @property
    def num_decoders(self) -> int:
        """K."""
        return int(self.nll_NK.shape[1])

    @cached_property
    def joint_NK(self) -> Floats:
        """log p(response, z=k | context)."""
        return log_joint(self.nll_NK, self.log_prior_NK, self.ids_N)

    @cached_property
    def posterior_NK(self) -> Floats:
        """Q(z=k | context, response), Eq. 2 of the paper."""
        return normalise(self.joint_NK)

    @property
    def mean_nll_NK(self) -> Floats:
        """NLL per token."""
        return self.nll_NK if self.lengths_N is None else self.nll_NK / np.maximum(self.lengths_N, 1)[:, None]

    def rng(self, method: str) -> np.random.Generator:
        """Random numbers of a method at this step."""
        return np.random.default_rng((_stream(method), self.seed, self.step))

    def rows(self, index_N: Ints) -> "Evidence":
        """The evidence of some samples, in the given order."""
        return replace(
            self,
            nll_NK=self.nll_NK[index_N],
            log_prior_NK=self.log_prior_NK[index_N],
            ids_N=self.ids_N[index_N],
            lengths_N=None if self.lengths_N is None else self.lengths_N[index_N],
        )


@dataclass(frozen=True)
class Assignment:
    """Which decoder learns from which sample: the result of an E-step."""

    weights_NK: Floats
    """How much each decoder's loss on each sample counts; rows sum to one."""
    posterior_NK: Floats
    """Q(z|c, r), whatever the method made of it."""
    prices_K: Floats | None = None
    """To start the next E-step from, for the methods that have prices."""


Assigner = Callable[[Evidence], Floats | tuple[Floats, Floats]]
"""Returns weights (N, K), or weights and prices (K,)."""


def assign(method: str, evidence: Evidence) -> Assignment:
    """The weights of an E-step by a method of `METHODS`, in the order of the evidence's rows."""
    if method not in METHODS:
        raise PolyReplyError(f"method: expected one of {', '.join(METHODS)}, found {method!r}")
    if evidence.ids_N.shape != evidence.nll_NK.shape[:1]:
        raise PolyReplyError(f"expected {len(evidence.nll_NK)} sample ids, found shape {evidence.ids_N.shape}")
    posterior_NK = evidence.posterior_NK  # raises if a likelihood is not finite
    order_N = evidence.ids_N.argsort(kind="stable")
    found = METHODS[method](evidence.rows(order_N))
    ordered_NK, prices_K = found if isinstance(found, tuple) else (found, None)
    if ordered_NK.shape != posterior_NK.shape or not np.allclose(ordered_NK.sum(1), 1):
        raise PolyReplyError(
            f"{method}: expected weights of shape {posterior_NK.shape} whose rows sum to one, found shape "
            f"{ordered_NK.shape}"
        )
    weights_NK = np.empty_like(ordered_NK)
    weights_NK[order_N] = ordered_NK
    return Assignment(weights_NK, posterior_NK, prices_K)


def soft_em(evidence: Evidence) -> Floats:
    """Every decoder learns from every sample, as much as the posterior says."""
    return evidence.posterior_NK


def hard_em(evidence: Evidence) -> Floats:
    """The most likely decoder gets the whole sample; equally likely ones draw lots."""
    return _winner(evidence, "hard-em")


def relaxed_wta(evidence: Evidence) -> Floats:
    """Winner takes almost all: the most likely decoder has weight 1 − ε, each other one ε / (K − 1).

    A decoder that never wins still learns a little. LoRA-MCL's first method.
    """
    winner_NK, others = _winner(evidence, "relaxed-wta"), max(evidence.num_decoders - 1, 1)
    share = 0.0 if evidence.num_decoders == 1 else evidence.epsilon
    return winner_NK * (1 - share) + (1 - winner_NK) * (share / others)


def annealed_wta(evidence: Evidence) -> Floats:
    """Weights ∝ exp(−mean NLL / τ), with τ falling by a constant factor until the winner takes all.

    LoRA-MCL's second method.
    """
    if evidence.step >= evidence.anneal_steps:
        return _winner(evidence, "annealed-wta")
    return normalise(-evidence.mean_nll_NK / evidence.temperature)


def eqhard_em(evidence: Evidence) -> tuple[Floats, Floats]:
    """The assignment of least total cost in which every decoder gets the same number of samples, N/K.

    Sizes differ by one where K does not divide N. Among assignments of equal cost the least total NLL decides, then the
    seed.
    """
    if evidence.cost == "nll":
        cost_NK, tie_NK = -evidence.joint_NK, None
    else:
        cost_NK, tie_NK = -evidence.posterior_NK, -evidence.joint_NK
    seed = int(evidence.rng("eqhard-em").integers(1 << 62))
    found = balanced_assignment(cost_NK, tie_NK=tie_NK, prices_K=evidence.prices_K, seed=seed)
    return _one_hot(found.decoder_N, evidence.num_decoders), found.prices_K


def eqrandom_fixed(evidence: Evidence) -> Floats:
    """Each sample has one decoder, drawn at random with equal sizes, for the whole training."""
    if evidence.num_corpus <= evidence.ids_N.max(initial=-1):
        raise PolyReplyError(
            f"eqrandom-fixed: expected num_corpus above the largest sample id, {evidence.ids_N.max()}, found "
            f"{evidence.num_corpus}; set it to the size of the corpus"
        )
    decoder_M = _fixed_decoders(evidence.num_corpus, evidence.num_decoders, evidence.seed)
    return _one_hot(decoder_M[evidence.ids_N], evidence.num_decoders)


def eqrandom_dynamic(evidence: Evidence) -> Floats:
    """Equal numbers of samples for each decoder, drawn at random in every E-step."""
    decoder_N = _shuffled(len(evidence.ids_N), evidence.num_decoders, evidence.rng("eqrandom-dynamic"))
    return _one_hot(decoder_N, evidence.num_decoders)


def eqsoft_em(evidence: Evidence) -> tuple[Floats, Floats]:
    """Soft weights with the same total for every decoder, see `solver.sinkhorn`.

    With the NLL as cost and temperature 1 this is the posterior under the prior at which all decoders are used equally.
    """
    cost_NK = -evidence.posterior_NK if evidence.cost == "posterior" else -evidence.joint_NK
    found = sinkhorn(cost_NK, evidence.temperature, prices_K=evidence.prices_K)
    return found.weights_NK, found.prices_K


METHODS: dict[str, Assigner] = {
    "eqhard-em": eqhard_em,
    "hard-em": hard_em,
    "soft-em": soft_em,
    "eqsoft-em": eqsoft_em,
    "eqrandom-fixed": eqrandom_fixed,
    "eqrandom-dynamic": eqrandom_dynamic,
    "relaxed-wta": relaxed_wta,
    "annealed-wta": annealed_wta,
}
"""The methods of stage 2 by the names that recipes use."""
UNEQUAL = ("hard-em", "soft-em", "relaxed-wta", "annealed-wta")
"""Those of them that do not give equally many samples to all decoders, so that K need not divide their number."""

_STREAMS = {"hard-em": 0, "eqhard-em": 1, "eqrandom-fixed": 2, "eqrandom-dynamic": 3}


def _stream(method: str) -> int:
    """A stream of random numbers for each method: with one seed, two methods do not share their draws."""
    return _STREAMS.get(method, crc32(method.encode()))


@cache
def _fixed_decoders(num_corpus: int, num_decoders: int, seed: int) -> Ints:
    """A decoder for every sample of the corpus (M,), at random and equally often."""
    return _shuffled(num_corpus, num_decoders, np.random.default_rng((_stream("eqrandom-fixed"), seed, 0)))


def _shuffled(number: int, num_decoders: int, rng: np.random.Generator) -> Ints:
    """Decoders in random order, each N/K times; the remainder goes to decoders drawn at random."""
    capacity_K = np.full(num_decoders, number // num_decoders, np.intp)
    capacity_K[rng.permutation(num_decoders)[: number % num_decoders]] += 1
    return rng.permutation(np.repeat(np.arange(num_decoders), capacity_K))


def _winner(evidence: Evidence, method: str) -> Floats:
    """One for the most likely decoder of each sample; equally likely ones draw lots."""
    joint_NK = evidence.joint_NK
    best_NK = joint_NK == joint_NK.max(1, keepdims=True)
    lottery_NK = evidence.rng(method).random(joint_NK.shape)
    return _one_hot(np.where(best_NK, lottery_NK, -1.0).argmax(1), evidence.num_decoders)


def _one_hot(decoder_N: Ints, num_decoders: int) -> Floats:
    weights_NK = np.zeros((len(decoder_N), num_decoders))
    weights_NK[np.arange(len(decoder_N)), decoder_N] = 1.0
    return weights_NK
