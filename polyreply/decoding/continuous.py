"""Continuous batching: jobs join a running batch between steps, and rows that end leave it.

A job is one context and some decoders. Where a step lets rows join that are at another token (`Step.can_join`: T5, the
Llama family and GPT-2 with contexts that are read once), all jobs share one batch. Decoders that read several tokens
of a context themselves do so before they join. For any other model, jobs that arrive together are a batch of their
own, and batches take turns, a step each.

A job with guidance brings an empty context too, and a twin of each of its rows, which reads that (`guidance.py`).

A row depends on its own job alone: constraints see the tokens of one context, and a job's samples are drawn from its
own generator, in the order in which `decode` draws them. So the tokens are those of `decode` on that context.

Legend: R rows, V vocabulary, B contexts, S context tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import MinNewTokensLengthLogitsProcessor, NoRepeatNGramLogitsProcessor

from polyreply.decoding.all_decoders import choose, step_for
from polyreply.decoding.guidance import empty_context, guided
from polyreply.decoding.settings import Decoding, Response
from polyreply.decoding.step import Step
from polyreply.models.model import PolyReplyModel, wide
from polyreply.models.packed import encoder_layers, packed
from polyreply.models.rows import Rows

Alternatives = list[tuple[int, float]]
"""Likely tokens in place of one that was generated, with their log-probabilities."""
_FORBIDDING = NoRepeatNGramLogitsProcessor | MinNewTokensLengthLogitsProcessor
"""Constraints that only forbid tokens, and are followed here row by row."""


@dataclass
class Row:
    """What one decoder has generated so far for a job."""

    job: "Job"
    decoder: int
    tokens: list[int] = field(default_factory=list)
    """With EOS, if it came."""
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    """For each token the likeliest ones in its place, if the job asks for them."""
    finish: str = ""
    """Why it ended: `stop` after EOS or when it was told to, `length` at the limit; empty while it runs."""

    @property
    def logprob(self) -> float:
        """log p(tokens | context, decoder)."""
        return sum(self.logprobs)

    def response(self) -> Response:
        """The row as other ways to decode return it, for a single context."""
        return Response(0, self.decoder, self.tokens, self.logprob)


class Job:
    """One context, the decoders that reply to it, and how."""

    def __init__(
        self, context_S: Tensor, decoders: Sequence[int], decoding: Decoding, *, num_alternatives: int = 0
    ) -> None:
        """The decoders are in order, each named once."""
        assert list(decoders) == sorted(set(decoders)), "decoders are not in order"
        self.context_S, self.decoding, self.num_alternatives = context_S, decoding, num_alternatives
        self.rows = [Row(self, k) for k in decoders]

    @property
    def is_done(self) -> bool:
        """Whether all its rows have ended."""
        return all(row.finish for row in self.rows)

    def end(self) -> None:
        """End all rows that still run, for a client that has gone away."""
        for row in self.rows:
            row.finish = row.finish or "stop"


class Continuous:
    """The jobs that a model is working on."""

    def __init__(self, model: PolyReplyModel) -> None:
        self.model = model
        self._batches: list[_Batch] = []

    @property
    def num_rows(self) -> int:
        """The rows that are running, twins included."""
        return sum(len(batch.running) for batch in self._batches)

    @torch.inference_mode()
    def add(self, jobs: Sequence[Job]) -> None:
        """Read the contexts of some jobs, all in one pass, and let their rows join."""
        if jobs:
            self._batches.append(_Batch(self.model, jobs))
            self._join()

    @torch.inference_mode()
    def advance(self) -> list[Row]:
        """One more token for every row; returns the rows that got one. Rows whose `finish` is set have left."""
        advanced: list[Row] = []
        for batch in self._batches:
            advanced += batch.advance()
        self._batches = [batch for batch in self._batches if batch.running]
        self._join()
        return advanced

    def _join(self) -> None:
        """Make one batch of all that can be joined."""
        ready = [batch for batch in self._batches if batch.can_join]
        for batch in ready[1:]:
            ready[0].join(batch)
            self._batches.remove(batch)


class _Batch:
    """Rows that take their steps together, in the order of the step's rows."""

    def __init__(self, model: PolyReplyModel, jobs: Sequence[Job]) -> None:
        guided_jobs = [b for b, job in enumerate(jobs) if job.decoding.guidance_scale is not None]
        contexts = [job.context_S.to(model.device) for job in jobs]
        contexts += [empty_context(jobs[b].decoding).to(model.device) for b in guided_jobs]
        context_BS = pad_sequence(contexts, batch_first=True)
        length_B = torch.tensor([len(one) for one in contexts], device=model.device)
        mask_BS = torch.arange(context_BS.shape[1], device=model.device) < length_B[:, None]
        pairs = sorted((row.decoder, b, i) for b, job in enumerate(jobs) for i, row in enumerate(job.rows))
        empty_of = {b: len(jobs) + number for number, b in enumerate(guided_jobs)}
        twins = [(decoder, empty_of[b], i) for decoder, b, i in pairs if b in empty_of]
        places = sorted([*pairs, *twins])
        decoder_R, context_R, _ = torch.tensor(places, device=model.device).unbind(1)
        rows = Rows.pairs(context_R.contiguous(), decoder_R, len(contexts))
        with packed(model, encoder_layers(model), for_decoding=False):
            memory = model.encode(context_BS, mask_BS, rows)
        self.step: Step = step_for(model, memory, rows)
        self.newest_RT = model.first_tokens(rows, memory)
        first = self.newest_RT[0].tolist()  # of an encoder-decoder model the same for all rows
        prompts = [first if model.family.encoder else job.context_S.tolist() for job in jobs]
        rules = [_Rules(job, prompt, model.device) for job, prompt in zip(jobs, prompts, strict=True)]
        leads = {(b, i): _Running(jobs[b].rows[i], rules[b]) for _, b, i in pairs}
        running = leads | {(empty_of[b], i): _Twin(one) for (b, i), one in leads.items() if b in empty_of}
        self.running: list[_Running | _Twin] = [running[b, i] for _, b, i in places]

    @property
    def can_join(self) -> bool:
        """Whether it can become part of another batch now."""
        return self.step.can_join and self.newest_RT.shape[1] == 1

    def join(self, other: "_Batch") -> None:
        """Take over the rows of another batch."""
        order = self.step.join(other.step)
        both = [*self.running, *other.running]
        self.running = [both[place] for place in order.tolist()]
        self.newest_RT = torch.cat([self.newest_RT, other.newest_RT])[order]

    def advance(self) -> list[Row]:
        """One more token for every row that was not ended from outside."""
        self._leave()
        if not self.running:
            return []
        step, model = self.step, self.step.model
        with packed(model, [*step.stock_linears(), model.vocabulary]):
            logits_RV = wide(model.logits(step.states(self.newest_RT), step.rows.segments))
        self._note_alternatives(logits_RV)
        twins = self._twins()
        chosen_R = self._choose(self._guided(logits_RV, twins) if twins else logits_RV)
        if twins:
            lead, twin = torch.tensor(twins, device=chosen_R.device).unbind(1)
            chosen_R[twin] = chosen_R[lead]
        self.newest_RT = chosen_R[:, None]
        logprob_R = -cross_entropy(logits_RV, chosen_R, reduction="none")
        advanced = []
        for one, token, logprob in zip(self.running, chosen_R.tolist(), logprob_R.tolist(), strict=True):
            if isinstance(one, _Running):
                one.append(token, logprob)
                advanced.append(one.row)
        self._leave()
        return advanced

    def _twins(self) -> list[tuple[int, int]]:
        """The places of each guided row and of its twin."""
        twins = [(one.lead, place) for place, one in enumerate(self.running) if isinstance(one, _Twin)]
        places = {id(one): place for place, one in enumerate(self.running)} if twins else {}
        return [(places[id(lead)], place) for lead, place in twins]

    def _guided(self, logits_RV: Tensor, twins: list[tuple[int, int]]) -> Tensor:
        """The scores of the next token, those of guided rows by `guided`."""
        lead, twin = torch.tensor(twins, device=logits_RV.device).unbind(1)
        scales = [self.running[place].rules.job.decoding.guidance_scale for place, _ in twins]
        scores_RV = logits_RV.clone()
        scores_RV[lead] = guided(logits_RV[lead], logits_RV[twin], logits_RV.new_tensor(scales)[:, None])
        return scores_RV

    def _choose(self, logits_RV: Tensor) -> Tensor:
        """The next token of each row, none that the row may not use."""
        leads = dict(self._leads())
        forbidden = [(place, token) for place, one in leads.items() for token in one.forbidden()]
        where = torch.tensor(forbidden, dtype=torch.long, device=logits_RV.device).view(-1, 2).unbind(1)
        scores = logits_RV[where]
        logits_RV[where] = -math.inf
        chosen_R = torch.argmax(logits_RV, -1)
        for rules, places in self._places(lambda rules: not rules.is_greedy):
            index = torch.tensor(places, device=logits_RV.device)
            tokens_RT = torch.tensor([leads[place].tokens for place in places], device=logits_RV.device)
            chosen_R[index] = choose(logits_RV[index], tokens_RT, rules.job.decoding, rules.constraints)
        logits_RV[where] = scores  # for log-probabilities, which are the model's
        return chosen_R

    def _note_alternatives(self, logits_RV: Tensor) -> None:
        for rules, places in self._places(lambda rules: rules.job.num_alternatives > 0):
            index = torch.tensor(places, device=logits_RV.device)
            logprob_RV = logits_RV[index].log_softmax(-1)
            logprob_RX, token_RX = logprob_RV.topk(min(rules.job.num_alternatives, logits_RV.shape[1]), -1)
            for place, tokens, logprobs in zip(places, token_RX.tolist(), logprob_RX.tolist(), strict=True):
                self.running[place].row.alternatives.append(list(zip(tokens, logprobs, strict=True)))

    def _places(self, asks: "Callable[[_Rules], bool]") -> "list[tuple[_Rules, list[int]]]":
        """The places of the rows of each job that asks for something of its own, without twins."""
        found: dict[int, tuple[_Rules, list[int]]] = {}
        for place, one in self._leads():
            if asks(one.rules):
                found.setdefault(id(one.rules), (one.rules, []))[1].append(place)
        return list(found.values())

    def _leads(self) -> "list[tuple[int, _Running]]":
        """The rows that are no twins, with their places."""
        return [(place, one) for place, one in enumerate(self.running) if isinstance(one, _Running)]

    def _leave(self) -> None:
        """Drop the rows that have ended."""
        keep = [not one.row.finish for one in self.running]
        if not all(keep):
            keep_R = torch.tensor(keep, device=self.newest_RT.device)
            self.running = [one for one, stays in zip(self.running, keep, strict=True) if stays]
            self.newest_RT = self.newest_RT[keep_R]
            self.step.keep(keep_R)


