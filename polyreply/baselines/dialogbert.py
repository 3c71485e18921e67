"""DialogBERT's training (Gu, Yoo and Ha, 2021): the response's NLL and two losses of the context, unweighted.

*Masked utterance regression*: one turn of some contexts is replaced, by a mask (80 %), by another turn (10 %) or not at
all (10 %), and the context encoder's state there has to give back the vector of the original turn (MSE).
*Utterance order ranking*: the turns of some contexts are shuffled, and scores of the states have to rank them (KL). The
response to a shuffled context is not learned.

The network is `polyreply/models/dialogbert.py`; the heads of the two losses are not a part of the finished model.
docs/methods/dialogbert.md maps the equations to this file.

Legend: N contexts over all processes, B contexts (of this process, or of a chunk), U turns, C turns and the
pseudo-utterances CLS and SEP around them, L tokens of a turn, X masked turns, D model size.
"""

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertPredictionHeadTransform

from polyreply.baselines.settings import DialogBertSettings
from polyreply.distributed import Processes
from polyreply.em.m_step import DecoderTotals
from polyreply.em.objective import Objective
from polyreply.models.dialogbert import DialogBertConfig, TurnEncoder, Turns, TurnStates
from polyreply.models.memory import Memory
from polyreply.models.model import PolyReplyModel, wide
from polyreply.models.rows import Rows
from polyreply.models.score import Limits, Samples, TokenLoss, backward_rows, chunks

_MASK, _RANDOM = 0.8, 0.9
"""Below the first a chosen turn becomes a mask, below the second another turn."""
_CONTEXT_TOKENS = 4
"""How many more context tokens than response tokens form a chunk: they see no vocabulary."""
_NUMBERS = 5
"""Random numbers of a context, besides one for each turn: whether to shuffle, whether to mask, which turn, how, and
with which other turn."""


@dataclass(frozen=True)
class Altered:
    """Contexts as the network reads them in training, and what they were."""

    turns: Turns
    original: Turns
    order_BU: Tensor
    """The place in the original context of the turn at each place."""
    is_shuffled_B: Tensor
    masked_B: Tensor
    """The place of the masked turn; -1 if there is none."""

    def select(self, index: Tensor) -> "Altered":
        """Some of the contexts."""
        turns, original = self.turns.select(index), self.original.select(index)
        return Altered(turns, original, self.order_BU[index], self.is_shuffled_B[index], self.masked_B[index])


