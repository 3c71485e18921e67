"""The labeller: which reply act a text carries, told by its wording."""

import re
from collections import defaultdict
from string import Formatter

from polyreply.data.smalltalk.replies import PHRASINGS

# A slot takes any words, seen or not, but no sentence punctuation, and does not stop at a word that leads on.
_WORD = r"\w[\w'-]*"
_LEADS_ON = "a|an|and|at|by|for|from|in|into|my|of|on|or|than|the|to|under|up|with|your"
_END = "".join(rf"(?<!\b{word})" for word in _LEADS_ON.split("|"))


def _filler(first: str, most: int) -> str:
    return rf"{first}(?: {_WORD}){{0,{most - 1}}}{_END}"


_FILLERS = {
    "doing": _filler(_WORD, 12),
    "thing": _filler(_WORD, 9),
    "who": _filler(_WORD, 5),
    "place": _filler(_WORD, 5),
    "when": _filler(_WORD, 8),
    "often": _filler(_WORD, 8),
}
_SPACE_BEFORE_MARK = re.compile(r" (?=[,.?!])")
_FIRST_WORD = re.compile(r"[\w']+")


def label(text: str) -> str | None:
    """The act of a reply, or None for a text that is none of the phrasings with its slots filled.

    Case, white space and the final punctuation do not matter, nor does what fills the slots, as long as it is
    a few words that could stand there.
    """
    plain = _plain(text)
    first = _FIRST_WORD.match(plain)
    if first is None:
        return None
    for pattern, acts in (_BY_FIRST_WORD.get(first[0], _NOTHING), _SLOT_FIRST):
        found = pattern.fullmatch(plain)
        if found and found.lastindex:
            return acts[found.lastindex - 1]
    return None


def _plain(text: str) -> str:
    """Lower case, single spaces, straight apostrophes, no final punctuation."""
    plain = " ".join(text.lower().replace("’", "'").split())
    return _SPACE_BEFORE_MARK.sub("", plain).rstrip(".?! ")


def _pattern(phrasing: str) -> str:
    """A regular expression for the plain form of a phrasing with its slots filled."""
    pieces = []
    for literal, slot, _, _ in Formatter().parse(_plain(phrasing)):
        pieces.append(re.escape(literal))
        if slot:
            pieces.append(_FILLERS[slot])
    return "".join(pieces)


def _compile(entries: list[tuple[str, str]]) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """One pattern for (phrasing, act) entries, a group for each, and the acts in the order of the groups."""
    return re.compile("|".join(f"({_pattern(phrasing)})" for phrasing, _ in entries)), tuple(act for _, act in entries)


def _by_first_word() -> dict[str, list[tuple[str, str]]]:
    """(phrasing, act) entries under their first word; under "" those that begin with a slot."""
    entries: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for act, phrasings in PHRASINGS.items():
        for phrasing in phrasings:
            first = _FIRST_WORD.match(_plain(phrasing))
            entries[first[0] if first else ""].append((phrasing, act))
    return entries


_ENTRIES = _by_first_word()
_NOTHING = _compile([])
_SLOT_FIRST = _compile(_ENTRIES.pop("", []))
_BY_FIRST_WORD = {first: _compile(entries) for first, entries in _ENTRIES.items()}
