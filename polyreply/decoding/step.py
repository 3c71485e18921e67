"""One more token for every running row: what a decode loop asks of a model.

`StockStep` runs any backbone through Transformers' own decoder; `t5_step` holds a leaner one for T5.
"""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from polyreply.decoding.cache import RowCaches
from polyreply.models.memory import Memory
from polyreply.models.polyreply_model import PolyReplyModel
from polyreply.models.rows import Rows


class Step(ABC):
    """The rows still running, and what has been computed of them."""

    def __init__(self, model: PolyReplyModel, memory: Memory, rows: Rows) -> None:
        self.model, self.memory, self.rows = model, memory, rows

    @abstractmethod
    def states(self, newest_R: Tensor) -> Tensor:
        """Takes in the newest token of each row; the last hidden states (R, D) that predict the next."""

    @abstractmethod
    def keep(self, keep_R: Tensor) -> None:
        """Goes on with the rows of a mask only."""

    @abstractmethod
    def stock_linears(self) -> list[Any]:
        """The linear layers of the backbone that each step calls, besides the vocabulary's."""


class StockStep(Step):
    """Any backbone, through its own decoder."""

    def __init__(self, model: PolyReplyModel, memory: Memory, rows: Rows) -> None:
        super().__init__(model, memory, rows)
        self.caches = RowCaches(model)

    def states(self, newest_R: Tensor) -> Tensor:
        """One call of the decoder."""
        return self.model.states(newest_R[:, None], self.rows, self.memory, self.caches.caches)[:, -1]

    def keep(self, keep_R: Tensor) -> None:
        """Rows leave the caches."""
        self.caches.keep(self.rows, keep_R)
        self.rows = self.rows.keep(keep_R)

    def stock_linears(self) -> list[Any]:
        """All of the decoders'."""
        return [layer for decoder in self.model.decoders for layer in decoder.modules() if type(layer) is nn.Linear]
