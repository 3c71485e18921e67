"""The text of a reply while it grows: whole characters only, nothing after a stop sequence, no spaces around it."""

from collections.abc import Sequence
from typing import Any

from polyreply.decoding.continuous import Row

_HALF_CHARACTER = "\ufffd"


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
        decoded = str(self._tokenizer.decode(self.row.tokens, skip_special_tokens=True))
        stop = min((place for place in (decoded.find(one) for one in self._stops) if place >= 0), default=None)
        if stop is not None:
            decoded, self.row.finish = decoded[:stop], "stop"
        self.is_done = bool(self.row.finish)
        if not self.is_done:
            if not self._is_live:
                return ""
            decoded = self._certain(decoded)
        shown, self.text = self.text, decoded.strip()
        return self.text[len(shown) :]

    def _certain(self, decoded: str) -> str:
        """Without an end that later tokens may change: half a character, the beginning of a stop sequence."""
        decoded = decoded.rstrip(_HALF_CHARACTER)
        held = max((_overlap(decoded, stop) for stop in self._stops), default=0)
        return decoded[: len(decoded) - held]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text with which a stop sequence begins."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
