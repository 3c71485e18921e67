"""One more token for every running row: what a decode loop asks of a model.

`StockStep` runs any backbone through Transformers' own decoder, with keys and values of the tokens so far in buffers
that grow by doubling and from which rows can be removed. `t5_step.py` and `causal_step.py` hold leaner steps, which
call the weights of stock modules directly and so apply the adapters themselves, by `AdaptedSites`.

Legend: R rows, D model size.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer
from transformers.pytorch_utils import Conv1D

from polyreply.models.adapters import LoraAdapter, LowRanks, RoutedAdapter
from polyreply.models.memory import Memory
from polyreply.models.model import PolyReplyModel
from polyreply.models.packed import Linear, packed_linear, packed_outer
from polyreply.models.rows import Rows

_FIRST_CAPACITY = 16
_MOST_COLUMNS = 512
"""The most ranks of all decoders' LoRAs, at layers with one input, that are multiplied at once."""


class Step(ABC):
    """The rows that are still running, and what has been computed for them."""

    def __init__(self, model: PolyReplyModel, memory: Memory, rows: Rows) -> None:
        self.model, self.rows = model, rows

    @property
    def can_join(self) -> bool:
        """Whether rows that are at another token of their replies can join: if each row has positions of its own."""
        return False

    def join(self, other: "Step") -> Tensor:
        """Take over the rows of another step; returns where each row was among both, ours first.

        Both have taken their first step, or read one token in it. Contexts without rows are forgotten.
        """
        raise NotImplementedError

    @abstractmethod
    def states(self, newest_RT: Tensor) -> Tensor:
        """Add the newest tokens of each row; the last hidden states (R, D), which predict the next one.

        There is one new token for each row, but in the first step as many as decoders read of a context themselves.
        """

    @abstractmethod
    def keep(self, keep_R: Tensor) -> None:
        """Continue with the rows that a mask selects."""

    @abstractmethod
    def stock_linears(self) -> list[Any]:
        """The linear layers of the backbone that each step calls, except the vocabulary's."""


def fit_length(x: Tensor, dim: int, length: int, value: float = 0.0) -> Tensor:
    """Cut or pad a dimension at its end."""
    cut = x.narrow(dim, 0, min(length, x.shape[dim]))
    if cut.shape[dim] == length:
        return cut
    room = [0, 0] * (x.dim() - 1 - dim) + [0, length - cut.shape[dim]]
    return nn.functional.pad(cut, room, value=value)


def attention_type(like: Tensor) -> torch.dtype:
    """The type in which lean steps attend: on a CPU, small products are faster in float32 than in bfloat16."""
    return torch.float32 if like.device.type == "cpu" and like.dtype == torch.bfloat16 else like.dtype


def rms_norm(norm: Any, x: Tensor) -> Tensor:
    """A root-mean-square norm of T5 or the Llama family in one call.

    In float64 it is the stock module, which squares in float32, so that tokens are those of `generate`.
    """
    if x.dtype == torch.float64:
        exact: Tensor = norm(x)
        return exact
    return nn.functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


class AdaptedSites:
    """The adapters of a model for given rows, by site: what the hooks do when stock modules are called."""

    def __init__(self, model: PolyReplyModel, rows: Rows) -> None:
        inserted: Any = zip(model.sites, model.adapters, strict=True)
        self._model, self._rows, self._own = model, rows, dict[tuple[int, ...], Tensor]()
        self._adapters = {id(site): adapter for site, adapter in inserted}
        self._routed = dict[int, RoutedAdapter]()

    def __call__(self, site: Any, output: Tensor) -> Tensor:
        """The adapted output of a sublayer or a layer."""
        routed = self._route(site)
        return output if routed is None else routed(output, output)

    def linear(self, layers: Sequence[Any]) -> Linear:
        """The product of several linear layers with one input, on packed weights, each part of it adapted."""
        adapters = [self._adapters.get(id(layer)) for layer in layers]
        if not any(adapters):
            return packed_linear(self._model, layers)
        sizes = [layer.nf if isinstance(layer, Conv1D) else layer.out_features for layer in layers]
        if all(adapter is None or type(adapter) is LoraAdapter for adapter in adapters):
            name = tuple(id(layer) for layer in layers)
            ranks = self._model.low_ranks.get(name)
            if ranks is None:
                ranks = self._model.low_ranks[name] = LowRanks(adapters, sizes, self._model.num_decoders)
            if ranks.num_columns <= _MOST_COLUMNS:
                return self._low_rank(layers, ranks)
        return self._one_by_one(layers, sizes)

    def _low_rank(self, layers: Sequence[Any], ranks: LowRanks) -> Linear:
        """What the layers and the LoRAs read is one product, what is added to the layers' outputs another."""
        product, size = packed_linear(self._model, [*layers, ranks]), sum(ranks.sizes)
        shape = tuple(0 if lora is None else lora.rank for lora in ranks.loras)
        if shape not in self._own:
            self._own[shape] = ranks.own_RC(self._rows.decoder_R)
        own_RC, outer = self._own[shape], packed_outer(self._model, ranks)

        def adapted(x: Tensor) -> Tensor:
            both = product(x)
            if both.dim() == 2:
                return outer(both[:, size:] * own_RC, both[:, :size])
            own = both[..., size:] * own_RC[:, None]
            whole: Tensor = outer(own.flatten(0, 1), both[..., :size].flatten(0, 1)).unflatten(0, x.shape[:2])
            return whole

        return adapted

    def _one_by_one(self, layers: Sequence[Any], sizes: Sequence[int]) -> Linear:
        product, ends = packed_linear(self._model, layers), accumulate(sizes)
        found = [
            (self._route(layer), slice(end - size, end)) for layer, size, end in zip(layers, sizes, ends, strict=True)
        ]
        parts = [(routed, part) for routed, part in found if routed is not None]

        def adapted(x: Tensor) -> Tensor:
            output = product(x)
            for routed, part in parts:
                output[..., part] = routed(output[..., part], x)
            return output

        return adapted

    def _route(self, site: Any) -> RoutedAdapter | None:
        """The adapter at a site for the rows, if there is one."""
        if id(site) in self._adapters and id(site) not in self._routed:
            self._routed[id(site)] = RoutedAdapter(self._adapters[id(site)], self._rows)
        return self._routed.get(id(site))


