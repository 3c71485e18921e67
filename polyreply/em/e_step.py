"""The E-step: how well each decoder explains each sample of a draw.

Legend: N samples, K decoders, T response tokens.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyreply.models.polyreply_model import PolyReplyModel
from polyreply.models.score import Limits, Reduce, Samples, nll_NK


@dataclass(frozen=True)
class Evidence:
    """What an assigner looks at, in float64: −log p(response|z,c) and log p(z|c), both (N, K)."""

    nll_NK: Tensor
    log_prior_NK: Tensor


@torch.no_grad()
def e_step(
    model: PolyReplyModel,
    samples: Samples,
    *,
    likelihood: Reduce = "sum",
    dropout: bool = False,
    max_tokens: int | None = None,
    limits: Limits | None = None,
) -> Evidence:
    """Scores samples under all decoders. They are sorted and cut by length inside; the result is in their order.

    `max_tokens` looks only at the beginning of each response, which costs less and often says enough.
    """
    if not len(samples):
        nothing = torch.zeros(0, model.num_decoders, dtype=torch.float64)
        return Evidence(nothing, nothing)
    was_training = model.training
    model.train(dropout)
    try:
        scored = samples if max_tokens is None else _beginnings(samples, max_tokens)
        nll = nll_NK(model, scored, reduce=likelihood, limits=limits)
        return Evidence(nll.double(), _log_prior(model, samples, limits or Limits()).double())
    finally:
        model.train(was_training)


def _beginnings(samples: Samples, length: int) -> Samples:
    parts = {name: getattr(samples, name)[:, :length] for name in ("response_NT", "response_mask_NT")}
    return replace(samples, **parts)


def _log_prior(model: PolyReplyModel, samples: Samples, limits: Limits) -> Tensor:
    """log p(z|c), in pieces as the scoring is; a uniform one needs no model."""
    if model.prior is None:
        return torch.full((len(samples), model.num_decoders), -torch.tensor(float(model.num_decoders)).log().item())
    longest = max(1, samples.context_NS.shape[1])
    pieces = torch.arange(len(samples)).split(max(1, limits.max_tokens // longest))
    parts = [samples.select(piece) for piece in pieces]
    return torch.cat([model.log_prior(model.encode(part.context_NS, part.context_mask_NS)) for part in parts])
