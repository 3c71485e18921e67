"""chitchat: real human conversations from the package `chitchat-dataset` (MIT), read where pip installed it.

Conversations have fixed splits: a hash of a conversation's own id decides, so that nothing of one conversation is in
two splits and a newer release of the package moves none. What one person sends in a row is one turn.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from polyreply.data.clean import CleanConfig
from polyreply.data.records import Record
from polyreply.errors import MissingExtraError

_LOCAL = "byu, byui, byu-i, uvu, provo, orem, utah, lds, mormon, mormons, missionary, missionaries, chitchat, chit chat"
"""What gives away where the conversations come from."""
SCREENED = CleanConfig(min_words=2, max_words=25, personal=True, abuse=True, words=tuple(_LOCAL.split(", ")))
"""Short messages and replies, without personal data and abuse, as far as patterns find them."""
_VALID_SHARE = _TEST_SHARE = 0.05
_ENDS_A_SENTENCE = tuple(".!?,;:…)\"'")


def read_records(split: Literal["train", "valid", "test"]) -> Iterator[Record]:
    """The conversations of one split with at least two turns, in the package's order."""
    for line, (name, turns) in enumerate(_conversations(), start=1):
        if len(turns) >= 2 and split_of(name) == split:
            yield Record(line, turns)


def split_of(conversation: str) -> Literal["train", "valid", "test"]:
    """The split a conversation belongs to, for ever."""
    place = int.from_bytes(hashlib.sha256(conversation.encode()).digest()[:8], "big") / 2**64
    if place < _TEST_SHARE:
        return "test"
    return "valid" if place < _TEST_SHARE + _VALID_SHARE else "train"


@lru_cache(maxsize=1)
def _conversations() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Every conversation with its id: the package is parsed once for all three splits."""
    try:
        import chitchat_dataset
    except ImportError:
        raise MissingExtraError("chitchat-dataset", "demo", "the corpus chitchat") from None
    conversations: Mapping[str, Any] = chitchat_dataset.Dataset()
    return tuple((name, tuple(_turns(conversation["messages"]))) for name, conversation in conversations.items())


def _turns(messages: Sequence[Sequence[Mapping[str, str]]]) -> Iterator[str]:
    for message in messages:
        turn = _join([part["text"].strip() for part in message if part["text"].strip()])
        if turn:
            yield turn


def _join(parts: Sequence[str]) -> str:
    """The messages one person sent in a row, with a full stop where the line break was the only one."""
    closed = [part if part.endswith(_ENDS_A_SENTENCE) else part + "." for part in parts[:-1]]
    return " ".join([*closed, *parts[-1:]])
