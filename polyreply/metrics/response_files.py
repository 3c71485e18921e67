"""Responses and references from their files, joined row by row.

Contexts repeat in dialogue corpora, so a context does not say which row is meant: rows are joined by their position,
and the contexts of both files have to be equal there.
"""

import contextlib
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from polyreply.data.dialogue import BadRows
from polyreply.data.read import read_records
from polyreply.errors import DataError
from polyreply.metrics.mismatch import describe, show

_GZIP_MAGIC = b"\x1f\x8b"
_ROW = '{"context": "…", "responses": ["…", …]}'


@dataclass(frozen=True, slots=True)
class Row:
    """A context with the texts one file has for it."""

    line: int
    context: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Joined:
    """What `evaluate` takes, of equal length and order."""

    contexts: list[tuple[str, ...]]
    responses: list[tuple[str, ...]]
    references: list[tuple[str, ...]]
    left_out: str = ""
    """Which rows of the references could not be read, if any."""


def join_files(
    responses: Path, references: Path, *, context_turns: int = 1, variable_k: bool = False, strict: bool = False
) -> Joined:
    """Reads both files; raises a DataError that names the first row in which they do not match."""
    said = read_responses(responses)
    _check_k(responses, said, variable_k)
    gold, left_out = _read_references(references, context_turns, len(said), strict)
    _check_match(responses, said, references, gold, left_out)
    return Joined(
        [row.context for row in said], [row.texts for row in said], [row.texts for row in gold], left_out=left_out
    )


class _Line(msgspec.Struct):
    context: str | list[str]
    responses: list[str]


def read_responses(path: Path) -> list[Row]:
    """The rows of a responses file, as `polyreply reply --output` writes it; a response may be empty."""
    decode = msgspec.json.Decoder(_Line).decode
    rows = []
    for number, line in _lines(path):
        try:
            row = decode(line)
        except UnicodeDecodeError:
            raise _unreadable(path, number, "invalid UTF-8") from None
        except msgspec.ValidationError as error:
            raise _unreadable(path, number, f"{str(error)[0].lower()}{str(error)[1:]}") from None
        except msgspec.DecodeError as error:
            raise _unreadable(path, number, _why_not_json(line, error)) from None
        if not row.responses:
            raise _unreadable(path, number, "no response")
        rows.append(Row(number, _turns(row.context), tuple(row.responses)))
    if not rows:
        raise DataError(f"{path}: expected rows such as {_ROW}, found an empty file; run `polyreply reply` first")
    return rows


def _turns(context: str | Sequence[str]) -> tuple[str, ...]:
    return (context,) if isinstance(context, str) else tuple(context)


def _unreadable(path: Path, line: int, reason: str) -> DataError:
    return DataError(
        f"{path}, line {line}: {reason}; expected a row such as {_ROW}, as `polyreply reply --output` writes it"
    )


def _why_not_json(line: bytes, error: msgspec.DecodeError) -> str:
    """The decoder takes half of a surrogate pair, such as a cut emoji leaves, for the end of the data."""
    if b"\\ud" in line.lower():
        with contextlib.suppress(ValueError):
            json.loads(line)
            return "half of a surrogate pair, which is no character"
    return f"not JSON: {error}"


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, without blank ones; compression is recognised by content."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file; check the path")
    if path.is_dir():
        raise DataError(f"{path}: expected a responses file, found a folder; name a file in it")
    with path.open("rb") as raw:
        compressed = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if compressed else raw
        try:
            for number, line in enumerate(stream, start=1):
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if not line.isspace():
                    yield number, line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: the gzip data is broken ({error}); fetch or compress the file again") from None


def _check_k(path: Path, rows: Sequence[Row], variable_k: bool) -> None:
    first = rows[0]
    other = next((row for row in rows if len(row.texts) != len(first.texts)), None)
    if other is not None and not variable_k:
        raise DataError(
            f"{path}, line {other.line}: expected {len(first.texts)} responses as in line {first.line}, found "
            f"{len(other.texts)}; reply with one K throughout, or say --variable-k to score such a file"
        )


def _read_references(path: Path, context_turns: int, wanted: int, strict: bool) -> tuple[list[Row], str]:
    """The rows of a dialogue file, and what was left out of it.

    `polyreply reply` leaves out rows it cannot use, and so the responses have none for them; a row with an empty
    reference is one of these. Where the responses do have rows for them, empty references are scored against.
    """
    bad = BadRows(strict=strict, advice="fix the row or evaluate without --strict")
    rows = [
        Row(record.line, dialogue.context, dialogue.responses)
        for record in read_records(path, bad, empty_responses=True)
        for dialogue in record.dialogues(context_turns)
    ]
    first = [(int(row["line"]), str(row["reason"])) for row in bad.first[:1]]
    if len(rows) != wanted:
        empty = [row for row in rows if not all(text.strip() for text in row.texts)]
        for row in empty:
            bad.add(str(path), row.line, "empty response")
        first += [(row.line, "empty response") for row in empty[:1]]
        rows = [row for row in rows if all(text.strip() for text in row.texts)]
    return rows, _left_out(path, bad.count, *min(first)) if first else ""


def _left_out(path: Path, count: int, line: int, reason: str) -> str:
    rows = f"1 bad row of {path} was" if count == 1 else f"{count} bad rows of {path} were"
    return f"{rows} left out; the first: line {line}, {reason}"


_REPLY_AGAIN = "reply to that file again, or name the references these responses were made for"


def _check_match(responses: Path, said: Sequence[Row], references: Path, gold: Sequence[Row], left_out: str) -> None:
    """Raises unless both files have the same contexts in the same order."""
    hint = f"; {left_out}" if left_out else ""
    place = next((n for n, (one, two) in enumerate(zip(said, gold, strict=False)) if one.context != two.context), None)
    if place is not None:
        one, two = said[place], gold[place]
        seen = describe(two.context, one.context)
        raise DataError(
            f"{responses}, line {one.line} (row {place + 1}): expected the context {seen.expected} of {references}, "
            f"line {two.line}, found {seen.found}; {_fix(said, gold, seen.only)}{hint}"
        )
    if len(said) != len(gold):
        alone, path = (said[len(gold)], responses) if len(said) > len(gold) else (gold[len(said)], references)
        raise DataError(
            f"{responses}: expected {len(gold)} rows, one for each context of {references}, found {len(said)}; the "
            f"first without a partner is line {alone.line} of {path}, {show(alone.context)}; {_REPLY_AGAIN}{hint}"
        )


def _fix(said: Sequence[Row], gold: Sequence[Row], only: str) -> str:
    if only:
        return f"they differ only in {only}: write both files alike"
    if Counter(row.context for row in said) == Counter(row.context for row in gold):
        return "the contexts are the same in another order: sort one file like the other"
    return _REPLY_AGAIN
