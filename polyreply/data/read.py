"""Dialogue rows, one at a time: JSONL and CSV files, plain or gzip-compressed, and rows in memory.

Memory does not grow with the file. A bad row is counted with its line number and left out, unless the caller is
strict. An input without one good row is an error.
"""

import contextlib
import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

import msgspec

from polyreply.data.dialogue import BadRows, Dialogue, Record, check_record
from polyreply.errors import DataError

Progress = Callable[[int], None]
"""Called with the number of bytes that have been read of the file on disk."""

Row = Mapping[str, object]
"""A row in memory: the fields of a JSONL row, under any of the names in `COLUMNS`."""

ENDINGS = (".jsonl", ".ndjson", ".json", ".csv")
COLUMNS = {
    "context": ("context", "input", "question", "prompt", "source"),
    "responses": ("responses", "references", "answers"),
    "response": ("response", "output", "answer", "target", "reply"),
    "turns": ("turns", "dialog", "dialogue", "utterances", "conversation", "conversations"),
    "messages": ("messages",),
}
"""The column names that datasets use for each field of a row; the first one that has a value counts."""

_MISSING_IN_CSV = {"", "nan", "null", "none", "n/a", "<na>"}
"""What pandas and spreadsheets write for a missing value."""
_GZIP_MAGIC = b"\x1f\x8b"
_EXAMPLE = 'rows such as {"context": "…", "responses": ["…"]}'


def read_dialogues(path: Path, *, context_turns: int = 1, bad_rows: BadRows | None = None) -> Iterator[Dialogue]:
    """The dialogues of one file; raises a DataError when it holds none."""
    for record in read_records(path, BadRows() if bad_rows is None else bad_rows):
        yield from record.dialogues(context_turns)


def read_records(
    path: Path, bad_rows: BadRows, progress: Progress | None = None, *, empty_responses: bool = False
) -> Iterator[Record]:
    """The good rows of one file in its order; raises a DataError when there are none.

    With `empty_responses`, rows in which a response is empty are good too.
    """
    rows = _csv_rows if _ending(path) == ".csv" else _jsonl_rows
    before, good = bad_rows.count, 0
    try:
        with _opened(path) as (stream, raw):
            for record in rows(stream, path, bad_rows, empty_responses):
                good += 1
                if progress and good % 1000 == 0:
                    progress(raw.tell())
                yield record
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: the gzip data is broken ({error}); fetch or compress the file again") from None
    if not good:
        why = _why_none(str(path), bad_rows, before) or "the file is empty"
        raise DataError(f"{path}: expected dialogue rows, found none; {why}; name a file with {_EXAMPLE}")


def read_rows(rows: Iterable[Row | Dialogue], name: str, bad_rows: BadRows) -> Iterator[Record]:
    """The good rows of a dataset in memory; raises a DataError, which calls it `name`, when there are none."""
    before, good = bad_rows.count, 0
    for line, row in enumerate(rows, start=1):
        try:
            record = _record_of(line, row)
            "".join((*record.turns, *(record.responses or ()))).encode()
        except DataError as error:
            bad_rows.add(name, line, str(error))
        except UnicodeEncodeError:
            bad_rows.add(name, line, "invalid Unicode: half of a surrogate pair")
        else:
            good += 1
            yield record
    if not good:
        why = _why_none(name, bad_rows, before) or "it is empty"
        columns = getattr(rows, "column_names", None)
        found = f"; its columns are {', '.join(columns)}" if columns else ""
        known = "; ".join(f"{field}: {', '.join(names)}" for field, names in COLUMNS.items())
        raise DataError(f"{name}: expected dialogue rows, found none; {why}{found}; the columns understood are {known}")


def is_dialogue_file(path: Path) -> bool:
    """Whether the name ends like a file that can be read here."""
    return path.name.lower().removesuffix(".gz").endswith(ENDINGS)


def _why_none(source: str, bad_rows: BadRows, before: int) -> str:
    """The bad rows added since `before`, with the first of them; empty if there are none."""
    bad = bad_rows.count - before
    first = next((f": line {row['line']}, {row['reason']}" for row in bad_rows.first if row["source"] == source), "")
    return f"{bad} bad rows{first}" if bad else ""


