"""What the commands share: tables and JSON on standard output, and one error line for several processes."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

_LET_SPEAK = 1.0
"""Seconds that a process waits before it ends with an error that the main one reports: a launcher then stops all."""


@contextmanager
def one_voice(is_common: Callable[[Exception], bool]) -> Iterator[None]:
    """Errors common to all processes are printed by local rank 0 only; an error of one process is printed by it."""
    from polyreply.distributed import rank, world_size
    from polyreply.errors import PolyReplyError

    try:
        yield
    except PolyReplyError as error:
        if world_size() > 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher may end us now, but our message comes first
            if rank("LOCAL_RANK") != 0 and is_common(error):
                time.sleep(_LET_SPEAK)
                raise typer.Exit(2) from None
        raise


def print_json(value: Any) -> None:
    """Print a value as JSON, for programs."""
    import json

    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]], *, note: str = "") -> None:
    """Print a table for people: numbers to the right, fractions with one decimal."""
    from polyreply.tables import Column, Table

    Table(title, [Column(heading, digits=1) for heading in headings], rows, [note] if note else []).print()