class DialogBertObjective(Objective):
    """Mean NLL per token + mean square error of masked turns + mean divergence of the order over contexts."""

    def __init__(self, model: PolyReplyModel, settings: DialogBertSettings) -> None:
        super().__init__()
        config, size = model.backbone.encoder.utterance.config, model.model_size
        self.settings = settings
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.regression = BertPredictionHeadTransform(config)
        self.order = nn.Linear(size, size, bias=False)
        self.to(model.dtype)

    def backward(
        self,
        model: PolyReplyModel,
        samples: Samples,
        num_samples: int,
        rng: np.random.Generator,
        processes: Processes,
        limits: Limits,
    ) -> DecoderTotals:
        """Alter the contexts, and add the gradient of the three losses, chunk by chunk."""
        encoder: TurnEncoder = model.backbone.encoder
        numbers_NX = rng.random((num_samples, _NUMBERS + encoder.config.max_turns))
        altered = None
        if len(samples):
            turns = encoder.split(samples.context_NS, samples.context_mask_NS)
            numbers_BX = torch.from_numpy(processes.own(numbers_NX)).to(model.device)
            altered = alter(turns, numbers_BX, self.settings, encoder.config)
        own_4 = _counts(samples, altered).to(model.device)
        all_4 = own_4.clone()
        processes.sum_([all_4])
        contexts, tokens, masked, _ = all_4.clamp(min=1)
        sums = torch.zeros(3, dtype=torch.float64, device=model.device)
        for index in _chunks(samples, limits):
            assert altered is not None
            part = altered.select(index)
            states = encoder.encode(part.turns)
            has_dummy = not all_4[2] and processes.is_main  # sample 0 is the main process's first
            dummy_X = (index == 0).nonzero()[:, 0] if has_dummy else index[:0]
            regression = self.regression_loss(encoder, part, states, dummy_X) / masked
            order = self.order_loss(part, states) / contexts
            nll = self._backward(model, samples.select(index), part, states, regression + order, 1 / tokens, limits)
            sums += torch.stack([nll, regression.detach(), order.detach()])
        parts = {"regression": sums[1], "order": sums[2], "masked": own_4[2], "shuffled": own_4[3]}
        return DecoderTotals(sums[:1], tokens[None], all_4[:1], parts)

    def _backward(
        self,
        model: PolyReplyModel,
        samples: Samples,
        altered: Altered,
        states: TurnStates,
        context_loss: Tensor,
        weight: Tensor,
        limits: Limits,
    ) -> Tensor:
        """Add the gradients of a chunk; the NLL of the responses to contexts that are not shuffled."""
        states_BCD = cast(Tensor, states.last_hidden_state)
        leaf_BCD = states_BCD.detach().requires_grad_()
        sample_R = (~altered.is_shuffled_B).nonzero()[:, 0]
        nll_R = leaf_BCD.new_zeros(0)
        if len(sample_R):
            rows = Rows.pairs(sample_R, torch.zeros_like(sample_R), len(samples))
            memory = Memory(cast(Tensor, states.mask_BC), leaf_BCD)
            weights_R = weight.expand(len(sample_R))
            nll_R = backward_rows(model, samples, memory, rows, sample_R, weights_R, "sum", limits, TokenLoss())
        gradient = torch.zeros_like(leaf_BCD) if leaf_BCD.grad is None else leaf_BCD.grad
        torch.autograd.backward([states_BCD, context_loss], [gradient, torch.ones_like(context_loss)])
        return nll_R.double().sum()

    def regression_loss(self, encoder: TurnEncoder, altered: Altered, states: TurnStates, dummy_X: Tensor) -> Tensor:
        """Σ over masked turns of the mean square distance from the vector of the original turn, without its gradient.

        In a batch without masked turns, such as one of single-turn contexts, `dummy_X` names the first context, whose
        state of CLS is regressed to the vector of three padding tokens, as in the authors' code.
        """
        states_BCD = cast(Tensor, states.last_hidden_state)
        row_X = (altered.masked_B >= 0).nonzero()[:, 0]
        place_X, original = altered.masked_B[row_X], altered.original
        tokens_XL, mask_XL = original.tokens_BUL[row_X, place_X], original.mask_BUL[row_X, place_X]
        state_XD = states_BCD[row_X, place_X + 1]
        if len(dummy_X):
            state_XD = states_BCD[dummy_X, 0]
            tokens_XL = original.tokens_BUL.new_full((1, 3), int(encoder.config.pad_token_id or 0))
            mask_XL = torch.ones_like(tokens_XL)
        if not len(state_XD):
            return states_BCD[:0].double().sum()
        with torch.no_grad():
            target_XD = encoder.pooled(tokens_XL, mask_XL)
        found_XD: Tensor = self.regression(self.dropout(state_XD))
        return (found_XD - target_XD).double().square().mean(1).sum()

    def order_loss(self, altered: Altered, states: TurnStates) -> Tensor:
        """Σ over shuffled contexts of the divergence of the scores' distribution from that of the original order."""
        is_shuffled_B = altered.is_shuffled_B
        if not is_shuffled_B.any():
            return cast(Tensor, states.last_hidden_state)[:0].double().sum()
        read = (states.last_hidden_state, states.mask_BC, altered.turns.count_B)
        states_BCD, mask_BC, count_B = (cast(Tensor, x)[is_shuffled_B] for x in read)
        scores_BC = order_scores(self.order(states_BCD), mask_BC)
        position_BC = positions(altered.order_BU[is_shuffled_B], count_B)
        return order_divergence(scores_BC, position_BC, mask_BC).sum()


def _counts(samples: Samples, altered: Altered | None) -> Tensor:
    """How many contexts, response tokens to learn, masked turns and shuffled contexts there are, (4,)."""
    if altered is None:
        return torch.zeros(4, dtype=torch.float64)
    tokens_B = samples.response_mask_NT.sum(1) * ~altered.is_shuffled_B
    masked, shuffled = (altered.masked_B >= 0).sum(), altered.is_shuffled_B.sum()
    return torch.tensor([len(samples), int(tokens_B.sum()), int(masked), int(shuffled)], dtype=torch.float64)


def _chunks(samples: Samples, limits: Limits) -> list[Tensor]:
    """Indices of samples that pass through the network together."""
    size_B = samples.context_mask_NS.sum(1) // _CONTEXT_TOKENS + samples.response_mask_NT.sum(1)
    return chunks(size_B, limits.max_tokens, 1)


