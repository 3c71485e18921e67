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
