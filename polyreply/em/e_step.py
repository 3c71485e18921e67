"""The E-step: how well each decoder explains each sample of a draw.

Legend: N samples, K decoders, T response tokens.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from polyreply.em.settings import EMSettings
from polyreply.models.model import PolyReplyModel
from polyreply.models.score import Limits, Samples, nll_NK, nll_pairs


class Likelihoods(NamedTuple):
    """−log p(response|z,c) and log p(z|c) of N samples under K decoders, both (N, K) in float64."""

    nll_NK: Tensor
    log_prior_NK: Tensor


@torch.no_grad()
def e_step(
    model: PolyReplyModel, samples: Samples, settings: EMSettings | None = None, limits: Limits | None = None
) -> Likelihoods:
    """Score samples under all decoders, in chunks of similar length; the result is in the samples' order.

    Dropout is off unless the settings say otherwise. `settings.e_step_max_tokens` scores only the beginning of each
    response, which costs less and often gives the same assignment; `settings.e_step_candidates` scores the whole of it
    under the decoders that are best at its beginning.
    """
    settings, limits = settings or EMSettings(), limits or Limits()
    if not len(samples):
        nothing = torch.zeros(0, model.num_decoders, dtype=torch.float64)
        return Likelihoods(nothing, nothing)
    scored, length = samples, settings.e_step_max_tokens
    if length is not None:
        scored = replace(
            samples,
            response_NT=samples.response_NT[:, :length],
            response_mask_NT=samples.response_mask_NT[:, :length],
        )
    was_training = model.training
    model.train(settings.e_step_dropout)
    try:
        nll = nll_NK(model, scored, reduce=settings.likelihood, limits=limits)
        if settings.e_step_candidates is not None:
            nll = _whole(model, samples, nll, settings, limits)
        return Likelihoods(nll.double(), _log_prior(model, samples, limits).double())
    finally:
        model.train(was_training)


def _whole(model: PolyReplyModel, samples: Samples, nll: Tensor, settings: EMSettings, limits: Limits) -> Tensor:
    """NLL of whole responses under the decoders that explain their beginnings best.

    The other decoders cannot win. They are given what their own beginnings cost and, for the rest, what it costs the
    candidates on average, so that they stay behind by as much as they were.
    """
    number = min(settings.e_step_candidates or 1, model.num_decoders)
    candidates_NC = nll.topk(number, largest=False).indices
    sample_P = torch.arange(len(nll), device=nll.device).repeat_interleave(number)
    whole_P = nll_pairs(model, samples, sample_P, candidates_NC.flatten(), reduce=settings.likelihood, limits=limits)
    whole_NC = whole_P.view(-1, number)
    rest_N1 = (whole_NC - nll.gather(1, candidates_NC)).mean(1, keepdim=True)
    return (nll + rest_N1).scatter(1, candidates_NC, whole_NC)


def _log_prior(model: PolyReplyModel, samples: Samples, limits: Limits) -> Tensor:
    """log p(z|c), computed in chunks as the NLL is; a uniform prior needs no model."""
    if model.prior is None:
        return torch.full((len(samples), model.num_decoders), -torch.tensor(float(model.num_decoders)).log().item())
    parts = (samples.select(index) for index in context_chunks(samples, limits))
    return torch.cat([model.log_prior(model.encode(part.context_NS, part.context_mask_NS)) for part in parts])


def context_chunks(samples: Samples, limits: Limits) -> tuple[Tensor, ...]:
    """Indices of samples whose contexts are read together."""
    longest = max(1, samples.context_NS.shape[1])
    chunks: tuple[Tensor, ...] = torch.arange(len(samples)).split(max(1, limits.max_tokens // longest))
    return chunks