class StockStep(Step):
    """A step of any backbone, through its own decoder."""

    def __init__(self, model: PolyReplyModel, memory: Memory, rows: Rows) -> None:
        super().__init__(model, memory, rows)
        self.memory, self.caches = memory, RowCaches(model)

    def states(self, newest_RT: Tensor) -> Tensor:
        """One call of the decoder."""
        return self.model.states(newest_RT, self.rows, self.memory, self.caches.caches)[:, -1]

    def keep(self, keep_R: Tensor) -> None:
        """Drop the other rows from the caches."""
        self.caches.keep(self.rows, keep_R)
        self.rows = self.rows.keep(keep_R)

    def stock_linears(self) -> list[Any]:
        """All linear layers of the decoders, or none if their weights are sharded."""
        if self.model.sharded is not None:
            return []
        return [layer for decoder in self.model.decoders for layer in decoder.modules() if type(layer) is nn.Linear]


class RowCaches:
    """One cache for each decoder stack of a model; together they hold the rows of a batch."""

    def __init__(self, model: PolyReplyModel) -> None:
        stacks: list[Any] = [getattr(decoder, model.family.layers) for decoder in model.decoders]
        self._layers = [[BufferedLayer() for _ in stack] for stack in stacks]
        self._own = [Cache(layers=[*layers]) for layers in self._layers]
        self.caches = (
            [EncoderDecoderCache(own, DynamicCache()) for own in self._own] if model.family.encoder else self._own
        )

    def keep(self, rows: Rows, keep_R: Tensor) -> None:
        """Keep the rows that a mask selects."""
        parts = [(0, keep_R)] if len(self._own) == 1 else [(k, keep_R[b:e]) for k, b, e in rows.segments]
        for k, part_R in parts:
            index = part_R.nonzero()[:, 0]
            for layer in self._layers[k]:
                layer.keep(index)


class BufferedLayer(DynamicLayer):
    """A cache layer that writes into a buffer instead of concatenating, and from which rows can be removed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Append the newest tokens; returns keys and values of all tokens so far, as views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            capacity = max(_FIRST_CAPACITY, key_states.shape[2])
            self._buffers = [
                states.new_empty(*states.shape[:2], capacity, states.shape[3]) for states in (key_states, value_states)
            ]
        end = self.length + key_states.shape[2]
        if end > self._buffers[0].shape[2]:
            self._buffers = [_copy(buffer, 2 * end, self.length) for buffer in self._buffers]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, self.length : end] = states
        self.length = end
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """The number of tokens so far."""
        return self.length

    def keep(self, index: Tensor) -> None:
        """Keep the given rows, in the given order."""
        if self.is_initialized:
            self._buffers = [_copy(buffer, buffer.shape[2], self.length, index) for buffer in self._buffers]
            self.keys, self.values = (buffer[:, :, : self.length] for buffer in self._buffers)


def _copy(buffer: Tensor, capacity: int, length: int, index: Tensor | None = None) -> Tensor:
    used = buffer[:, :, :length] if index is None else buffer[:, :, :length].index_select(0, index)
    copied = used.new_empty(*used.shape[:2], capacity, used.shape[3])
    copied[:, :, :length] = used
    return copied
