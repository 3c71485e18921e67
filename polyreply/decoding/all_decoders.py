"""`decoders`: one reply from each of K decoders, all in one pass.

The contexts are read once. Rows that have ended leave the batch, so the cost follows the sum of the lengths of the
replies, not K times the longest; and the adapters of a decoder whose rows have all ended are not read any more.

Legend: B contexts, K decoders, R rows still running, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from polyreply.decoding import t5_step
from polyreply.decoding.batching import in_parts, pad_left, prompt_length
from polyreply.decoding.response import Response
from polyreply.decoding.settings import Decoding, decoding_of
from polyreply.decoding.step import Step, StockStep
from polyreply.models.memory import Memory
from polyreply.models.packed import packed
from polyreply.models.polyreply_model import PolyReplyModel
from polyreply.models.rows import Rows
from polyreply.models.score import wide


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

    A decoder can be asked several times, if its numbers stand side by side.

    `logits_processor` are further constraints, as for Transformers' `generate`.
    """
    chosen = list(range(model.num_decoders)) if decoders is None else list(decoders)
    options = config or model.backbone.generation_config

    def part(context_BS: Tensor, mask_BS: Tensor) -> list[list[Response]]:
        settings = decoding_of(options, prompt_length(model, context_BS), model.device)
        settings.processors.extend(logits_processor)
        return _decode(model, context_BS, mask_BS, settings, chosen, generator)

    return in_parts(model, context_BS, mask_BS, options, part)


def _decode(
    model: PolyReplyModel,
    context_BS: Tensor,
    mask_BS: Tensor,
    settings: Decoding,
    decoders: list[int],
    generator: torch.Generator | None,
) -> list[list[Response]]:
    memory = model.encode(context_BS, mask_BS)
    prompt_BS = None if model.family.encoder else pad_left(context_BS, mask_BS, 0)[0]
    step = _step(model, memory, Rows.grid(len(memory), decoders, device=context_BS.device))
    run = _Run(step, settings, prompt_BS, generator)
    with packed(model, [*step.stock_linears(), model.backbone.get_output_embeddings()]):
        for _ in range(settings.max_new_tokens):
            if not len(step.rows):
                break
            run.advance()
    run.finish()
    replies: list[list[Response]] = [[] for _ in range(len(memory))]
    for row in sorted(run.done):
        replies[run.done[row].context].append(run.done[row])
    return replies


def _step(model: PolyReplyModel, memory: Memory, rows: Rows) -> Step:
    kind = t5_step.T5Step if t5_step.fits(model) else StockStep
    return kind(model, memory, rows)


class _Run:
    """The tokens of the rows still running, and the responses that are done, by the number of their row."""

    def __init__(
        self, step: Step, settings: Decoding, prompt_BS: Tensor | None, generator: torch.Generator | None
    ) -> None:
        self.step, self.settings, self.generator = step, settings, generator
        first_R = step.model.first_tokens(step.rows, step.memory)
        self.tokens_RT = first_R[:, None] if prompt_BS is None else prompt_BS[step.rows.context_R]
        self.newest_R = first_R
        self.prompt_length = self.tokens_RT.shape[1]
        self.logprob_R = torch.zeros(len(step.rows), dtype=torch.float64, device=first_R.device)
        self.eos = torch.tensor(settings.eos_ids, device=first_R.device)
        self.number_R = torch.arange(len(step.rows), device=first_R.device)
        self.done: dict[int, Response] = {}

    def advance(self) -> None:
        """One more token for every row."""
        logits_RV = self.step.model.logits(self.step.states(self.newest_R), self.step.rows.segments)
        self.newest_R = self._choose(logits_RV)
        chosen_R = logits_RV.gather(1, self.newest_R[:, None])[:, 0]
        self.logprob_R += wide(chosen_R) - torch.logsumexp(wide(logits_RV), -1)
        self.tokens_RT = torch.cat([self.tokens_RT, self.newest_R[:, None]], 1)
        ended_R = torch.isin(self.newest_R, self.eos)
        if ended_R.any():
            self._retire(ended_R)

    def finish(self) -> None:
        """Takes over what is still running at the length limit."""
        self._collect(torch.ones(len(self.step.rows), dtype=torch.bool))

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
        self.step.keep(keep_R)
        self.tokens_RT, self.newest_R = self.tokens_RT[keep_R], self.newest_R[keep_R]
        self.logprob_R, self.number_R = self.logprob_R[keep_R], self.number_R[keep_R]

    def _collect(self, which_R: Tensor) -> None:
        rows, number_R = self.step.rows, self.number_R.tolist()
        contexts, decoders = rows.context_R.tolist(), rows.decoder_R.tolist()
        for row in which_R.nonzero()[:, 0].tolist():
            tokens = self.tokens_RT[row, self.prompt_length :].tolist()
            self.done[number_R[row]] = Response(contexts[row], decoders[row], tokens, float(self.logprob_R[row]))
