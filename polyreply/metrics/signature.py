"""The string that says how a score was made, so that nobody compares what cannot be compared.

An example: `tok:wordpunct|case:lower|smooth:none|avg:contexts|k:10|refs:1-5|v:0.1.0`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from polyreply import __version__
from polyreply.errors import PolyReplyError

SMOOTHING = "none"
"""NLTK's behaviour without a smoothing function; a precision of 0 makes BLEU about 0."""
AVERAGING = "contexts"
"""P and R are averaged over contexts, each context counting the same; F is the harmonic mean of these averages."""


@dataclass(frozen=True)
class Signature:
    """What a score depends on beside the texts."""

    tokenizer: str
    case: str
    k: str
    """Responses of each context: a number, or `variable(3-10)`."""
    references: str
    """References of each context: a number, a range such as `1-5`, or `none`."""
    embeddings: str = ""
    """The model behind the embedding-based numbers, if there are any."""
    smoothing: str = SMOOTHING
    averaging: str = AVERAGING
    version: str = __version__

    def __str__(self) -> str:
        """The fields in a fixed order, the version last."""
        return "|".join(f"{key}:{getattr(self, name)}" for key, name in _KEYS.items() if getattr(self, name))

    @classmethod
    def parse(cls, text: str) -> "Signature":
        """The signature that was written as `text`."""
        fields = dict(part.partition(":")[::2] for part in text.split("|"))
        if not set(_KEYS) - {"emb"} <= set(fields) <= set(_KEYS):
            raise PolyReplyError(f"expected a signature such as tok:…|case:…|…|v:…, found {text!r}")
        return cls(**{_KEYS[key]: value for key, value in fields.items()})

    def differences(self, other: "Signature") -> list[str]:
        """The fields in which two signatures differ, as `k: 10 and 5`.

        Having embedding-based numbers or not does not matter to the others; having them from two models does.
        """
        found = []
        for key, name in _KEYS.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs and (name != "embeddings" or (mine and theirs)):
                found.append(f"{key}: {mine} and {theirs}")
        return found


_KEYS = {
    "tok": "tokenizer",
    "case": "case",
    "smooth": "smoothing",
    "avg": "averaging",
    "k": "k",
    "refs": "references",
    "emb": "embeddings",
    "v": "version",
}


def span(numbers: Sequence[int]) -> str:
    """`5` when all numbers are equal, `1-5` otherwise."""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"
