"""Guidance: replies that fit this context are preferred to replies that fit any.

A greedy decoder likes what answers everything ("I'm so glad!"). With a `guidance_scale` s above 1, the next token has
the score

    s · log p(token | context, tokens so far, decoder) − (s − 1) · log p(token | empty context, tokens so far, decoder)

This is classifier-free guidance for language models (Sanchez et al., 2023); with greedy decoding it is context-aware
decoding (Shi et al., 2023). Every row then has a *twin*, a row of the same decoder that reads an empty context and is
given the row's tokens. Both are rows of one batch, so that the weights are read once for them.

Legend: B contexts, S context tokens, R rows, V vocabulary.
"""

import torch
from torch import Tensor

from polyreply.decoding.settings import Decoding
from polyreply.decoding.step import Step, fit_length
from polyreply.errors import PolyReplyError


def with_empty(context_BS: Tensor, mask_BS: Tensor, empty_S: Tensor) -> tuple[Tensor, Tensor]:
    """The contexts, then as many empty ones: with one for all, attention would have places for all rows in each."""
    longest = max(context_BS.shape[1], len(empty_S))
    given_S = torch.arange(longest, device=context_BS.device) < len(empty_S)
    empty_S = fit_length(empty_S.to(context_BS), 0, longest)
    context_BS, mask_BS = fit_length(context_BS, 1, longest), fit_length(mask_BS.bool(), 1, longest)
    return torch.cat([context_BS, empty_S.expand_as(context_BS)]), torch.cat([mask_BS, given_S.expand_as(mask_BS)])


def empty_context(decoding: Decoding) -> Tensor:
    """The tokens that the twins of a guided request read."""
    if not decoding.empty_context:
        raise PolyReplyError("guidance expected the tokens of an empty context, found none; set Decoding.empty_context")
    return torch.tensor(decoding.empty_context)


def guided(logits_RV: Tensor, twin_RV: Tensor, scale: float | Tensor) -> Tensor:
    """The scores of the next tokens, from the logits of rows and of their twins."""
    own_RV, anyone_RV = logits_RV.log_softmax(-1), twin_RV.log_softmax(-1)
    return anyone_RV + scale * (own_RV - anyone_RV)


class Twins:
    """The twins among the rows of a step: the rows of the second half of its contexts, as `with_empty` appends them.

    A decoder's rows come before their twins and in the same order, and leave together with them.
    """

    def __init__(self, step: Step, scale: float) -> None:
        self._step, self._scale, self._begin = step, scale, step.rows.num_contexts // 2

    @property
    def lead_R(self) -> Tensor:
        """Which rows are no twins."""
        return self._step.rows.context_R < self._begin

    def scores(self, logits_RV: Tensor) -> Tensor:
        """The scores of the next tokens of the rows that are no twins, from the logits of all."""
        lead_R = self.lead_R
        return guided(logits_RV[lead_R], logits_RV[~lead_R], self._scale)

    def follow(self, value_R: Tensor) -> Tensor:
        """Values of the rows that are no twins, for all rows: each twin has that of its row."""
        lead_R = self.lead_R
        both = value_R.new_empty(len(lead_R), *value_R.shape[1:])
        both[lead_R] = both[~lead_R] = value_R
        return both
