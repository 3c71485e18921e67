"""Topics compiled for generation: every line of a split with the values its slots can take."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from string import Formatter

from polyreply.data.smalltalk.slots import SHARED
from polyreply.data.smalltalk.topic import Slot, Split, Topic
from polyreply.data.smalltalk.topics_care import CARE
from polyreply.data.smalltalk.topics_home import HOME
from polyreply.data.smalltalk.topics_leisure import LEISURE
from polyreply.data.smalltalk.topics_out import OUT
from polyreply.data.smalltalk.topics_people import PEOPLE

TOPICS: tuple[Topic, ...] = (*HOME, *OUT, *LEISURE, *CARE, *PEOPLE)

# Where a line's shared slots turn up in a reply, seen from the other side. The first that a line has wins.
REPLY_SIDE: Mapping[str, tuple[tuple[str, str], ...]] = {
    "who": (("name", "{name}"), ("kin", "your {kin}"), ("friend", "your {friend}")),
    "place": (("place", "{place}"),),
    "when": (("often", "{often}"), ("hour", "{hour}"), ("day", "{day}"), ("season", "{season}")),
    "often": (("often", "{often}"), ("hour", "{hour}")),
}


@cache
def slot_names(template: str) -> tuple[str, ...]:
    """The slots of a template, each once, in order of first use."""
    return tuple(dict.fromkeys(name for _, name, _, _ in Formatter().parse(template) if name))


@dataclass(frozen=True, slots=True)
class Frame:
    """One context template with its slots' values and the reply-side templates that go with it."""

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


def _frame(topic: Topic, text: str, split: Split) -> Frame:
    slots: dict[str, Slot] = {**SHARED, **topic.slots}
    used = slot_names(text)
    reply = {"doing": topic.doing, "thing": topic.thing}
    for slot, sources in REPLY_SIDE.items():
        for source, template in sources:
            if source in used and slot not in reply:
                reply[slot] = template
    return Frame(topic.name, text, {name: slots[name].values(split) for name in used}, reply)


@cache
def frames(split: Split) -> tuple[Frame, ...]:
    """All context templates of a split, compiled, topic by topic."""
    return tuple(_frame(topic, text, split) for topic in TOPICS for text in topic.lines(split))
