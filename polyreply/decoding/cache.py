"""Keys and values of the tokens generated so far, in buffers that grow by doubling and from which rows can leave."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer

from polyreply.models.polyreply_model import PolyReplyModel
from polyreply.models.rows import Rows

_FIRST_CAPACITY = 16


class BufferedLayer(DynamicLayer):
    """A cache layer that writes into a buffer instead of concatenating, and can give up rows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Appends the newest tokens; keys and values of all tokens so far, as views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = [_like(states, _FIRST_CAPACITY) for states in (key_states, value_states)]
        end = self.length + key_states.shape[2]
        if end > self._buffers[0].shape[2]:
            self._buffers = [_copy(buffer, 2 * end, self.length) for buffer in self._buffers]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, self.length : end] = states
        self.length = end
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """How many tokens are there."""
        return self.length

    def keep(self, index: Tensor) -> None:
        """Keeps the given rows only."""
        if self.is_initialized:
            self._buffers = [_copy(buffer, buffer.shape[2], self.length, index) for buffer in self._buffers]
            self.keys, self.values = (buffer[:, :, : self.length] for buffer in self._buffers)


def _like(states: Tensor, capacity: int) -> Tensor:
    return states.new_empty(*states.shape[:2], max(capacity, states.shape[2]), states.shape[3])


def _copy(buffer: Tensor, capacity: int, length: int, index: Tensor | None = None) -> Tensor:
    used = buffer[:, :, :length] if index is None else buffer[:, :, :length].index_select(0, index)
    copied = used.new_empty(*used.shape[:2], capacity, used.shape[3])
    copied[:, :, :length] = used
    return copied


class RowCaches:
    """One cache for each decoder stack of a model; together they hold the rows of a batch."""

    def __init__(self, model: PolyReplyModel) -> None:
        """Empty caches."""
        num_layers = [len(_layers(model, decoder)) for decoder in model.decoders]
        self._layers = [[BufferedLayer() for _ in range(number)] for number in num_layers]
        self._own = [Cache(layers=[*layers]) for layers in self._layers]
        self.caches = (
            [EncoderDecoderCache(own, DynamicCache()) for own in self._own] if model.family.encoder else self._own
        )

    def keep(self, rows: Rows, keep_R: Tensor) -> None:
        """Keeps the rows of a mask."""
        if len(self._own) == 1:
            self._keep(0, keep_R)
            return
        for k, begin, end in rows.segments:
            self._keep(k, keep_R[begin:end])

    def _keep(self, k: int, keep_R: Tensor) -> None:
        index = keep_R.nonzero()[:, 0]
        for layer in self._layers[k]:
            layer.keep(index)


def _layers(model: PolyReplyModel, decoder: torch.nn.Module) -> Any:
    return getattr(decoder, model.family.layers)
