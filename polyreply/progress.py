"""How long work tells how far it has come."""

from collections.abc import Callable

Notify = Callable[[str, float], None]
"""Called with the name of the stage and the share of it that is done, 0 to 1."""


def silent(stage: str, share: float) -> None:
    """Tells nobody."""
