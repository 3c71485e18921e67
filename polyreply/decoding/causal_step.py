"""A step of a decoder-only model without what a few new tokens do not need.

With the rows of a few contexts, the stock decoder spends more time on masks, position tables, cache objects, hooks and
small calls than on reading the weights. `CausalStep` uses the stock modules' weights directly, for the Llama family
(Llama, Mistral, Qwen 2 and 3, and thus SmolLM2) and for GPT-2:

- layers that read the same input are one product on packed weights (`packed.py`): queries, keys and values; the gate
  and the inner layer;
- keys and values of a context exist once; the rows of a context attend to them together, and so do the query heads
  that share a key head, instead of repeating keys for each query head;
- padding is masked only if there is any, and the future only in the first step, which may have several tokens per row;
- the rows' own keys and values of all layers are in one buffer, from which rows that end are removed at once. Rows that
  join later are aligned at their newest token; the columns before a row's first token are masked.

The invariant: the same sums as the stock decoder in eval mode, in another order; in bfloat16 on a CPU, attention is in
float32. In float64 the greedy tokens are those of `generate`, which the tests check for each decoder.

States are (R, D), or (R, T, D) in a first step of several tokens.

Legend: R rows, B contexts (or entries of the memory), T new tokens, L own tokens so far, P context tokens, D model
size, g key heads, q query heads that share one, h all heads (q·g of queries, g of keys, g of values), d head size.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from polyreply.decoding.step import AdaptedSites, Step, attention_type, fit_length, rms_norm
from polyreply.models.families import part
from polyreply.models.memory import Memory
from polyreply.models.model import PolyReplyModel
from polyreply.models.packed import Linear
from polyreply.models.rows import Rows

_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")
_FIRST_CAPACITY = 16


def fits(model: PolyReplyModel) -> bool:
    """Whether a model is in eval mode, of a family that this step knows, with attention to all earlier tokens."""
    config = model.backbone.config
    is_known = config.model_type == "gpt2" or config.model_type in _LLAMA_LIKE
    if not is_known or model.training or _has_window(config):
        return False
    places = {id(site) for layer in _layers(model) for site in layer.sites}
    return {id(site) for site in model.sites} <= places


def _has_window(config: Any) -> bool:
    """Whether attention of some layer leaves out tokens that are far back."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    return getattr(config, "sliding_window", None) is not None


def _layers(model: PolyReplyModel) -> "list[_Layer]":
    stack = part(model.backbone, model.family.decoder)
    kind = _GPT2Layer if model.backbone.config.model_type == "gpt2" else _LlamaLayer
    return [kind(layer) for layer in getattr(stack, model.family.layers)]


