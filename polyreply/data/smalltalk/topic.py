"""The shapes in which the corpus is written down: a slot with its values per split, and a topic."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Split = Literal["train", "valid", "test"]


@dataclass(frozen=True, slots=True)
class Slot:
    """The values of one slot, written as comma-separated lists. No value is in two of the splits."""

    train: str
    valid: str
    test: str

    def values(self, split: Split) -> tuple[str, ...]:
        """The values of one split, in the order in which they are written."""
        listed: str = getattr(self, split)
        return tuple(" ".join(value.split()) for value in listed.split(","))


@dataclass(frozen=True, slots=True)
class Topic:
    """What people say about one subject, and how a reply refers to it.

    Every line speaks of something the speaker does, plans or keeps at, neither glad nor sad enough to rule
    out any reply act. A line may use the topic's own slots and the shared ones.
    """

    name: str
    doing: str
    """A gerund phrase for the activity. It names no person, so that the replier can have done it too."""
    thing: str
    """A definite noun phrase for the matter. Replies use it where number does not show."""
    slots: Mapping[str, Slot] = field(hash=False)
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]

    def lines(self, split: Split) -> tuple[str, ...]:
        """The context templates of one split. No template is in two of the splits."""
        chosen: tuple[str, ...] = getattr(self, split)
        return chosen
