"""Validation: the likelihood of unseen responses, and replies with their metrics.

Legend: N samples, K decoders.
"""

import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyreply.arrays import Ints
from polyreply.data.batches import collate
from polyreply.data.dialogue import Dialogue
from polyreply.data.read import read_dialogues
from polyreply.data.token_corpus import TokenCorpus
from polyreply.em.e_step import e_step
from polyreply.em.em_step import EM
from polyreply.em.posterior import captured, posterior
from polyreply.metrics import PAPER_NUMBERS, evaluate
from polyreply.models.score import Samples
from polyreply.reply import PolyReply
from polyreply.training.recipe import ValidationSettings

_SCANNED = 20_000
"""Rows of the validation file among which the contexts are chosen."""


@dataclass(frozen=True)
class ValidationRecord:
    """What one validation measured."""

    step: int
    nll: float
    """Mean NLL per token."""
    metrics: dict[str, float]
    """Numbers by the names they have in a score file."""
    replies: list[dict[str, Any]]
    """A few contexts, the same each time, with a reply of each decoder: {"context": …, "responses": […]}."""
    seconds: float


@dataclass
class Validation:
    """A fixed sample of the validation split."""

    em: EM
    poly: PolyReply
    settings: ValidationSettings
    corpus: TokenCorpus
    ids_N: Ints
    dialogues: list[Dialogue]

    @staticmethod
    def draw(
        em: EM, poly: PolyReply, settings: ValidationSettings, corpus: TokenCorpus | None, file: Path | None
    ) -> "Validation | None":
        """Draw the sample that the settings ask for; None without a validation split."""
        if corpus is None or not len(corpus) or file is None:
            return None
        rng = np.random.default_rng([em.seed, 7])
        ids_N = np.sort(rng.choice(len(corpus), min(settings.samples, len(corpus)), replace=False))
        rows = list(islice(read_dialogues(file), _SCANNED))
        chosen = np.sort(rng.choice(len(rows), min(settings.contexts, len(rows)), replace=False))
        return Validation(em, poly, settings, corpus, ids_N, [rows[int(place)] for place in chosen])

    @property
    def measured(self) -> str:
        """Identifies the samples: two likelihoods can be compared only if these are the same."""
        return f"{len(self.ids_N)} of {self.corpus.path.stem}"

    def measure(self) -> ValidationRecord:
        """Measure likelihood, replies and their metrics, without dropout. Each process does its share."""
        start = time.perf_counter()
        self.em.model.train(False)
        metrics, replies = self._likelihood(), self.replies()
        if replies:
            references = [list(dialogue.responses) for dialogue in self.dialogues]
            scores = evaluate([reply["responses"] for reply in replies], references, tokenizer=self.settings.tokenizer)
            shown = {name: scores[name] for name in (*PAPER_NUMBERS, "identical")}
            metrics |= {name: value for name, value in shown.items() if value is not None}
        return ValidationRecord(self.em.step, metrics["mixture_nll"], metrics, replies, time.perf_counter() - start)

    def _likelihood(self) -> dict[str, float]:
        """NLL per token of the mixture and of each sample's best decoder, and the information captured."""
        processes = self.em.processes
        batch = collate(self.corpus, processes.own(self.ids_N), self.em.pad_id)
        samples = Samples.of(batch, self.em.model.device)
        with self.em.computing("e-step"):
            own = e_step(self.em.model, samples, limits=self.em.limits)
        parts = (*own, samples.response_mask_NT.sum(1, keepdim=True).double())
        nll_NK, log_prior_NK, length_N1 = (processes.gather(part.cpu(), len(self.ids_N)) for part in parts)
        tokens = float(length_N1.sum())
        mixture_N = -torch.logsumexp(log_prior_NK - nll_NK, 1)
        best_N = nll_NK.min(1).values
        metrics = {"mixture_nll": float(mixture_N.sum()) / tokens, "best_nll": float(best_N.sum()) / tokens}
        if nll_NK.shape[1] > 1:
            metrics["captured"] = captured(nll_NK.numpy())
            metrics["max_posterior"] = float(posterior(nll_NK.numpy(), log_prior_NK.numpy()).max(1).mean())
        return metrics

    def replies(self) -> list[dict[str, Any]]:
        """The decoders' replies to the contexts of the sample; each process makes its share."""
        contexts = [dialogue.context for dialogue in self.dialogues]
        own = self.em.processes.own(contexts)
        replies = self.poly.reply(own, max_new_tokens=self.settings.max_new_tokens) if own else []
        own_texts = [[reply.text for reply in decoders] for decoders in replies]
        texts = self.em.processes.gather_items(own_texts, len(contexts))
        return [
            {"context": list(context), "responses": responses}
            for context, responses in zip(contexts, texts, strict=True)
        ]
