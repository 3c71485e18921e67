"""messages: everyday messages, each with ten replies that differ in kind.

Four in five are statements ("I've got the whole couch to myself tonight."), which people send more often than questions
and which most corpora with several replies to one message lack. A reply is the listener's: it feels with the writer,
asks back, advises, remembers something similar, offers help, jokes, exclaims, doubts, encourages or comments. The texts
were written for this project, and come with it.

The splits are fixed: a hash of the message decides.
"""

import json
from collections.abc import Iterator
from importlib.resources import files

from polyreply.data.chitchat import split_of
from polyreply.data.dialogue import Split
from polyreply.data.read import Row

TOPICS = ("casual", "daily", "feelings", "home", "news", "people", "plans", "questions", "relations", "work")
"""The files, in the order in which they are read."""


def rows(split: Split) -> Iterator[Row]:
    """The messages of one split with their replies."""
    for topic in TOPICS:
        for line in files(__name__).joinpath(f"{topic}.jsonl").read_text(encoding="utf-8").splitlines():
            row: Row = json.loads(line)
            if split_of(str(row["context"])) == split:
                yield row
