"""What is measured on the way: the likelihood of unseen responses, and replies with their metrics.

Legend: N samples, K decoders.
"""

import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyreply.data.dialogue import Dialogue
from polyreply.data.read import read_dialogues
from polyreply.distributed import Processes
from polyreply.em.e_step import e_step
from polyreply.em.posterior import captured, posterior
from polyreply.metrics import PAPER_NUMBERS, evaluate
from polyreply.models.score import Limits
from polyreply.training.recipe import TrainRecipe
from polyreply.training.record import ValidationRecord
from polyreply.training.setup import Setup, autocast

_SCANNED = 20_000
"""Rows of the validation file among which the contexts are chosen."""


@dataclass
class Validation:
    """A fixed sample of the validation split."""

    setup: Setup
    recipe: TrainRecipe
    processes: Processes
    sample_ids: Any
    dialogues: list[Dialogue]

    @staticmethod
    def of(setup: Setup, recipe: TrainRecipe, processes: Processes) -> "Validation | None":
        """The sample a recipe asks for; None without a validation split."""
        if setup.valid is None or not len(setup.valid) or setup.valid_file is None:
            return None
        random = np.random.default_rng([recipe.seed, 7])
        number = min(recipe.validation.samples, len(setup.valid))
        ids = np.sort(random.choice(len(setup.valid), number, replace=False))
        dialogues = _dialogues(setup.valid_file, recipe.validation.contexts, random)
        return Validation(setup, recipe, processes, ids, dialogues)

    @property
    def measured(self) -> str:
        """The samples whose likelihood is measured: only if they are the same can two likelihoods be compared."""
        return f"{len(self.sample_ids)} of {self.setup.valid.path.stem}"  # type: ignore[union-attr]

    def measure(self, step: int) -> ValidationRecord:
        """Likelihood, replies and their metrics; dropout is off. Each process does its share, all get the same."""
        begin = time.perf_counter()
        model = self.setup.poly.model
        was_training = model.training
        model.train(False)
        try:
            metrics = self._likelihood()
            replies = self._replies()
        finally:
            model.train(was_training)
        if replies:
            references = [list(dialogue.responses) for dialogue in self.dialogues]
            scores = evaluate(
                [reply["responses"] for reply in replies], references, tokenizer=self.recipe.validation.tokenizer
            )
            found = {name: scores[name] for name in (*PAPER_NUMBERS, "identical")}
            metrics |= {name: value for name, value in found.items() if value is not None}
        seconds = time.perf_counter() - begin
        return ValidationRecord(step, metrics["mixture_nll"], metrics, replies, seconds)

    def _likelihood(self) -> dict[str, float]:
        """NLL per token of the mixture and of each sample's best decoder, and the information captured."""
        own = self.sample_ids[self.processes.rank :: self.processes.size]
        samples = self.setup.samples(self.setup.valid, own)  # type: ignore[arg-type]
        with autocast(self.recipe, self.setup.poly.device):
            evidence = e_step(self.setup.poly.model, samples, limits=Limits(self.recipe.optimizer.max_tokens))
        shares = evidence.nll_NK, evidence.log_prior_NK, samples.response_mask_NT.sum(1, keepdim=True).double()
        gathered = (self.processes.gather(share.cpu(), len(self.sample_ids)) for share in shares)
        nll_NK, log_prior_NK, length_N1 = gathered
        tokens = float(length_N1.sum())
        mixture_N = -torch.logsumexp(log_prior_NK - nll_NK, 1)
        best_N = nll_NK.min(1).values
        found = {"mixture_nll": float(mixture_N.sum()) / tokens, "best_nll": float(best_N.sum()) / tokens}
        if nll_NK.shape[1] > 1:
            found["captured"] = captured(nll_NK.numpy())
            found["max_posterior"] = float(posterior(nll_NK.numpy(), log_prior_NK.numpy()).max(1).mean())
        return found

    def _replies(self) -> list[dict[str, Any]]:
        if not self.dialogues:
            return []
        contexts = [dialogue.context for dialogue in self.dialogues]
        own = contexts[self.processes.rank :: self.processes.size]
        found = self.setup.poly.reply(own, max_new_tokens=self.recipe.validation.max_new_tokens) if own else []
        texts = self.processes.gather_items([[reply.text for reply in replies] for replies in found], len(contexts))
        return [
            {"context": list(context), "responses": responses}
            for context, responses in zip(contexts, texts, strict=True)
        ]


def _dialogues(path: Path, number: int, random: np.random.Generator) -> list[Dialogue]:
    rows = list(islice(read_dialogues(path), _SCANNED))
    chosen = np.sort(random.choice(len(rows), min(number, len(rows)), replace=False))
    return [rows[int(place)] for place in chosen]
