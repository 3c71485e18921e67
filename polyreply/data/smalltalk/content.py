"""The content of smalltalk: topics with their lines and slots, and the phrasings of each act, from the YAML files here.

A line is a context template, such as "I'm cutting down on {food} {season}." Its slots are filled from the topic's own
values and from those that all topics share (`slots.yaml`). Every line speaks of something the speaker does, plans or
keeps at, neither glad nor sad enough to rule out any reply act.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from polyreply.data.dialogue import Split

ACTS = ("agree", "disagree", "ask", "advise", "sympathise", "experience", "joke", "doubt", "praise", "change")
_TOPIC_FILES = ("topics_home", "topics_out", "topics_leisure", "topics_care", "topics_people")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Where a line's shared slots turn up in a reply, seen from the other side. The first that a line has wins.
_REPLY_SIDE: Mapping[str, tuple[tuple[str, str], ...]] = {
    "who": (("name", "{name}"), ("kin", "your {kin}"), ("friend", "your {friend}")),
    "place": (("place", "{place}"),),
    "when": (("often", "{often}"), ("hour", "{hour}"), ("day", "{day}"), ("season", "{season}")),
    "often": (("often", "{often}"), ("hour", "{hour}")),
}

Slot = Mapping[Split, tuple[str, ...]]
"""The values that a slot can take in each split. No value is in two of them."""


@dataclass(frozen=True)
class Topic:
    """What people say about one subject, and how a reply refers to it."""

    name: str
    doing: str
    """A gerund phrase for the activity. It names no person, so that the replier can have done it too."""
    thing: str
    """A definite noun phrase for the matter. Replies use it where number does not show."""
    slots: Mapping[str, Slot]
    """The topic's own slots."""
    lines: Mapping[Split, tuple[str, ...]]
    """The context templates of each split. No template is in two of them."""


@dataclass(frozen=True)
class Frame:
    """One context template with the values of its slots and the reply-side templates that go with it."""

    topic: str
    text: str
    values: Mapping[str, tuple[str, ...]]
    reply: Mapping[str, str]
    """Reply slot (`doing`, `thing`, `who`, ...) to its template over the same values."""

    @property
    def size(self) -> int:
        """The number of distinct ways of filling the slots."""
        return prod(len(values) for values in self.values.values())

    def fillings(self) -> Iterator[dict[str, str]]:
        """Every way of filling the slots."""
        for chosen in product(*self.values.values()):
            yield dict(zip(self.values, chosen, strict=True))


@cache
def phrasings() -> dict[str, tuple[str, ...]]:
    """The phrasings of each act. They use the reply slots; each is drawn where the context has all that it uses."""
    content = _load("replies")
    return {act: tuple(content[act]) for act in ACTS}


@cache
def shared_slots() -> dict[str, Slot]:
    """The slots that lines of any topic may use: people, places and times."""
    return {name: _slot(values) for name, values in _load("slots").items()}


@cache
def topics() -> tuple[Topic, ...]:
    """All topics, in a fixed order."""
    return tuple(
        Topic(
            name=entry["name"],
            doing=entry["doing"],
            thing=entry["thing"],
            slots={name: _slot(values) for name, values in entry["slots"].items()},
            lines={"train": tuple(entry["train"]), "valid": tuple(entry["valid"]), "test": tuple(entry["test"])},
        )
        for file in _TOPIC_FILES
        for entry in _load(file)
    )


@cache
def frames(split: Split) -> tuple[Frame, ...]:
    """All context templates of a split, topic by topic."""
    return tuple(_frame(topic, line, split) for topic in topics() for line in topic.lines[split])


@cache
def slot_names(template: str) -> tuple[str, ...]:
    """The slots of a template, each once, in order of first use."""
    return tuple(dict.fromkeys(name for _, name, _, _ in Formatter().parse(template) if name))


def _frame(topic: Topic, line: str, split: Split) -> Frame:
    slots = {**shared_slots(), **topic.slots}
    used = slot_names(line)
    reply = {"doing": topic.doing, "thing": topic.thing}
    for slot, sources in _REPLY_SIDE.items():
        for source, template in sources:
            if source in used and slot not in reply:
                reply[slot] = template
    return Frame(topic.name, line, {name: slots[name][split] for name in used}, reply)


def _load(file: str) -> Any:
    text = Path(__file__).with_name(f"{file}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=_LOADER)  # a SafeLoader: it builds plain values only


def _slot(entry: Mapping[Split, str]) -> Slot:
    """A slot from its comma-separated lists of values."""
    return {split: tuple(value.strip() for value in values.split(",")) for split, values in entry.items()}
