"""The scores of one system on one set of contexts, and the file they are kept in.

The file is one JSON object: the numbers under their names, percent as in the paper; `signature`; and under
`per_context` the value of each context, from which significance is computed. It is written under a temporary name and
renamed.
"""

import gzip
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from polyreply.errors import PolyReplyError
from polyreply.metrics.signature import Signature

SCHEMA_VERSION = 1

PAPER_NUMBERS = (
    "bleu1_f bleu1_p bleu1_r bleu2_f bleu2_p bleu2_r dist1 dist2 pairwise_bleu".split()  # in the paper's order
)
LOWER_IS_BETTER = frozenset({"pairwise_bleu", "self_bleu", "corpus_pairwise_bleu", "identical", "empty", "repeating"})

_DECIMALS = 4
"""Of the per-context percentages in a file: far finer than the differences that significance is about."""
_GZIP_MAGIC = b"\x1f\x8b"

Floats = npt.NDArray[np.float64]


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
    """The system's name; several files with one name are several seeds of it."""
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
        write_atomically(path, gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text, overwrite=overwrite)


def harmonic_mean(precision: float, recall: float) -> float:
    """F of P and R; 0 when both are."""
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def check_output(path: Path, overwrite: bool) -> None:
    """Raises one clear line when a file may not be written there."""
    if path.is_dir():
        raise PolyReplyError(f"{path}: expected a file to write, found a folder; name a file in it")
    if path.exists() and not overwrite:
        raise PolyReplyError(f"{path}: the output exists; name another one, or say --overwrite to replace it")


def write_atomically(path: Path, data: bytes, *, overwrite: bool = False) -> None:
    """Puts a file in its place at once, so that nobody ever reads half of it."""
    check_output(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)  # mkstemp makes files that only their owner can read
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class _File(msgspec.Struct):
    schema_version: int
    signature: str
    contexts: int
    per_context: dict[str, list[float | None]]
    system: str = ""
    data: str = ""
    notes: list[str] = []


def load_scores(path: Path) -> Scores:
    """Reads a file that `Scores.save` has written, or a DataError-like line that says what is wrong with it."""
    if not path.exists():
        raise PolyReplyError(f"{path}: there is no such file; check the path")
    if path.is_dir():
        raise PolyReplyError(f"{path}: expected a score file, found a folder; name a file in it")
    text = path.read_bytes()
    try:
        text = gzip.decompress(text) if text.startswith(_GZIP_MAGIC) else text
        tree = msgspec.json.decode(text)
        _check_version(path, tree)
        return _from_tree(path, tree, msgspec.convert(tree, _File))
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, EOFError, OSError) as error:
        reason = str(error).split(" - at")[0]
        raise PolyReplyError(
            f"{path}: expected a score file as `polyreply evaluate --output` writes it, found something else "
            f"({reason[:1].lower()}{reason[1:]}); evaluate the responses first"
        ) from None


def _check_version(path: Path, tree: Any) -> None:
    version = tree.get("schema_version") if isinstance(tree, Mapping) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise PolyReplyError(
            f"{path} has schema version {version}, and this polyreply reads up to {SCHEMA_VERSION}; upgrade polyreply"
        )


def _from_tree(path: Path, tree: dict[str, Any], checked: _File) -> Scores:
    per_context = {
        name: np.array([math.nan if value is None else value for value in column], np.float64)
        for name, column in checked.per_context.items()
    }
    wrong = next((name for name, column in per_context.items() if len(column) != checked.contexts), None)
    if wrong is not None:
        raise PolyReplyError(
            f"{path}: expected {checked.contexts} values of {wrong}, one per context, found {len(per_context[wrong])}; "
            "evaluate the responses again"
        )
    missing = [name for name in PAPER_NUMBERS if name not in tree]
    if missing or not per_context:
        lost = ", ".join(missing) or "value for any context"
        raise PolyReplyError(
            f"{path}: expected the numbers of a score file, found no {lost}; evaluate the responses again"
        )
    numbers = {
        name: value
        for name, value in tree.items()
        if name not in _File.__struct_fields__ and (value is None or isinstance(value, int | float))
    }
    signature = _signature(path, checked.signature)
    return Scores(
        numbers, per_context, signature, checked.contexts, checked.data, checked.system or _stem(path), checked.notes
    )


def _signature(path: Path, text: str) -> Signature:
    try:
        return Signature.parse(text)
    except PolyReplyError as error:
        raise PolyReplyError(f"{path}: {error}; evaluate the responses again") from None


def _stem(path: Path) -> str:
    """The name of a system that was given none: its file's, without endings."""
    return path.name.removesuffix(".gz").removesuffix(".json")
