"""Have the decoders found the modes? Measured on held-out pairs of a corpus, best on smalltalk, whose acts are known.

Legend: N samples, K decoders, A acts.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from polyreply.data.batches import collate
from polyreply.data.dialogue import Dialogue
from polyreply.data.read import read_dialogues
from polyreply.data.smalltalk import ACTS, label
from polyreply.data.token_corpus import TokenCorpus
from polyreply.em.e_step import Likelihoods, e_step
from polyreply.em.posterior import captured, posterior
from polyreply.models.score import Samples
from polyreply.reply import PolyReply

_SEED = 11
_MAX_NEW_TOKENS = 32


@dataclass(frozen=True)
class Recovery:
    """How far a model has found the modes of a corpus."""

    usage: list[float]
    """Share of the held-out pairs of which each decoder is the best, (K,)."""
    captured: float
    """Information captured, 0 to 1."""
    max_posterior: float
    """Mean over pairs of the largest posterior."""
    mixture_nll: float
    """Of a response under the uniform mixture of the decoders, in nats."""
    best_nll: float
    """Of a response under its best decoder."""
    acts: float
    """How many of the ten acts are among the K replies to a context, on average; 0 where replies carry none."""
    labelled: float
    """Share of the replies that carry an act at all."""
    act_shares: list[list[float]] = field(default_factory=list)
    """For each decoder the share of its replies that carry each act, (K, A)."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def measure_recovery(model: PolyReply, data: Path, *, pairs: int = 1000, contexts: int = 100) -> Recovery:
    """Measures a model on a random sample of a dialogue file, always the same one."""
    evidence = held_out_evidence(model, data, pairs)
    nll_NK = evidence.nll_NK.numpy()
    best_N = nll_NK.argmin(1)
    acts = _acts(model, data, contexts)
    return Recovery(
        usage=(np.bincount(best_N, minlength=nll_NK.shape[1]) / len(best_N)).tolist(),
        captured=captured(nll_NK) if nll_NK.shape[1] > 1 else 0.0,
        max_posterior=float(posterior(nll_NK, evidence.log_prior_NK.numpy()).max(1).mean()),
        mixture_nll=float(-torch.logsumexp(evidence.log_prior_NK - evidence.nll_NK, 1).mean()),
        best_nll=float(nll_NK.min(1).mean()),
        acts=float(np.mean([len({act for act in said if act}) for said in acts])),
        labelled=float(np.mean([[act is not None for act in said] for said in acts])),
        act_shares=[_shares(column) for column in zip(*acts, strict=True)],
    )


def held_out_evidence(model: PolyReply, data: Path, pairs: int) -> Likelihoods:
    """NLL and log prior of a random sample of the pairs of a dialogue file, in nats a response, on the CPU."""
    corpus = TokenCorpus.build(data, model.tokenizer, model.model.config.format())
    chosen = held_out_ids(len(corpus), pairs)
    batch = collate(corpus, chosen, model.tokenizer.pad_token_id or 0)
    found = e_step(model.model, Samples.of(batch, model.device))
    return Likelihoods(found.nll_NK.cpu(), found.log_prior_NK.cpu())


def held_out_ids(total: int, pairs: int) -> npt.NDArray[np.int64]:
    """Which pairs of a file are sampled, and in which order."""
    return np.random.default_rng(_SEED).permutation(total)[:pairs]


def _acts(model: PolyReply, data: Path, contexts: int) -> list[list[str | None]]:
    """The act of each decoder's reply to a random sample of the contexts."""
    dialogues: list[Dialogue] = list(read_dialogues(data))
    chosen = np.sort(np.random.default_rng(_SEED).permutation(len(dialogues))[:contexts])
    replies = model.reply([dialogues[place].context for place in chosen], max_new_tokens=_MAX_NEW_TOKENS)
    return [[label(one.text) for one in found] for found in replies]


def _shares(acts: Sequence[str | None]) -> list[float]:
    count = Counter(acts)
    return [count[act] / len(acts) for act in ACTS]
