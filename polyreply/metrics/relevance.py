"""Relevance: do the responses answer their own context, or would they fit any?

A sentence-embedding model ranks 50 contexts by how near they are to a response: its own, and 49 others drawn from the
same file. `relevance` is the percentage of responses whose own context comes first. People's references have a score
too (`relevance_references`): many good replies ("That would be great!") do not show what they answer, so 100 is not the
aim. A model could gain by copying words of the context, so `copied` says how many of a response's words are in it.

Legend: N contexts, C candidates for each, K responses of a context, D dimensions.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from polyreply.arrays import Floats, Ints
from polyreply.metrics.embeddings import Texts, Vectors, embed
from polyreply.metrics.registry import Metric
from polyreply.progress import Notify, silent
from polyreply.tables import Column

CANDIDATES = 50
"""Contexts that are ranked for a response, its own among them."""
Context = str | Sequence[str]
"""A message, or the turns of a conversation."""


def joined_turns(contexts: Sequence[Context]) -> list[str]:
    """Each context as one text."""
    return [text if isinstance(text, str) else "\n".join(text) for text in contexts]


def relevance_columns(
    said: Sequence[str],
    responses: Texts,
    references: Texts | None,
    tokenize: Callable[[str], Sequence[str]],
    notify: Notify = silent,
) -> dict[str, Floats]:
    """The values of each context (`said`) in percent, see `RELEVANCE_METRICS`; `tokenize` finds the words."""
    groups = {"": responses} if references is None else {"": responses, "_references": references}
    distinct = list(dict.fromkeys([*said, *(text for texts in groups.values() for row in texts for text in row)]))
    place = {text: number for number, text in enumerate(distinct)}
    vectors = embed(distinct, lambda share: notify("embedding", share))
    context_ND = vectors[[place[text] for text in said]]
    candidates_NC = draw_candidates(said)
    columns: dict[str, Floats] = {}
    for suffix, texts in groups.items():
        first = [
            _share_first(vectors[[place[text] for text in row]], context_ND[candidates])
            for row, candidates in zip(texts, candidates_NC, strict=True)
        ]
        columns[f"relevance{suffix}"] = 100 * np.array(first)
        copied = [_share_copied(row, context, tokenize) for row, context in zip(texts, said, strict=True)]
        columns[f"copied{suffix}"] = 100 * np.array(copied)
    return columns


def draw_candidates(contexts: Sequence[str]) -> list[Ints]:
    """For each context its own number, followed by those of up to 49 others with another text.

    The draw depends on the contexts alone, so all systems that answer them are ranked among the same ones.
    """
    rng = np.random.default_rng(0)
    numbers: dict[str, int] = {}
    text_N = np.array([numbers.setdefault(text, len(numbers)) for text in contexts])
    first_of_text = np.unique(text_N, return_index=True)[1]
    drawn = []
    for own, text in enumerate(text_N):
        some = rng.choice(len(first_of_text), min(CANDIDATES, len(first_of_text)), replace=False)
        others = first_of_text[some[some != text][: CANDIDATES - 1]]
        drawn.append(np.concatenate([[own], others]))
    return drawn


def _share_first(responses_KD: Vectors, candidates_CD: Vectors) -> float:
    """The share of responses nearer to the first candidate than to any other; a text without words is near to none."""
    cosine_KC = responses_KD @ candidates_CD.T
    is_first_K = (cosine_KC[:, 0] > cosine_KC[:, 1:].max(1, initial=-np.inf)) & responses_KD.any(1)
    return float(is_first_K.mean())


def _share_copied(responses: Sequence[str], context: str, tokenize: Callable[[str], Sequence[str]]) -> float:
    """The share of the responses' words that are in the context too; NaN without a word."""
    known = set(tokenize(context))
    words = [word for text in responses for word in tokenize(text) if word[0].isalnum()]
    return sum(word in known for word in words) / len(words) if words else float("nan")


def _metric(name: str, heading: str, better: Literal[1, 0], description: str, *, references: bool = False) -> Metric:
    column = Column(heading, better=better)
    return Metric(name, column, description, needs_references=references, only_with="relevance", shown=True)


RELEVANCE_METRICS = (
    _metric("relevance", "Relevance", 1, f"percentage whose own context is ranked first of {CANDIDATES}"),
    _metric("relevance_references", "Relevance of references", 0, "the same of people's replies", references=True),
    _metric("copied", "Copied words", 0, "percentage of words that are in the context"),
    _metric("copied_references", "Copied by references", 0, "the same of people's replies", references=True),
)
