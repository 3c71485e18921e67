"""`diverse-beam`: diverse beam search (Vijayakumar et al., 2016) on the single-decoder model.

k beams in groups that take turns at each step. A group is kept away from the tokens that earlier groups chose at the
same step for the same context (Hamming diversity); otherwise it searches as ordinary beam search does.

Legend: B contexts, S context tokens, R running rows (beam, context), L contexts whose group is running, N beams of a
group, M candidates of a group, T tokens, V vocabulary, X = N·V.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polyreply.decoding.settings import Decoding, Response, by_length, pad_left, prompt_length
from polyreply.decoding.single_decoder import check_single_decoder
from polyreply.decoding.step import RowCaches
from polyreply.errors import PolyReplyError
from polyreply.models.model import PolyReplyModel, wide
from polyreply.models.rows import Rows

PENALTY = 0.5


@torch.no_grad()
def diverse_beam(
    model: PolyReplyModel, context_BS: Tensor, mask_BS: Tensor, decoding: Decoding
) -> list[list[Response]]:
    """For each context k responses: group by group, the best (log-probability per token) of a group first.

    Within its group a candidate is ranked by its accumulated log-probability minus `diversity_penalty` times how often
    earlier groups chose its token at this step, to continue a beam or to end a hypothesis. The penalty decides which
    candidates continue, as in the paper's objective for a step. It is not accumulated: later, and in the end,
    hypotheses compete by their log-probabilities alone (older Transformers let penalties add up in a beam's score).

    Of a group's candidates those among the best N that end are kept as finished, ranked by log-probability divided by
    length, and the best N others continue, until N have finished and no running one looks better (`early_stopping` as
    in Transformers). By default every group has one beam; with one group this is ordinary beam search.
    """
    check_single_decoder(model)
    num_groups = decoding.k if decoding.num_groups is None else decoding.num_groups
    penalty = PENALTY if decoding.diversity_penalty is None else decoding.diversity_penalty
    _check_groups(decoding.k, num_groups, penalty)

    def run(context_BS: Tensor, mask_BS: Tensor) -> list[list[Response]]:
        search = _Search(model, context_BS, mask_BS, decoding, num_groups, penalty)
        while search.rows is not None:
            search.step()
        return search.responses()

    return by_length(model, context_BS, mask_BS, decoding, run)


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
    """How a group continues and when it stops."""

    size: int
    """N."""
    eos_ids: tuple[int, ...]
    max_new_tokens: int
    early_stopping: bool | str


@dataclass
class _Hypothesis:
    """An unfinished or finished response."""

    row: int
    """The row of the decoder's scores for its next token; for a candidate, its parent's row."""
    tokens: tuple[int, ...] = ()
    score: float = 0.0
    """The sum of its tokens' log-probabilities as constraints leave them: what beam search ranks by."""
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
        """Continue with the best candidates; returns the tokens that were chosen."""
        length = len(candidates[0].tokens)
        last = length == rule.max_new_tokens
        possible = [one for one in candidates if one.score > -math.inf] or candidates  # unless all are forbidden
        ended = [one for one in possible[: rule.size] if last or one.tokens[-1] in rule.eos_ids]
        others = [one for one in candidates if one.tokens[-1] not in rule.eos_ids][: rule.size]
        self.running = [] if last else others
        chosen = [one.tokens[-1] for one in (*ended, *self.running)]
        self.finished = sorted([*self.finished, *ended], key=_Hypothesis.per_token, reverse=True)[: rule.size]
        if len(self.finished) == rule.size and not self._can_improve(length, rule):
            self.running = []
        return chosen

    def _can_improve(self, length: int, rule: _Rule) -> bool:
        if rule.early_stopping is True or not self.running:
            return False
        final_length = rule.max_new_tokens if rule.early_stopping == "never" else length
        best = max(one.score for one in self.running) / final_length
        return best > self.finished[-1].per_token()


class _Search:
    """All groups on all contexts, and the caches of the running beams."""

    def __init__(
        self,
        model: PolyReplyModel,
        context_BS: Tensor,
        mask_BS: Tensor,
        decoding: Decoding,
        num_groups: int,
        penalty: float,
    ) -> None:
        self.model, self.penalty = model, penalty
        self.memory, length = model.encode(context_BS, mask_BS), prompt_length(model, context_BS)
        self.constraints: Any = decoding.constraints(length, model.device)
        longest, early_stopping = decoding.max_new_tokens(length), decoding.config.early_stopping or False
        self.rule = _Rule(decoding.k // num_groups, decoding.eos_ids, longest, early_stopping)
        # Before the first token all beams of a context are the same: one row serves them.
        start = Rows.grid(len(self.memory), [0], context_BS.device)
        self.rows: Rows | None = start
        self.groups = [[_Group(b, [_Hypothesis(b)]) for b in range(len(self.memory))] for _ in range(num_groups)]
        self.caches = RowCaches(model)
        self.newest_RT = model.first_tokens(start, self.memory)
        self.tokens_RT = self.newest_RT if model.family.encoder else pad_left(context_BS, mask_BS, 0)[0]

    def step(self) -> None:
        """One more token for every running beam, group after group."""
        assert self.rows is not None
        states_RTD = self.model.states(self.newest_RT, self.rows, self.memory, self.caches.caches, single=True)
        logprob_RV = wide(self.model.logits(states_RTD[:, -1])).log_softmax(-1)
        score_RV = self.constraints(self.tokens_RT, logprob_RV) if self.constraints else logprob_RV
        chosen_BV = score_RV.new_zeros(len(self.memory), score_RV.shape[1])
        for groups in self.groups:
            running = [group for group in groups if group.running]
            if running:
                candidates = self._candidates(running, score_RV, logprob_RV, chosen_BV)
                _count(chosen_BV, running, [g.advance(c, self.rule) for g, c in zip(running, candidates, strict=True)])
        self._follow()

    def responses(self) -> list[list[Response]]:
        """The finished hypotheses, for each context group by group."""
        finished = [[h for groups in self.groups for h in groups[b].finished] for b in range(len(self.memory))]
        return [[Response(b, i, [*h.tokens], h.logprob) for i, h in enumerate(row)] for b, row in enumerate(finished)]

    def _candidates(
        self, running: Sequence[_Group], score_RV: Tensor, logprob_RV: Tensor, chosen_BV: Tensor
    ) -> list[list[_Hypothesis]]:
        """The best continuations of one group for each context, penalty applied; so many that N of them do not end."""
        row_LN = torch.tensor([[one.row for one in group.running] for group in running], device=score_RV.device)
        so_far_LN = score_RV.new_tensor([[one.score for one in group.running] for group in running])
        context_L = torch.tensor([group.context for group in running], device=score_RV.device)
        score_LNV = so_far_LN[:, :, None] + score_RV[row_LN]
        ranked_LX = (score_LNV - self.penalty * chosen_BV[context_L][:, None]).flatten(1)
        num_candidates = self.rule.size * (1 + max(1, len(self.rule.eos_ids)))
        top_LM = ranked_LX.topk(min(num_candidates, ranked_LX.shape[1])).indices
        beam_LM, token_LM = top_LM // score_RV.shape[1], top_LM % score_RV.shape[1]
        top_score_LM = score_LNV.flatten(1).gather(1, top_LM)
        step_LM = logprob_RV[row_LN.gather(1, beam_LM), token_LM]
        columns = (beam_LM.tolist(), token_LM.tolist(), top_score_LM.tolist(), step_LM.tolist())
        return [
            [_extend(group.running[beam], *values) for beam, *values in zip(*row, strict=True)]
            for group, row in zip(running, zip(*columns, strict=True), strict=True)
        ]

    def _follow(self) -> None:
        """Rearrange rows, tokens and caches to the beams that were kept, sorted by beam as `Rows` requires."""
        kept = [
            (g * self.rule.size + place, group.context, hypothesis)
            for g, groups in enumerate(self.groups)
            for group in groups
            for place, hypothesis in enumerate(group.running)
        ]
        if not kept:
            self.rows = None
            return
        kept.sort(key=lambda row: row[:2])
        beam_R, context_R, parent_R, newest_R = torch.tensor(
            [(beam, context, one.row, one.tokens[-1]) for beam, context, one in kept], device=self.newest_RT.device
        ).T
        self.newest_RT = newest_R[:, None]
        self.rows = Rows.pairs(context_R, beam_R, len(self.memory))
        self.tokens_RT = torch.cat([self.tokens_RT[parent_R], self.newest_RT], 1)
        _reorder(self.caches, parent_R)
        for row, (_, _, hypothesis) in enumerate(kept):
            hypothesis.row = row


def _extend(parent: _Hypothesis, token: int, score: float, step: float) -> _Hypothesis:
    return _Hypothesis(parent.row, (*parent.tokens, token), score, parent.logprob + step)


def _count(chosen_BV: Tensor, groups: Sequence[_Group], tokens: Sequence[Sequence[int]]) -> None:
    """Count the tokens that these groups chose for their contexts."""
    pairs = [(group.context, token) for group, chosen in zip(groups, tokens, strict=True) for token in chosen]
    context, token = torch.tensor(pairs, device=chosen_BV.device).T
    chosen_BV.index_put_((context, token), chosen_BV.new_ones(()), accumulate=True)


def _reorder(caches: RowCaches, parent_R: Tensor) -> None:
    """Give every row the keys and values of its parent; those of the contexts stay."""
    cache: Any = caches.caches[0]
    for layer in getattr(cache, "self_attention_cache", cache).layers:
        if len(parent_R) != len(layer.keys) or not torch.equal(parent_R, torch.arange(len(parent_R)).to(parent_R)):
            layer.keep(parent_R)
