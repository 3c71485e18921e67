"""Responses and references from their files, joined row by row.

Contexts repeat in dialogue corpora, so a context does not identify a row: rows are joined by position, and the contexts
of both files must be equal there.
"""

import contextlib
import gzip
import json
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from polyreply.data.dialogue import BadRows
from polyreply.data.read import read_records
from polyreply.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_ROW = '{"context": "…", "responses": ["…", …]}'
_WIDTH, _BEFORE = 60, 30
"""Characters shown of a long context, and how many of them are before the first difference."""


@dataclass(frozen=True, slots=True)
class Row:
    """A context and the texts that one file has for it."""

    line: int
    context: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Joined:
    """Responses and references of equal length and order, as `evaluate` takes them."""

    contexts: list[tuple[str, ...]]
    responses: list[tuple[str, ...]]
    references: list[tuple[str, ...]]
    left_out: str = ""
    """One line about the rows of the references that could not be read; empty if all could."""


def join_files(
    responses: Path, references: Path, *, context_turns: int = 1, variable_k: bool = False, strict: bool = False
) -> Joined:
    """Read both files; raise a DataError that names the first row in which they do not match."""
    ours = read_responses(responses)
    if not variable_k:
        check_one_k(responses, ours, "reply with one K throughout, or pass --variable-k")
    theirs, left_out = _read_references(references, context_turns, len(ours), strict)
    check_same_contexts(responses, ours, references, theirs, _REPLY_AGAIN, left_out)
    return Joined([row.context for row in ours], [row.texts for row in ours], [row.texts for row in theirs], left_out)


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
        context = (row.context,) if isinstance(row.context, str) else tuple(row.context)
        rows.append(Row(number, context, tuple(row.responses)))
    if not rows:
        raise DataError(f"{path}: expected rows such as {_ROW}, found an empty file; run `polyreply reply` first")
    return rows


def _unreadable(path: Path, line: int, reason: str) -> DataError:
    return DataError(
        f"{path}, line {line}: {reason}; expected a row such as {_ROW}, as `polyreply reply --output` writes it"
    )


def _why_not_json(line: bytes, error: msgspec.DecodeError) -> str:
    """The decoder's message, except for half of a surrogate pair (a cut emoji), which it reports as truncated data."""
    if b"\\ud" in line.lower():
        with contextlib.suppress(ValueError):
            json.loads(line)
            return "half of a surrogate pair, which is not a character"
    return f"not JSON: {error}"


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers; compression is recognised by content."""
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


def check_one_k(path: Path, rows: Sequence[Row], fix: str) -> None:
    """Raise unless all rows have the same number of responses; `fix` ends the message."""
    first = rows[0]
    other = next((row for row in rows if len(row.texts) != len(first.texts)), None)
    if other is not None:
        raise DataError(
            f"{path}, line {other.line}: expected {len(first.texts)} responses as in line {first.line}, found "
            f"{len(other.texts)}; {fix}"
        )


def _read_references(path: Path, context_turns: int, wanted: int, strict: bool) -> tuple[list[Row], str]:
    """The rows of a dialogue file, and a line about those left out.

    `polyreply reply` leaves out rows that it cannot use, such as those with an empty reference, so a responses file may
    have no rows for them. Where it has rows for all, responses are scored against empty references as well.
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
    if not first:
        return rows, ""
    line, reason = min(first)
    count = f"1 bad row of {path} was" if bad.count == 1 else f"{bad.count} bad rows of {path} were"
    return rows, f"{count} left out; the first: line {line}, {reason}"


# --- contexts that should be equal


_REPLY_AGAIN = "reply to that file again, or name the references these responses were made for"


def check_same_contexts(
    responses: Path, ours: Sequence[Row], references: Path, theirs: Sequence[Row], reply_again: str, left_out: str = ""
) -> None:
    """Raise unless both files have the same contexts in the same order.

    `reply_again` says how to fix contexts that are really different; `left_out` is what `Joined` has of that name.
    """
    hint = f"; {left_out}" if left_out else ""
    pairs = enumerate(zip(ours, theirs, strict=False))
    place = next((n for n, (one, two) in pairs if one.context != two.context), None)
    if place is not None:
        one, two = ours[place], theirs[place]
        expected, found = _show_difference(two.context, one.context)
        only = _only_difference(two.context, one.context)
        if only:
            fix = f"they differ only in {only}: write both files alike"
        elif Counter(row.context for row in ours) == Counter(row.context for row in theirs):
            fix = "the contexts are the same in another order: sort one file like the other"
        else:
            fix = reply_again
        raise DataError(
            f"{responses}, line {one.line} (row {place + 1}): expected the context {expected} of {references}, line "
            f"{two.line}, found {found}; {fix}{hint}"
        )
    if len(ours) != len(theirs):
        alone, path = (ours[len(theirs)], responses) if len(ours) > len(theirs) else (theirs[len(ours)], references)
        context = alone.context
        shown = _cut(context[0], 0, repr) if len(context) == 1 else _cut(repr(list(context)), 0, str)
        raise DataError(
            f"{responses}: expected {len(theirs)} rows, one for each context of {references}, found {len(ours)}; the "
            f"first without a partner is line {alone.line} of {path}, {shown}; {reply_again}{hint}"
        )


def _show_difference(expected: Sequence[str], found: Sequence[str]) -> tuple[str, str]:
    """Both contexts around their first difference, with escapes where it would be invisible otherwise."""
    form = ascii if _look_alike(str(list(expected)), str(list(found))) else repr
    if len(expected) == len(found) == 1:
        texts, after = (expected[0], found[0]), form
    else:
        texts, after = (form(list(expected)), form(list(found))), str
    place = _first_difference(*texts)
    begin = place - _BEFORE if place >= _WIDTH - 10 else 0
    return _cut(texts[0], begin, after), _cut(texts[1], begin, after)


def _first_difference(one: str, two: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _cut(text: str, begin: int, form: Callable[[object], str]) -> str:
    end = begin + _WIDTH
    return ("…" if begin else "") + form(text[begin:end]) + ("…" if end < len(text) else "")


def _look_alike(one: str, two: str) -> bool:
    """Whether a reader would not see the first difference between two texts."""
    begin = max(0, _first_difference(one, two) - 1)  # an accent belongs to the letter before it
    end = begin + _BEFORE
    looks = _appearance(one[begin:end]), _appearance(two[begin:end])
    seen = min(map(len, looks)) if min(len(one), len(two)) > end else max(map(len, looks))
    return looks[0][:seen] == looks[1][:seen]


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _one_space(text: str) -> str:
    return " ".join(text.split())


def _visible(text: str) -> str:
    return "".join(char for char in text if unicodedata.category(char) != "Cf")


def _appearance(text: str) -> str:
    """Equal for texts that look alike on a screen."""
    return _composed(_one_space(_visible(text)))


_KINDS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("their Unicode form (NFC or NFD)", _composed),
    ("white space", _one_space),
    ("invisible characters", _visible),
    ("upper and lower case", str.casefold),
    ("white space, invisible characters or their Unicode form", _appearance),
)


def _only_difference(expected: Sequence[str], found: Sequence[str]) -> str:
    """The one kind of difference between two contexts; empty if there is more than one."""
    kinds = (name for name, form in _KINDS if [form(turn) for turn in expected] == [form(turn) for turn in found])
    return next(kinds, "")
