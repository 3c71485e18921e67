"""The scores of one system on one set of contexts, the signature that says how they were computed, and their file.

A score file is one JSON object: the scores under their names, in percent as in the paper; `signature`; and under
`per_context` the value of each context, from which significance is computed.
"""

import gzip
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyreply import __version__
from polyreply.arrays import Floats
from polyreply.errors import PolyReplyError
from polyreply.files import check_schema_version, write_file
from polyreply.metrics.registry import METRICS, PAPER_NUMBERS, label, parts
from polyreply.metrics.significance import intervals
from polyreply.tables import Table

SCHEMA_VERSION = 1
_DECIMALS = 4
"""Of the per-context percentages in a file: far finer than the differences that significance is about."""
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Signature:
    """What a score depends on besides the texts, as in `tok:wordpunct|case:lower|smooth:none|avg:contexts|k:10|…`."""

    tokenizer: str
    case: str
    k: str
    """Responses of each context: a number, or `variable(3-10)`."""
    references: str
    """References of each context: a number, a range such as `1-5`, or `none`."""
    embeddings: str = ""
    """The model behind the embedding-based scores, if there are any."""
    relevance: str = ""
    """Among how many contexts a response's own is ranked, as in `first-of-50`, if relevance was measured."""
    metrics: str = ""
    """Metrics from outside the package with their versions, as in `exclamations@1+rhymes@2`."""
    smoothing: str = "none"
    """As NLTK without a smoothing function: a precision of 0 makes BLEU about 0."""
    averaging: str = "contexts"
    """P and R are averaged over contexts, each counting the same; F is the harmonic mean of these averages."""
    version: str = __version__

    def __str__(self) -> str:
        return "|".join(f"{key}:{getattr(self, name)}" for key, name in _KEYS.items() if getattr(self, name))

    @classmethod
    def parse(cls, text: str) -> "Signature":
        """The signature that was written as `text`."""
        fields = dict(part.partition(":")[::2] for part in text.split("|"))
        if not set(_KEYS) - {"emb", "rel", "with"} <= set(fields) <= set(_KEYS):
            raise PolyReplyError(f"expected a signature such as tok:…|case:…|…|v:…, found {text!r}")
        return cls(**{_KEYS[key]: value for key, value in fields.items()})

    def differences(self, other: "Signature") -> list[str]:
        """The fields in which two signatures differ, as `k: 10 and 5`.

        Scores that only one of them has do not matter to the others; the same score by two definitions does.
        """
        differences = []
        for key, name in _KEYS.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if name == "metrics":
                versions = [dict(one.partition("@")[::2] for one in text.split("+")) for text in (mine, theirs)]
                common = [one for one in versions[0] if one in versions[1]]
                mine, theirs = ("+".join(f"{one}@{by[one]}" for one in common) for by in versions)
            if mine != theirs and (name not in ("embeddings", "relevance") or (mine and theirs)):
                differences.append(f"{key}: {mine} and {theirs}")
        return differences


_KEYS = {
    "tok": "tokenizer",
    "case": "case",
    "smooth": "smoothing",
    "avg": "averaging",
    "k": "k",
    "refs": "references",
    "emb": "embeddings",
    "rel": "relevance",
    "with": "metrics",
    "v": "version",
}


def span(counts: Iterable[int]) -> str:
    """`5` if all counts are equal, `1-5` otherwise."""
    counts = list(counts)
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}-{high}"


