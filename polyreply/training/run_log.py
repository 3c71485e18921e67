"""`log.jsonl`: what happened in a run, one JSON object per line, consistent even if the run was killed and resumed.

The first line holds the schema version. Every other line has a `kind` ("step", "validation" or "alarm") and the `step`
it belongs to. Durations and peak memory are in `timings.jsonl`, which has the same form; without them the log of a
resumed run equals that of an uninterrupted one, byte for byte. The main process writes both; the others never open
them.
"""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from polyreply.errors import PolyReplyError
from polyreply.files import check_schema_version, writing

SCHEMA_VERSION = 1
_HEADER = "header"
_DIGITS = 6
"""Significant digits in the log: finer than anybody reads, and a third of the bytes."""


def log_values(record: Any) -> dict[str, Any]:
    """The fields of a record as plain rounded values, without durations; None where a number is not finite."""
    values = {name: value for name, value in asdict(record).items() if not name.endswith("seconds") and value != {}}
    return {name: _plain(value) for name, value in values.items()}


def timing_values(record: Any) -> dict[str, Any]:
    """The durations in a record, which differ in every run, and its step."""
    return {name: _plain(value) for name, value in asdict(record).items() if name == "step" or name.endswith("seconds")}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


class RunLog:
    """Appends to a log. Each line is flushed at once: a killed process loses none that it has written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: BinaryIO | None = None  # opened by the first line

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append one line."""
        stream = self._stream = self._stream or self._open()
        stream.write(msgspec.json.encode({"kind": kind, **values}) + b"\n")
        stream.flush()

    def sync(self) -> None:
        """Wait until every line is on disk; before a checkpoint, so that the log is never behind it."""
        if self._stream:
            os.fsync(self._stream.fileno())

    def last_step(self) -> int:
        """The last step that was logged, or 0."""
        return max((found.get("step") or 0 for _, found in _lines(self.path)), default=0) if self.path.exists() else 0

    def cut_after(self, step: int) -> int:
        """Drop everything after a step, so that a resumed run writes no step twice; the last step left, or 0.

        Lines of that step itself stay: a run validates and raises alarms before it writes the step's checkpoint.
        """
        self.close()
        return self._rewrite(step) if self.path.exists() else 0

    def close(self) -> None:
        """Close the file; the next `write` opens it again."""
        if self._stream:
            self._stream.close()
            self._stream = None

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> BinaryIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._rewrite(None)  # drop half a line that a killed run may have left
        stream = self.path.open("ab")
        if stream.tell() == 0:
            stream.write(msgspec.json.encode({"kind": _HEADER, "schema_version": SCHEMA_VERSION}) + b"\n")
            stream.flush()
        return stream

    def _rewrite(self, step: int | None) -> int:
        """Keep the complete lines up to a step (all if None); the last step in them."""
        kept = last = 0
        for line, found in _lines(self.path):
            of = found.get("step")
            if isinstance(of, int):
                if step is not None and of > step:
                    break
                last = max(last, of)
            kept += len(line)
        if kept < self.path.stat().st_size:
            with self.path.open("rb") as old, writing(self.path, durable=True) as new:
                while kept > 0 and (piece := old.read(min(kept, 1 << 20))):
                    new.write(piece)
                    kept -= len(piece)
        return last


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a log without its header, and without half a line at the end that a killed run may have left."""
    if not path.is_file():
        raise PolyReplyError(f"{path}: there is no such log; name the log.jsonl of a run folder")
    return [found for _, found in _lines(path) if found["kind"] != _HEADER]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each complete line, raw and parsed."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                return
            found = _decode(path, number, line)
            if number == 1:
                _check_header(path, found)
            yield line, found


def _decode(path: Path, number: int, line: bytes) -> dict[str, Any]:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        found = msgspec.json.decode(line)
        if isinstance(found, dict) and "kind" in found:
            return found
    raise PolyReplyError(
        f'{path}:{number}: expected an object with a "kind" as training writes it, found {line[:60]!r}; '
        "the log was edited or damaged: remove that line"
    )


def _check_header(path: Path, found: dict[str, Any]) -> None:
    if found["kind"] != _HEADER:
        raise PolyReplyError(f"{path}: expected the log of a run, found no schema version in its first line")
    check_schema_version(path, found.get("schema_version"), SCHEMA_VERSION)
