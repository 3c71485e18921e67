"""Linear layers laid out once for the CPU's matrix kernels.

A plain product of a few rows with a large matrix reads memory at a fraction of its speed; oneDNN's own layout comes
much closer. The packed copies cost as much memory as the weights themselves, are kept with the model, and are made
anew when a weight has changed.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from polyreply.models.polyreply_model import PolyReplyModel

_ROWS = 10
"""The number of rows the layout is chosen for; others work with it as well."""

Linear = Callable[[Tensor], Tensor]
_Kept = dict[tuple[int, ...], tuple[Any, Linear]]
_kept: "weakref.WeakKeyDictionary[PolyReplyModel, _Kept]" = weakref.WeakKeyDictionary()


def can_pack(model: PolyReplyModel) -> bool:
    """Whether there is something to gain: float32 weights on a CPU with oneDNN, and no gradients wanted."""
    on_cpu = model.device.type == "cpu" and model.dtype == torch.float32
    return on_cpu and torch.backends.mkldnn.is_available() and not torch.is_grad_enabled()


def packed_linear(model: PolyReplyModel, layers: Sequence[Any]) -> Linear:
    """One product for several layers that read the same input, their outputs side by side."""
    if not can_pack(model):
        return layers[0].forward if len(layers) == 1 else _side_by_side(layers)
    kept = _kept.setdefault(model, {})
    name = tuple(id(layer) for layer in layers)
    signature = tuple((layer.weight.data_ptr(), layer.weight._version) for layer in layers)
    if name not in kept or kept[name][0] != signature:
        kept[name] = (signature, _pack(layers))
    return kept[name][1]


@contextmanager
def packed(model: PolyReplyModel, layers: Sequence[Any]) -> Iterator[None]:
    """Within it these linear layers use packed weights, where that is possible."""
    layers = [layer for layer in layers if type(layer) is nn.Linear] if can_pack(model) else []
    forwards = [packed_linear(model, [layer]) for layer in layers]
    for layer, forward in zip(layers, forwards, strict=True):
        layer.forward = forward
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own comes back


def _side_by_side(layers: Sequence[nn.Linear]) -> Linear:
    return lambda x: torch.cat([layer(x) for layer in layers], -1)


def _pack(layers: Sequence[nn.Linear]) -> Linear:
    together = torch.cat([layer.weight.detach() for layer in layers])
    weight = torch.ops.mkldnn._reorder_linear_weight(together, _ROWS)
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    bias = torch.cat(biases) if biases else None

    def forward(x: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return found

    return forward
