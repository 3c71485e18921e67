"""Corpora that have a name: `polyreply prepare NAME`, or `prepare(NAME, …)` from Python.

A corpus is a function that yields the rows of a split, and one entry in `CORPORA`. A program that uses polyreply can
add its own entry before it calls `prepare`; docs/data.md has an example.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from polyreply.data import chitchat, messages
from polyreply.data.dialogue import Dialogue, Split
from polyreply.data.read import Row

SMALLTALK_ROWS: dict[Split, int] = {"train": 60_000, "valid": 1_000, "test": 1_000}


@dataclass(frozen=True)
class Corpus:
    """Where the rows of a named corpus come from."""

    rows: Callable[[Split, int], Iterable[Row | Dialogue]]
    """Yields the rows of train, valid or test; the second argument is the seed, for corpora that are generated."""
    templated: bool = False
    """Rows made from templates, which resemble each other by nature: the splits are fixed, and near-duplicates are
    not searched."""


def _smalltalk_explicit(split: Split, seed: int) -> Iterable[Dialogue]:
    from polyreply.data import smalltalk

    return smalltalk.generate(split=split, rows=SMALLTALK_ROWS[split], seed=seed, form="explicit")


def _smalltalk_implicit(split: Split, seed: int) -> Iterable[Dialogue]:
    from polyreply.data import smalltalk

    return smalltalk.generate(split=split, rows=SMALLTALK_ROWS[split], seed=seed, form="implicit")


CORPORA: dict[str, Corpus] = {
    "chitchat": Corpus(lambda split, seed: chitchat.conversations(split)),
    "messages": Corpus(lambda split, seed: messages.rows(split)),
    "smalltalk-explicit": Corpus(_smalltalk_explicit, templated=True),
    "smalltalk-implicit": Corpus(_smalltalk_implicit, templated=True),
}
"""Every corpus by its name; add yours here, or from outside the package."""

EMBEDDED = tuple(CORPORA)
"""The corpora that come with polyreply."""
