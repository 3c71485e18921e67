"""The E-step's second half: from NLL to weights, one function for each method.

Methods that choose at random, or break ties so, do it by (seed, step) over the samples in the order of their ids. Every
process computes the same, whatever order the samples were gathered in, and neither position nor length favours a
decoder.

Legend: N samples of an E-step, M samples of the corpus, K decoders.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from polyreply.arrays import Floats, Ints
from polyreply.em.posterior import log_joint, normalise
from polyreply.em.solver.balanced import balanced_assignment
from polyreply.em.solver.sinkhorn import sinkhorn
from polyreply.errors import PolyReplyError

Method = Literal["soft-em", "hard-em", "eqhard-em", "eqrandom-fixed", "eqrandom-dynamic", "eqsoft-em"]
Cost = Literal["posterior", "nll"]
"""What a balanced assignment sums up: −Q(z|c, r) as in the paper's text, or −log p(r, z|c)."""


@dataclass(frozen=True)
class Assignment:
    """Who trains on what: the result of an E-step."""

    weights_NK: Floats
    """What each decoder's loss on each sample counts; rows sum to one."""
    posterior_NK: Floats
    """Q(z|c, r), whatever the method made of it."""
    prices_K: Floats | None = None
    """To start the next E-step from, for the methods that have prices."""


def assign(
    method: Method,
    nll_NK: ArrayLike,
    log_prior_NK: ArrayLike,
    ids_N: ArrayLike,
    *,
    cost: Cost = "posterior",
    seed: int = 0,
    step: int = 0,
    temperature: float = 1.0,
    prices_K: Floats | None = None,
    fixed_decoder_M: Ints | None = None,
) -> Assignment:
    """The weights of an E-step by any method; `ids_N` are places in the corpus, `step` counts E-steps.

    `temperature` is for eqsoft-em, `fixed_decoder_M` (from `fixed_decoders`) for eqrandom-fixed.
    """
    for name, value, known in (("method", method, get_args(Method)), ("cost", cost, get_args(Cost))):
        if value not in known:
            raise PolyReplyError(f"{name}: expected one of {', '.join(known)}, found {value!r}")
    ids_N = np.asarray(ids_N, np.intp)
    joint_NK = log_joint(nll_NK, log_prior_NK, ids_N)
    if ids_N.shape != joint_NK.shape[:1]:
        raise PolyReplyError(f"ids: expected one for each of {len(joint_NK)} samples, found shape {ids_N.shape}")
    posterior_NK = normalise(joint_NK)
    if method == "soft-em":
        return Assignment(soft_em(posterior_NK), posterior_NK)
    if method == "eqrandom-fixed":
        return Assignment(eqrandom_fixed(ids_N, fixed_decoder_M, joint_NK.shape[1]), posterior_NK)
    order_N = ids_N.argsort(kind="stable")
    joint_NK = joint_NK.take(order_N, 0)
    prices: Floats | None = None
    match method:
        case "hard-em":
            ordered_NK = hard_em(joint_NK, seed, step)
        case "eqhard-em":
            cost_NK, tie_NK = (-joint_NK, None) if cost == "nll" else (-posterior_NK.take(order_N, 0), -joint_NK)
            ordered_NK, prices = eqhard_em(cost_NK, tie_NK, seed, step, prices_K)
        case "eqrandom-dynamic":
            ordered_NK = eqrandom_dynamic(len(ids_N), joint_NK.shape[1], seed, step)
        case "eqsoft-em":
            cost_NK = -joint_NK if cost == "nll" else -posterior_NK.take(order_N, 0)
            ordered_NK, prices = eqsoft_em(cost_NK, temperature, prices_K)
    weights_NK = np.empty_like(ordered_NK)
    weights_NK[order_N] = ordered_NK
    return Assignment(weights_NK, posterior_NK, prices)


def soft_em(posterior_NK: Floats) -> Floats:
    """The posterior itself."""
    return posterior_NK


def hard_em(joint_NK: Floats, seed: int = 0, step: int = 0) -> Floats:
    """All of a sample to its most likely decoder; among equally likely ones chance decides."""
    best_NK = joint_NK == joint_NK.max(1, keepdims=True)
    lottery_NK = _random(_HARD, seed, step).random(joint_NK.shape)
    return _one_hot(np.where(best_NK, lottery_NK, -1.0).argmax(1), joint_NK.shape[1])