def alter(turns: Turns, numbers_BX: Tensor, settings: DialogBertSettings, config: DialogBertConfig) -> Altered:
    """Shuffle the turns of some contexts, and mask one turn of some others, as random numbers from 0 to 1 decide."""
    shuffle_B, mask_B, which_B, how_B, other_B = numbers_BX[:, :_NUMBERS].T
    is_shuffled_B = (shuffle_B < settings.shuffle_share) & (turns.count_B > 1)
    order_BU = _order(turns, numbers_BX[:, _NUMBERS:], is_shuffled_B)
    shuffled = replace(
        turns,
        tokens_BUL=turns.tokens_BUL.take_along_dim(order_BU[..., None], 1),
        mask_BUL=turns.mask_BUL.take_along_dim(order_BU[..., None], 1),
    )
    shares = torch.tensor(settings.mask_shares, dtype=mask_B.dtype, device=mask_B.device)
    share_B = shares[(turns.count_B - 1).clamp(max=len(shares) - 1)]
    is_masked_B = (mask_B < share_B) & ~is_shuffled_B
    place_B = (which_B * turns.count_B).long()
    masked_B = torch.where(is_masked_B, place_B, -1)
    replaced = _replace_turns(shuffled, is_masked_B, place_B, how_B, other_B, config)
    return Altered(replaced, turns, order_BU, is_shuffled_B, masked_B)


def _order(turns: Turns, keys_BU: Tensor, is_shuffled_B: Tensor) -> Tensor:
    """The original place of the turn at each place: a random permutation, or the identity."""
    identity_BU = torch.arange(turns.tokens_BUL.shape[1], device=keys_BU.device).expand_as(turns.mask_BU)
    keys_BU = keys_BU[:, : identity_BU.shape[1]].masked_fill(~turns.mask_BU, 2.0)
    return torch.where(is_shuffled_B[:, None], keys_BU.argsort(dim=1, stable=True), identity_BU)


def _replace_turns(
    turns: Turns, is_masked_B: Tensor, place_B: Tensor, how_B: Tensor, other_B: Tensor, config: DialogBertConfig
) -> Turns:
    """Replace the chosen turns by CLS, mask, SEP, by any turn of the batch, or not at all."""
    missing = max(0, 3 - turns.tokens_BUL.shape[2])
    tokens_BUL, mask_BUL = (nn.functional.pad(x, (0, missing)) for x in (turns.tokens_BUL, turns.mask_BUL))
    by_mask, by_other = (
        (is_B.nonzero()[:, 0], place_B[is_B])
        for is_B in (is_masked_B & (how_B < _MASK), is_masked_B & (how_B >= _MASK) & (how_B < _RANDOM))
    )
    row, turn = turns.mask_BU.nonzero().T
    pick = (other_B[by_other[0]] * len(row)).long()
    mask_turn = tokens_BUL.new_tensor([config.cls_token_id, config.mask_token_id, config.sep_token_id])
    mask_turn_L = nn.functional.pad(mask_turn, (0, tokens_BUL.shape[2] - 3), value=int(config.pad_token_id or 0))
    is_mask_turn_L = torch.arange(tokens_BUL.shape[2], device=tokens_BUL.device) < 3
    replaced_BUL = tokens_BUL.index_put(by_other, tokens_BUL[row[pick], turn[pick]])
    real_BUL = mask_BUL.index_put(by_other, mask_BUL[row[pick], turn[pick]])
    return Turns(
        replaced_BUL.index_put(by_mask, mask_turn_L), real_BUL.index_put(by_mask, is_mask_turn_L), turns.count_B
    )


def order_scores(projected_BCD: Tensor, mask_BC: Tensor) -> Tensor:
    """score_i = mean over j of (W h_i)·(W h_j), (B, C)."""
    products_BCC = wide(projected_BCD) @ wide(projected_BCD).transpose(1, 2)
    return (products_BCC * mask_BC[:, None]).sum(2) / mask_BC.sum(1, keepdim=True)


def positions(order_BU: Tensor, count_B: Tensor) -> Tensor:
    """The original places of CLS, the turns and SEP, (B, C)."""
    place_BC = torch.arange(order_BU.shape[1] + 2, device=order_BU.device).expand(len(order_BU), -1)
    is_turn_BC = (place_BC > 0) & (place_BC <= count_B[:, None])
    return torch.where(is_turn_BC, nn.functional.pad(order_BU + 1, (1, 1)), place_BC)


def order_divergence(scores_BC: Tensor, position_BC: Tensor, mask_BC: Tensor) -> Tensor:
    """KL from softmax of (max − position) / max to softmax of the scores, (B,)."""
    last_B1 = mask_BC.sum(1, keepdim=True) - 1
    true_BC = ((last_B1 - position_BC).to(scores_BC) / last_B1).masked_fill(~mask_BC, -torch.inf).softmax(1)
    log_found_BC = scores_BC.masked_fill(~mask_BC, -torch.inf).log_softmax(1).masked_fill(~mask_BC, 0.0)
    return (torch.xlogy(true_BC, true_BC) - true_BC * log_found_BC).sum(1)
