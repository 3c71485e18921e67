"""The scores of one system on one set of contexts, and the file they are kept in.

The file is one JSON object: the numbers under their names, percent as in the paper; `signature`; and under
`per_context` the value of each context, from which significance is computed. It is written under a temporary name and
renamed.
"""

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyreply.arrays import Floats
from polyreply.files import write_file
from polyreply.metrics.signature import Signature

SCHEMA_VERSION = 1

PAPER_NUMBERS = (
    "bleu1_f bleu1_p bleu1_r bleu2_f bleu2_p bleu2_r dist1 dist2 pairwise_bleu".split()  # in the paper's order
)

_DECIMALS = 4
"""Of the per-context percentages in a file: far finer than the differences that significance is about."""


@dataclass(frozen=True)
class Scores:
    """What `evaluate` found: `scores["bleu2_f"]`; None for a number that these inputs do not define."""

    numbers: dict[str, float | None]
    per_context: dict[str, Floats]
    """One value for each context, NaN where a context has none."""
    signature: Signature
    num_contexts: int
    data: str = ""
    """Digest of all references in their order, equal where systems answered the same contexts."""
    system: str = ""
    """The system's name, if it was given one; several files with one name are several seeds of it."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know before trusting a number."""

    def __getitem__(self, name: str) -> float | None:
        """The number of that name."""
        return self.numbers[name]

    def summary(self) -> dict[str, Any]:
        """Everything but the per-context values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "system": self.system,
            "contexts": self.num_contexts,
            **self.numbers,
            "signature": str(self.signature),
            "data": self.data,
            "notes": self.notes,
        }

    def save(self, path: Path, *, overwrite: bool = False) -> None:
        """Writes the file, complete or not at all; compressed if its name ends in .gz."""
        values = {name: np.round(column, _DECIMALS).tolist() for name, column in self.per_context.items()}
        text = msgspec.json.encode({**self.summary(), "per_context": values}) + b"\n"  # NaN becomes null
        write_file(path, gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text, overwrite=overwrite)


def harmonic_mean(precision: float, recall: float) -> float:
    """F of P and R; 0 when both are."""
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
