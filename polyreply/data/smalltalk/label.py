"""The labeller: the reply act of a text, recognised by its wording."""

import re
from collections import defaultdict
from functools import cache
from string import Formatter

from polyreply.data.smalltalk.content import phrasings

# A slot takes any words, seen or not, but no sentence punctuation, and does not end in a word that needs another.
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
_SLOT = ""
_SPACE_BEFORE_MARK = re.compile(r" (?=[,.?!])")
_FIRST_WORD = re.compile(r"[\w']+")


def label(text: str) -> str | None:
    """The act of a reply, or None for a text that is not one of the phrasings with its slots filled.

    Case, white space and the final punctuation do not matter, nor does what fills the slots, if it is a few words.
    """
    plain = _plain(text)
    first = _FIRST_WORD.match(plain)
    if first is None:
        return None
    patterns = _patterns()
    for word in (first[0], _SLOT):
        if word in patterns:
            pattern, acts = patterns[word]
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


@cache
def _patterns() -> dict[str, tuple[re.Pattern[str], tuple[str, ...]]]:
    """For each first word one pattern, with a group for each phrasing that begins with it, and the acts of its groups.

    A text is thereby compared with a few phrasings instead of with all. Those that begin with a slot are under `_SLOT`.
    """
    entries: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for act, texts in phrasings().items():
        for text in texts:
            first = _FIRST_WORD.match(_plain(text))
            entries[first[0] if first else _SLOT].append((text, act))
    return {
        word: (re.compile("|".join(f"({_pattern(text)})" for text, _ in found)), tuple(act for _, act in found))
        for word, found in entries.items()
    }