@dataclass(frozen=True)
class Scores:
    """What `evaluate` returns: `scores["bleu2_f"]`, None for a score that these inputs do not define."""

    numbers: dict[str, float | None]
    per_context: dict[str, Floats]
    """One value for each context, NaN where a context has none."""
    signature: Signature
    num_contexts: int
    data: str = ""
    """Digest of all references in their order, equal where systems answered the same contexts."""
    system: str = ""
    """The system's name, if it was given one; scores with one name are seeds of one system."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know before trusting a score."""

    def __getitem__(self, name: str) -> float | None:
        return self.numbers[name]

    def __str__(self) -> str:
        table = Table("", ["score", "value"], [[label(name), self.numbers[name]] for name in self.shown])
        return f"{table}\n{self.signature}"

    @property
    def shown(self) -> list[str]:
        """The scores that tables show by default: the paper's, identical pairs, relevance, and metrics from outside."""
        return [name for name in self.numbers if name in METRICS and METRICS[name].shown]

    def table(self, title: str = "", names: Sequence[str] = ()) -> Table:
        """The scores of these names (by default those that tables show) with 95 % intervals over contexts."""
        names = names or self.shown
        known = intervals(self.per_context, names)
        rows = []
        for name in names:
            interval = "{:.2f} to {:.2f}".format(*known[name]) if name in known else ""
            description = METRICS[name].description if name in METRICS else ""
            rows.append([label(name), self.numbers[name], interval, description])
        return Table(title, ["score", "value", "95 % interval", "meaning"], rows)

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
        """Write the score file atomically; compressed if its name ends in .gz."""
        values = {name: np.round(column, _DECIMALS).tolist() for name, column in self.per_context.items()}
        text = msgspec.json.encode({**self.summary(), "per_context": values}) + b"\n"  # NaN becomes null
        write_file(path, gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text, overwrite=overwrite)


# --- reading a score file


class _File(msgspec.Struct):
    schema_version: int
    signature: str
    contexts: int
    per_context: dict[str, list[float | None]]
    system: str = ""
    data: str = ""
    notes: list[str] = []


def load_scores(path: Path) -> Scores:
    """Read a file that `Scores.save` wrote."""
    if not path.exists():
        raise PolyReplyError(f"{path}: there is no such file; check the path")
    if path.is_dir():
        raise PolyReplyError(f"{path}: expected a score file, found a folder; name a file in it")
    text = path.read_bytes()
    try:
        text = gzip.decompress(text) if text.startswith(_GZIP_MAGIC) else text
        tree = msgspec.json.decode(text)
        if isinstance(tree, Mapping) and "schema_version" in tree:
            check_schema_version(path, tree["schema_version"], SCHEMA_VERSION)
        checked = msgspec.convert(tree, _File)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        reason = str(error).replace("`$.", "`").replace("`$`", "the top")
        reason = reason if reason[1:2].isupper() else reason[:1].lower() + reason[1:]  # "JSON is malformed" stays
        raise PolyReplyError(
            f"{path}: expected a score file as `polyreply evaluate --output` writes it, found something else "
            f"({reason}); evaluate the responses first"
        ) from None
    try:
        per_context = _columns(checked)
        numbers = _numbers(tree, per_context)
        signature = Signature.parse(checked.signature)
    except PolyReplyError as error:
        raise PolyReplyError(f"{path}: {error}; evaluate the responses again") from None
    return Scores(numbers, per_context, signature, checked.contexts, checked.data, checked.system, checked.notes)


def _columns(checked: _File) -> dict[str, Floats]:
    """The per-context values, one for each context."""
    if checked.contexts < 1:
        raise PolyReplyError(f"expected the scores of at least 1 context, found {checked.contexts}")
    columns = {
        name: np.array([math.nan if value is None else value for value in column], np.float64)
        for name, column in checked.per_context.items()
    }
    for name, column in columns.items():
        if len(column) != checked.contexts:
            raise PolyReplyError(f"expected {checked.contexts} values of {name}, one per context, found {len(column)}")
    return columns


def _numbers(tree: Mapping[str, Any], per_context: Mapping[str, Floats]) -> dict[str, float | None]:
    """The scores of a file. The paper's must be among them, with the columns they come from; remarks are ignored."""
    numbers = {name: value for name, value in tree.items() if name not in _File.__struct_fields__}
    missing = [name for name in PAPER_NUMBERS if name not in numbers]
    if missing:
        raise PolyReplyError(f"expected the paper's scores, found no {', '.join(missing)}")
    wrong = {
        name: value
        for name, value in numbers.items()
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float))
    }
    for name in wrong.keys() & METRICS.keys():
        raise PolyReplyError(f"expected a number or null under {name}, found {str(wrong[name])[:40]!r}")
    for name in PAPER_NUMBERS:
        lost = [column for column in parts(name) if numbers[name] is not None and column not in per_context]
        if lost:
            raise PolyReplyError(f"expected the per-context values behind {name}, found no {', '.join(lost)}")
    return {name: value for name, value in numbers.items() if name not in wrong}
