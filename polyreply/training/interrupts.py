"""How a run ends early: interrupted, diverged or without disk space, each with a line that says how to resume."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from polyreply.distributed import ProcessError, world_size
from polyreply.errors import DivergedError, PolyReplyError

_NATIVE = "(os error "
"""How safetensors and tokenizers, which are written in Rust, report an error of the operating system."""


class TrainingError(PolyReplyError):
    """A run cannot continue; every process of it raises this."""


class DiskError(PolyReplyError):
    """Files of a run cannot be written or read."""


def resume_command(out: object) -> str:
    """The command that resumes a run, under a launcher if there was one."""
    command = f"polyreply train --resume {out}"
    return f"torchrun … -m {command}" if world_size() > 1 else command


@contextmanager
def resumable_errors(out: str) -> Iterator[None]:
    """Add the way to resume to errors about disks and about values that are not finite."""
    try:
        yield
    except DivergedError as error:
        raise DivergedError(
            f"{error}; the last checkpoint is intact: resume with a lower learning rate or clipped gradients, as in "
            f"{resume_command(out)} --allow-changes optimizer.learning_rate=1e-4 optimizer.clip_norm=1.0"
        ) from error
    except PolyReplyError:
        raise
    except Exception as error:
        if not (isinstance(error, OSError) or _NATIVE in str(error)):
            raise
        path, reason = (error.filename, error.strerror) if isinstance(error, OSError) else (None, None)
        raise DiskError(
            f"{path or out}: {reason or error}; the last checkpoint is intact: free disk space or fix the permissions, "
            f"then run {resume_command(out)}"
        ) from error


@contextmanager
def graceful_interrupt(interrupt: Callable[[], None]) -> Iterator[None]:
    """On the first Ctrl-C, or a launcher's SIGTERM, call `interrupt`; a second Ctrl-C raises at once."""
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
        before[signal.SIGTERM] = signal.SIG_IGN  # a launcher may end us now, but our message comes first
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
