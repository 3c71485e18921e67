"""A step of T5's decoder without what a step does not need.

At a few rows most of the time of the stock decoder goes into masks, position tables and small calls. This one reads the
stock modules' weights, with queries, keys and values in one product, and keeps the rows' keys and values in one buffer
from which a row leaves by being overwritten. Its numbers are those of the stock decoder up to rounding.

Legend: R rows, B contexts, S context tokens, T tokens so far, D model size, L layers, h heads, d head size.
"""

import math
from typing import Any

import torch
from torch import Tensor

from polyreply.decoding.step import Step
from polyreply.models.adapters import RoutedAdapters
from polyreply.models.families import part
from polyreply.models.memory import Memory
from polyreply.models.packed import Linear, packed_linear
from polyreply.models.polyreply_model import PolyReplyModel
from polyreply.models.rows import Rows

_FIRST_CAPACITY = 32


def fits(model: PolyReplyModel) -> bool:
    """T5 (also Flan-T5, mT5 and ByT5) with adapters, in a type whose range needs no care, and no dropout."""
    is_t5 = model.backbone.config.model_type in ("t5", "mt5")
    return is_t5 and bool(model.adapters) and model.dtype in (torch.float32, torch.float64) and not model.training


class T5Step(Step):
    """T5's decoder, a token at a time, for rows of all K decoders."""

    def __init__(self, model: PolyReplyModel, memory: Memory, rows: Rows) -> None:
        super().__init__(model, memory, rows)
        stack = model.decoders[0]
        self.embedding, self.final_norm = stack.embed_tokens.weight, stack.final_layer_norm
        self.first_attention = part(stack.block[0], model.family.sublayers[0])
        self.layers = [_Layer(model, memory, block) for block in stack.block]
        self.cache = _Cache(len(self.layers), len(rows), self.first_attention, self.embedding)
        self.bias_h1C: Tensor | None = None
        self._route()

    def states(self, newest_R: Tensor) -> Tensor:
        """One token through all layers."""
        x_RD = self.embedding[newest_R]
        self.cache.reserve()
        length = self.cache.length + 1
        bias_h1T = self._bias(length)
        for number, layer in enumerate(self.layers):
            attended = layer.self_output(self.cache.attend(number, layer.qkv(layer.norms[0](x_RD)), bias_h1T))
            x_RD = x_RD + self._adapted(number, 0, attended)
            attended = layer.cross_output(layer.cross(layer.cross_query(layer.norms[1](x_RD)), self.rows))
            x_RD = x_RD + self._adapted(number, 1, attended)
            x_RD = x_RD + self._adapted(number, 2, layer.feed_forward(layer.norms[2](x_RD)))
            if self.by_layer:
                x_RD = self.adapters[number](x_RD)
        self.cache.length = length
        states_RD: Tensor = self.final_norm(x_RD)
        return states_RD

    def keep(self, keep_R: Tensor) -> None:
        """Rows leave the cache."""
        self.cache.keep(keep_R)
        self.rows = self.rows.keep(keep_R)
        self._route()

    def stock_linears(self) -> list[Any]:
        """None: all are called through their weights."""
        return []

    def _bias(self, length: int) -> Tensor:
        """The stock table of relative positions, from the newest token to each so far: (h, 1, T)."""
        if self.bias_h1C is None or self.bias_h1C.shape[-1] < length:
            capacity = self.cache.capacity
            self.bias_h1C = self.first_attention.compute_bias(1, capacity, past_seen_tokens=capacity - 1)[0]
        return self.bias_h1C[..., self.bias_h1C.shape[-1] - length :]

    def _route(self) -> None:
        stacks: Any = self.model.adapters
        self.adapters = [RoutedAdapters(stack, self.rows) for stack in stacks]
        self.by_layer = len(self.adapters) == len(self.layers)

    def _adapted(self, number: int, sublayer: int, x_RD: Tensor) -> Tensor:
        """The output of a sublayer after its adapter, where each sublayer has one."""
        return x_RD if self.by_layer else self.adapters[3 * number + sublayer](x_RD)


