"""`decoders`: one reply from each of K decoders, all in one pass.

The contexts are read once. Rows that have ended leave the batch, so the cost follows the sum of the lengths of the
replies, not K times the longest; and the adapters of a decoder whose rows have all ended are not read any more.

Legend: B contexts, K decoders, R rows still running, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from polyreply.decoding.cache import RowCaches
from polyreply.decoding.packed import packed
from polyreply.decoding.settings import Decoding, decoding_of
from polyreply.model.polyreply_model import Memory, PolyReplyModel
from polyreply.model.rows import Rows
from polyreply.model.score import wide


@dataclass
class Response:
    """The tokens one decoder generated for one context, EOS included if it came, and their log-probability."""

    context: int
    decoder: int
    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0


@torch.no_grad()
def decode(
    model: PolyReplyModel,
    context_BS: Tensor,
    mask_BS: Tensor,
    config: GenerationConfig | None = None,
    *,
    decoders: Sequence[int] | None = None,
    generator: torch.Generator | None = None,
    logits_processor: Sequence[Any] = (),
) -> list[list[Response]]:
    """For each context the responses of all (or some) decoders, greedy unless the config says `do_sample`.

    `logits_processor` are further constraints, as for Transformers' `generate`.
    """
    chosen = list(range(model.num_decoders)) if decoders is None else list(decoders)
    memory = model.encode(context_BS, mask_BS)
    prompt_RT = None if model.family.encoder else context_BS.masked_fill(~mask_BS.bool(), 0)
    settings = decoding_of(config or model.backbone.generation_config, 1 if prompt_RT is None else prompt_RT.shape[1])
    settings.processors.extend(logits_processor)
    run = _Run(model, memory, settings, Rows.grid(len(memory), chosen, device=context_BS.device), prompt_RT, generator)
    with packed(model):
        for _ in range(settings.max_new_tokens):
            if not len(run.rows):
                break
            run.step()
    run.finish()
    order = {k: place for place, k in enumerate(chosen)}
    replies: list[list[Response]] = [[] for _ in range(len(memory))]
    for response in sorted(run.done, key=lambda response: order[response.decoder]):
        replies[response.context].append(response)
    return replies


class _Run:
    """The rows still running, their tokens and caches, and the responses that are done."""

    def __init__(
        self,
        model: PolyReplyModel,
        memory: Memory,
        settings: Decoding,
        rows: Rows,
        prompt_BS: Tensor | None,
        generator: torch.Generator | None,
    ) -> None:
        self.model, self.memory, self.settings, self.generator = model, memory, settings, generator
        self.rows, self.caches = rows, RowCaches(model)
        first_R = model.first_tokens(rows, memory)
        self.tokens_RT = first_R[:, None] if prompt_BS is None else prompt_BS[rows.context_R]
        self.newest_R = first_R
        self.prompt_length = self.tokens_RT.shape[1]
        self.logprob_R = torch.zeros(len(rows), dtype=torch.float64, device=first_R.device)
        self.eos = torch.tensor(settings.eos_ids, device=first_R.device)
        self.done: list[Response] = []

    def step(self) -> None:
        """One more token for every row."""
        states_R1D = self.model.states(self.newest_R[:, None], self.rows, self.memory, self.caches.caches)
        logits_RV = self.model.logits(states_R1D[:, -1], self.rows.segments)
        self.newest_R = self._choose(logits_RV)
        chosen_R = logits_RV.gather(1, self.newest_R[:, None])[:, 0]
        self.logprob_R += wide(chosen_R) - torch.logsumexp(wide(logits_RV), -1)
        self.tokens_RT = torch.cat([self.tokens_RT, self.newest_R[:, None]], 1)
        ended_R = torch.isin(self.newest_R, self.eos)
        if ended_R.any():
            self._retire(ended_R)

    def finish(self) -> None:
        """Takes over what is still running at the length limit."""
        self._collect(torch.ones(len(self.rows), dtype=torch.bool))

    def _choose(self, logits_RV: Tensor) -> Tensor:
        tokens_RT: Any = self.tokens_RT
        scores_RV: Any = logits_RV
        if self.settings.processors:
            scores_RV = self.settings.processors(tokens_RT, scores_RV)
        if not self.settings.sample:
            return torch.argmax(scores_RV, -1)
        scores_RV = self.settings.warpers(tokens_RT, scores_RV)
        return torch.multinomial(wide(scores_RV).softmax(-1), 1, generator=self.generator)[:, 0]

    def _retire(self, ended_R: Tensor) -> None:
        self._collect(ended_R)
        keep_R = ~ended_R
        self.caches.keep(self.rows, keep_R)
        self.rows = self.rows.keep(keep_R)
        self.tokens_RT, self.newest_R = self.tokens_RT[keep_R], self.newest_R[keep_R]
        self.logprob_R = self.logprob_R[keep_R]

    def _collect(self, which_R: Tensor) -> None:
        contexts, decoders = self.rows.context_R.tolist(), self.rows.decoder_R.tolist()
        for row in which_R.nonzero()[:, 0].tolist():
            tokens = self.tokens_RT[row, self.prompt_length :].tolist()
            self.done.append(Response(contexts[row], decoders[row], tokens, float(self.logprob_R[row])))
