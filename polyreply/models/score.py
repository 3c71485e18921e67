"""How well each decoder explains each response: `nll_NK`, with bounded memory and without wasted work.

The encoder runs once, cross-attention keys and values are shared by the K decoders, rows of similar length go together,
and the vocabulary projection sees real tokens only, a chunk at a time.

Legend: N samples, K decoders, R rows (sample, decoder), S and T tokens, P positions, D model size, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from polyreply.data.batches import Batch
from polyreply.models.memory import Memory
from polyreply.models.packed import packed
from polyreply.models.polyreply_model import PolyReplyModel
from polyreply.models.rows import Rows

Reduce = Literal["sum", "mean"]
_CONTEXTS_ARE_CHEAPER = 4
"""So many more tokens of contexts than of responses are read at once: they pass no vocabulary and often no gradient."""


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
        """Counts the samples."""
        return len(self.context_NS)

    def select(self, index: Tensor) -> "Samples":
        """Some samples, without the padding they do not need."""
        context_mask, response_mask = self.context_mask_NS[index].bool(), self.response_mask_NT[index].bool()
        used = context_mask.any(0)
        first, last = (int(used.nonzero()[i]) for i in (0, -1)) if used.any() else (0, 0)
        length = int(response_mask.sum(1).max())
        context = slice(first, last + 1)
        return Samples(
            self.context_NS[index][:, context],
            context_mask[:, context],
            self.response_NT[index][:, :length],
            response_mask[:, :length],
        )


@dataclass(frozen=True)
class Limits:
    """What bounds the working memory of scoring, beyond weights, inputs and result."""

    max_tokens: int = 2048
    """Most tokens (rows times length) that go through the decoders at once."""
    max_logits: int = 1 << 22
    """Most numbers of a piece of logits (positions times vocabulary): 16 MB in float32, which stay in a CPU's cache."""


@torch.no_grad()
def nll_NK(
    model: PolyReplyModel,
    samples: Samples,
    *,
    decoders: Sequence[int] | None = None,
    reduce: Reduce = "sum",
    limits: Limits | None = None,
) -> Tensor:
    """−log p(response | z=k, context) for every sample and decoder (or some decoders), (N, K), in float32 or better.

    Summed over the tokens of a response, or averaged. Whether dropout is on is up to the model's mode.
    """
    limits = limits or Limits()
    chosen = list(range(model.num_decoders)) if decoders is None else list(decoders)
    result = torch.zeros(len(samples), len(chosen), dtype=_wide_type(model.dtype), device=samples.context_NS.device)
    for index in _chunks(samples.response_mask_NT.sum(1), limits.max_tokens, len(chosen)):
        part = samples.select(index)
        memory = model.encode(part.context_NS, part.context_mask_NS)
        rows = Rows.grid(len(part), chosen, device=index.device)
        with packed(model, [model.backbone.get_output_embeddings()]):
            nll_RT = _token_nll(model, part, memory, rows, limits)
        result[index] = _reduce(nll_RT, part.response_mask_NT[rows.context_R], reduce).view(len(chosen), -1).T
    return result


