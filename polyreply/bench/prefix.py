"""`polyreply bench prefix`: what an E-step that looks only at the beginnings of responses saves, and what it changes.

A trained model and real data are needed: how early decoders can be told apart depends on what they have learnt.

Legend: N samples, K decoders.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyreply.bench.timing import timed
from polyreply.data.batches import collate
from polyreply.data.folder import split_files
from polyreply.data.token_corpus import TokenCorpus
from polyreply.em.assign import Evidence, assign
from polyreply.em.e_step import e_step
from polyreply.em.settings import EMSettings
from polyreply.models.score import Samples
from polyreply.progress import Notify
from polyreply.reply import PolyReply

LENGTHS = (2, 4, 8, 16)


def bench_prefix(model: str, data: Path, number: int, notify: Notify) -> dict[str, Any]:
    """Agreement of the balanced assignment with the full one, and the time of the E-step, for each length."""
    poly = PolyReply.from_pretrained(model)
    corpus = TokenCorpus.build(split_files(data)["train"], poly.tokenizer, poly.model.config.format())
    ids_N = np.random.default_rng(0).permutation(len(corpus))[:number]
    samples = Samples.of(collate(corpus, ids_N, poly.tokenizer.pad_token_id or 0))
    e_step(poly.model, samples.select(torch.arange(min(8, len(samples)))))  # one-time costs of the libraries
    notify("all tokens", 0.0)
    full_N, full_seconds = _assigned(poly, samples, ids_N, None)
    figures: dict[str, Any] = {"prefix.n": len(ids_N), "prefix.full_seconds": full_seconds}
    for place, length in enumerate(LENGTHS):
        notify(f"{length} tokens", (place + 1) / (len(LENGTHS) + 1))
        found_N, seconds = _assigned(poly, samples, ids_N, length)
        figures[f"prefix.t{length}_agreement"] = float((found_N == full_N).mean())
        figures[f"prefix.t{length}_time_saved"] = 1 - seconds / full_seconds
    return figures


def _assigned(poly: PolyReply, samples: Samples, ids_N: Any, max_tokens: int | None) -> tuple[Any, float]:
    likelihoods, seconds = timed(lambda: e_step(poly.model, samples, EMSettings(e_step_max_tokens=max_tokens)))
    found = assign("eqhard-em", Evidence(likelihoods.nll_NK.numpy(), likelihoods.log_prior_NK.numpy(), ids_N))
    return found.weights_NK.argmax(1), seconds
