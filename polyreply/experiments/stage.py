"""A stage: a step of an experiment whose result is kept, and how one knows that it is still good.

`done.json` says what a stage was made from, which results of other stages it used, by their ids, and how long it took.
A stage counts as made while all it used is still there: whoever removes a folder has all that stands on it made anew.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DONE = "done.json"
REVISION = {
    "data": 0,
    "splits": 0,
    "final": 0,
    "choices": 0,
    "training": 0,
    "responses": 0,
    "scores": 0,
    "recovery": 0,
    "bound": 0,
    "speed": 0,
}
"""Raise the number of a kind when a fix changes what its stages hold: they are then made anew. 0 is not written."""


def revision(kind: str) -> dict[str, int]:
    """What the stages of a kind put into `made_from` for it."""
    return {"revision": REVISION[kind]} if REVISION[kind] else {}


@dataclass(frozen=True)
class Work:
    """How much there is to do, in a unit whose pace can be measured."""

    unit: str = ""
    """Empty for what takes no time worth telling."""
    amount: float = 0.0


@dataclass(frozen=True)
class Stage:
    """A step of an experiment: the folder of its result, what that is made from, and how."""

    path: Path
    made_from: Mapping[str, Any]
    make: Callable[[Path], None]
    needs: tuple["Stage", ...] = ()
    """What has to be there before it can be made."""
    work: Work = Work()
    leftover: str = ""
    """A folder inside that only an unfinished stage needs."""
    choices: tuple["Stage", ...] = ()
    """Trainings by which one of its settings is chosen. It uses nothing of them, but they have to be made."""
    is_provisional: bool = False
    """Whether another may be chosen in its place, because its choices are not all made: nothing stands on it yet."""
    is_trial: bool = False
    """Whether it is one of the trainings that are chosen among, and has to be made in any case."""
    is_timed: bool = False
    """Whether it measures time, so that nothing else should run beside it."""
    mend: Callable[[Path], None] | None = None
    """Puts right what may have moved since it was made."""

    @property
    def name(self) -> str:
        """Its kind and the digest of what it is made from."""
        return self.path.name

    @property
    def kind(self) -> str:
        """Its name without the digest."""
        return self.name.rpartition("-")[0]

    @property
    def is_made(self) -> bool:
        """Whether its result is there, whole, and made from the results of its needs that are there."""
        done = self.done()
        if not done or not all(need.is_made for need in self.needs):
            return False
        return self.used(done) == self.need_ids()

    @property
    def diverged(self) -> str:
        """Why the training cannot be used, if it ended in numbers that are none."""
        return str(self.done().get("diverged", ""))

    def done(self) -> dict[str, Any]:
        """What is known about how it was made; nothing if it was not."""
        return read_json(self.path / DONE)

    def need_ids(self) -> dict[str, str]:
        """The ids of the results that its needs hold now."""
        return {need.name: str(need.done().get("id", "")) for need in self.needs}

    def used(self, record: Mapping[str, Any]) -> dict[str, str]:
        """The ids of the results it was made from; stages of before there were ids used such."""
        found: dict[str, str] = record.get("needs", {need.name: "" for need in self.needs})
        return found

    def seconds(self) -> float:
        """What making it took, in all its parts."""
        return float(self.done().get("seconds", 0.0))


def read_json(path: Path) -> dict[str, Any]:
    """The object a file holds; nothing if it is not there or holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