class _Rules:
    """What limits the rows of a job.

    Constraints that only forbid tokens are kept up to date row by row; Transformers' processors, which look through
    all tokens of a row at each step, are used where a request has any other.
    """

    def __init__(self, job: Job, prompt: list[int], device: torch.device) -> None:
        self.job, self.prompt, decoding = job, prompt, job.decoding
        self.eos, self.longest = set(decoding.eos_ids), decoding.max_new_tokens(len(prompt))
        constraints = decoding.constraints(len(prompt), device)
        self.constraints: Any = None
        self.ngram_size = self.least = 0
        if any(not isinstance(one, _FORBIDDING) for one in constraints):
            self.constraints = constraints
            return
        for one in constraints:
            if isinstance(one, NoRepeatNGramLogitsProcessor):
                self.ngram_size = one.ngram_size
            else:
                self.least = one.min_new_tokens

    @property
    def is_greedy(self) -> bool:
        """Whether a row takes the likeliest of the tokens that are not forbidden."""
        return self.job.decoding.sampling is None and self.constraints is None


class _Running:
    """A row that runs: its tokens, those before its reply included, and the n-grams among them."""

    def __init__(self, row: Row, rules: _Rules) -> None:
        self.row, self.rules, self.tokens = row, rules, [*rules.prompt]
        self._followers: dict[tuple[int, ...], list[int]] = {}
        """The tokens that came after each n-gram of one token less."""
        if rules.ngram_size:
            for end in range(rules.ngram_size, len(self.tokens) + 1):
                self._note(self.tokens[end - rules.ngram_size : end])

    def _note(self, ngram: list[int]) -> None:
        self._followers.setdefault(tuple(ngram[:-1]), []).append(ngram[-1])

    def forbidden(self) -> list[int]:
        """The tokens that the row may not use next."""
        rules, tokens = self.rules, list[int]()
        if rules.ngram_size and len(self.tokens) + 1 >= rules.ngram_size:
            last = self.tokens[len(self.tokens) + 1 - rules.ngram_size :]
            tokens += self._followers.get(tuple(last), [])
        if len(self.row.tokens) < rules.least:
            tokens += rules.eos
        return tokens

    def append(self, token: int, logprob: float) -> None:
        """Take over the next token."""
        row, rules = self.row, self.rules
        row.tokens.append(token)
        row.logprobs.append(logprob)
        self.tokens.append(token)
        if rules.ngram_size and len(self.tokens) >= rules.ngram_size:
            self._note(self.tokens[-rules.ngram_size :])
        if token in rules.eos:
            row.finish = "stop"
        elif len(row.tokens) >= rules.longest:
            row.finish = "length"


@dataclass(frozen=True)
class _Twin:
    """A row that reads an empty context, and is given the tokens of a guided row."""

    lead: _Running

    @property
    def row(self) -> Row:
        """The guided row, with which it leaves."""
        return self.lead.row

    @property
    def rules(self) -> _Rules:
        """The guided row's."""
        return self.lead.rules
