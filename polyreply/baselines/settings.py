"""Settings of the dialogue models that the paper compares with, for recipes. The defaults are their authors' code."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class AdaLabelSettings:
    """adalabel: how the auxiliary decoder smooths the target."""

    temperature: float = 1.5
    """T, by which the auxiliary decoder's logits are divided; its authors use 1.5 on DailyDialog and 1 on
    OpenSubtitles."""
    candidates: int = 500
    """The largest of these logits, of which the very largest is left out; all others get nothing."""
    margin: float = 0.2
    """How far the target's largest smoothed probability stays below that of the response's own token."""
    power: float = 2.0
    """Exponent of p_gold / p_max: the higher, the less is smoothed where the model is wrong."""

    def problems(self) -> Iterator[str]:
        """Values that make no distribution."""
        if self.temperature <= 0:
            yield f"temperature is {self.temperature}; use a number above 0"
        if self.candidates < 2:
            yield f"candidates is {self.candidates}; use 2 or more, because the largest is left out"
        if not 0 <= self.margin <= 0.5:
            yield f"margin is {self.margin}; use a number from 0 to 0.5"
        if self.power < 0:
            yield f"power is {self.power}; use 0 or more"


@dataclass(frozen=True)
class DialogBertSettings:
    """dialogbert: how contexts are read, and how they are altered for its two further losses."""

    max_turns: int = 7
    """Most turns of a context; the oldest are dropped."""
    max_turn_tokens: int = 30
    """Most tokens of a turn, CLS and SEP included; the rest of a turn is cut."""
    mask_shares: tuple[float, ...] = (0.0, 0.1, 0.4, 0.7, 0.8, 0.9, 1.0)
    """The share of contexts of 1, 2, 3 … turns in which one turn is masked; longer ones are as the last."""
    shuffle_share: float = 0.4
    """The share of contexts whose turns are shuffled; their order is learned, and not their response."""

    def problems(self) -> Iterator[str]:
        """Values that leave nothing to read, or are no shares."""
        if self.max_turns < 1:
            yield f"max_turns is {self.max_turns}; use 1 or more"
        if self.max_turn_tokens < 3:
            yield f"max_turn_tokens is {self.max_turn_tokens}; use 3 or more, because CLS and SEP are counted"
        if not self.mask_shares or not all(0 <= share <= 1 for share in self.mask_shares):
            yield f"mask_shares is {list(self.mask_shares)}; use shares from 0 to 1"
        if not 0 <= self.shuffle_share <= 1:
            yield f"shuffle_share is {self.shuffle_share}; use a share from 0 to 1"