class CausalStep(Step):
    """A decoder-only model, a few tokens at a time, for rows of all K decoders."""

    def __init__(self, model: PolyReplyModel, memory: Memory, rows: Rows) -> None:
        super().__init__(model, memory, rows)
        assert memory.prefix is not None
        assert memory.last_BA is not None
        self.stack = model.decoders[0]
        self.layers = _layers(model)
        self.entries = memory.entries
        self.begin_B = memory.mask_BS.sum(1) - memory.last_BA.shape[1]
        self.type = attention_type(memory.prefix.keys[0])
        self.past = _Past(memory, self.begin_B, self.type)
        self.rotates = model.backbone.config.model_type != "gpt2"
        self.own = _Own(len(self.layers), len(rows), memory.prefix.keys[0], self.type)
        self.head_size = memory.prefix.keys[0].shape[-1]
        self._route()

    def states(self, newest_RT: Tensor) -> Tensor:
        """The new tokens through all layers."""
        position_R1 = (self.begin_B[self.entry_rows.context_R] + self.own.length_R)[:, None]
        position_RT = position_R1 + torch.arange(newest_RT.shape[1], device=newest_RT.device)
        x_RTD, turn = self._embed(newest_RT, position_RT)
        length = newest_RT.shape[1]
        self.own.reserve(length)
        x = x_RTD[:, 0] if length == 1 else x_RTD
        for number, layer in enumerate(self.layers):
            heads_RThd = layer.heads(self.products[number], x).view(len(x), length, -1, self.head_size)
            attended = self._attend(number, layer, heads_RThd.to(self.type), turn).to(x.dtype).view(*x.shape[:-1], -1)
            x = x + self.adapted(layer.attention, layer.attended(self.products[number], attended))
            x = x + self.adapted(layer.dense, layer.feed_forward(self.products[number], x))
            x = self.adapted(layer.stock, x)
        self.own.advance(length)
        x = x if length == 1 else x[:, -1]
        return rms_norm(self.stack.norm, x) if self.rotates else self.stack.ln_f(x)

    def keep(self, keep_R: Tensor) -> None:
        """Drop the other rows."""
        self.own.keep(keep_R)
        self.rows = self.rows.keep(keep_R)
        self._route()

    @property
    def can_join(self) -> bool:
        """Where contexts are read once for all decoders."""
        return self.entries is None

    def join(self, other: Step) -> Tensor:
        """Join the rows' own tokens, and the contexts that still have rows."""
        assert isinstance(other, CausalStep)
        rows, used_B = self.rows.drop_idle()
        self.begin_B = torch.cat([self.begin_B[used_B], other.begin_B])
        self.past.join(used_B, other.past)
        self.rows, order = rows.join(other.rows)
        self.own.join(other.own, order)
        self._route()
        return order

    def stock_linears(self) -> list[Any]:
        """None: this step uses their weights directly."""
        return []

    def _route(self) -> None:
        """Cut out what the rows need: their adapters, and their places among the entries of the memory."""
        self.entry_rows = self.rows if self.entries is None else self.rows.among(self.entries)
        self.adapted = AdaptedSites(self.model, self.entry_rows)
        self.products = [[self.adapted.linear(group) for group in layer.groups] for layer in self.layers]

    def _embed(self, tokens_RT: Tensor, position_RT: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor] | None]:
        """The tokens' embeddings, and what turns queries and keys to their positions (GPT-2 adds positions instead)."""
        if not self.rotates:
            return self.stack.wte(tokens_RT) + self.stack.wpe(position_RT), None
        x_RTD = self.stack.embed_tokens(tokens_RT)
        tables = self.stack.rotary_emb(x_RTD.to(self.type), position_ids=position_RT)
        cos_RT1d, sin_RT1d = (table[:, :, None] for table in tables)
        half = sin_RT1d.shape[-1] // 2
        # Turning takes (-second half, first half); with the sign in the table it is a shift by half.
        signed_RT1d = torch.cat([-sin_RT1d[..., :half], sin_RT1d[..., half:]], -1)

        def turn(x_RThd: Tensor) -> Tensor:
            return torch.addcmul(x_RThd * cos_RT1d, x_RThd.roll(half, -1), signed_RT1d)

        return x_RTD, turn

    def _attend(
        self, number: int, layer: "_Layer", heads_RThd: Tensor, turn: Callable[[Tensor], Tensor] | None
    ) -> Tensor:
        """Attention over the context and the row's own tokens, one softmax over both: (R, T, query heads · d)."""
        num_rows, length, _, size = heads_RThd.shape
        groups = layer.num_key_heads
        num_queries = heads_RThd.shape[2] - 2 * groups
        turned = heads_RThd[:, :, : num_queries + groups]
        turned = turned if turn is None else turn(turned)
        keys_RgLd, values_RgLd = self.own.append(
            number, turned[:, :, num_queries:], heads_RThd[:, :, num_queries + groups :]
        )
        query = (turned[:, :, :num_queries] * layer.attention.scaling).view(num_rows, length, groups, -1, size)
        query = query.permute(0, 2, 3, 1, 4).flatten(2, 3)  # (R, g, q·T, d)
        own = query @ keys_RgLd.transpose(2, 3)
        if length > 1:
            own = own.unflatten(2, (-1, length)).masked_fill(_future(length, own), -math.inf).flatten(2, 3)
        if self.own.closed_R11L is not None:
            own = own.masked_fill(self.own.closed_R11L, -math.inf)
        past = self.past.scores(number, query, self.entry_rows)
        share = torch.cat([past, own], -1).softmax(-1)
        share_past, share_own = share.split([past.shape[-1], own.shape[-1]], -1)
        attended = self.past.values(number, share_past, self.entry_rows) + share_own @ values_RgLd
        attended_RTgqd: Tensor = attended.unflatten(2, (-1, length)).permute(0, 3, 1, 2, 4)
        return attended_RTgqd.reshape(num_rows, length, num_queries * size)


def _future(length: int, own: Tensor) -> Tensor:
    """(T, L): which own tokens come after each new one; the last new one is the last of all."""
    so_far = own.shape[-1]
    return torch.ones(length, so_far, dtype=torch.bool, device=own.device).triu(so_far - length + 1)


