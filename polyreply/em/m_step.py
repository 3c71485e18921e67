"""The M-step: gradients of the decoders on the samples they were given.

Each decoder's loss is the mean NLL per token of its own samples, weighted as the E-step says, so one optimizer step on
all of them equals one step for each decoder by itself, whatever the shares are.

Legend: N samples, K decoders.
"""

import torch
from torch import Tensor

from polyreply.models.polyreply_model import PolyReplyModel
from polyreply.models.score import Limits, Samples, backward_nll


def token_mass(samples: Samples, weights_NK: Tensor) -> Tensor:
    """How many tokens each decoder is trained on, (K,): a sample counts as much as its weight."""
    return (weights_NK * samples.response_mask_NT.sum(1, keepdim=True)).sum(0)


def backward_decoders(
    model: PolyReplyModel, samples: Samples, weights_NK: Tensor, mass_K: Tensor, limits: Limits | None = None
) -> Tensor:
    """Adds the gradients of all decoders' losses, chunk by chunk; Σ weights·NLL of each decoder, (K,).

    `mass_K` is the token mass over all samples of the EM step, of which these may be a part: the parts' gradients add
    up to those of one large batch.
    """
    scaled_NK = weights_NK / mass_K.clamp(min=torch.finfo(mass_K.dtype).tiny)
    nll = backward_nll(model, samples, scaled_NK, limits=limits)
    return (weights_NK * nll).sum(0)


def backward_prior(
    model: PolyReplyModel, samples: Samples, weights_NK: Tensor, number: int, limits: Limits | None = None
) -> None:
    """Adds the gradient of the prior's loss, −Σ weights·log p(z|c) / N, with N the `number` of samples of the step."""
    if model.prior is None or not len(samples):
        return
    longest = max(1, samples.context_NS.shape[1])
    for index in torch.arange(len(samples)).split(max(1, (limits or Limits()).max_tokens // longest)):
        part = samples.select(index)
        with torch.no_grad():
            memory = model.encode(part.context_NS, part.context_mask_NS)
        log_prior = model.log_prior(memory)
        (-(weights_NK[index].to(log_prior.dtype) * log_prior).sum() / number).backward()
