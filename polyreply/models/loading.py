"""What loading a backbone and loading a K-decoder model share."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyreply.errors import PolyReplyError


def leads_nowhere(name: str | Path) -> bool:
    """Whether a name is a path to no folder, so that the hub need not be asked for it, with many retries."""
    text = str(name)
    is_path = isinstance(name, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1
    return is_path and not Path(name).is_dir()


@contextmanager
def one_line_errors(kind: type[PolyReplyError], what: str, expected: str) -> Iterator[None]:
    """Turns whatever a load raises (a missing file, no network, a broken file) into one line.

    `what` says what was to be loaded from where, `expected` what should have been there.
    """
    try:
        yield
    except PolyReplyError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise kind(f"cannot load {what}: expected {expected}, found: {reason}") from error


@contextmanager
def quietly() -> Iterator[None]:
    """Silences Transformers' warnings about a load (each that matters is an error here) and its progress bars."""
    from transformers.utils import logging as transformers_logging

    before, had_bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
        if had_bars:
            transformers_logging.enable_progress_bar()


def stay_untied(model: Any) -> None:
    """Keeps an output layer of its own, as Flan-T5 has.

    Transformers loads it as it is, but leaves T5's configuration and its list of tied weights saying "tied":
    `tie_weights` and whatever calls it, such as a resize of the embedding or a model that is built around this one,
    would then overwrite it.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is not embedding.weight:
        model.config.tie_word_embeddings = False
        tied = model.all_tied_weights_keys
        model.all_tied_weights_keys = {key: tied[key] for key in tied if model.get_parameter(key) is not head.weight}
