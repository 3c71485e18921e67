"""`diverse_beam`: diverse beam search (Vijayakumar et al., 2016) on the single-decoder model.

k beams in groups that take their turns at each step. A group is kept away from the tokens that groups before it chose
at the same step for the same context (Hamming diversity); otherwise it searches as ordinary beam search does.

Legend: B contexts, S context tokens, R rows (beam, context) that run, L contexts whose group runs, N beams of a group,
M candidates of a group, T tokens, V vocabulary, X = N·V.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from polyreply.decoding.batching import in_parts, pad_left, prompt_length
from polyreply.decoding.cache import RowCaches
from polyreply.decoding.response import Response
from polyreply.decoding.settings import Decoding, decoding_of
from polyreply.decoding.single_decoder import check_single_decoder, searched
from polyreply.errors import PolyReplyError
from polyreply.models.memory import Memory
from polyreply.models.polyreply_model import PolyReplyModel
from polyreply.models.rows import Rows
from polyreply.models.score import wide


@torch.no_grad()
def diverse_beam(
    model: PolyReplyModel,
    context_BS: Tensor,
    mask_BS: Tensor,
    k: int,
    config: GenerationConfig | None = None,
    *,
    num_groups: int | None = None,
    diversity_penalty: float = 0.5,
) -> list[list[Response]]:
    """For each context k responses: group by group, the best (log-probability per token) of a group first.

    Within its group a candidate is ranked by its accumulated log-probability minus `diversity_penalty` times how often
    earlier groups chose its token at this step, for a beam that goes on or to end a hypothesis. The penalty decides who
    goes on, as in the paper's objective for a step. It is not carried along: later, and in the end, hypotheses compete
    by their log-probabilities alone (older Transformers let the penalties add up in a beam's score).

    Of a group's candidates those among the best N that end are kept as finished, ranked by log-probability divided by
    length, and the best N others go on, until N have finished and none that runs looks better (`early_stopping` as in
    Transformers). By default every group has one beam; with one group this is ordinary beam search.
    """
    check_single_decoder(model, k)
    num_groups = k if num_groups is None else num_groups
    _check_groups(k, num_groups, diversity_penalty)
    config = searched(model, config)
    early_stopping = config.early_stopping or False

    def part(context_BS: Tensor, mask_BS: Tensor) -> list[list[Response]]:
        settings = decoding_of(config, prompt_length(model, context_BS), model.device)
        prompt_BS = None if model.family.encoder else pad_left(context_BS, mask_BS, 0)[0]
        memory = model.encode(context_BS, mask_BS)
        rule = _Rule(k // num_groups, settings.eos_ids, settings.max_new_tokens, early_stopping)
        search = _Search(model, memory, settings, rule, num_groups, diversity_penalty, prompt_BS)
        while search.rows is not None:
            search.step()
        return search.responses()

    return in_parts(model, context_BS, mask_BS, config, part)


def _check_groups(k: int, num_groups: int, diversity_penalty: float) -> None:
    if num_groups < 1:
        raise PolyReplyError(f"num_groups must be 1 or more, found {num_groups}")
    if k % num_groups:
        below, above = k // num_groups * num_groups, -(-k // num_groups) * num_groups
        divisors = [number for number in range(1, k + 1) if k % number == 0]
        nearest = sorted(sorted(divisors, key=lambda number: abs(number - num_groups))[:2])
        raise PolyReplyError(
            f"k {k} cannot be split equally over {num_groups} groups; use k {f'{below} or ' if below else ''}{above}, "
            f"or num_groups {' or '.join(map(str, nearest))}"
        )
    if not diversity_penalty >= 0:
        raise PolyReplyError(f"diversity_penalty must be 0 or more, found {diversity_penalty}")


@dataclass(frozen=True)
class _Rule:
    """How a group goes on and when it stops."""

    size: int
    """N."""
    eos_ids: tuple[int, ...]
    max_new_tokens: int
    early_stopping: bool | str


@dataclass
class _Hypothesis:
    """A response in the making."""

    row: int
    """Where the decoder's scores for its next token stand; for a candidate, where its parent's stood."""
    tokens: tuple[int, ...] = ()
    score: float = 0.0
    """The sum of its tokens' log-probabilities as constraints leave them: what beam search goes by."""
    logprob: float = 0.0
    """The same under the model itself."""

    def per_token(self) -> float:
        """The score of a finished hypothesis."""
        return self.score / len(self.tokens)


@dataclass
class _Group:
    """The beams of one group for one context."""

    context: int
    running: list[_Hypothesis]
    finished: list[_Hypothesis] = field(default_factory=list)

    def advance(self, candidates: list[_Hypothesis], rule: _Rule) -> list[int]:
        """Takes the best candidates over; returns the tokens that were chosen."""
        length = len(candidates[0].tokens)
        last = length == rule.max_new_tokens
        possible = [found for found in candidates if found.score > -math.inf] or candidates  # unless all are forbidden
        ended = [found for found in possible[: rule.size] if last or found.tokens[-1] in rule.eos_ids]
        others = [found for found in candidates if found.tokens[-1] not in rule.eos_ids][: rule.size]
        self.running = [] if last else others
        chosen = [found.tokens[-1] for found in (*ended, *self.running)]
        self.finished = sorted([*self.finished, *ended], key=_Hypothesis.per_token, reverse=True)[: rule.size]
        if len(self.finished) == rule.size and not self._can_improve(length, rule):
            self.running = []
        return chosen

    def _can_improve(self, length: int, rule: _Rule) -> bool:
        if rule.early_stopping is True or not self.running:
            return False
        final_length = rule.max_new_tokens if rule.early_stopping == "never" else length
        best = max(found.score for found in self.running) / final_length
        return best > self.finished[-1].per_token()


class _Search:
    """All groups on all contexts, and the caches of the beams that run."""

    def __init__(
        self,
        model: PolyReplyModel,
        memory: Memory,
        settings: Decoding,
        rule: _Rule,
        num_groups: int,
        penalty: float,
        prompt_BS: Tensor | None,
    ) -> None:
        self.model, self.memory, self.settings, self.rule, self.penalty = model, memory, settings, rule, penalty
        # Before the first token all beams of a context are the same: one row serves them.
        start = Rows.grid(len(memory), [0], memory.mask_BS.device)
        self.rows: Rows | None = start
        self.groups = [[_Group(b, [_Hypothesis(b)]) for b in range(len(memory))] for _ in range(num_groups)]
        self.caches = RowCaches(model)
        self.newest_R = model.first_tokens(start, memory)
        self.tokens_RT = self.newest_R[:, None] if prompt_BS is None else prompt_BS

    def step(self) -> None:
        """One more token for every beam that runs, group after group."""
        assert self.rows is not None
        states_R1D = self.model.states(
            self.newest_R[:, None], self.rows, self.memory, self.caches.caches, adapters=False
        )
        logprob_RV = wide(self.model.logits(states_R1D[:, -1])).log_softmax(-1)
        processors: Any = self.settings.processors
        score_RV = processors(self.tokens_RT, logprob_RV) if processors else logprob_RV
        chosen_BV = score_RV.new_zeros(len(self.memory), score_RV.shape[1])
        for groups in self.groups:
            running = [group for group in groups if group.running]
            if running:
                candidates = self._candidates(running, score_RV, logprob_RV, chosen_BV)
                _count(chosen_BV, running, [g.advance(c, self.rule) for g, c in zip(running, candidates, strict=True)])
        self._follow()

    def responses(self) -> list[list[Response]]:
        """What has finished, for each context group by group."""
        found = [[h for groups in self.groups for h in groups[b].finished] for b in range(len(self.memory))]
        return [[Response(b, i, [*h.tokens], h.logprob) for i, h in enumerate(row)] for b, row in enumerate(found)]

    def _candidates(
        self, running: Sequence[_Group], score_RV: Tensor, logprob_RV: Tensor, chosen_BV: Tensor
    ) -> list[list[_Hypothesis]]:
        """The best continuations of one group for each context, with the penalty; enough that N do not end."""
        row_LN = torch.tensor([[found.row for found in group.running] for group in running], device=score_RV.device)
        so_far_LN = score_RV.new_tensor([[found.score for found in group.running] for group in running])
        context_L = torch.tensor([group.context for group in running], device=score_RV.device)
        score_LNV = so_far_LN[:, :, None] + score_RV[row_LN]
        ranked_LX = (score_LNV - self.penalty * chosen_BV[context_L][:, None]).flatten(1)
        num_candidates = self.rule.size * (1 + max(1, len(self.rule.eos_ids)))
        top_LM = ranked_LX.topk(min(num_candidates, ranked_LX.shape[1])).indices
        beam_LM, token_LM = top_LM // score_RV.shape[1], top_LM % score_RV.shape[1]
        found_score_LM = score_LNV.flatten(1).gather(1, top_LM)
        step_LM = logprob_RV[row_LN.gather(1, beam_LM), token_LM]
        columns = (beam_LM.tolist(), token_LM.tolist(), found_score_LM.tolist(), step_LM.tolist())
        return [
            [_extend(group.running[beam], *found) for beam, *found in zip(*row, strict=True)]
            for group, row in zip(running, zip(*columns, strict=True), strict=True)
        ]

    def _follow(self) -> None:
        """Lets rows, tokens and caches follow the beams that were kept; sorted by beam, as `Rows` wants them."""
        kept = [
            (g * self.rule.size + place, group.context, found)
            for g, groups in enumerate(self.groups)
            for group in groups
            for place, found in enumerate(group.running)
        ]
        if not kept:
            self.rows = None
            return
        kept.sort(key=lambda row: row[:2])
        device = self.newest_R.device
        beam_R, context_R, parent_R, self.newest_R = torch.tensor(
            [(beam, context, found.row, found.tokens[-1]) for beam, context, found in kept], device=device
        ).T
        self.rows = Rows.pairs(context_R, beam_R, len(self.memory))
        self.tokens_RT = torch.cat([self.tokens_RT[parent_R], self.newest_R[:, None]], 1)
        _reorder(self.caches, parent_R)
        for row, (_, _, found) in enumerate(kept):
            found.row = row


def _extend(parent: _Hypothesis, token: int, score: float, step: float) -> _Hypothesis:
    return _Hypothesis(parent.row, (*parent.tokens, token), score, parent.logprob + step)


def _count(chosen_BV: Tensor, groups: Sequence[_Group], tokens: Sequence[Sequence[int]]) -> None:
    """Adds what these groups chose for their contexts."""
    pairs = [(group.context, token) for group, found in zip(groups, tokens, strict=True) for token in found]
    context, token = torch.tensor(pairs, device=chosen_BV.device).T
    chosen_BV.index_put_((context, token), chosen_BV.new_ones(()), accumulate=True)


def _reorder(caches: RowCaches, parent_R: Tensor) -> None:
    """Gives every row the keys and values of its parent; what belongs to contexts stays."""
    cache: Any = caches.caches[0]
    for layer in getattr(cache, "self_attention_cache", cache).layers:
        if len(parent_R) != len(layer.keys) or not torch.equal(parent_R, torch.arange(len(parent_R)).to(parent_R)):
            layer.keep(parent_R)
