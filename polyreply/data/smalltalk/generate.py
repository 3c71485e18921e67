"""The generator: contexts drawn from the topics, replies drawn from the acts, independently of each other."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Literal, get_args

from polyreply.data.dialogue import SPLITS, Dialogue, Split
from polyreply.data.smalltalk.content import ACTS, Frame, frames, phrasings, slot_names
from polyreply.errors import DataError

Form = Literal["explicit", "implicit"]
REFERENCES = (3, 6)
"""The least and the most responses of an explicit row."""


def generate(*, split: Split = "train", rows: int, seed: int = 0, form: Form = "implicit") -> Iterator[Dialogue]:
    """Yield `rows` dialogues of a split, lazily; the same arguments give the same rows.

    Asking for fewer rows gives a prefix of the rows that a larger number gives. `implicit` rows have one response
    each, and a context may come back with another response; `explicit` rows have three to six responses of distinct
    acts, and no context comes back. No pair of context and response occurs twice. When a split has no more rows, the
    iterator raises `DataError`.
    """
    if split not in SPLITS:
        raise DataError(f"smalltalk has the splits train, valid and test, not {split!r}; use one of these")
    if form not in get_args(Form):
        raise DataError(f"smalltalk has the forms explicit and implicit, not {form!r}; use one of these")
    if rows < 0:
        raise DataError(f"rows must be 0 or more, not {rows}; use a positive number")
    return islice(_deal(split, form, seed), rows)


def _deal(split: Split, form: Form, seed: int) -> Iterator[Dialogue]:
    """Draw from the frames at random; one that has run out is removed."""
    random = Random(f"{seed}/{split}/{form}")
    decks = [_deck(frame) for frame in frames(split)]
    dealt = 0
    while decks:
        place = int(random.random() * len(decks))
        row = decks[place].one(random) if form == "implicit" else decks[place].several(random)
        if row is None:
            del decks[place]
        else:
            yield row
            dealt += 1
    raise DataError(f"smalltalk {split} ends after {dealt} {form} rows; ask for at most {dealt} rows")


@dataclass(slots=True)
class _Deck:
    """One frame ready for drawing. Texts are format strings over the positions of `values`."""

    text: str
    values: tuple[tuple[str, ...], ...]
    size: int
    replies: dict[str, tuple[str, ...]]
    used: dict[str, set[int]] = field(default_factory=lambda: {act: set() for act in ("", *ACTS)})
    """What was drawn: fillings under "" for explicit rows, else (filling, phrasing) pairs under the act."""

    def one(self, random: Random) -> Dialogue | None:
        """An unused pair of context and response, its act drawn uniformly; None when the act has run out."""
        act = ACTS[int(random.random() * len(ACTS))]
        replies = self.replies[act]
        pair = _unused(random, self.size * len(replies), self.used[act])
        if pair is None:
            return None
        filling, place = divmod(pair, len(replies))
        values = self._fill(filling)
        return Dialogue((self.text.format(*values),), (replies[place].format(*values),), (act,))

    def several(self, random: Random) -> Dialogue | None:
        """An unused context with responses of distinct acts, or None when all contexts are used."""
        filling = _unused(random, self.size, self.used[""])
        if filling is None:
            return None
        values = self._fill(filling)
        acts = tuple(random.sample(ACTS, random.randint(*REFERENCES)))
        responses = tuple(random.choice(self.replies[act]).format(*values) for act in acts)
        return Dialogue((self.text.format(*values),), responses, acts)

    def _fill(self, filling: int) -> list[str]:
        """The values with the number `filling`, counted with the first slot running fastest."""
        chosen = []
        for values in self.values:
            filling, place = divmod(filling, len(values))
            chosen.append(values[place])
        return chosen


def _unused(random: Random, size: int, used: set[int]) -> int | None:
    """A number below `size` that was not drawn before, or None if there is none left."""
    if len(used) == size:
        return None
    number = int(random.random() * size)
    while number in used:
        number = int(random.random() * size)
    used.add(number)
    return number


def _deck(frame: Frame) -> _Deck:
    """A frame with its templates rewritten from slot names to positions, which are faster to fill."""
    positions = {name: f"{{{place}}}" for place, name in enumerate(frame.values)}
    slots = {slot: template.format_map(positions) for slot, template in frame.reply.items()}
    slots["Doing"] = slots["doing"][0].upper() + slots["doing"][1:]
    replies = {
        act: tuple(text.format_map(slots) for text in texts if set(slot_names(text)) <= set(slots))
        for act, texts in phrasings().items()
    }
    return _Deck(frame.text.format_map(positions), tuple(frame.values.values()), frame.size, replies)
