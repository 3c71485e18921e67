"""The M-step: gradients of the decoders on the samples they were given.

Each decoder's loss is the mean NLL per token of its own samples, weighted as the E-step says. So one optimizer step on
all of them equals one step for each decoder by itself, whatever their shares are. With `reduce="samples"` it is each
sample's NLL per token, averaged over the samples of all decoders: a decoder with few samples has a small gradient.

Legend: N samples of the step over all processes, n of this one, K decoders.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from polyreply.distributed import Processes
from polyreply.em.e_step import context_chunks
from polyreply.models.model import PolyReplyModel
from polyreply.models.score import Limits, Samples, TokenLoss, backward_nll


class DecoderTotals(NamedTuple):
    """Sums over the samples of a step, one for each decoder."""

    nll_K: Tensor
    """Σ weights · NLL, of this process's samples."""
    tokens_K: Tensor
    """Σ weights · response tokens, over all processes."""
    samples_K: Tensor
    """Σ weights, over all processes: how many samples each decoder is trained on."""
    parts: Mapping[str, Tensor] = MappingProxyType({})
    """This process's share of what an objective reports, by name: the sum over processes is logged."""


def m_step(
    model: PolyReplyModel,
    samples: Samples,
    weights_nK: Tensor,
    num_samples: int,
    processes: Processes | None = None,
    limits: Limits | None = None,
    loss: TokenLoss | None = None,
    reduce: Literal["tokens", "samples"] = "tokens",
) -> DecoderTotals:
    """Add the gradients of all decoders' losses, and of the prior's, to the weights, chunk by chunk.

    `num_samples` is N, `loss` what takes the NLL's place, `reduce` the setting `optimizer.loss`. Every process scales
    by totals over all N samples, so that the sum of the processes' gradients is the gradient of one large batch.
    """
    processes, limits = processes or Processes(), limits or Limits()
    length_n1 = samples.response_mask_NT.sum(1, keepdim=True)
    tokens_K = (weights_nK * length_n1).sum(0)
    samples_K = weights_nK.sum(0)
    processes.sum_((tokens_K, samples_K))
    if reduce == "tokens":
        scaled_nK = weights_nK / tokens_K.clamp(min=torch.finfo(tokens_K.dtype).tiny)
    else:
        scaled_nK = weights_nK / (num_samples * length_n1.clamp(min=1))
    nll_nK = backward_nll(model, samples, scaled_nK, limits=limits, loss=loss)
    _backward_prior(model, samples, weights_nK, num_samples, limits)
    return DecoderTotals((weights_nK * nll_nK).sum(0), tokens_K, samples_K)


def _backward_prior(
    model: PolyReplyModel, samples: Samples, weights_nK: Tensor, num_samples: int, limits: Limits
) -> None:
    """Add the gradient of the learned prior's loss, −Σ weights·log p(z|c) / N."""
    if model.prior is None or not len(samples):
        return
    for index in context_chunks(samples, limits):
        part = samples.select(index)
        with torch.no_grad():
            memory = model.encode(part.context_NS, part.context_mask_NS)
        log_prior = model.log_prior(memory)
        (-(weights_nK[index].to(log_prior.dtype) * log_prior).sum() / num_samples).backward()
