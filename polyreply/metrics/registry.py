"""The registry of metrics: what a score is called, whether more of it is better, and how it is computed.

A metric is one function and one registration, in this package or outside it:

```python
from polyreply.metrics import metric

@metric("exclamations", label="Exclamations %", better=0)
def exclamations(responses, references):
    return 100 * sum(text.endswith("!") for text in responses) / len(responses)
```

`evaluate` then computes it, score files keep it, tables label it, `compare` tests it, and the signature names it. The
built-in metrics are in `bleu.py`, `diversity.py`, `embeddings.py` and `relevance.py`; `evaluation.py` adds them.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from polyreply.arrays import Floats
from polyreply.errors import PolyReplyError
from polyreply.metrics.ngrams import Block
from polyreply.tables import Column

PAPER_NUMBERS = "bleu1_f bleu1_p bleu1_r bleu2_f bleu2_p bleu2_r dist1 dist2 pairwise_bleu".split()
"""The scores of the paper's tables, in their order."""

ContextMetric = Callable[[Sequence[str], Sequence[str]], float | None]
"""From the responses to one context and its references to a value, or None where it has none."""


class CorpusMetric(Protocol):
    """Accumulates a score of the whole corpus that is not a mean over contexts."""

    def add(self, block: Block) -> None:
        """Count the contexts of a block."""

    def value(self) -> float | None:
        """The score, or None if these contexts do not define it."""


@dataclass(frozen=True)
class Metric:
    """A score, computed in one of three ways: `per_block`, `corpus` or `harmonic_of`."""

    name: str
    """In score files and in Python."""
    column: Column
    """In tables: its label, and whether higher or lower is better."""
    description: str = ""
    """What it says about the responses, in a few words."""
    per_block: Callable[[Block], Floats] | None = None
    """One value for each context of a block, NaN where it has none; the score is their mean over all contexts."""
    corpus: Callable[[], CorpusMetric] | None = None
    """Makes an accumulator."""
    harmonic_of: tuple[str, ...] = ()
    """Two metrics whose means over contexts are combined, such as P and R to F."""
    needs_references: bool = False
    only_with: str = ""
    """What has to be asked for so that it is computed: `embeddings` or `relevance`."""
    shown: bool = False
    """Whether tables show it by default."""
    version: str = ""
    """Distinguishes definitions in the signature; empty for built-in metrics, which have polyreply's version."""


METRICS: dict[str, Metric] = {}
"""All metrics by name, in the order of score files and tables."""


def register(new: Metric) -> None:
    """Add a metric from outside the package, or replace one that was added earlier."""
    if not re.fullmatch("[a-z][a-z0-9_]*", new.name) or new.name in _RESERVED:
        raise PolyReplyError(
            f"metric {new.name!r}: expected a name of small letters, digits and _ that is not a field of score files "
            f"({', '.join(sorted(_RESERVED))}); choose another"
        )
    if not re.fullmatch("[A-Za-z0-9._-]+", new.version):
        raise PolyReplyError(f"metric {new.name}: expected a version of letters and digits, found {new.version!r}")
    if new.name in METRICS and not METRICS[new.name].version:
        raise PolyReplyError(f"metric {new.name}: polyreply has one of that name; choose another")
    METRICS[new.name] = new


_RESERVED = frozenset({"schema_version", "signature", "contexts", "per_context", "system", "data", "notes"})
"""Other fields of a score file."""


def metric(
    name: str,
    *,
    label: str = "",
    better: Literal[1, -1, 0] = 0,
    needs_references: bool = False,
    version: str = "1",
) -> Callable[[ContextMetric], ContextMetric]:
    """Register a function of one context's responses and references as a metric; the score is its mean over contexts.

    `better` is 1 if higher is better, -1 if lower is, 0 for a score that only describes. Change `version` with the
    definition: the signature keeps it, so that scores of two definitions are not compared.
    """

    def add(function: ContextMetric) -> ContextMetric:
        def per_block(block: Block) -> Floats:
            values = [function(*texts) for texts in zip(block.responses, block.references, strict=True)]
            return np.array([math.nan if value is None else value for value in values], np.float64)

        description = (function.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        column = Column(label or name, better=better)
        new = Metric(
            name, column, description, per_block, needs_references=needs_references, version=version, shown=True
        )
        register(new)
        return function

    return add


def column(name: str) -> Column:
    """The column of a score in tables; an unknown score has its own name and no direction."""
    return METRICS[name].column if name in METRICS else Column(name)


def label(name: str) -> str:
    """What a score is called in tables and plots."""
    return column(name).heading


def direction(name: str) -> int:
    """1 where higher is better, -1 where lower is, 0 for a score that only describes."""
    return column(name).better


def parts(name: str) -> tuple[str, ...]:
    """The per-context values behind a score: two for a harmonic mean of means, otherwise its own."""
    return (METRICS[name].harmonic_of if name in METRICS else ()) or (name,)


def harmonic_mean(precision: ArrayLike, recall: ArrayLike) -> Floats:
    """F of P and R, elementwise; 0 where both are 0."""
    one, two = np.asarray(precision, np.float64), np.asarray(recall, np.float64)
    total = one + two
    return np.asarray(np.where(total > 0, 2 * one * two / np.where(total > 0, total, 1), 0.0))