def _ending(path: Path) -> str:
    if not path.exists():
        raise DataError(f"{path}: there is no such file; check the path")
    if path.is_dir():
        raise DataError(f"{path}: expected a file, found a folder; name a file in it")
    name = path.name.lower().removesuffix(".gz")
    for ending in ENDINGS:
        if name.endswith(ending):
            return ending
    raise DataError(
        f"{path}: expected a name ending in {', '.join(ENDINGS)} (or one of these with .gz); rename or convert it"
    )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The decompressed stream of a file and the raw one, whose position shows how far reading has come."""
    with path.open("rb") as raw:
        compressed = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        yield (io.BufferedReader(gzip.GzipFile(fileobj=raw), 1 << 20) if compressed else raw), raw


# JSONL


class _JsonRow(msgspec.Struct):
    context: str | list[str] | None = None
    response: str | None = None
    responses: list[str] | None = None
    turns: list[str] | None = None
    messages: list[Any] | None = None
    acts: list[str | None] | None = None


def _jsonl_rows(stream: IO[bytes], path: Path, bad_rows: BadRows, empty: bool) -> Iterator[Record]:
    decode = msgspec.json.Decoder(_JsonRow).decode
    for number, line in enumerate(stream, start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.isspace():
            continue
        try:
            row = decode(line)
            record = check_record(
                number,
                context=row.context,
                responses=row.responses if row.response is None else [row.response],
                turns=row.turns,
                messages=row.messages,
                acts=row.acts or (),
                empty_responses=empty,
            )
        except UnicodeDecodeError:
            bad_rows.add(str(path), number, "invalid UTF-8")
        except msgspec.ValidationError as error:
            bad_rows.add(str(path), number, f"wrong type: {str(error)[0].lower()}{str(error)[1:]}")
        except msgspec.DecodeError as error:
            bad_rows.add(str(path), number, f"not JSON: {error}")
        except DataError as error:
            bad_rows.add(str(path), number, str(error))
        else:
            yield record


# CSV


def _csv_rows(stream: IO[bytes], path: Path, bad_rows: BadRows, empty: bool) -> Iterator[Record]:
    # newline="" leaves line ends inside quotes to the csv module; surrogates mark bytes that are not UTF-8.
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text, strict=True)  # an unclosed quote is an error, not a very long cell
    names = [name.strip().lower() for name in next(reader, [])]
    if "context" not in names or "response" not in names:
        found = ", ".join(names) if names else "an empty file"
        raise DataError(f"{path}: expected a first line with the columns context and response, found {found[:200]}")
    columns = names.index("context"), names.index("response")
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
            if not cells:
                continue
            record = _csv_record(line, cells, *columns, empty)
        except StopIteration:
            return
        except csv.Error as error:
            bad_rows.add(str(path), line, f"not CSV up to line {reader.line_num}: {error}; an unclosed quote?")
        except DataError as error:
            bad_rows.add(str(path), line, str(error))
        else:
            yield record


def _csv_record(line: int, cells: list[str], context_at: int, response_at: int, empty: bool) -> Record:
    if len(cells) <= max(context_at, response_at):
        raise DataError(f"too few columns: found {len(cells)}")
    context, response = cells[context_at], cells[response_at]
    for name, value in (("context", context), ("response", response)):
        if not value.isascii() and any("\udc80" <= char <= "\udcff" for char in value):
            raise DataError("invalid UTF-8")
        allowed = empty and name == "response" and not value.strip()
        if value.strip().lower() in _MISSING_IN_CSV and not allowed:
            raise DataError(f"missing value: the {name} is {value!r}")
    return check_record(line, context=context, responses=[response], empty_responses=empty)


# Rows in memory


def _record_of(line: int, row: Row | Dialogue) -> Record:
    if isinstance(row, Dialogue):
        return check_record(line, context=row.context, responses=row.responses, acts=row.acts)
    if not isinstance(row, Mapping):
        raise DataError(f"wrong type: expected a row with names and values or a Dialogue, found {type(row).__name__}")
    fields = {
        field: next((row[name] for name in names if row.get(name) is not None), None)
        for field, names in COLUMNS.items()
    }
    if fields["context"] is None and fields["turns"] is None and fields["messages"] is not None:
        return check_record(line, messages=_messages(fields["messages"]))
    if fields["context"] is None and _have_roles(fields["turns"]):
        return check_record(line, messages=_messages(fields["turns"]))
    return check_record(
        line,
        context=_texts(fields["context"]),
        responses=_texts(fields["response"]) or _texts(fields["responses"]),
        turns=_texts(fields["turns"]),
        acts=[None if act is None else _text(act) for act in _list(row.get("acts") or [])],
    )


def _have_roles(turns: Any) -> bool:
    """Whether a column of turns holds chat messages."""
    if isinstance(turns, Mapping):
        return "role" in turns
    return isinstance(turns, list | tuple) and any(isinstance(turn, Mapping) and "role" in turn for turn in turns)


def _messages(value: Any) -> list[Any]:
    """Chat messages as a list, also where a dataset stores them by columns: {"role": [...], "content": [...]}."""
    if isinstance(value, Mapping):
        columns = (_list(value.get(name) or []) for name in ("role", "content"))
        return [{"role": role, "content": content} for role, content in zip_longest(*columns)]
    return _list(value)


def _texts(value: Any) -> list[str] | None:
    """A text, a list of texts, or a list of objects that hold one, as a list of texts."""
    if value is None:
        return None
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):  # a list of objects that a dataset stores by columns: {"text": [...]}
        value = value.get("text") or value.get("content") or value.get("value")
    return [_text(item) for item in _list(value)]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise DataError(f"wrong type: expected text or a list, found {type(value).__name__}")
    return list(value)


def _text(item: Any) -> str:
    if isinstance(item, Mapping):
        item = next((item[name] for name in ("content", "text", "value", "utterance") if name in item), None)
    if not isinstance(item, str):
        raise DataError(f"wrong type: expected text, found {type(item).__name__}")
    return item