class _Past:
    """Keys and values of the contexts, once each, without the tokens that decoders read themselves."""

    def __init__(self, memory: Memory, begin_B: Tensor, dtype: torch.dtype) -> None:
        assert memory.prefix is not None
        longest = max(1, int(begin_B.max()))  # a masked column where decoders read whole contexts themselves
        self.key_BgdP = [key[:, :, :longest].transpose(2, 3).to(dtype) for key in memory.prefix.keys]
        self.value_BgPd = [value[:, :, :longest].to(dtype) for value in memory.prefix.values]
        mask_BP = memory.prefix.mask_BP[:, :longest]
        self.closed_B11P = None if bool(mask_BP.all()) else ~mask_BP[:, None, None]

    def join(self, used_B: Tensor, other: "_Past") -> None:
        """Keep some of our contexts and add those of another, padded to the longest."""
        longest = max(1, *(int((~closed).sum(-1).max()) for closed in (self.closed()[used_B], other.closed())))

        def joined(own: Tensor, others: Tensor, dim: int, value: float = 0.0) -> Tensor:
            return torch.cat([fit_length(x, dim, longest, value) for x in (own[used_B], others)])

        closed = joined(self.closed(), other.closed(), 3, True)
        self.key_BgdP = [joined(*keys, 3) for keys in zip(self.key_BgdP, other.key_BgdP, strict=True)]
        self.value_BgPd = [joined(*values, 2) for values in zip(self.value_BgPd, other.value_BgPd, strict=True)]
        self.closed_B11P = closed if bool(closed.any()) else None

    def closed(self) -> Tensor:
        """Which columns are padding, (B, 1, 1, P)."""
        if self.closed_B11P is not None:
            return self.closed_B11P
        key = self.key_BgdP[0]
        return torch.zeros(len(key), 1, 1, key.shape[3], dtype=torch.bool, device=key.device)

    def scores(self, number: int, query_RgXd: Tensor, rows: Rows) -> Tensor:
        """Scores (R, g, X, P) of queries with their contexts' keys."""
        return _together(query_RgXd, rows, self.key_BgdP[number], self.closed_B11P)

    def values(self, number: int, share_RgXP: Tensor, rows: Rows) -> Tensor:
        """The contexts' values (R, g, X, d), weighted."""
        return _together(share_RgXP, rows, self.value_BgPd[number])


def _together(x_RgXn: Tensor, rows: Rows, matrix_Bgnm: Tensor, closed_B11m: Tensor | None = None) -> Tensor:
    """Multiply the rows of each context, laid next to each other, with a matrix of the context: (R, g, X, m)."""
    grid = rows.to_grid(x_RgXn).transpose(1, 2)  # (B, g, slots, X, n)
    product = grid.flatten(2, 3) @ matrix_Bgnm
    if closed_B11m is not None:
        product = product.masked_fill(closed_B11m, -math.inf)
    return rows.from_grid(product.unflatten(2, grid.shape[2:4]).transpose(1, 2))


class _Own:
    """Keys and values of the rows' own tokens in all layers."""

    def __init__(self, num_layers: int, num_rows: int, like_BgPd: Tensor, dtype: torch.dtype) -> None:
        _, groups, _, size = like_BgPd.shape
        # Zeros, not what was in memory: a masked column must be finite.
        self.buffer = like_BgPd.new_zeros(num_layers, 2, num_rows, groups, _FIRST_CAPACITY, size, dtype=dtype)
        self.length = 0
        self.start_R: Tensor | None = None
        """The column of each row's first token; None while that is the first column for all."""
        self.closed_R11L: Tensor | None = None
        """The columns before that, of all columns that the next step uses."""
        self.newest: list[tuple[Tensor, ...]] = []
        """For each layer, where this step's keys and values go, (R, T, g, d)."""
        self.so_far: list[tuple[Tensor, ...]] = []
        """For each layer, keys and values with those of this step, (R, g, L, d)."""

    @property
    def length_R(self) -> Tensor | int:
        """The number of tokens of each row."""
        return self.length if self.start_R is None else self.length - self.start_R

    def advance(self, number: int) -> None:
        """Count tokens that were added in all layers; views of the buffer end with the step."""
        self.length += number
        self.newest, self.so_far = [], []

    def join(self, other: "_Own", order: Tensor) -> None:
        """Take over the rows of another buffer, aligned at the newest token; `order` sorts ours and theirs."""
        starts = [
            own.buffer.new_zeros(own.buffer.shape[2], dtype=torch.long) if own.start_R is None else own.start_R
            for own in (self, other)
        ]
        lengths = [own.length - int(start.min()) for own, start in zip((self, other), starts, strict=True)]
        length = max(lengths)
        parts = [
            torch.nn.functional.pad(
                own.buffer[:, :, :, :, own.length - used : own.length], (0, 0, length - used, _FIRST_CAPACITY)
            )
            for own, used in zip((self, other), lengths, strict=True)
        ]
        self.buffer = torch.cat(parts, 2).index_select(2, order)
        shifted = [start + length - own.length for own, start in zip((self, other), starts, strict=True)]
        self.start_R, self.length = torch.cat(shifted)[order], length

    def reserve(self, number: int) -> None:
        """Make room for some more tokens."""
        end = self.length + number
        if self.start_R is not None:
            column_L = torch.arange(end, device=self.start_R.device)
            self.closed_R11L = (column_L < self.start_R[:, None])[:, None, None]
        missing = end - self.buffer.shape[4]
        if missing > 0:
            self.buffer = torch.nn.functional.pad(self.buffer, (0, 0, 0, max(missing, self.buffer.shape[4])))
        newest = self.buffer[:, :, :, :, self.length : end].transpose(3, 4)
        self.newest = [layer.unbind(0) for layer in newest.unbind(0)]
        self.so_far = [layer.unbind(0) for layer in self.buffer[:, :, :, :, :end].unbind(0)]

    def append(self, number: int, key_RTgd: Tensor, value_RTgd: Tensor) -> tuple[Tensor, ...]:
        """Add the new tokens of a layer; its keys and its values (R, g, L, d) of all tokens so far."""
        key, value = self.newest[number]
        key.copy_(key_RTgd)
        value.copy_(value_RTgd)
        return self.so_far[number]

    def keep(self, keep_R: Tensor) -> None:
        """Keep the rows that a mask selects."""
        self.buffer = self.buffer.index_select(2, keep_R.nonzero()[:, 0])
        if self.start_R is not None:
            self.start_R = self.start_R[keep_R]


