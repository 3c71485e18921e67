"""Two contexts that should be equal and are not, shown so that a person sees the difference."""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_WIDTH, _BEFORE = 60, 30
"""Characters that are shown of a long text, and how many of them stand before the first difference."""


@dataclass(frozen=True)
class Mismatch:
    """What was expected and found, around the first difference, and what kind of difference is the only one."""

    expected: str
    found: str
    only: str = ""


def describe(expected: Sequence[str], found: Sequence[str]) -> Mismatch:
    """Shows two different contexts; with escapes where the difference could not be seen otherwise."""
    form = ascii if _look_alike(str(list(expected)), str(list(found))) else repr
    return Mismatch(*_show(expected, found, form), only=_only_difference(expected, found))


def show(context: Sequence[str]) -> str:
    """The beginning of one context: a text, or a list of turns."""
    return _cut(context[0], 0, repr) if len(context) == 1 else _cut(repr(list(context)), 0, str)


def _show(one: Sequence[str], two: Sequence[str], form: Callable[[object], str]) -> tuple[str, str]:
    if len(one) == len(two) == 1:
        texts, after = (one[0], two[0]), form
    else:
        texts, after = (form(list(one)), form(list(two))), str
    place = _first_difference(*texts)
    begin = place - _BEFORE if place >= _WIDTH - 10 else 0
    return _cut(texts[0], begin, after), _cut(texts[1], begin, after)


def _first_difference(one: str, two: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _look_alike(one: str, two: str) -> bool:
    """Whether a reader would not see the first difference of two texts."""
    begin = max(0, _first_difference(one, two) - 1)  # an accent belongs to the letter before it
    end = begin + _BEFORE
    looks = _look(one[begin:end]), _look(two[begin:end])
    seen = min(map(len, looks)) if min(len(one), len(two)) > end else max(map(len, looks))
    return looks[0][:seen] == looks[1][:seen]


def _cut(text: str, begin: int, form: Callable[[object], str]) -> str:
    end = begin + _WIDTH
    return ("…" if begin else "") + form(text[begin:end]) + ("…" if end < len(text) else "")


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _one_space(text: str) -> str:
    return " ".join(text.split())


def _visible(text: str) -> str:
    return "".join(char for char in text if unicodedata.category(char) != "Cf")


def _look(text: str) -> str:
    """Equal for texts that look alike on the screen."""
    return _composed(_one_space(_visible(text)))


_KINDS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("their Unicode form (NFC or NFD)", _composed),
    ("white space", _one_space),
    ("invisible characters", _visible),
    ("upper and lower case", str.casefold),
    ("white space, invisible characters or their Unicode form", _look),
)


def _only_difference(expected: Sequence[str], found: Sequence[str]) -> str:
    """The kind of difference without which both would be equal; empty when there is no such kind."""
    kinds = (name for name, form in _KINDS if [form(turn) for turn in expected] == [form(turn) for turn in found])
    return next(kinds, "")
