"""A step of T5's decoder without what a single token does not need.

With a few rows most of the stock decoder's time goes into masks, position tables and many small calls. `T5Step` uses
the stock modules' weights directly:

- queries, keys and values of self-attention are one product, on packed weights (`packed.py`);
- keys and values of cross-attention are computed once per context; the rows of a context attend to them together;
- the relative positions from the newest token to all earlier ones are one row of the stock table, and that row for a
  shorter history is its end: the table is computed once per doubling of the cache;
- all layers' keys and values are in two buffers. A row that ends is overwritten by the last one instead of copying
  the others, so the buffers are not in the order of the rows: `place_R` is the place of each row,
  `row_of_place` its inverse;
- rows that join later are aligned at the newest token, where relative positions are the same for all; `start_R` is the
  column of a row's first token, and the columns before it are masked.

The invariant: the same sums as the stock decoder in eval mode, in another order; in bfloat16 on a CPU, attention is in
float32. In float64 the greedy tokens are those of `generate`, which the tests check for each decoder. It applies where
adapters act on the output of sublayers or layers; with any other adapter `fits` is false and `StockStep` is used.

Legend: R rows, B contexts, S context tokens, T tokens so far, C capacity, D model size, L layers, h heads, d head size.
"""

import math
from typing import Any

import torch
from torch import Tensor

from polyreply.decoding.step import AdaptedSites, Step, attention_type, fit_length, rms_norm
from polyreply.models.families import part
from polyreply.models.memory import Memory
from polyreply.models.model import PolyReplyModel
from polyreply.models.packed import Linear, packed_linear
from polyreply.models.rows import Rows

_FIRST_CAPACITY = 32


def fits(model: PolyReplyModel) -> bool:
    """Whether a model is a T5 (also Flan-T5, mT5, ByT5) in eval mode, with adapters on outputs only.

    In float16 the stock modules clamp values, which this step does not.
    """
    is_t5 = model.backbone.config.model_type in ("t5", "mt5")
    if not (is_t5 and model.adapters and model.dtype != torch.float16) or model.training:
        return False
    places = [id(site) for sites in _sites(model) for site in sites]
    used = [id(site) for site in model.sites]
    adapters: list[Any] = list(model.adapters)
    on_outputs = set(used) <= set(places) and all(adapter.reads == "output" for adapter in adapters)
    return on_outputs and len(set(used)) == len(used)


def _sites(model: PolyReplyModel) -> list[list[Any]]:
    """For each layer the modules whose output may be adapted: its three sublayers, then the layer itself."""
    blocks = model.decoders[0].block
    return [[*(part(block, path) for path in model.family.sublayers), block] for block in blocks]


