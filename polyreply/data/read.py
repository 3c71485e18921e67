"""Reads dialogue files row by row: JSONL and CSV, plain or gzip-compressed.

Memory does not grow with the file. A bad row is counted with its line number, not fatal, unless the caller is strict.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from polyreply.data.dialogue import Dialogue
from polyreply.data.records import BadRows, Record, check_record
from polyreply.errors import DataError

Progress = Callable[[int], None]
"""Called with the number of bytes of the file, as it lies on disk, that have been read so far."""

_JSONL_ENDINGS = (".jsonl", ".ndjson", ".json")
ENDINGS = (*_JSONL_ENDINGS, ".csv")
_MISSING_IN_CSV = {"", "nan", "null", "none", "n/a", "<na>"}
"""What pandas and spreadsheets write for a value that is not there."""
_GZIP_MAGIC = b"\x1f\x8b"
_ROWS = 'rows such as {"context": "…", "responses": ["…"]}'


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
        with _open(path) as (stream, raw):
            for record in rows(stream, path, bad_rows, empty_responses):
                good += 1
                if progress and good % 1000 == 0:
                    progress(raw.tell())
                yield record
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: the gzip data is broken ({error}); fetch or compress the file again") from None
    if not good:
        bad = bad_rows.count - before
        first = next(
            (f": line {row['line']}, {row['reason']}" for row in bad_rows.first if row["source"] == str(path)), ""
        )
        why = f"{bad} bad rows{first}" if bad else "the file is empty"
        raise DataError(f"{path}: expected dialogue rows, found none; {why}; name a file with {_ROWS}")


def is_dialogue_file(path: Path) -> bool:
    """Whether the name ends like a file that can be read here."""
    name = path.name.lower().removesuffix(".gz")
    return name.endswith(ENDINGS)


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


class _open:
    """The decompressed stream of a file beside the raw one, whose position tells how far reading has come."""

    def __init__(self, path: Path) -> None:
        self.raw = path.open("rb")

    def __enter__(self) -> tuple[IO[bytes], IO[bytes]]:
        compressed = self.raw.read(2) == _GZIP_MAGIC
        self.raw.seek(0)
        if compressed:
            return io.BufferedReader(gzip.GzipFile(fileobj=self.raw), 1 << 20), self.raw
        return self.raw, self.raw

    def __exit__(self, *_: object) -> None:
        self.raw.close()


class _Row(msgspec.Struct):
    context: str | list[str] | None = None
    response: str | None = None
    responses: list[str] | None = None
    turns: list[str] | None = None
    acts: list[str | None] | None = None


def _jsonl_rows(stream: IO[bytes], path: Path, bad_rows: BadRows, empty: bool) -> Iterator[Record]:
    decode = msgspec.json.Decoder(_Row).decode
    for number, line in enumerate(stream, start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.isspace():
            continue
        try:
            row = decode(line)
            responses = row.responses if row.response is None else [row.response]
            record = check_record(number, row.context, responses, row.turns, row.acts or (), empty_responses=empty)
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


def _csv_rows(stream: IO[bytes], path: Path, bad_rows: BadRows, empty: bool) -> Iterator[Record]:
    # newline="" leaves line ends inside quotes to the csv module; surrogates mark bytes that are not UTF-8.
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text, strict=True)  # an unclosed quote is an error, not a very long cell
    context_at, response_at = _csv_columns(next(reader, []), path)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
            if not cells:
                continue
            record = _csv_record(line, cells, context_at, response_at, empty)
        except StopIteration:
            return
        except csv.Error as error:
            bad_rows.add(str(path), line, f"not CSV up to line {reader.line_num}: {error}; an unclosed quote?")
        except DataError as error:
            bad_rows.add(str(path), line, str(error))
        else:
            yield record


def _csv_columns(header: list[str], path: Path) -> tuple[int, int]:
    names = [name.strip().lower() for name in header]
    if "context" not in names or "response" not in names:
        found = ", ".join(names) if names else "an empty file"
        raise DataError(f"{path}: expected a first line with the columns context and response, found {found[:200]}")
    return names.index("context"), names.index("response")


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
    return check_record(line, context, [response], None, empty_responses=empty)
