"""Text that a tokenizer took apart ("I don ' t know .") is put together again ("I don't know."), in all splits alike.

Corpora are often published that way, and not always in one: where train says "don ' t" and valid "don't", a model reads
what it has never seen.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from polyreply.data.clean import Language, reattach
from polyreply.data.dialogue import Dialogue
from polyreply.data.read import read_dialogues

_LOOKED_AT = 200
"""Rows by which it is recognised."""
_AT_ONCE = 10_000
_SIGN = re.compile(r"(\s*)[.,!?。，！？](?!\S)")
"""A sign at the end of a word, with the space before it."""


def is_taken_apart(path: Path) -> bool:
    """Whether most signs at the end of words stand alone."""
    texts = [text for row in islice(read_dialogues(path), _LOOKED_AT) for text in (*row.context, *row.responses)]
    spaces = [space for text in texts for space in _SIGN.findall(text)]
    return sum(map(bool, spaces)) > len(spaces) / 2


def put_together(dialogues: Iterable[Dialogue], language: Language) -> Iterator[Dialogue]:
    """The dialogues with their texts put together."""
    rows = iter(dialogues)
    while some := list(islice(rows, _AT_ONCE)):
        texts = iter(reattach([text for row in some for text in (*row.context, *row.responses)], language))
        for row in some:
            context = tuple(islice(texts, len(row.context)))
            yield Dialogue(context, tuple(islice(texts, len(row.responses))), row.acts)