class T5Step(Step):
    """T5's decoder, one token at a time, for rows of all K decoders."""

    def __init__(self, model: PolyReplyModel, memory: Memory, rows: Rows) -> None:
        super().__init__(model, memory, rows)
        stack = model.decoders[0]
        self.embedding, self.final_norm = stack.embed_tokens.weight, stack.final_layer_norm
        self.first_attention = part(stack.block[0], model.family.sublayers[0])
        self.layers = [_Layer(model, memory, block) for block in stack.block]
        self._mask_contexts(memory.mask_BS)
        self.cache = _Cache(len(self.layers), len(rows), self.first_attention, self.embedding)
        self.bias_h1C: Tensor | None = None
        self.adapted = AdaptedSites(model, rows)

    def states(self, newest_RT: Tensor) -> Tensor:
        """One token through all layers."""
        x_RD = self.embedding[newest_RT[:, -1]]
        self.cache.reserve()
        length = self.cache.length + 1
        bias = self.cache.masked(self._bias(length))
        for number, layer in enumerate(self.layers):
            attended = layer.self_output(self.cache.attend(number, layer.qkv(rms_norm(layer.norms[0], x_RD)), bias))
            x_RD = x_RD + self.adapted(layer.own, attended)
            query_RX = layer.cross_query(rms_norm(layer.norms[1], x_RD))
            attended = layer.cross_output(layer.cross(query_RX, self.rows, self.mask_B11S))
            x_RD = x_RD + self.adapted(layer.cross_attention, attended)
            x_RD = x_RD + self.adapted(layer.dense, layer.feed_forward(rms_norm(layer.norms[2], x_RD)))
            x_RD = self.adapted(layer.stock, x_RD)
        self.cache.length = length
        return rms_norm(self.final_norm, x_RD)

    def keep(self, keep_R: Tensor) -> None:
        """Drop the other rows from the cache."""
        self.cache.keep(keep_R)
        self.rows = self.rows.keep(keep_R)
        self.adapted = AdaptedSites(self.model, self.rows)

    @property
    def can_join(self) -> bool:
        """Yes: rows are aligned at their newest token."""
        return True

    def join(self, other: Step) -> Tensor:
        """Join the caches, and the contexts that still have rows."""
        assert isinstance(other, T5Step)
        rows, used_B = self.rows.drop_idle()
        masks = self.mask_BS[used_B], other.mask_BS
        longest = max(int(mask_BS.sum(1).max()) for mask_BS in masks)
        self._mask_contexts(torch.cat([fit_length(mask_BS, 1, longest) for mask_BS in masks]))
        for layer, its in zip(self.layers, other.layers, strict=True):
            layer.join(used_B, its, longest)
        self.rows, order = rows.join(other.rows)
        self.cache.join(other.cache, order)
        self.adapted = AdaptedSites(self.model, self.rows)
        return order

    def stock_linears(self) -> list[Any]:
        """None: this step uses their weights directly."""
        return []

    def _mask_contexts(self, mask_BS: Tensor) -> None:
        """Remember which context tokens are real, and what is added to scores: minus infinity for the others."""
        self.mask_BS, self.mask_B11S = mask_BS, None
        if not mask_BS.all():
            open_BS = torch.zeros(mask_BS.shape, dtype=attention_type(self.embedding), device=mask_BS.device)
            self.mask_B11S = open_BS.masked_fill(~mask_BS, -math.inf)[:, None, None]

    def _bias(self, length: int) -> Tensor:
        """The stock bias of relative positions from the newest token to each so far, (h, 1, T)."""
        if self.bias_h1C is None or self.bias_h1C.shape[-1] < length:
            capacity = self.cache.capacity
            bias_h1C = self.first_attention.compute_bias(1, capacity, past_seen_tokens=capacity - 1)[0]
            self.bias_h1C = bias_h1C.to(attention_type(self.embedding))
        return self.bias_h1C[..., self.bias_h1C.shape[-1] - length :]


