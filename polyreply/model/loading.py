"""What loading a backbone and loading a K-decoder model share: one line for whatever goes wrong, and no warnings."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyreply.errors import PolyReplyError


@contextmanager
def one_line_errors(kind: type[PolyReplyError], what: str, name: str | Path, expected: str) -> Iterator[None]:
    """Turns whatever a load raises (a missing file, no network, a broken file) into one line."""
    try:
        yield
    except PolyReplyError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise kind(f"cannot load {what} from {str(name)!r}: expected {expected}, found: {reason}") from error


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silences Transformers' warnings about a load: each that matters is an error here."""
    from transformers.utils import logging as transformers_logging

    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
