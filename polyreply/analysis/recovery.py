"""How far the decoders have found the modes of a corpus, measured on held-out pairs.

Best on smalltalk, where the act of every response is known. Legend: N samples, C contexts, K decoders, A acts.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyreply.arrays import Ints
from polyreply.data.batches import collate
from polyreply.data.read import read_dialogues
from polyreply.data.smalltalk import ACTS, label
from polyreply.data.token_corpus import TokenCorpus
from polyreply.em.e_step import Likelihoods, e_step
from polyreply.em.posterior import captured, posterior
from polyreply.em.settings import EMSettings
from polyreply.models.score import Samples
from polyreply.reply import PolyReply

_SEED = 11
_MAX_NEW_TOKENS = 32


@dataclass(frozen=True)
class Recovery:
    """How far a model has found the modes of a corpus."""

    usage: list[float]
    """Share of the held-out pairs for which each decoder is the best, (K,)."""
    captured: float
    """Information captured, 0 to 1."""
    max_posterior: float
    """Mean over pairs of the largest posterior."""
    mixture_nll: float
    """Of a response under the uniform mixture of the decoders, in nats."""
    best_nll: float
    """Of a response under its best decoder."""
    acts: float
    """Mean number of different acts among the K replies to a context; 0 where replies carry none."""
    labelled: float
    """Share of the replies that carry an act."""
    act_shares: list[list[float]] = field(default_factory=list)
    """For each decoder the share of its replies that carry each act, (K, A)."""

    def to_json(self) -> dict[str, Any]:
        """The measures as plain values."""
        return asdict(self)


def measure_recovery(model: PolyReply, data: Path, *, pairs: int = 1000, contexts: int = 100) -> Recovery:
    """Measure a model on a random sample of a dialogue file, the same in every run."""
    likelihoods = held_out_likelihoods(model, data, pairs)
    nll_NK, log_prior_NK = likelihoods.nll_NK.numpy(), likelihoods.log_prior_NK
    best_N = nll_NK.argmin(1)
    acts_CK = _acts(model, data, contexts)
    counts_K = [Counter(acts_C) for acts_C in zip(*acts_CK, strict=True)]
    return Recovery(
        usage=(np.bincount(best_N, minlength=nll_NK.shape[1]) / len(best_N)).tolist(),
        captured=captured(nll_NK) if nll_NK.shape[1] > 1 else 0.0,
        max_posterior=float(posterior(nll_NK, log_prior_NK.numpy()).max(1).mean()),
        mixture_nll=float(-torch.logsumexp(log_prior_NK - likelihoods.nll_NK, 1).mean()),
        best_nll=float(nll_NK.min(1).mean()),
        acts=float(np.mean([len(set(acts_K) - {None}) for acts_K in acts_CK])),
        labelled=float(np.mean([[act is not None for act in acts_K] for acts_K in acts_CK])),
        act_shares=[[count[act] / len(acts_CK) for act in ACTS] for count in counts_K],
    )


def held_out_likelihoods(model: PolyReply, data: Path, pairs: int, settings: EMSettings | None = None) -> Likelihoods:
    """NLL and log prior of a random sample of the pairs of a dialogue file, on the CPU; in nats per response."""
    corpus = TokenCorpus.build(data, model.tokenizer, model.model.config.format())
    batch = collate(corpus, held_out_ids(len(corpus), pairs), model.tokenizer.pad_token_id or 0)
    likelihoods = e_step(model.model, Samples.of(batch, model.device), settings)
    return Likelihoods(*(part_NK.cpu() for part_NK in likelihoods))


def held_out_ids(total: int, pairs: int) -> Ints:
    """Which pairs of a file are sampled, and in which order."""
    return np.random.default_rng(_SEED).permutation(total)[:pairs]


def _acts(model: PolyReply, data: Path, contexts: int) -> list[list[str | None]]:
    """The act of each decoder's reply to a random sample of the contexts, (C, K)."""
    dialogues = list(read_dialogues(data))
    chosen = np.sort(np.random.default_rng(_SEED).permutation(len(dialogues))[:contexts])
    replies = model.reply([dialogues[place].context for place in chosen], max_new_tokens=_MAX_NEW_TOKENS)
    return [[label(one.text) for one in own] for own in replies]