def backward_nll(
    model: PolyReplyModel,
    samples: Samples,
    weights_NK: Tensor,
    *,
    reduce: Reduce = "sum",
    limits: Limits | None = None,
) -> Tensor:
    """Adds the gradient of Σ weights·NLL over all (sample, decoder) pairs with a weight, chunk by chunk.

    Returns the NLL of each pair, (N, K), zero where the weight is zero. Chunks change nothing but rounding.
    """
    limits = limits or Limits()
    nll = torch.zeros(weights_NK.shape, dtype=_wide_type(model.dtype), device=weights_NK.device)
    lengths = samples.response_mask_NT.sum(1)
    sizes = torch.maximum(lengths, samples.context_mask_NS.sum(1) // _CONTEXTS_ARE_CHEAPER)
    for index in _chunks(sizes, limits.max_tokens, 1):
        nll[index] = _backward_samples(model, samples.select(index), weights_NK[index], reduce, limits)
    return nll


def _backward_samples(
    model: PolyReplyModel, samples: Samples, weights_NK: Tensor, reduce: Reduce, limits: Limits
) -> Tensor:
    """Backward of some samples under all decoders with a weight: their contexts are read once."""
    nll = torch.zeros(weights_NK.shape, dtype=_wide_type(model.dtype), device=weights_NK.device)
    pairs = weights_NK.nonzero()
    lengths = samples.response_mask_NT.sum(1)[pairs[:, 0]]
    memory, leaves = _read_all(model, samples)
    shared = memory.with_leaves(leaves)
    for index in _chunks(lengths, limits.max_tokens, 1):
        context, decoder = pairs[index].T
        order = torch.argsort(decoder, stable=True)
        context, decoder = context[order], decoder[order]
        rows = Rows.pairs(context, decoder, len(samples))
        weights_R = weights_NK[context, decoder]
        nll[context, decoder] = _backward_rows(model, samples, shared, rows, weights_R, reduce, limits)
    _backward_through(memory.leaves(), leaves)
    return nll


def _read_all(model: PolyReplyModel, samples: Samples) -> tuple[Memory, list[Tensor]]:
    """All contexts read once, and detached copies at which the chunks' gradients are collected."""
    trains = any(parameter.requires_grad for parameter in model.shared_parameters())
    with torch.set_grad_enabled(trains):
        memory = model.encode(samples.context_NS, samples.context_mask_NS)
    return memory, [leaf.detach().requires_grad_(trains) for leaf in memory.leaves()]


def _backward_through(outputs: list[Tensor], leaves: list[Tensor]) -> None:
    reached = [(output, leaf.grad) for output, leaf in zip(outputs, leaves, strict=True) if leaf.grad is not None]
    if reached:
        torch.autograd.backward([output for output, _ in reached], [gradient for _, gradient in reached])


def _backward_rows(
    model: PolyReplyModel,
    samples: Samples,
    memory: Memory,
    rows: Rows,
    weights_R: Tensor,
    reduce: Reduce,
    limits: Limits,
) -> Tensor:
    """Backward of one chunk: the vocabulary's part in pieces, then once through the decoders."""
    mask_RT = samples.response_mask_NT[rows.context_R].bool()
    length = int(mask_RT.sum(1).max())
    mask_RT = mask_RT[:, :length]
    target_RT = samples.response_NT[rows.context_R][:, :length]
    states_RTD = model.states(model.shift(target_RT, rows, memory), rows, memory)
    scale_R = weights_R / mask_RT.sum(1).clamp(min=1) if reduce == "mean" else weights_R
    states_PD = states_RTD[mask_RT]
    leaf_PD = states_PD.detach().requires_grad_(states_PD.requires_grad)
    nll_P = torch.zeros(len(leaf_PD), dtype=_wide_type(leaf_PD.dtype), device=leaf_PD.device)
    scale_P = scale_R[:, None].expand_as(mask_RT)[mask_RT]
    for begin, end, segments in _pieces(model, rows, mask_RT, limits.max_logits):
        logits = model.logits(leaf_PD[begin:end], segments)
        part = torch.nn.functional.cross_entropy(wide(logits), target_RT[mask_RT][begin:end], reduction="none")
        nll_P[begin:end] = part.detach()
        (part * scale_P[begin:end]).sum().backward()
    if leaf_PD.grad is not None:
        states_PD.backward(leaf_PD.grad)
    return _reduce(_scatter(nll_P, mask_RT), mask_RT, reduce)


def _token_nll(model: PolyReplyModel, samples: Samples, memory: Memory, rows: Rows, limits: Limits) -> Tensor:
    """NLL of each token of each row, (R, T), zero where padded."""
    mask_RT, target_RT = samples.response_mask_NT[rows.context_R], samples.response_NT[rows.context_R]
    states_RTD = model.states(model.shift(target_RT, rows, memory), rows, memory)
    states_PD, target_P = states_RTD[mask_RT], target_RT[mask_RT]
    nll_P = torch.zeros(len(states_PD), dtype=_wide_type(states_PD.dtype), device=states_PD.device)
    for begin, end, segments in _pieces(model, rows, mask_RT, limits.max_logits):
        logits = model.logits(states_PD[begin:end], segments)
        target = target_P[begin:end, None]
        nll_P[begin:end] = torch.logsumexp(wide(logits), -1) - wide(logits.gather(1, target)[:, 0])
    return _scatter(nll_P, mask_RT)


def _chunks(lengths: Tensor, max_tokens: int, rows_each: int) -> Iterator[Tensor]:
    """Indices of samples of similar length, as many as `max_tokens` allow when each makes `rows_each` rows."""
    order = torch.argsort(lengths, descending=True, stable=True)
    begin = 0
    while begin < len(order):
        longest = max(int(lengths[order[begin]]), 1)
        end = begin + max(1, max_tokens // (longest * rows_each))
        yield order[begin:end]
        begin = end


def _pieces(
    model: PolyReplyModel, rows: Rows, mask_RT: Tensor, max_logits: int
) -> Iterator[tuple[int, int, list[tuple[int, int, int]]]]:
    """Ranges of positions whose logits fit, and in each whose decoder's they are."""
    size = max(1, max_logits // model.backbone.get_output_embeddings().weight.shape[0])
    ends_R = mask_RT.sum(1).cumsum(0)
    bounds = [(k, int(ends_R[b - 1]) if b else 0, int(ends_R[e - 1])) for k, b, e in rows.segments]
    for begin in range(0, int(ends_R[-1]), size):
        end = min(begin + size, int(ends_R[-1]))
        inside = [(k, max(b, begin) - begin, min(e, end) - begin) for k, b, e in bounds if b < end and e > begin]
        yield begin, end, inside


def _wide_type(dtype: torch.dtype) -> torch.dtype:
    """Log-likelihoods are added up in float32 or better, whatever the model computes in."""
    return torch.promote_types(dtype, torch.float32)


def wide(x: Tensor) -> Tensor:
    """The same numbers in float32 or better."""
    return x.to(_wide_type(x.dtype))


def _scatter(values_P: Tensor, mask_RT: Tensor) -> Tensor:
    return values_P.new_zeros(mask_RT.shape).masked_scatter(mask_RT, values_P)


def _reduce(nll_RT: Tensor, mask_RT: Tensor, reduce: Reduce) -> Tensor:
    total_R = nll_RT.sum(1)
    return total_R / mask_RT.sum(1).clamp(min=1) if reduce == "mean" else total_R
