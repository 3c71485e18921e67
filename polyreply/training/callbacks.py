"""Callbacks: what training calls while it runs, to show progress, to log elsewhere, or to stop it.

Subclass `Callback`, override what you need, and pass instances as `train(recipe, callbacks=[...])`. With several
processes, only the main one calls them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyreply.em.em_step import StepRecord
    from polyreply.training.recipe import TrainRecipe
    from polyreply.training.validation import ValidationRecord


class Callback:
    """Does nothing; the base class of callbacks."""

    def on_start(self, recipe: "TrainRecipe") -> None:
        """Called once, before data and model are loaded."""

    def on_step(self, record: "StepRecord") -> bool | None:
        """Called after each EM step (or update of stage 1). Return True to stop the training and keep its result."""

    def on_validation(self, record: "ValidationRecord") -> bool | None:
        """Called after each validation, with its metrics and example replies. Return True to stop the training."""

    def on_message(self, text: str) -> None:
        """Called with text for people: what is being loaded, alarms, a checkpoint that cannot be used."""

    def on_end(self) -> None:
        """Called once, after the last step, an error or an interrupt."""


class Callbacks(Callback):
    """Several callbacks as one; asks for a stop if one of them does."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = list(callbacks)

    def on_start(self, recipe: "TrainRecipe") -> None:
        """Call all of them."""
        self._call("on_start", recipe)

    def on_step(self, record: "StepRecord") -> bool:
        """Call all of them."""
        return self._call("on_step", record)

    def on_validation(self, record: "ValidationRecord") -> bool:
        """Call all of them."""
        return self._call("on_validation", record)

    def on_message(self, text: str) -> None:
        """Call all of them."""
        self._call("on_message", text)

    def on_end(self) -> None:
        """Call all of them."""
        self._call("on_end")

    def _call(self, method: str, *arguments: Any) -> bool:
        answers = [getattr(callback, method)(*arguments) for callback in self.callbacks]
        return any(answers)
