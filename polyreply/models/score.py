"""Scoring: how well each decoder explains each response, with bounded memory and without wasted work.

Scoring N responses under K decoders naively pads N·K rows to the longest response and holds their logits at once:
gigabytes for a vocabulary of 32 000. Here the work is cut twice.

- *Chunks* of samples of similar length go through the decoders together (`Limits.max_tokens`), so little is padded.
  Every context is encoded once for all K decoders; samples that share a context (several responses to it, in a draw of
  whole contexts) share its encoding too.
- Only real response tokens reach the vocabulary: the states at their positions are gathered, and logits exist for one
  *piece* of positions at a time (`Limits.max_logits`).

`nll_NK` is the E-step's evidence. `backward_nll` is the M-step: it adds the gradient of Σ weights·NLL, or of a
`TokenLoss` that a method has in its place. Backward passes are cut in the same places, by detaching at each cut and
sending the collected gradient on afterwards: first from the pieces to the states, then from the chunks of rows to the
memory, then through the encoder. By the chain rule the sum is the gradient of one large pass; only the order of
summation differs.

Legend: N samples, U different contexts, K decoders, R rows (sample, decoder), S and T tokens, P positions, D model
size, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polyreply.data.batches import Batch
from polyreply.models.memory import Memory
from polyreply.models.model import PolyReplyModel, wide
from polyreply.models.packed import packed, scoring_layers
from polyreply.models.rows import Rows
from polyreply.threads import adapt

Reduce = Literal["sum", "mean"]
_CONTEXT_TOKENS, _FROZEN_CONTEXT_TOKENS = 4, 16
"""How many more context tokens than response tokens form a chunk: they see no vocabulary, and often no gradient."""
_CHUNK_COST = 0.05
"""What a chunk costs besides its tokens, as a share of the most that one may have."""


@dataclass(frozen=True)
class Samples:
    """Contexts and responses as padded ids with masks; both padded on the right."""

    context_NS: Tensor
    context_mask_NS: Tensor
    response_NT: Tensor
    response_mask_NT: Tensor

    @classmethod
    def of(cls, batch: Batch, device: torch.device | str = "cpu") -> "Samples":
        """The samples of a batch as tensors on a device: ids as int64, masks as bool."""
        arrays = (batch.context_BS, batch.context_mask_BS, batch.response_BT, batch.response_mask_BT)
        return cls(*(torch.from_numpy(array).to(device) for array in arrays))

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.context_NS)

    def different_contexts(self) -> tuple[Tensor, Tensor]:
        """The first sample of each different context (U,), and the number of each sample's context among them (N,)."""
        tokens_NS = self.context_NS.masked_fill(~self.context_mask_NS.bool(), -1)
        _, group_N = torch.unique(tokens_NS, dim=0, return_inverse=True)
        place_N = torch.arange(len(group_N), device=group_N.device)
        first_N = torch.full_like(place_N, len(place_N)).scatter_reduce(0, group_N, place_N, "amin")[group_N]
        first_U = torch.unique(first_N)
        return first_U, torch.searchsorted(first_U, first_N)

    def select(self, index: Tensor) -> "Samples":
        """Some of the samples, without padding that only the others need."""
        context_mask, response_mask = self.context_mask_NS[index].bool(), self.response_mask_NT[index].bool()
        used = context_mask.any(0)
        first, last = (int(used.nonzero()[i]) for i in (0, -1)) if used.any() else (0, 0)
        length = int(response_mask.sum(1).max()) if len(index) else 0
        context = slice(first, last + 1)
        return Samples(
            self.context_NS[index][:, context],
            context_mask[:, context],
            self.response_NT[index][:, :length],
            response_mask[:, :length],
        )


@dataclass(frozen=True)
class Limits:
    """Bounds on the working memory of scoring, beyond weights, inputs and result."""

    max_tokens: int = 2048
    """Most tokens (rows times length) in one pass of the decoders."""
    max_activations: int = 1 << 27
    """Most numbers that the linear layers of a decoder read and write in one backward pass, half a GB in float32. It
    bounds the tokens of a pass in deep and wide models; what a pass keeps is two to three times as much."""
    max_logits: int = 1 << 22
    """Most numbers in a piece of logits (positions times vocabulary): 16 MB in float32, which fit a CPU's cache."""


