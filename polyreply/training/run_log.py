"""`log.jsonl`: what happened in a run, one JSON object per line, whole even if the run was killed and resumed.

The first line holds the schema version. Every other line has a `kind` ("step", "validation", "alarm", "checkpoint" …)
and, if it belongs to a step, the `step`. One process writes it; the others may hold a `RunLog` that they do not use.
What took how long is in `timings.jsonl`, of the same form: without it a resumed run's log is that of an uninterrupted
one, byte for byte.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from polyreply.errors import PolyReplyError

SCHEMA_VERSION = 1
_HEADER = "header"


class RunLog:
    """Appends to a log. Each line is handed to the system at once: a killed process loses none it has written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: BinaryIO | None = None  # opened by the first line

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Appends one line; numbers that are not finite become null."""
        stream = self._stream = self._stream or self._open()
        stream.write(msgspec.json.encode({"kind": kind, **values}) + b"\n")
        stream.flush()

    def sync(self) -> None:
        """Waits until the disk has every line. Before a checkpoint, it keeps the log from falling behind it."""
        if self._stream:
            os.fsync(self._stream.fileno())

    def last_step(self) -> int:
        """The last step that was logged, or 0."""
        return max((found.get("step") or 0 for _, found in _lines(self.path)), default=0) if self.path.exists() else 0

    def cut_after(self, step: int) -> int:
        """Drops everything after a step, so that a resumed run writes no step twice. The last step that is left, or 0.

        Lines of that step itself stay: a run validates and raises alarms before it writes the step's checkpoint.
        """
        self.close()
        return self._rewrite(step) if self.path.exists() else 0

    def close(self) -> None:
        """Closes the file; the next line opens it again."""
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
            self._rewrite(None)  # a killed run may have left half a line, to which nothing must be appended
        stream = self.path.open("ab")
        if stream.tell() == 0:
            stream.write(msgspec.json.encode({"kind": _HEADER, "schema_version": SCHEMA_VERSION}) + b"\n")
            stream.flush()
        return stream

    def _rewrite(self, step: int | None) -> int:
        """Keeps the whole lines up to a step (all if None), under a temporary name first; the last step in them."""
        kept = last = 0
        for line, found in _lines(self.path):
            of = found.get("step")
            if isinstance(of, int):
                if step is not None and of > step:
                    break
                last = max(last, of)
            kept += len(line)
        if kept < self.path.stat().st_size:
            _keep(self.path, kept)
        return last


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a log without its header; half a line at the end, which a killed run leaves, is not one of them."""
    if not path.is_file():
        raise PolyReplyError(f"{path}: there is no such log; name the log.jsonl of a run folder")
    return [found for _, found in _lines(path) if found["kind"] != _HEADER]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each whole line with what it says."""
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
        "the log was changed or damaged: remove that line"
    )


def _check_header(path: Path, found: dict[str, Any]) -> None:
    version = found.get("schema_version")
    if found["kind"] != _HEADER or not isinstance(version, int):
        raise PolyReplyError(f"{path}: expected the log of a run, found no schema version in its first line")
    if version > SCHEMA_VERSION:
        raise PolyReplyError(
            f"{path} has schema version {version}, and this polyreply reads up to {SCHEMA_VERSION}; upgrade polyreply"
        )


def _keep(path: Path, size: int) -> None:
    """Replaces a file by its first bytes; whoever looks finds the old one or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with path.open("rb") as old, temporary.open("wb") as new:
        while size > 0 and (piece := old.read(min(size, 1 << 20))):
            new.write(piece)
            size -= len(piece)
        new.flush()
        os.fsync(new.fileno())
    temporary.replace(path)
