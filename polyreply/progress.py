"""How long-running work reports its progress, and a progress bar for terminals."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Notify = Callable[[str, float], None]
"""Called with the name of the stage and the share of it that is done, 0 to 1."""

_interrupted = False


def silent(stage: str, share: float) -> None:
    """Report nothing."""


@contextmanager
def progress_bar() -> Iterator[Notify]:
    """A progress bar on standard error, as a function to pass to the work."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    percent = TextColumn("{task.percentage:>3.0f} %")
    columns = (TextColumn("{task.description}"), BarColumn(), percent, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=1.0)

        def notify(stage: str, share: float) -> None:
            if _interrupted:
                raise KeyboardInterrupt
            progress.update(task, description=stage, completed=share)

        yield notify


def interrupt(number: int, frame: object) -> None:
    """Handle Ctrl-C. Python drops an exception raised inside a finaliser, so the next `notify` raises it again."""
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt
