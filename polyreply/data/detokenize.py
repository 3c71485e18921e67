"""Text that was published as tokens ("I don ' t know .") becomes text again ("I don't know.").

Many corpora are published that way, and not always consistently: where train has "don ' t" and valid "don't", a model
reads in valid what it has never seen.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from polyreply.data.clean import Language, reattach
from polyreply.data.dialogue import Dialogue
from polyreply.data.read import read_dialogues

_SAMPLE_ROWS = 200
_BATCH_ROWS = 10_000
_SIGN = re.compile(r"(\s*)[.,!?。，！？](?!\S)")
"""A sign at the end of a word, with the space before it."""


def is_tokenized(path: Path) -> bool:
    """Whether a space comes before most signs at the end of words, in the first rows of a file."""
    texts = [text for row in islice(read_dialogues(path), _SAMPLE_ROWS) for text in (*row.context, *row.responses)]
    spaces = [space for text in texts for space in _SIGN.findall(text)]
    return sum(map(bool, spaces)) > len(spaces) / 2


def detokenize(dialogues: Iterable[Dialogue], language: Language) -> Iterator[Dialogue]:
    """The dialogues with punctuation and contractions re-attached."""
    stream = iter(dialogues)
    while rows := list(islice(stream, _BATCH_ROWS)):
        texts = iter(reattach([text for row in rows for text in (*row.context, *row.responses)], language))
        for row in rows:
            context = tuple(islice(texts, len(row.context)))
            yield Dialogue(context, tuple(islice(texts, len(row.responses))), row.acts)