def eqhard_em(
    cost_NK: Floats,
    tie_NK: Floats | None = None,
    seed: int = 0,
    step: int = 0,
    prices_K: Floats | None = None,
) -> tuple[Floats, Floats]:
    """The assignment of least total cost in which every decoder has as many samples; and its prices.

    Among assignments of equal cost the least total of `tie_NK` decides, then chance. Sizes differ by one
    where K does not divide N.
    """
    draw = int(_random(_EQHARD, seed, step).integers(1 << 62))
    found = balanced_assignment(cost_NK, tie_NK=tie_NK, prices_K=prices_K, seed=draw)
    return _one_hot(found.decoder_N, cost_NK.shape[1]), found.prices_K


def eqrandom_fixed(ids_N: Ints, fixed_decoder_M: Ints | None, num_decoders: int) -> Floats:
    """All of a sample to the decoder it was given once for all."""
    if fixed_decoder_M is None:
        raise PolyReplyError("eqrandom-fixed: expected fixed_decoder_M, found None; make it with fixed_decoders")
    if len(ids_N) and not 0 <= ids_N.min() <= ids_N.max() < len(fixed_decoder_M):
        found = f"{ids_N.min()} to {ids_N.max()}"
        raise PolyReplyError(f"eqrandom-fixed: expected ids from 0 to {len(fixed_decoder_M) - 1}, found {found}")
    return _one_hot(fixed_decoder_M[ids_N], num_decoders)


def eqrandom_dynamic(num_samples: int, num_decoders: int, seed: int = 0, step: int = 0) -> Floats:
    """Equally many samples to each decoder, at random, anew in every E-step."""
    return _one_hot(_shuffled(num_samples, num_decoders, _random(_DYNAMIC, seed, step)), num_decoders)


def eqsoft_em(cost_NK: Floats, temperature: float, prices_K: Floats | None = None) -> tuple[Floats, Floats]:
    """Soft weights of which every decoder has the same total, see `sinkhorn`; and their prices.

    With the NLL as cost and temperature 1 it is the posterior, each decoder's prior changed until all are used equally.
    """
    found = sinkhorn(cost_NK, temperature, prices_K=prices_K)
    return found.weights_NK, found.prices_K


def fixed_decoders(num_samples: int, num_decoders: int, seed: int = 0) -> Ints:
    """A decoder for every sample of the corpus (M,), at random and equally often."""
    return _shuffled(num_samples, num_decoders, _random(_FIXED, seed, 0))


def temperature_at(step: int, start: float, end: float, anneal_steps: int) -> float:
    """The temperature of an E-step: from `start` to `end` by the same factor in each step, then constant."""
    if not (start > 0 and end > 0):
        raise PolyReplyError(f"temperature: expected numbers above 0, found {start} to {end}")
    if step >= anneal_steps:
        return end
    return float(start * (end / start) ** (step / anneal_steps))


_HARD, _EQHARD, _FIXED, _DYNAMIC = range(4)
"""Each use of chance has a stream of its own, so that methods with one seed do not share their accidents."""


def _random(use: int, seed: int, step: int) -> np.random.Generator:
    return np.random.default_rng((use, seed, step))


def _shuffled(number: int, num_decoders: int, rng: np.random.Generator) -> Ints:
    decoder_N = np.repeat(np.arange(num_decoders), _capacities(number, num_decoders, rng))
    return rng.permutation(decoder_N)


def _capacities(number: int, num_decoders: int, rng: np.random.Generator) -> Ints:
    """N/K for each decoder; what is left over goes to decoders chosen by chance."""
    capacity_K = np.full(num_decoders, number // num_decoders, np.intp)
    capacity_K[rng.permutation(num_decoders)[: number % num_decoders]] += 1
    return capacity_K


def _one_hot(decoder_N: Ints, num_decoders: int) -> Floats:
    weights_NK = np.zeros((len(decoder_N), num_decoders))
    weights_NK[np.arange(len(decoder_N)), decoder_N] = 1.0
    return weights_NK
