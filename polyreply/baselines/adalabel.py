"""AdaLabel (Wang et al., 2021): a single-decoder model trained with targets that are smoothed token by token.

An auxiliary decoder of one layer predicts each response token from the context and from all other tokens of the
response, also the later ones. Its distribution v, without the response's own token, says what else could stand there.
The target of the decoder is q = (1 − ε)·one-hot + ε·v, with little smoothing ε where the decoder is sure or wrong.

The auxiliary decoder shares the embedding and the output layer of the model, is trained with it by cross-entropy, and
is not a part of the finished model. docs/methods/adalabel.md maps the equations to this file.

Legend: R rows, S context tokens, T response tokens, D model size, P tokens of all rows, V vocabulary, C candidates.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from polyreply.baselines.settings import AdaLabelSettings
from polyreply.distributed import Processes
from polyreply.em.m_step import DecoderTotals, m_step
from polyreply.em.objective import Objective
from polyreply.errors import PolyReplyError
from polyreply.models.memory import Memory
from polyreply.models.model import PolyReplyModel, wide
from polyreply.models.rows import Rows
from polyreply.models.score import Limits, Samples, TokenLoss


class AdaLabel(Objective, TokenLoss):
    """KL(q‖p) + the auxiliary decoder's cross-entropy, both means over tokens."""

    def __init__(self, model: PolyReplyModel, settings: AdaLabelSettings, pad_id: int | None) -> None:
        super().__init__()
        if not model.family.encoder:
            raise PolyReplyError(
                "method adalabel expected an encoder-decoder backbone such as T5 or BART, found "
                f"{model.config.backbone['model_type']}; use model.backbone=mini, or method mle"
            )
        self.settings, self.pad_id = settings, pad_id
        self.auxiliary = AuxiliaryDecoder(model)
        self._sums: dict[str, Tensor] = {}

    def backward(
        self,
        model: PolyReplyModel,
        samples: Samples,
        num_samples: int,
        rng: np.random.Generator,
        processes: Processes,
        limits: Limits,
    ) -> DecoderTotals:
        """The M-step with this loss; `parts` are means over tokens."""
        self._sums = {name: torch.zeros((), device=model.device) for name in ("kl", "auxiliary", "epsilon")}
        weights_n1 = torch.ones(len(samples), 1, dtype=torch.float64, device=model.device)
        totals = m_step(model, samples, weights_n1, num_samples, processes, limits, loss=self)
        return totals._replace(parts={name: part / totals.tokens_K.sum() for name, part in self._sums.items()})

    def further_states(
        self, model: PolyReplyModel, target_RT: Tensor, mask_RT: Tensor, rows: Rows, memory: Memory
    ) -> list[Tensor]:
        """Those of the auxiliary decoder."""
        tokens_RT = torch.cat([model.first_tokens(rows, memory), target_RT[:, :-1]], 1)
        embedded_RTD = model.backbone.get_input_embeddings()(tokens_RT)
        context_R = memory.rows(rows).context_R
        return [self.auxiliary(embedded_RTD, mask_RT, memory.states_BSD[context_R], memory.mask_BS[context_R])]

    def losses(self, logits: Sequence[Tensor], target_P: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the NLL of some tokens."""
        own_PV, auxiliary_PV = (wide(one_PV) for one_PV in logits)
        log_p_PV = own_PV.log_softmax(-1)
        smoothing = smooth(auxiliary_PV.detach(), target_P, self.settings, self.pad_id)
        epsilon_P = smoothing_factor(log_p_PV.detach(), target_P, smoothing, self.settings)
        kl_P = divergence(log_p_PV, target_P, epsilon_P, smoothing)
        auxiliary_P = nn.functional.cross_entropy(auxiliary_PV, target_P, reduction="none")
        for name, values_P in (("kl", kl_P), ("auxiliary", auxiliary_P), ("epsilon", epsilon_P)):
            self._sums[name] = self._sums[name] + values_P.detach().sum()
        return kl_P + auxiliary_P, -log_p_PV.detach().gather(1, target_P[:, None])[:, 0]


class Smoothing(NamedTuple):
    """v: the candidates of each token and their probabilities, (P, C); all other tokens have none."""

    token_PC: Tensor
    v_PC: Tensor


def smooth(auxiliary_PV: Tensor, target_P: Tensor, settings: AdaLabelSettings, pad_id: int | None) -> Smoothing:
    """v: softmax of the auxiliary logits over T, among the largest ones but the very largest, target and padding."""
    scores_PV = auxiliary_PV / settings.temperature
    scores_PV = scores_PV.scatter(1, target_P[:, None], -math.inf)
    if pad_id is not None:
        scores_PV[:, pad_id] = -math.inf
    largest = scores_PV.topk(min(settings.candidates, scores_PV.shape[1]))
    return Smoothing(largest.indices[:, 1:], largest.values[:, 1:].softmax(-1))


def smoothing_factor(log_p_PV: Tensor, target_P: Tensor, smoothing: Smoothing, settings: AdaLabelSettings) -> Tensor:
    """ε = min(1 − p_max, 1 / (1 + max v) − margin) · (p_gold / p_max)^power, (P,)."""
    log_max_P, log_gold_P = log_p_PV.max(-1).values, log_p_PV.gather(1, target_P[:, None])[:, 0]
    bound_P = 1 / (1 + smoothing.v_PC.max(-1).values) - settings.margin
    return torch.minimum(1 - log_max_P.exp(), bound_P) * (settings.power * (log_gold_P - log_max_P)).exp()


def divergence(log_p_PV: Tensor, target_P: Tensor, epsilon_P: Tensor, smoothing: Smoothing) -> Tensor:
    """KL(q‖p) with q = (1 − ε)·one-hot + ε·v, (P,)."""
    q_gold_P, q_PC = 1 - epsilon_P, epsilon_P[:, None] * smoothing.v_PC
    negative_entropy_P = torch.xlogy(q_gold_P, q_gold_P) + torch.xlogy(q_PC, q_PC).sum(-1)
    log_gold_P = log_p_PV.gather(1, target_P[:, None])[:, 0]
    return negative_entropy_P - q_gold_P * log_gold_P - (q_PC * log_p_PV.gather(1, smoothing.token_PC)).sum(-1)


class AuxiliaryDecoder(nn.Module):
    """One Transformer layer that predicts a token from the context and all tokens of the response but that one.

    Its inputs are the decoder's: the start token and all response tokens but the last. The state at place t predicts
    token t, which is the input at place t + 1: the only one that place t must not attend to. A linear layer before the
    shared output layer keeps an untrained state from predicting its own input, whose embedding is in it.
    """

    def __init__(self, model: PolyReplyModel) -> None:
        super().__init__()
        size, config = model.model_size, model.backbone.config
        heads = math.gcd(size, int(config.num_attention_heads))
        dropout = float(getattr(config, "dropout_rate", None) or getattr(config, "dropout", None) or 0.0)
        self.input_norm, self.output_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.layer = nn.TransformerDecoderLayer(size, heads, size, dropout, batch_first=True, norm_first=True)
        self.output = nn.Linear(size, size)
        self.to(model.dtype)

    def forward(self, embedded_RTD: Tensor, mask_RT: Tensor, context_RSD: Tensor, context_mask_RS: Tensor) -> Tensor:
        """The states (R, T, D) that predict each token."""
        length, size = embedded_RTD.shape[1:]
        hidden_TT = torch.ones(length, length, dtype=torch.bool, device=embedded_RTD.device).triu(1).tril(1)
        states_RTD: Any = self.input_norm(embedded_RTD) + _positions(length, size).to(embedded_RTD)
        states_RTD = self.layer(
            states_RTD,
            context_RSD,
            tgt_mask=hidden_TT,
            tgt_key_padding_mask=~mask_RT,
            memory_key_padding_mask=~context_mask_RS.bool(),
        )
        output_RTD: Tensor = self.output(self.output_norm(states_RTD))
        return output_RTD


def _positions(length: int, size: int) -> Tensor:
    """Sines and cosines of the places, (T, D)."""
    rate_D = torch.exp(torch.arange(0, size, 2) * (-math.log(10_000.0) / size))
    angle_TD = torch.arange(length)[:, None] * rate_D
    return torch.stack([angle_TD.sin(), angle_TD.cos()], -1).flatten(1)[:, :size]