class _Layer(ABC):
    """The parts of a stock layer, by what they do."""

    stock: Any
    attention: Any
    """The sublayer; its output may be adapted, like that of `dense` and of the whole layer."""
    dense: Any
    groups: Sequence[Sequence[Any]]
    """Linear layers that read the same input: those of queries, keys and values; the output of attention; the inner
    ones of the feed-forward sublayer; its output."""
    num_key_heads: int

    @property
    def sites(self) -> list[Any]:
        """The modules at which an adapter may be."""
        return [self.stock, self.attention, self.dense, *(linear for group in self.groups for linear in group)]

    @abstractmethod
    def heads(self, products: Sequence[Linear], x: Tensor) -> Tensor:
        """Queries, keys and values before positions, heads one after the other: (R, h·d) or (R, T, h·d)."""

    def attended(self, products: Sequence[Linear], attended: Tensor) -> Tensor:
        """The output of the attention sublayer."""
        return products[1](attended)

    @abstractmethod
    def feed_forward(self, products: Sequence[Linear], x: Tensor) -> Tensor:
        """The output of the feed-forward sublayer."""


class _LlamaLayer(_Layer):
    def __init__(self, stock: Any) -> None:
        self.stock, self.attention, self.dense = stock, stock.self_attn, stock.mlp
        own, dense = self.attention, self.dense
        self.groups = [
            [own.q_proj, own.k_proj, own.v_proj],
            [own.o_proj],
            [dense.gate_proj, dense.up_proj],
            [dense.down_proj],
        ]
        self.num_key_heads = own.k_proj.out_features // own.head_dim
        self.norms_heads = hasattr(own, "q_norm")

    def heads(self, products: Sequence[Linear], x: Tensor) -> Tensor:
        """With fewer heads of keys and values than of queries, which may have a norm each."""
        heads = products[0](rms_norm(self.stock.input_layernorm, x))
        if self.norms_heads:
            heads = heads.unflatten(-1, (-1, self.attention.head_dim))
            query, key, value = heads.split(
                [heads.shape[-2] - 2 * self.num_key_heads, self.num_key_heads, self.num_key_heads], -2
            )
            parts = [rms_norm(self.attention.q_norm, query), rms_norm(self.attention.k_norm, key), value]
            return torch.cat(parts, -2).flatten(-2)
        return heads

    def feed_forward(self, products: Sequence[Linear], x: Tensor) -> Tensor:
        """A gated one."""
        gate, inner = products[2](rms_norm(self.stock.post_attention_layernorm, x)).chunk(2, -1)
        return products[3](self.dense.act_fn(gate) * inner)


class _GPT2Layer(_Layer):
    def __init__(self, stock: Any) -> None:
        self.stock, self.attention, self.dense = stock, stock.attn, stock.mlp
        self.groups = [[stock.attn.c_attn], [stock.attn.c_proj], [stock.mlp.c_fc], [stock.mlp.c_proj]]
        self.num_key_heads = stock.attn.num_heads

    def heads(self, products: Sequence[Linear], x: Tensor) -> Tensor:
        """With as many heads of keys and of values as of queries."""
        return products[0](self.stock.ln_1(x))

    def feed_forward(self, products: Sequence[Linear], x: Tensor) -> Tensor:
        """A plain one."""
        return products[3](self.dense.act(products[2](self.stock.ln_2(x))))