class TokenLoss:
    """The loss of each response token, by the logits of the decoder; here its NLL."""

    def further_states(
        self, model: PolyReplyModel, target_RT: Tensor, mask_RT: Tensor, rows: Rows, memory: Memory
    ) -> list[Tensor]:
        """States (R, T, D) besides the decoder's whose logits the loss needs."""
        return []

    def losses(self, logits: Sequence[Tensor], target_P: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the NLL of some tokens, both (P,), by the logits (P, V) of the decoder and further ones."""
        nll_P = _nll(logits[0], target_P)
        return nll_P, nll_P


@torch.no_grad()
def nll_NK(
    model: PolyReplyModel,
    samples: Samples,
    *,
    decoders: Sequence[int] | None = None,
    reduce: Reduce = "sum",
    limits: Limits | None = None,
) -> Tensor:
    """−log p(response | z=k, context) for every sample and all (or the given) decoders, (N, K), in float32 or better.

    Summed over the tokens of a response, or averaged. Dropout is on if the model is in training mode.
    """
    limits = limits or Limits()
    chosen = list(range(model.num_decoders)) if decoders is None else list(decoders)
    result = torch.zeros(len(samples), len(chosen), dtype=_wide_type(model.dtype), device=samples.context_NS.device)
    with packed(model, scoring_layers(model), for_decoding=False):
        for index, rows, memory in _scored_chunks(model, samples, chosen, limits):
            adapt()
            part = samples.select(index)
            sample_R = torch.arange(len(part), device=index.device).repeat(len(chosen))
            mask_RT, target_RT = part.response_mask_NT[sample_R], part.response_NT[sample_R]
            nll_RT = token_nll(model, memory, rows, target_RT, mask_RT, limits=limits)
            result[index] = _reduce(nll_RT, mask_RT, reduce).view(len(chosen), -1).T
    return result


@torch.no_grad()
def nll_pairs(
    model: PolyReplyModel,
    samples: Samples,
    sample_P: Tensor,
    decoder_P: Tensor,
    *,
    reduce: Reduce = "sum",
    limits: Limits | None = None,
) -> Tensor:
    """−log p(response | z=k, context) of some pairs of sample and decoder, (P,), as `nll_NK` gives it for all."""
    limits = limits or Limits()
    result = torch.zeros(len(sample_P), dtype=_wide_type(model.dtype), device=sample_P.device)
    with packed(model, scoring_layers(model), for_decoding=False):
        for chunk in chunks(_lengths(model, samples)[sample_P], limits.max_tokens, 1):
            adapt()
            index = chunk[torch.argsort(decoder_P[chunk], stable=True)]
            part = samples.select(sample_P[index])
            first_U, context_R = part.different_contexts()
            contexts = part.select(first_U)
            rows = Rows.pairs(context_R, decoder_P[index], len(contexts))
            memory = model.encode(contexts.context_NS, contexts.context_mask_NS, rows)
            mask_RT = part.response_mask_NT
            nll_RT = token_nll(model, memory, rows, part.response_NT, mask_RT, limits=limits)
            result[index] = _reduce(nll_RT, mask_RT, reduce)
    return result


def _scored_chunks(
    model: PolyReplyModel, samples: Samples, decoders: Sequence[int], limits: Limits
) -> Iterator[tuple[Tensor, Rows, Memory]]:
    """Samples of similar length, their rows under each of the decoders, and the memory of their contexts."""
    length_N = _lengths(model, samples)
    first_U, context_N = samples.different_contexts()
    if len(first_U) == len(samples) or model.has_own_memory:
        for index in chunks(length_N, limits.max_tokens, len(decoders)):
            part, rows = samples.select(index), Rows.grid(len(index), decoders, device=index.device)
            yield index, rows, model.encode(part.context_NS, part.context_mask_NS, rows)
        return
    length_U = samples.context_mask_NS[first_U].sum(1)
    for group in chunks(length_U, _CONTEXT_TOKENS * limits.max_tokens, 1):
        contexts = samples.select(first_U[group])
        memory = model.encode(contexts.context_NS, contexts.context_mask_NS)
        place_U = torch.full_like(first_U, -1)
        place_U[group] = torch.arange(len(group), device=group.device)
        members = (place_U[context_N] >= 0).nonzero()[:, 0]
        for chunk in chunks(length_N[members], limits.max_tokens, len(decoders)):
            index = members[chunk]
            used, place = torch.unique(place_U[context_N[index]], return_inverse=True)
            grid = Rows.grid(len(index), decoders, device=index.device)
            yield index, Rows(place[grid.context_R], grid.segments, len(used)), memory.select(used)


def token_nll(
    model: PolyReplyModel,
    memory: Memory,
    rows: Rows,
    target_RT: Tensor,
    mask_RT: Tensor,
    *,
    single: bool = False,
    limits: Limits | None = None,
) -> Tensor:
    """NLL of each token of each row's response, (R, T), zero where the mask is false; without gradients.

    `single` is by the single-decoder model, with a memory that was read for it.
    """
    states_RTD = model.response_states(target_RT, rows, memory, single=single)
    states_PD, target_P = states_RTD[mask_RT], target_RT[mask_RT]
    nll_P = torch.zeros(len(states_PD), dtype=_wide_type(states_PD.dtype), device=states_PD.device)
    for piece, segments in _pieces(model, rows, mask_RT, limits or Limits()):
        nll_P[piece] = _nll(_exact_logits(model, states_PD[piece], segments), target_P[piece])
    return _scatter(nll_P, mask_RT)


def _exact_logits(model: PolyReplyModel, states_PD: Tensor, segments: Sequence[tuple[int, int, int]]) -> Tensor:
    """Logits in the type of the vocabulary's weights, which autocast would round: those of 20 to eighths."""
    kind, dtype = states_PD.device.type, model.vocabulary.weight.dtype
    if not torch.is_autocast_enabled(kind) or dtype == torch.get_autocast_dtype(kind):
        return model.logits(states_PD, segments)
    with torch.autocast(kind, enabled=False):
        return model.logits(states_PD.to(dtype), segments)


def backward_nll(
    model: PolyReplyModel,
    samples: Samples,
    weights_NK: Tensor,
    *,
    reduce: Reduce = "sum",
    limits: Limits | None = None,
    loss: TokenLoss | None = None,
) -> Tensor:
    """Add the gradient of Σ weights·loss over all (sample, decoder) pairs with a weight; the NLL is the default loss.

    Returns the NLL of each pair, (N, K), zero where the weight is zero.
    """
    limits, loss = limits or Limits(), loss or TokenLoss()
    limits = replace(limits, max_tokens=min(limits.max_tokens, limits.max_activations // model.numbers_per_token))
    nll = torch.zeros(weights_NK.shape, dtype=_wide_type(model.dtype), device=weights_NK.device)
    if model.config.adapt == "everything":  # decoders read contexts differently, so pairs have nothing in common
        context_P, decoder_P = weights_NK.nonzero().T
        for index in chunks(_lengths(model, samples)[context_P], limits.max_tokens, 1):
            context, decoder = context_P[index], decoder_P[index]
            pair = torch.arange(len(index), device=index.device)
            weights_PK = torch.zeros_like(weights_NK[context])
            weights_PK[pair, decoder] = weights_NK[context, decoder]
            nll_PK = _backward_samples(model, samples.select(context), weights_PK, reduce, limits, loss)
            nll[context, decoder] = nll_PK[pair, decoder]
        return nll
    more = _CONTEXT_TOKENS if _trains_shared(model) else _FROZEN_CONTEXT_TOKENS
    sizes = samples.context_mask_NS.sum(1) // more
    for index in chunks(sizes, limits.max_tokens, 1):
        nll[index] = _backward_samples(model, samples.select(index), weights_NK[index], reduce, limits, loss)
    return nll


def _lengths(model: PolyReplyModel, samples: Samples) -> Tensor:
    """The number of tokens of each sample that pass through a decoder."""
    length_N = samples.response_mask_NT.sum(1)
    if model.config.adapt == "everything":
        return length_N + samples.context_mask_NS.sum(1)
    return length_N if model.family.encoder else length_N + model.config.num_invocation_tokens - 1


def _backward_samples(
    model: PolyReplyModel, samples: Samples, weights_NK: Tensor, reduce: Reduce, limits: Limits, loss: TokenLoss
) -> Tensor:
    """Backward of some samples under all decoders with a weight; their contexts are encoded once.

    The chunks' gradients are collected at detached copies of the memory, then sent through the encoder.
    """
    nll = torch.zeros(weights_NK.shape, dtype=_wide_type(model.dtype), device=weights_NK.device)
    pairs = weights_NK.nonzero()
    lengths = _lengths(model, samples)[pairs[:, 0]]
    trains_memory = _trains_shared(model) or model.config.adapt == "everything"
    sample_P, decoder_P = pairs[torch.argsort(pairs[:, 1], stable=True)].T
    first_U, context_N = samples.different_contexts()
    contexts = samples.select(first_U)
    with torch.set_grad_enabled(trains_memory):
        rows = Rows.pairs(context_N[sample_P], decoder_P, len(contexts))
        memory = model.encode(contexts.context_NS, contexts.context_mask_NS, rows)
    leaves = [leaf.detach().requires_grad_(leaf.requires_grad) for leaf in memory.leaves()]
    detached = memory.with_leaves(leaves)
    for index in chunks(lengths, limits.max_tokens, 1):
        adapt()
        sample, decoder = pairs[index].T
        order = torch.argsort(decoder, stable=True)
        sample, decoder = sample[order], decoder[order]
        rows = Rows.pairs(context_N[sample], decoder, len(contexts))
        weights_R = weights_NK[sample, decoder]
        nll[sample, decoder] = backward_rows(model, samples, detached, rows, sample, weights_R, reduce, limits, loss)
    reached = [(out, leaf.grad) for out, leaf in zip(memory.leaves(), leaves, strict=True) if leaf.grad is not None]
    if reached:
        torch.autograd.backward([out for out, _ in reached], [gradient for _, gradient in reached])
    return nll


def backward_rows(
    model: PolyReplyModel,
    samples: Samples,
    memory: Memory,
    rows: Rows,
    sample_R: Tensor,
    weights_R: Tensor,
    reduce: Reduce,
    limits: Limits,
    loss: TokenLoss,
) -> Tensor:
    """Backward of one chunk of rows: the vocabulary in pieces, then the decoders once; the NLL of each row, (R,)."""
    mask_RT = samples.response_mask_NT[sample_R].bool()
    length = int(mask_RT.sum(1).max())
    mask_RT = mask_RT[:, :length]
    target_RT = samples.response_NT[sample_R][:, :length]
    states_RTD = model.response_states(target_RT, rows, memory)
    scale_R = weights_R / mask_RT.sum(1).clamp(min=1) if reduce == "mean" else weights_R
    further = loss.further_states(model, target_RT, mask_RT, rows, memory)
    states = [one_RTD[mask_RT] for one_RTD in (states_RTD, *further)]
    leaves = [states_PD.detach().requires_grad_(states_PD.requires_grad) for states_PD in states]
    target_P, scale_P = target_RT[mask_RT], scale_R[:, None].expand_as(mask_RT)[mask_RT]
    nll_P = torch.zeros(len(target_P), dtype=_wide_type(states_RTD.dtype), device=target_P.device)
    for piece, segments in _pieces(model, rows, mask_RT, limits):
        logits = [model.logits(leaf_PD[piece], segments) for leaf_PD in leaves]
        piece_loss, piece_nll = loss.losses(logits, target_P[piece])
        nll_P[piece] = piece_nll.detach()
        (piece_loss * scale_P[piece]).sum().backward()
    for states_PD, leaf_PD in zip(states, leaves, strict=True):
        if leaf_PD.grad is not None:
            states_PD.backward(leaf_PD.grad)
    return _reduce(_scatter(nll_P, mask_RT), mask_RT, reduce)


def _nll(logits_PV: Tensor, target_P: Tensor) -> Tensor:
    """−log p of each target, in float32 or better."""
    return torch.nn.functional.cross_entropy(wide(logits_PV), target_P, reduction="none")


def chunks(lengths: Tensor, max_tokens: int, rows_each: int) -> list[Tensor]:
    """Indices of samples of similar length, longest first; each sample makes `rows_each` rows.

    The cuts are those with the least padding, where a further chunk costs as much as `_CHUNK_COST` of `max_tokens`.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    length_N, total = lengths[order].clamp(min=1).cpu().numpy(), len(order)
    fixed = max(1, int(_CHUNK_COST * max_tokens))
    cost_N, end_N = np.zeros(total + 1, dtype=np.int64), np.zeros(total, dtype=np.int64)
    for begin in reversed(range(total)):  # the best way to cut what is from `begin` on
        each = int(length_N[begin]) * rows_each
        most = min(max(1, max_tokens // each), total - begin)
        cost_E = fixed + each * np.arange(1, most + 1) + cost_N[begin + 1 : begin + most + 1]
        best = int(cost_E.argmin())
        cost_N[begin], end_N[begin] = cost_E[best], begin + 1 + best
    found, begin = [], 0
    while begin < total:
        end = int(end_N[begin])
        found.append(order[begin:end])
        begin = end
    return found


def _trains_shared(model: PolyReplyModel) -> bool:
    return any(parameter.requires_grad for parameter in model.shared_parameters())


def _pieces(
    model: PolyReplyModel, rows: Rows, mask_RT: Tensor, limits: Limits
) -> Iterator[tuple[slice, list[tuple[int, int, int]]]]:
    """Slices of the real positions whose logits fit the limit, each with its segments (decoder, begin, end)."""
    size = max(1, limits.max_logits // model.vocabulary.weight.shape[0])
    ends_R = mask_RT.sum(1).cumsum(0)
    bounds = [(k, int(ends_R[b - 1]) if b else 0, int(ends_R[e - 1])) for k, b, e in rows.segments]
    for begin in range(0, int(ends_R[-1]), size):
        end = min(begin + size, int(ends_R[-1]))
        inside = [(k, max(b, begin) - begin, min(e, end) - begin) for k, b, e in bounds if b < end and e > begin]
        yield slice(begin, end), inside


def _wide_type(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _scatter(values_P: Tensor, mask_RT: Tensor) -> Tensor:
    return values_P.new_zeros(mask_RT.shape).masked_scatter(mask_RT, values_P)


def _reduce(nll_RT: Tensor, mask_RT: Tensor, reduce: Reduce) -> Tensor:
    total_R = nll_RT.sum(1)
    return total_R / mask_RT.sum(1).clamp(min=1) if reduce == "mean" else total_R
