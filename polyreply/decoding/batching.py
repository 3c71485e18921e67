"""Batches of contexts of different lengths.

Legend: B contexts, S context tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import (
    ForcedEOSTokenLogitsProcessor,
    GenerationConfig,
    MinNewTokensLengthLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from polyreply.decoding.response import Response
from polyreply.decoding.settings import decoding_of
from polyreply.models.polyreply_model import PolyReplyModel

_BLIND = MinNewTokensLengthLogitsProcessor | ForcedEOSTokenLogitsProcessor | SuppressTokensLogitsProcessor
"""Constraints that do not look at tokens."""


def prompt_length(model: PolyReplyModel, context_BS: Tensor) -> int:
    """How many tokens stand before the first generated one: the context, or a start token."""
    return 1 if model.family.encoder else context_BS.shape[1]


def in_parts(
    model: PolyReplyModel,
    context_BS: Tensor,
    mask_BS: Tensor,
    config: GenerationConfig,
    part: Callable[[Tensor, Tensor], list[list[Response]]],
) -> list[list[Response]]:
    """Decodes all contexts together or, where constraints would see a prompt's padding, those of each length."""
    if not len(context_BS):
        return []
    mask_BS = mask_BS.bool()
    length_B = mask_BS.sum(1)
    constraints = decoding_of(config, prompt_length(model, context_BS)).processors
    if model.family.encoder or mask_BS.all() or all(isinstance(found, _BLIND) for found in constraints):
        return part(context_BS, mask_BS)
    replies: list[list[Response]] = [[] for _ in range(len(context_BS))]
    for length in length_B.unique().tolist():
        index_B = (length_B == length).nonzero()[:, 0]
        tokens_BS = context_BS[index_B][mask_BS[index_B]].view(len(index_B), length)
        for row, responses in zip(index_B.tolist(), part(tokens_BS, torch.ones_like(tokens_BS)), strict=True):
            for response in responses:
                response.context = row
            replies[row] = responses
    return replies


def pad_left(context_BS: Tensor, mask_BS: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """Moves the padding of each row to its left end, where `generate` wants it."""
    order = torch.argsort(mask_BS.long(), dim=1, stable=True)
    context_BS, mask_BS = context_BS.gather(1, order), mask_BS.bool().gather(1, order)
    return context_BS.masked_fill(~mask_BS, pad), mask_BS
