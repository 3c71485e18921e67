"""What can be chosen about the decoders of a model, for recipes and for a model's configuration."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Architecture = Literal["multi-adapter", "multi-decoder"]
AdapterSites = Literal["sublayer", "layer"]
AdapterInit = Literal["near-identity", "linear", "large"]
Adapt = Literal["response", "everything"]
Prior = Literal["uniform", "learned"]
BackboneIn = Literal["whole", "reference"]
"""Whether a saved model holds its backbone's weights, or says where they are."""


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters, in PEFT's terms."""

    rank: int = 8
    """r: inner size of an adapter."""
    alpha: float | None = None
    """What an adapter computes is multiplied by alpha / rank; None means twice the rank."""
    dropout: float = 0.0
    """Share of an adapter's inputs dropped in training."""
    targets: tuple[str, ...] = ("all-linear",)
    """Names of the linear layers that get one, as PEFT matches them (the last parts of a path); all-linear means every
    one except the output layer."""

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return 2.0 if self.alpha is None else self.alpha / self.rank

    def problems(self) -> Iterator[str]:
        """Values that make no adapter."""
        if self.rank < 1:
            yield f"rank is {self.rank}; use 1 or more"
        if self.alpha is not None and self.alpha <= 0:
            yield f"alpha is {self.alpha}; use a number above 0, or leave it out"
        if not 0 <= self.dropout < 1:
            yield f"dropout is {self.dropout}; use a share from 0 to below 1"
        if not self.targets:
            yield "targets is empty; name linear layers, or all-linear"
