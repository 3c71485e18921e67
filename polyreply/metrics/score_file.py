"""Reads a score file back, and says in one line what is wrong with it."""

import gzip
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyreply.arrays import Floats
from polyreply.errors import PolyReplyError
from polyreply.metrics.labels import LABELS
from polyreply.metrics.scores import PAPER_NUMBERS, SCHEMA_VERSION, Scores
from polyreply.metrics.signature import Signature
from polyreply.metrics.significance import columns_of

_GZIP_MAGIC = b"\x1f\x8b"


class _File(msgspec.Struct):
    schema_version: int
    signature: str
    contexts: int
    per_context: dict[str, list[float | None]]
    system: str = ""
    data: str = ""
    notes: list[str] = []


def load_scores(path: Path) -> Scores:
    """Reads a file that `Scores.save` has written."""
    if not path.exists():
        raise PolyReplyError(f"{path}: there is no such file; check the path")
    if path.is_dir():
        raise PolyReplyError(f"{path}: expected a score file, found a folder; name a file in it")
    text = path.read_bytes()
    try:
        text = gzip.decompress(text) if text.startswith(_GZIP_MAGIC) else text
        tree = msgspec.json.decode(text)
        _check_version(path, tree)
        checked = msgspec.convert(tree, _File)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        raise PolyReplyError(
            f"{path}: expected a score file as `polyreply evaluate --output` writes it, found something else "
            f"({_reason(error)}); evaluate the responses first"
        ) from None
    try:
        per_context = _columns(checked)
        return Scores(
            _numbers(tree, per_context),
            per_context,
            Signature.parse(checked.signature),
            checked.contexts,
            checked.data,
            checked.system,
            checked.notes,
        )
    except PolyReplyError as error:
        raise PolyReplyError(f"{path}: {error}; evaluate the responses again") from None


def _reason(error: Exception) -> str:
    """The decoder's words as a part of a sentence; an abbreviation keeps its capitals."""
    reason = str(error).replace("`$.", "`").replace("`$`", "the top")
    return reason if reason[1:2].isupper() else reason[:1].lower() + reason[1:]


def _check_version(path: Path, tree: Any) -> None:
    version = tree.get("schema_version") if isinstance(tree, Mapping) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise PolyReplyError(
            f"{path} has schema version {version}, and this polyreply reads up to {SCHEMA_VERSION}; upgrade polyreply"
        )


def _columns(checked: _File) -> dict[str, Floats]:
    """The values of each context, as many for each number as there are contexts."""
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
    """The numbers of a file; the paper's have to be there, with the columns they come from."""
    numbers = {name: value for name, value in tree.items() if name not in _File.__struct_fields__}
    missing = [name for name in PAPER_NUMBERS if name not in numbers]
    if missing:
        raise PolyReplyError(f"expected the paper's numbers, found no {', '.join(missing)}")
    wrong = {name: value for name, value in numbers.items() if not _is_number(value)}
    for name in wrong.keys() & LABELS.keys():
        raise PolyReplyError(f"expected a number or null under {name}, found {str(wrong[name])[:40]!r}")
    for name in PAPER_NUMBERS:
        lost = [column for column in columns_of(name) if numbers[name] is not None and column not in per_context]
        if lost:
            raise PolyReplyError(f"expected the values of each context behind {name}, found no {', '.join(lost)}")
    return {name: value for name, value in numbers.items() if name not in wrong}


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
