"""What the verbs share on the screen: progress on standard error, tables and JSON on standard output."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

_interrupted = False


def interrupt(number: int, frame: object) -> None:
    """Answers Ctrl-C. Python loses an exception raised inside a finaliser, so the next progress raises it again."""
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A progress bar that the work calls with the name of its stage and the share done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=1.0)

        def notify(stage: str, share: float) -> None:
            if _interrupted:
                raise KeyboardInterrupt
            progress.update(task, description=stage, completed=share)

        yield notify


def print_json(value: Any) -> None:
    """Prints a value as JSON, for programs."""
    import json

    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]], *, note: str = "") -> None:
    """Prints a table for people: numbers to the right, with thin spaces in long ones."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", caption=note, caption_justify="left")
    cells = [[_cell(value) for value in row] for row in rows]
    for index, heading in enumerate(headings):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        longest = max((len(row[index]) for row in cells), default=0)
        keep = numeric or index == 0  # other columns may wrap to make room
        table.add_column(heading, justify="right" if numeric else "left", min_width=min(longest, 24) if keep else None)
    for row in cells:
        table.add_row(*map(escape, row))
    Console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}".replace(",", "\u2009") if isinstance(value, int) else f"{value:.1f}"
