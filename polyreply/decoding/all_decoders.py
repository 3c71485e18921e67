"""`decoders`: one reply from each of K decoders, all in one pass.

The contexts are read once. Rows that have ended leave the batch, so the cost follows the sum of the lengths of the
replies, not K times the longest; and the adapters of a decoder whose rows have all ended are no longer read.

Legend: B contexts, K decoders, R rows still running, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from polyreply.decoding import causal_step, t5_step
from polyreply.decoding.guidance import Twins, empty_context, with_empty
from polyreply.decoding.settings import Decoding, Response, by_length, pad_left, prompt_length
from polyreply.decoding.step import Step, StockStep
from polyreply.errors import PolyReplyError
from polyreply.models.memory import Memory
from polyreply.models.model import PolyReplyModel, wide
from polyreply.models.packed import encoder_layers, packed
from polyreply.models.rows import Rows
from polyreply.threads import adapt


@torch.inference_mode()
def decode(
    model: PolyReplyModel,
    context_BS: Tensor,
    mask_BS: Tensor,
    decoding: Decoding,
    decoders: Sequence[int] | None = None,
) -> list[list[Response]]:
    """For each context the responses of the first k decoders, or of the given ones; greedy, or sampled.

    A decoder can be given several times, if its numbers are next to each other.
    """
    if decoders is None and decoding.k > model.num_decoders:
        raise PolyReplyError(
            f"expected k from 1 to {model.num_decoders}, the number of decoders, found {decoding.k}; for k replies of "
            "one decoder sample them (decode top-k, nucleus or min-p), or use beam"
        )
    chosen = list(range(decoding.k) if decoders is None else decoders)

    def run(context_BS: Tensor, mask_BS: Tensor) -> list[list[Response]]:
        return _decode(model, context_BS, mask_BS, decoding, chosen)

    return by_length(model, context_BS, mask_BS, decoding, run)


def _decode(
    model: PolyReplyModel, context_BS: Tensor, mask_BS: Tensor, decoding: Decoding, decoders: list[int]
) -> list[list[Response]]:
    num_contexts, length = len(context_BS), prompt_length(model, context_BS)
    prompt_BS = None if model.family.encoder else pad_left(context_BS, mask_BS, 0)[0]
    if decoding.guidance_scale is not None:
        context_BS, mask_BS = with_empty(context_BS, mask_BS, empty_context(decoding))
    rows = Rows.grid(len(context_BS), decoders, device=context_BS.device)
    with packed(model, encoder_layers(model), for_decoding=False):
        memory = model.encode(context_BS, mask_BS, rows)
    step = step_for(model, memory, rows)
    running = _Running(step, model.first_tokens(rows, memory), decoding, prompt_BS, length)
    with packed(model, [*step.stock_linears(), model.vocabulary]):
        for _ in range(decoding.max_new_tokens(length)):
            if not len(step.rows):
                break
            adapt()
            running.advance()
    running.collect(torch.ones(len(running.number_R), dtype=torch.bool))  # those that reached the length limit
    replies: list[list[Response]] = [[] for _ in range(num_contexts)]
    for _, response in sorted(running.done.items()):
        replies[response.context].append(response)
    return replies


def step_for(model: PolyReplyModel, memory: Memory, rows: Rows) -> Step:
    """The leanest step that fits a model; the lean ones need weights that are always whole."""
    if model.sharded is not None:
        return StockStep(model, memory, rows)
    if t5_step.fits(model):
        return t5_step.T5Step(model, memory, rows)
    if causal_step.fits(model):
        return causal_step.CausalStep(model, memory, rows)
    return StockStep(model, memory, rows)


class _Running:
    """The tokens of the rows that are still running, and the finished responses by the number of their row.

    Twins, which guidance adds to the rows of the step, have no responses of their own.
    """

    def __init__(self, step: Step, first_RT: Tensor, decoding: Decoding, prompt_BS: Tensor | None, length: int) -> None:
        self.step, self.newest_RT, self.decoding, self.prompt_length = step, first_RT, decoding, length
        device = first_RT.device
        self.twins = None if decoding.guidance_scale is None else Twins(step, decoding.guidance_scale)
        self.constraints: Any = decoding.constraints(length, device)
        context_R = self._leads(step.rows.context_R)
        self.tokens_RT = self._leads(first_RT) if prompt_BS is None else prompt_BS[context_R]
        self.logprob_R = torch.zeros(len(self.tokens_RT), dtype=torch.float64, device=device)
        self.eos = torch.tensor(decoding.eos_ids, device=device)
        self.number_R = torch.arange(len(self.tokens_RT), device=device)
        self.done: dict[int, Response] = {}

    def _leads(self, value_R: Tensor) -> Tensor:
        """Of values of the step's rows those of rows that are no twins."""
        return value_R if self.twins is None else value_R[self.twins.lead_R]

    def advance(self) -> None:
        """One more token for every row; rows that end leave the batch."""
        step, decoding = self.step, self.decoding
        all_RV = wide(step.model.logits(step.states(self.newest_RT), step.rows.segments))
        logits_RV = self._leads(all_RV)
        scores_RV = logits_RV if self.twins is None else self.twins.scores(all_RV)
        chosen_R = choose(scores_RV, self.tokens_RT, decoding, self.constraints)
        self.logprob_R -= cross_entropy(logits_RV, chosen_R, reduction="none")
        self.tokens_RT = torch.cat([self.tokens_RT, chosen_R[:, None]], 1)
        ended_R = torch.isin(chosen_R, self.eos)
        if ended_R.any():
            self.collect(ended_R)
            keep_R = ~ended_R
            step.keep(keep_R if self.twins is None else self.twins.follow(keep_R))
            self.tokens_RT, chosen_R = self.tokens_RT[keep_R], chosen_R[keep_R]
            self.logprob_R, self.number_R = self.logprob_R[keep_R], self.number_R[keep_R]
        self.newest_RT = (chosen_R if self.twins is None else self.twins.follow(chosen_R))[:, None]

    def collect(self, which_R: Tensor) -> None:
        """Take over the responses of the rows that a mask selects."""
        rows, number_R = self.step.rows, self.number_R.tolist()
        contexts, decoders = self._leads(rows.context_R).tolist(), self._leads(rows.decoder_R).tolist()
        for row in which_R.nonzero()[:, 0].tolist():
            tokens = self.tokens_RT[row, self.prompt_length :].tolist()
            self.done[number_R[row]] = Response(contexts[row], decoders[row], tokens, float(self.logprob_R[row]))


def choose(logits_RV: Tensor, tokens_RT: Tensor, decoding: Decoding, constraints: Any = None) -> Tensor:
    """The next token of each row, by scores in float32 or better: the likeliest that constraints allow, or a sample."""
    scores_RV: Any = constraints(tokens_RT, logits_RV) if constraints else logits_RV
    if decoding.sampling is None:
        return torch.argmax(scores_RV, -1)
    warpers: Any = decoding.sampling.warpers
    share_RV = warpers(tokens_RT, scores_RV).softmax(-1)
    return torch.multinomial(share_RV, 1, generator=decoding.generator)[:, 0]