class _Layer:
    """The weights of one stock block, and keys and values of its cross-attention, the same for all rows."""

    def __init__(self, model: PolyReplyModel, memory: Memory, block: Any) -> None:
        own, cross, dense = (part(block, path) for path in model.family.sublayers)
        self.norms = [sublayer.layer_norm for sublayer in block.layer]

        def linear(*layers: Any) -> Linear:
            return packed_linear(model, layers)

        self.qkv, self.self_output = linear(own.q, own.k, own.v), linear(own.o)
        self.cross_query, self.cross_output = linear(cross.q), linear(cross.o)
        self.is_gated = hasattr(dense, "wi_0")
        self.inner = linear(dense.wi_0, dense.wi_1) if self.is_gated else linear(dense.wi)
        self.activation, self.outer = dense.act, linear(dense.wo)
        self.heads, self.head_size = cross.n_heads, cross.key_value_proj_dim
        key_BShd, value_BShd = (w(memory.states_BSD).unflatten(-1, (self.heads, -1)) for w in (cross.k, cross.v))
        self.key_BhdS = key_BShd.permute(0, 2, 3, 1).contiguous().flatten(0, 1)
        self.value_BhSd = value_BShd.transpose(1, 2).contiguous().flatten(0, 1)
        self.mask_B11S = None if memory.mask_BS.all() else _additive(memory.mask_BS, key_BShd.dtype)

    def feed_forward(self, x_RD: Tensor) -> Tensor:
        """The dense sublayer, gated or not."""
        inner = self.inner(x_RD)
        if self.is_gated:
            gate, inner = inner.chunk(2, -1)
            return self.outer(self.activation(gate) * inner)
        return self.outer(self.activation(inner))

    def cross(self, query_RX: Tensor, rows: Rows) -> Tensor:
        """Attention to the contexts. Rows of one stand side by side, so its keys and values are read once."""
        grid_BsX = rows.to_grid(query_RX)
        num_contexts, num_slots, size = grid_BsX.shape
        shape = (num_contexts, num_slots, self.heads, self.head_size)
        query = grid_BsX.view(shape).transpose(1, 2).reshape(-1, num_slots, self.head_size)
        scores = torch.bmm(query, self.key_BhdS)
        if self.mask_B11S is not None:
            scores = scores.view(num_contexts, self.heads, num_slots, -1).add_(self.mask_B11S).flatten(0, 1)
        found = torch.bmm(scores.softmax(-1), self.value_BhSd).view(num_contexts, self.heads, num_slots, -1)
        return rows.from_grid(found.transpose(1, 2)).reshape(-1, size)


class _Cache:
    """Keys and values of the rows' own tokens, of all layers.

    Rows lie in the buffers in an order of their own: the last ones move into the places of those that leave.
    """

    def __init__(self, num_layers: int, num_rows: int, attention: Any, like: Tensor) -> None:
        self.heads, self.head_size, self.length = attention.n_heads, attention.key_value_proj_dim, 0
        self.keys = like.new_empty(num_layers, num_rows, self.heads, self.head_size, _FIRST_CAPACITY)
        self.values = like.new_empty(num_layers, num_rows, self.heads, _FIRST_CAPACITY, self.head_size)
        self.place_R = torch.arange(num_rows, device=like.device)
        self.row_of_place: Tensor | None = None
        """The row that lies at each place; None while they lie in the rows' order."""

    @property
    def capacity(self) -> int:
        """Tokens there is room for."""
        return self.keys.shape[-1]

    def reserve(self) -> None:
        """Makes room for one more token."""
        if self.length == self.capacity:
            room = (0, self.length)
            self.keys = torch.nn.functional.pad(self.keys, room)
            self.values = torch.nn.functional.pad(self.values, (0, 0, *room))

    def attend(self, number: int, qkv_RX: Tensor, bias_h1T: Tensor) -> Tensor:
        """Adds the newest token of each row in a layer, and what it finds in the tokens so far: (R, h·d)."""
        if self.row_of_place is not None:
            qkv_RX = qkv_RX.index_select(0, self.row_of_place)
        num_rows, end = len(qkv_RX), self.length + 1
        query, key, value = qkv_RX.view(num_rows, 3, self.heads, self.head_size).unbind(1)
        keys, values = self.keys[number, :num_rows], self.values[number, :num_rows]
        keys[..., self.length] = key
        values[:, :, self.length] = value
        scores = torch.bmm(query.reshape(-1, 1, self.head_size), keys.flatten(0, 1)[:, :, :end])
        share = scores.view(num_rows, self.heads, 1, end).add_(bias_h1T).softmax(-1)
        found = torch.bmm(share.view(-1, 1, end), values.flatten(0, 1)[:, :end]).view(num_rows, -1)
        return found if self.row_of_place is None else found.index_select(0, self.place_R)

    def keep(self, keep_R: Tensor) -> None:
        """Keeps the rows of a mask: those at the end fill the places of those that leave."""
        kept = self.place_R[keep_R]
        moving, free = kept >= len(kept), torch.ones(len(kept), dtype=torch.bool, device=kept.device)
        free[kept[~moving]] = False
        holes = free.nonzero()[:, 0]
        for used in (self.keys[..., : self.length], self.values[..., : self.length, :]):
            used[:, holes] = used[:, kept[moving]]
        kept[moving] = holes
        self.place_R, self.row_of_place = kept, torch.argsort(kept)


def _additive(mask_BS: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, 1, 1, S): 0 where there is a token, -inf where there is padding."""
    return torch.zeros(mask_BS.shape, dtype=dtype, device=mask_BS.device).masked_fill(~mask_BS, -math.inf)[
        :, None, None
    ]
