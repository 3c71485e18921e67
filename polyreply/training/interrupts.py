"""How a run ends early: interrupted, or where nothing can be written, and a line that says how to go on."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from polyreply.distributed import ProcessError
from polyreply.errors import PolyReplyError

_NATIVE = "(os error "
"""How safetensors and tokenizers, which are written in Rust, say that the system has refused something."""


class TrainingError(PolyReplyError):
    """A run cannot go on; every process of it finds the same."""


class DivergedError(TrainingError):
    """A loss, gradient or likelihood is no number."""


class DiskError(PolyReplyError):
    """Files of a run cannot be written or read."""


def resume_command(out: object) -> str:
    """What a user types to go on, under a launcher if there was one."""
    command = f"polyreply train --resume {out}"
    return f"torchrun … -m {command}" if int(os.environ.get("WORLD_SIZE") or 1) > 1 else command


@contextmanager
def clear_errors(out: str) -> Iterator[None]:
    """A disk that is full or may not be written becomes one line that says how to go on."""
    try:
        yield
    except Exception as error:
        if isinstance(error, PolyReplyError) or not (isinstance(error, OSError) or _NATIVE in str(error)):
            raise
        place, reason = (error.filename, error.strerror) if isinstance(error, OSError) else (None, None)
        raise DiskError(
            f"cannot go on: {place or out}: {reason or error}; the last checkpoint is intact: mend it and go on with "
            f"{resume_command(out)}"
        ) from error


@contextmanager
def gentle_interrupt(interrupt: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C, or a launcher's SIGTERM, lets the step end and be saved; a second Ctrl-C leaves at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        interrupt()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, before[signal.SIGINT])

    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    except ProcessError:
        before[signal.SIGTERM] = signal.SIG_IGN  # a launcher tells us to end: we do, but our message comes first
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
