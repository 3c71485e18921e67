"""chitchat: real human conversations from the package `chitchat-dataset` (MIT), read from where pip installed it.

The splits are fixed: a hash of a conversation's own id decides, so that no conversation is in two splits and a newer
release of the package moves none. What one person sends in a row is one turn.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from polyreply.data.clean import CleanSettings
from polyreply.data.dialogue import Split
from polyreply.data.read import Row
from polyreply.errors import MissingExtraError

_LOCAL = "byu, byui, byu-i, uvu, provo, orem, utah, lds, mormon, mormons, missionary, missionaries, chitchat, chit chat"
"""Words that give away where the conversations were collected."""
SCREENED = CleanSettings(min_words=2, max_words=25, personal=True, abuse=True, words=tuple(_LOCAL.split(", ")))
"""Short messages and replies, without personal data and abuse, as far as patterns find them."""
_VALID_SHARE = _TEST_SHARE = 0.05
_ENDS_A_SENTENCE = tuple(".!?,;:…)\"'")


def conversations(split: Split) -> Iterator[Row]:
    """The conversations of one split with at least two turns, in the package's order."""
    for name, turns in _all_conversations():
        if len(turns) >= 2 and split_of(name) == split:
            yield {"turns": turns}


def split_of(conversation: str) -> Split:
    """The split of a conversation: a hash of its id decides, so it never changes."""
    place = int.from_bytes(hashlib.sha256(conversation.encode()).digest()[:8], "big") / 2**64
    if place < _TEST_SHARE:
        return "test"
    return "valid" if place < _TEST_SHARE + _VALID_SHARE else "train"


@lru_cache(maxsize=1)
def _all_conversations() -> tuple[tuple[str, tuple[str, ...]], ...]:
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
    """Joins the messages one person sent in a row, with a full stop where only a line break ended a sentence."""
    closed = [part if part.endswith(_ENDS_A_SENTENCE) else part + "." for part in parts[:-1]]
    return " ".join([*closed, *parts[-1:]])