class _Layer:
    """The weights of one stock block, and the keys and values of its cross-attention, once per context."""

    def __init__(self, model: PolyReplyModel, memory: Memory, block: Any) -> None:
        own, cross, dense = (part(block, path) for path in model.family.sublayers)
        self.stock, self.own, self.cross_attention, self.dense = block, own, cross, dense
        self.norms = [sublayer.layer_norm for sublayer in block.layer]

        def linear(*layers: Any) -> Linear:
            return packed_linear(model, layers)

        self.qkv, self.self_output = linear(own.q, own.k, own.v), linear(own.o)
        self.cross_query, self.cross_output = linear(cross.q), linear(cross.o)
        self.is_gated = hasattr(dense, "wi_0")
        self.inner = linear(dense.wi_0, dense.wi_1) if self.is_gated else linear(dense.wi)
        self.activation, self.outer = dense.act, linear(dense.wo)
        self.heads, self.head_size = cross.n_heads, cross.key_value_proj_dim
        self.type = attention_type(memory.states_BSD)
        keys_and_values = (w(memory.states_BSD).to(self.type) for w in (cross.k, cross.v))
        key_BShd, value_BShd = (x_BSX.unflatten(-1, (self.heads, -1)) for x_BSX in keys_and_values)
        self.key_BhdS = key_BShd.permute(0, 2, 3, 1).contiguous().flatten(0, 1)
        self.value_BhSd = value_BShd.transpose(1, 2).contiguous().flatten(0, 1)

    def join(self, used_B: Tensor, other: "_Layer", length: int) -> None:
        """The keys and values of some of our contexts, then of those of another layer, cut or padded to a length."""

        def joined(own: Tensor, others: Tensor, dim: int) -> Tensor:
            kept = own.unflatten(0, (-1, self.heads))[used_B].flatten(0, 1)
            return torch.cat([fit_length(x, dim, length) for x in (kept, others)])

        self.key_BhdS = joined(self.key_BhdS, other.key_BhdS, 2)
        self.value_BhSd = joined(self.value_BhSd, other.value_BhSd, 1)

    def feed_forward(self, x_RD: Tensor) -> Tensor:
        """The dense sublayer, gated or not."""
        inner = self.inner(x_RD)
        if self.is_gated:
            gate, inner = inner.chunk(2, -1)
            return self.outer(self.activation(gate) * inner)
        return self.outer(self.activation(inner))

    def cross(self, query_RX: Tensor, rows: Rows, mask_B11S: Tensor | None) -> Tensor:
        """Attention to the contexts; the rows of a context are one product with its keys and values."""
        grid_BsX = rows.to_grid(query_RX.to(self.type))
        num_contexts, num_slots, size = grid_BsX.shape
        shape = (num_contexts, num_slots, self.heads, self.head_size)
        query = grid_BsX.view(shape).transpose(1, 2).reshape(-1, num_slots, self.head_size)
        scores = torch.bmm(query, self.key_BhdS)
        if mask_B11S is not None:
            scores = scores.view(num_contexts, self.heads, num_slots, -1).add_(mask_B11S).flatten(0, 1)
        attended = torch.bmm(scores.softmax(-1), self.value_BhSd).view(num_contexts, self.heads, num_slots, -1)
        return rows.from_grid(attended.transpose(1, 2)).reshape(-1, size).to(query_RX.dtype)


