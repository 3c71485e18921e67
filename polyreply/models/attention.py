"""Attention in which many rows share the keys and values of one context.

Stock attention takes keys and values for every row of queries. With K decoders per context that would repeat each
context K times in memory. `shared_attention` is registered with Transformers under `SHARED_ATTENTION` and is the stock
scaled-dot-product attention except where the caller passes `rows`:

- *Cross-attention* of R rows over B contexts takes keys and values of B rows. The queries of all rows of a context are
  laid next to each other, as if they were one long query sequence. This is exact, because every query attends
  independently of the others.
- *Self-attention with a prefix* (decoder-only models): the tokens of the context are in `prefix`, once per context, and
  each row's own tokens are in its keys and values. The scores with both are concatenated before one softmax, so the
  result is that of attention over the whole sequence; only the two products are computed apart.

Legend: R rows, B contexts, h heads, T query tokens, L own tokens, P context tokens, d head size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from polyreply.models.rows import Rows

SHARED_ATTENTION = "polyreply_shared"


@dataclass(frozen=True)
class Prefix:
    """Keys and values of the contexts in each layer of a decoder-only model; the mask says which of them are real."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask_BP: Tensor


def shared_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    rows: Rows | None = None,
    prefix: Prefix | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Stock attention, or one of the two shared forms if rows are given."""
    if prefix is not None:
        assert rows is not None
        return _with_prefix(module, query, key, value, rows, prefix, options), None
    if rows is not None and not getattr(module, "is_causal", True):
        options.pop("position_bias", None)  # all zero in T5's cross-attention
        return _across(module, query, key, value, attention_mask, rows, options), None
    result: tuple[Tensor, Tensor | None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return result


def _across(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rows: Rows, options: Any
) -> Tensor:
    """Cross-attention: query (R, h, T, d), key and value (B, h, S, d) -> (R, T, h, d)."""
    grid = rows.to_grid(query)  # (B, slots, h, T, d)
    num_contexts, num_slots, heads, length, size = grid.shape
    queries = grid.transpose(1, 2).reshape(num_contexts, heads, num_slots * length, size)
    attended, _ = sdpa_attention_forward(module, queries, key, value, mask, is_causal=False, **options)
    return rows.from_grid(attended.view(num_contexts, num_slots, length, heads, size))


def _with_prefix(
    module: Any, query: Tensor, key: Tensor, value: Tensor, rows: Rows, prefix: Prefix, options: Any
) -> Tensor:
    """Self-attention over the shared tokens of the context and the row's own tokens: (R, h, T, d) -> (R, T, h, d)."""
    groups = query.shape[1] // key.shape[1]
    key, value = (_repeat_heads(x, groups) for x in (key, value))
    past_key, past_value = (_repeat_heads(x[module.layer_idx], groups) for x in (prefix.keys, prefix.values))
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    own = query @ key.transpose(2, 3) * scale
    own = own.masked_fill(_future(own), torch.finfo(own.dtype).min)
    grid = rows.to_grid(query).transpose(1, 2)  # (B, h, slots, T, d)
    past = grid.flatten(2, 3) @ past_key.transpose(2, 3) * scale
    past = past.masked_fill(~prefix.mask_BP[:, None, None, :], torch.finfo(past.dtype).min)
    past = rows.from_grid(past.unflatten(2, grid.shape[2:4]).transpose(1, 2))  # (R, h, T, P)
    if (window := options.get("sliding_window")) is not None and window < past.shape[-1] + own.shape[-1]:
        past, own = _within_window(past, own, prefix.mask_BP.sum(1)[rows.context_R], window)
    share = torch.cat([past, own], -1).softmax(-1)
    share = nn.functional.dropout(share, options.get("dropout", 0.0), module.training)
    share_past, share_own = share.split([past.shape[-1], own.shape[-1]], -1)
    weights = rows.to_grid(share_past).transpose(1, 2)
    from_past = (weights.flatten(2, 3) @ past_value).unflatten(2, weights.shape[2:4]).transpose(1, 2)
    return torch.transpose(rows.from_grid(from_past) + share_own @ value, 1, 2).contiguous()


def _future(scores: Tensor) -> Tensor:
    """(T, L): which own tokens come after each query; the last query is at the last own token."""
    queries, own = scores.shape[-2:]
    return torch.ones(queries, own, dtype=torch.bool, device=scores.device).triu(own - queries + 1)


def _within_window(past: Tensor, own: Tensor, begin_R: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Mask keys `window` or more tokens before each query; `begin_R` is the position of the first own token."""
    queries, length = own.shape[-2:]
    place_T = torch.arange(length - queries, length, device=own.device)
    far_TL = place_T[:, None] - torch.arange(length, device=own.device) >= window
    position_RT = begin_R[:, None] + place_T
    far_RTP = position_RT[..., None] - torch.arange(past.shape[-1], device=past.device) >= window
    least = torch.finfo(own.dtype).min
    return past.masked_fill(far_RTP[:, None], least), own.masked_fill(far_TL, least)


def _repeat_heads(x: Tensor, groups: int) -> Tensor:
    return x.repeat_interleave(groups, 1) if groups > 1 else x


AttentionInterface.register(SHARED_ATTENTION, shared_attention)
AttentionMaskInterface.register(SHARED_ATTENTION, sdpa_mask)
