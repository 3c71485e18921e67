"""The part files of a run that replies to a file: OUTPUT.partial.0, OUTPUT.partial.1, … beside OUTPUT.

Each process adds its batches to its own file, in whatever order; each batch is one line, {"batch": its number, "rows":
rows of the output}, so that a batch is there whole or not at all. It does not matter who has written which file.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from polyreply.errors import PolyReplyError

Row = dict[str, Any]


def part_path(output: Path, rank: int) -> Path:
    """The file of one process."""
    return output.with_name(f"{output.name}.partial.{rank}")


def part_paths(output: Path) -> list[Path]:
    """The files there are, of this run and of earlier ones."""
    name = re.compile(re.escape(f"{output.name}.partial.") + r"\d+")
    return sorted(path for path in output.parent.glob("*") if name.fullmatch(path.name))


def batch_line(number: int, rows: Sequence[Row]) -> bytes:
    """A batch as it is written to a part file."""
    return json.dumps({"batch": number, "rows": rows}, ensure_ascii=False).encode() + b"\n"


def open_part(path: Path) -> IO[bytes]:
    """Opens a part file to add to it, for one process at a time.

    A launcher that was killed may have left processes that still write; a new run must not write beside them.
    """
    stream = path.open("ab")
    try:
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        raise PolyReplyError(f"{path}: another run is still writing there; wait until it ends, or stop it") from None
    except (ImportError, OSError):  # a system or a disk without such locks
        pass
    return stream


class Parts:
    """The finished batches. Memory holds where each begins, not what it says."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Reads the files; what is not whole, because a process was killed while it wrote, is cut off."""
        self._places: dict[int, tuple[Path, int]] = {}
        for path in paths:
            end = 0
            with path.open("rb") as stream:
                for line in stream:
                    batch = _batch(line)
                    if batch is None:
                        break
                    self._add(batch["batch"], path, end)
                    end += len(line)
            os.truncate(path, end)

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __len__(self) -> int:
        return len(self._places)

    def read(self, number: int, contexts: Sequence[tuple[str, ...]], source: Path) -> list[Row]:
        """The rows of a batch; raises when they do not reply to these contexts of the source."""
        path, begin = self._places[number]
        with path.open("rb") as stream:
            stream.seek(begin)
            rows: list[Row] = json.loads(stream.readline())["rows"]
        if [_context(row) for row in rows] != list(contexts):
            raise PolyReplyError(
                f"{path}: expected the contexts of batch {number + 1} of {source}, found others; remove that file or "
                "say --overwrite to begin anew"
            )
        return rows

    def _add(self, number: int, path: Path, begin: int) -> None:
        if number in self._places:
            raise PolyReplyError(
                f"{path}: expected each batch once, found batch {number + 1} again, as if two runs had written at "
                "once; remove that file, or say --overwrite to begin anew"
            )
        self._places[number] = path, begin


def _batch(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None if it is not a whole batch."""
    try:
        batch = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    whole = isinstance(batch, dict) and isinstance(batch.get("batch"), int) and isinstance(batch.get("rows"), list)
    return batch if whole else None


def _context(row: Any) -> tuple[str, ...] | None:
    """The turns that a row replies to."""
    context = row.get("context") if isinstance(row, dict) else None
    return (context,) if isinstance(context, str) else tuple(context) if isinstance(context, list) else None