class _Cache:
    """Keys and values of the rows' own tokens in all layers; the last rows fill the places of those that end."""

    def __init__(self, num_layers: int, num_rows: int, attention: Any, like: Tensor) -> None:
        self.heads, self.head_size, self.length = attention.n_heads, attention.key_value_proj_dim, 0
        # Zeros, not what was in memory: a masked column must be finite.
        size, dtype = (num_layers, num_rows, self.heads), attention_type(like)
        self.keys = like.new_zeros(*size, self.head_size, _FIRST_CAPACITY, dtype=dtype)
        self.values = like.new_zeros(*size, _FIRST_CAPACITY, self.head_size, dtype=dtype)
        self.place_R = torch.arange(num_rows, device=like.device)
        self.row_of_place: Tensor | None = None
        """The row at each place; None while places are in the order of the rows."""
        self.start_R: Tensor | None = None
        """The column of each row's first token; None while that is the first column for all."""

    @property
    def capacity(self) -> int:
        """The number of tokens there is room for."""
        return self.keys.shape[-1]

    def reserve(self) -> None:
        """Make room for one more token; columns that no row uses any more are given up first."""
        if self.start_R is not None and len(self.start_R):
            unused = int(self.start_R.min())
            if unused >= _FIRST_CAPACITY // 2:
                self._shift(-unused)
        if self.length == self.capacity:
            room = (0, self.length)
            self.keys = torch.nn.functional.pad(self.keys, room)
            self.values = torch.nn.functional.pad(self.values, (0, 0, *room))

    def _shift(self, columns: int) -> None:
        """Move all tokens to the right, or to the left if negative."""
        begin, end = max(0, -columns), self.length
        target = slice(begin + columns, end + columns)
        self.keys[..., target] = self.keys[..., begin:end].clone()
        self.values[..., target, :] = self.values[..., begin:end, :].clone()
        self.length += columns
        if self.start_R is None:
            self.start_R = torch.zeros_like(self.place_R)
        self.start_R = self.start_R + columns

    def join(self, other: "_Cache", order: Tensor) -> None:
        """Take over the rows of another cache, aligned at the newest token; `order` sorts ours and theirs."""
        length = max(self.length, other.length)
        own_rows, num_rows = len(self.place_R), len(order)
        self._make_room(num_rows, max(length, other.capacity))
        if self.length < length:
            self._shift(length - self.length)
        begin, theirs = length - other.length, other.place_R
        self.keys[:, own_rows:num_rows, ..., begin:length] = other.keys[:, theirs, ..., : other.length]
        self.values[:, own_rows:num_rows, :, begin:length] = other.values[:, theirs, :, : other.length]
        own_start = torch.zeros_like(self.place_R) if self.start_R is None else self.start_R
        new_start = torch.zeros_like(theirs) if other.start_R is None else other.start_R
        self.start_R = torch.cat([own_start, new_start + begin])[order]
        new_places = torch.arange(own_rows, num_rows, device=order.device)
        self.place_R = torch.cat([self.place_R, new_places])[order]
        self.row_of_place = torch.argsort(self.place_R)

    def _make_room(self, num_rows: int, capacity: int) -> None:
        """Room for so many rows and tokens."""
        num_layers, places, *_ = self.keys.shape
        columns = max(capacity, self.capacity)
        if num_rows > places or columns > self.capacity:
            used, kept = self.length, min(len(self.place_R), places)
            size = num_layers, max(num_rows, min(2 * places, 2 * num_rows)), self.heads
            keys = self.keys.new_zeros(*size, self.head_size, columns)
            values = self.values.new_zeros(*size, columns, self.head_size)
            keys[:, :kept, ..., :used] = self.keys[:, :kept, ..., :used]
            values[:, :kept, :, :used] = self.values[:, :kept, :, :used]
            self.keys, self.values = keys, values

    def masked(self, bias_h1T: Tensor) -> Tensor:
        """The bias, (h, 1, T) or (R, h, 1, T) in the order of places, with the columns before a row's first closed."""
        if self.start_R is None:
            return bias_h1T
        start_R = self.start_R if self.row_of_place is None else self.start_R[self.row_of_place]
        column_T = torch.arange(bias_h1T.shape[-1], device=start_R.device)
        return bias_h1T.masked_fill(column_T < start_R[:, None, None, None], -math.inf)

    def attend(self, number: int, qkv_RX: Tensor, bias: Tensor) -> Tensor:
        """Add the newest token of each row to a layer; its attention over the tokens so far, (R, h·d)."""
        dtype, qkv_RX = qkv_RX.dtype, qkv_RX.to(self.keys.dtype)
        if self.row_of_place is not None:
            qkv_RX = qkv_RX.index_select(0, self.row_of_place)
        num_rows, end = len(qkv_RX), self.length + 1
        query, key, value = qkv_RX.view(num_rows, 3, self.heads, self.head_size).unbind(1)
        keys, values = self.keys[number, :num_rows], self.values[number, :num_rows]
        keys[..., self.length] = key
        values[:, :, self.length] = value
        scores = torch.bmm(query.reshape(-1, 1, self.head_size), keys.flatten(0, 1)[:, :, :end])
        share = scores.view(num_rows, self.heads, 1, end).add_(bias).softmax(-1)
        attended = torch.bmm(share.view(-1, 1, end), values.flatten(0, 1)[:, :end]).view(num_rows, -1).to(dtype)
        return attended if self.row_of_place is None else attended.index_select(0, self.place_R)

    def keep(self, keep_R: Tensor) -> None:
        """Keep the rows that a mask selects: those at the end fill the places of those that leave."""
        kept = self.place_R[keep_R]
        moving, free = kept >= len(kept), torch.ones(len(kept), dtype=torch.bool, device=kept.device)
        free[kept[~moving]] = False
        holes = free.nonzero()[:, 0]
        for used in (self.keys[..., : self.length], self.values[..., : self.length, :]):
            used[:, holes] = used[:, kept[moving]]
        kept[moving] = holes
        self.place_R, self.row_of_place = kept, torch.argsort(kept)
        if self.start_R is not None:
            self.start_R = self.start_R[keep_R]
