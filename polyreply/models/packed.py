"""Linear layers repacked for the CPU's matrix kernels.

A decoding step multiplies a few rows with large matrices, so it is bound by reading the weights. PyTorch's plain
product of ten rows reads memory at a fraction of its speed; oneDNN's own blocked layout comes much closer (5 ms instead
of 14 for T5-small's vocabulary). The packed copies take as much memory as the weights they copy and are kept with the
model, in a weak dictionary.

A copy must never outlive the weights it was made from: each is stored with the address and the version counter of its
weights, which PyTorch raises at every in-place change, and is rebuilt when either differs. The arithmetic is that of
the stock layer up to the order of summation.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

if TYPE_CHECKING:
    from polyreply.models.model import PolyReplyModel


_ROWS = 10
"""The number of rows the layout is chosen for; it works with any other number too."""

Linear = Callable[[Tensor], Tensor]
_Kept = dict[tuple[int, ...], tuple[Any, Linear]]
_kept: "weakref.WeakKeyDictionary[PolyReplyModel, _Kept]" = weakref.WeakKeyDictionary()


def can_pack(model: "PolyReplyModel") -> bool:
    """Whether packing helps: float32 weights on a CPU with oneDNN, and no gradients needed."""
    on_cpu = model.device.type == "cpu" and model.dtype == torch.float32
    return on_cpu and torch.backends.mkldnn.is_available() and not torch.is_grad_enabled()


def packed_linear(model: "PolyReplyModel", layers: Sequence[Any]) -> Linear:
    """One product for several layers that read the same input; their outputs are concatenated."""
    if not can_pack(model):
        return layers[0].forward if len(layers) == 1 else lambda x: torch.cat([layer(x) for layer in layers], -1)
    kept = _kept.setdefault(model, {})
    name = tuple(id(layer) for layer in layers)
    signature = tuple((p.data_ptr(), p._version) for layer in layers for p in layer.parameters())
    if name not in kept or kept[name][0] != signature:
        kept[name] = (signature, _pack(layers))
    return kept[name][1]


@contextmanager
def packed(model: "PolyReplyModel", layers: Sequence[Any]) -> Iterator[None]:
    """Use packed weights in these linear layers while the block lasts, if that helps."""
    layers = [layer for layer in layers if type(layer) is nn.Linear] if can_pack(model) else []
    forwards = [packed_linear(model, [layer]) for layer in layers]
    for layer, forward in zip(layers, forwards, strict=True):
        layer.forward = forward
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the method of the class is visible again


def _rows_out(layer: Any) -> Tensor:
    """A layer's weight with a row for each output; GPT-2's Conv1D stores it the other way round."""
    weight: Tensor = layer.weight.detach()
    return weight.t() if isinstance(layer, Conv1D) else weight


def _pack(layers: Sequence[Any]) -> Linear:
    weights = torch.cat([_rows_out(layer) for layer in layers])
    weight = torch.ops.mkldnn._reorder_linear_weight(weights, _ROWS)
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    bias = torch.cat(biases) if biases else None

    def forward(x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product

    return forward
