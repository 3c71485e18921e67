"""Q(z|c, r): which decoder each response probably came from, by Bayes' rule.

Legend: N samples, K decoders.
"""

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
