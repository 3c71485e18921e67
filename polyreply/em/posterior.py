"""Q(z|c, r): which decoder each response probably came from, and the paper's theorem on its mean.

The theorem says how equal assignments should be. With probability at least 1 − δ, for all K decoders z at once,

    |1/|D| Σ_D Q(z|c, r) − 1/K|  ≤  sqrt(log(2K/δ) / (2|D|))  +  E[|Q(z|c, r) − p(z|c, r)|]
             deviation                      hoeffding                  posterior error

D is a sample of the data's distribution, Q the estimated posterior and p the true one under the uniform prior. The last
term cannot be known; the other two can. A deviation within the Hoeffding term is what chance explains with a perfect
posterior; any excess is a lower bound on how wrong the posterior of some decoder is.

Legend: N samples, K decoders.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from polyreply.arrays import Floats
from polyreply.errors import DivergedError, PolyReplyError


def posterior(nll_NK: ArrayLike, log_prior_NK: ArrayLike) -> Floats:
    """Q(z=k|c, r) ∝ p(r|z=k, c) p(z=k|c) (Eq. 2 of the paper), each row summing to one.

    In float64: the NLL of a long response is in the hundreds, and ties between decoders should be real ones. An NLL
    that is not finite raises DivergedError with its row.
    """
    return normalise(log_joint(nll_NK, log_prior_NK))


def captured(nll_NK: ArrayLike) -> float:
    """The information captured: (NLL of the uniform mixture − NLL of the best decoder) / log K, a mean over samples.

    From 0, when all decoders are alike, to 1, when a single decoder explains each response.
    """
    nll_NK = np.asarray(nll_NK, np.float64)
    best_N1 = nll_NK.min(1, keepdims=True)
    log_num_decoders = np.log(nll_NK.shape[1])
    return float(1 - np.log(np.exp(best_N1 - nll_NK).sum(1)).mean() / log_num_decoders)


def log_joint(nll_NK: ArrayLike, log_prior_NK: ArrayLike, ids_N: ArrayLike | None = None) -> Floats:
    """log p(r, z=k|c): the posterior before it is normalised. Distinguishes decoders whose posteriors round to zero.

    `ids_N` are the places of the samples in the corpus, for error messages.
    """
    nll_NK, log_prior_NK = np.asarray(nll_NK, np.float64), np.asarray(log_prior_NK, np.float64)
    if nll_NK.ndim != 2 or nll_NK.shape != log_prior_NK.shape:
        shapes = f"{nll_NK.shape} and {log_prior_NK.shape}"
        raise PolyReplyError(f"NLL and log prior: expected the shape (samples, decoders) for both, found {shapes}")
    joint_NK: Floats = log_prior_NK - nll_NK
    if not np.isfinite(joint_NK).all():
        row, decoder = (int(place) for place in np.argwhere(~np.isfinite(joint_NK))[0])
        sample = "" if ids_N is None else f" (sample {np.asarray(ids_N)[row]})"
        if np.isfinite(nll_NK[row, decoder]):
            raise DivergedError(
                f"row {row}{sample}: the log prior of decoder {decoder} is {log_prior_NK[row, decoder]}"
            )
        raise DivergedError(
            f"row {row}{sample}: the NLL of decoder {decoder} is {nll_NK[row, decoder]}; train with a lower learning "
            "rate, or in bfloat16 or float32 instead of float16"
        )
    return joint_NK


def normalise(joint_NK: Floats) -> Floats:
    """Softmax over the decoders; the largest term is exp(0), whatever the NLL."""
    with np.errstate(over="ignore", under="ignore"):
        weights_NK: Floats = joint_NK - joint_NK.max(1, keepdims=True)
        np.exp(weights_NK, out=weights_NK)
    weights_NK /= weights_NK.sum(1, keepdims=True)
    return weights_NK


def deviation(posterior_NK: ArrayLike) -> Floats:
    """|1/N Σ_n Q_nk − 1/K| for each decoder: the left side of the theorem.

    For soft posteriors: rows of hard weights do not estimate p(z|c, r), and balanced ones give zero by construction.
    """
    posterior_NK = np.asarray(posterior_NK, np.float64)
    return np.asarray(np.abs(posterior_NK.mean(0) - 1 / posterior_NK.shape[1]))


def hoeffding(num_samples: int, num_decoders: int, delta: float = 0.05) -> float:
    """sqrt(log(2K/δ) / (2N)): how far chance alone moves the mean posterior of any decoder from its expectation.

    Holds with probability at least 1 − δ for all decoders at once (a union bound over K), for N samples drawn
    independently and a posterior that does not depend on them.
    """
    if num_samples < 1 or num_decoders < 1:
        raise PolyReplyError(
            f"the bound: expected one sample and one decoder or more, found {num_samples} and {num_decoders}"
        )
    if not 0 < delta < 1:
        raise PolyReplyError(f"delta: expected a probability between 0 and 1, found {delta}; 0.05 is usual")
    return math.sqrt(math.log(2 * num_decoders / delta) / (2 * num_samples))


class UsageBound:
    """The theorem's two known terms over all samples seen, each with the posterior of its own E-step.

    The model changes between E-steps. The Hoeffding term still holds while every sample is new to the model that judges
    it (each term then has its expectation given the past, and Azuma's inequality gives the same number): through the
    first epoch, for samples drawn at random. Afterwards it is a yardstick, no longer a bound. Under a learned prior
    equal usage is not what the theorem predicts.
    """

    def __init__(self, num_decoders: int, delta: float = 0.05) -> None:
        hoeffding(1, num_decoders, delta)  # raises if the numbers make no sense
        self.delta = delta
        self.num_samples = 0
        self.mass_K: Floats = np.zeros(num_decoders)

    def add(self, posterior_NK: ArrayLike) -> None:
        """Counts the samples of one E-step."""
        posterior_NK = np.asarray(posterior_NK, np.float64)
        assert posterior_NK.ndim == 2 and posterior_NK.shape[1] == len(self.mass_K)
        self.num_samples += len(posterior_NK)
        self.mass_K += posterior_NK.sum(0)

    @property
    def deviation_K(self) -> Floats:
        """How far the mean posterior of each decoder is from 1/K; NaN before the first sample."""
        if not self.num_samples:
            return np.full(len(self.mass_K), np.nan)
        return np.asarray(np.abs(self.mass_K / self.num_samples - 1 / len(self.mass_K)))

    @property
    def hoeffding(self) -> float:
        """What chance explains, see `hoeffding`; infinite before the first sample."""
        return hoeffding(self.num_samples, len(self.mass_K), self.delta) if self.num_samples else math.inf

    def state_dict(self) -> dict[str, Any]:
        """The sums, as JSON can hold them."""
        return {"num_samples": self.num_samples, "mass_K": self.mass_K.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sums of a `state_dict`."""
        mass_K = np.array(state["mass_K"], np.float64)
        if mass_K.shape != self.mass_K.shape:
            raise PolyReplyError(f"usage of {len(self.mass_K)} decoders expected, found that of {mass_K.size}")
        self.num_samples, self.mass_K = int(state["num_samples"]), mass_K
