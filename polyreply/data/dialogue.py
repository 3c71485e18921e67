"""The unit of data: a context and the responses people gave to it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One row of a dialogue file: a context, oldest turn first, and one or more responses to it."""

    context: tuple[str, ...]
    responses: tuple[str, ...]
    acts: tuple[str, ...] = ()
    """The reply act of each response where a generator knows it. For measurement only: training never reads it."""
