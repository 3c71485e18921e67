"""The text of a reply while it grows: whole characters only, nothing after a stop sequence, no spaces around it."""

import re
from collections.abc import Sequence
from typing import Any

from polyreply.decoding.continuous import Row

_HALF_CHARACTER = "\ufffd"
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
"""A token that is one byte: how several of them are read together depends on those that follow."""


class ReplyText:
    """Follows one row. The pieces that `grow` returns add up to `text` when the row has ended."""

    def __init__(self, row: Row, tokenizer: Any, stops: Sequence[str] = (), *, is_live: bool = True) -> None:
        """A text that is not live, and has no stop sequences to look for, is read when its row has ended."""
        self.row, self.text, self._tokenizer, self._stops = row, "", tokenizer, stops
        # A tokenizer that removes spaces before punctuation changes text that was shown already.
        self._is_live = is_live and not getattr(tokenizer, "clean_up_tokenization_spaces", False)
        self.is_done = False

    def grow(self) -> str:
        """Read the row's newest tokens; ends the row at a stop sequence. Returns what can be shown in addition."""
        if self.is_done or not (self._is_live or self._stops or self.row.finish):
            return ""
        decoded = self._decode(self.row.tokens if self.row.finish else self._whole_tokens())
        stop = min((place for place in (decoded.find(one) for one in self._stops) if place >= 0), default=None)
        if stop is not None:
            decoded, self.row.finish = decoded[:stop], "stop"
        self.is_done = bool(self.row.finish)
        if not self.is_done:
            if not self._is_live:
                return ""
            held = max((_overlap(decoded, stop) for stop in self._stops), default=0)
            decoded = decoded[: len(decoded) - held]
        shown, self.text = self.text, decoded.strip()
        return self.text[len(shown) :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def _whole_tokens(self) -> list[int]:
        """The tokens without those at the end whose text later ones may change."""
        tokens = self.row.tokens
        end = len(tokens)
        while end and _BYTE.fullmatch(self._tokenizer.convert_ids_to_tokens(tokens[end - 1])):
            end -= 1
        while end and self._decode(tokens[:end]).endswith(_HALF_CHARACTER):
            end -= 1
        return tokens[:end]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text with which a stop sequence begins."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
