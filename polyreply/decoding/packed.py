"""Decoder weights laid out once for the CPU's matrix kernels.

A plain product of a few rows with a large matrix reads memory at a fraction of its speed; oneDNN's own layout comes
much closer. The packed copies cost as much memory as the weights of the decoder, are kept with the model, and are made
anew when a weight has changed.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from polyreply.model.polyreply_model import PolyReplyModel

_ROWS = 10
"""The number of rows the layout is chosen for; others work with it as well."""

_kept: "weakref.WeakKeyDictionary[PolyReplyModel, tuple[Any, list[tuple[nn.Module, Any]]]]" = (
    weakref.WeakKeyDictionary()
)


def can_pack(model: PolyReplyModel) -> bool:
    """Whether there is something to gain: float32 weights on a CPU with oneDNN, and no gradients wanted."""
    on_cpu = model.device.type == "cpu" and model.dtype == torch.float32
    return on_cpu and torch.backends.mkldnn.is_available() and not torch.is_grad_enabled()


@contextmanager
def packed(model: PolyReplyModel) -> Iterator[None]:
    """Within it the linear layers of the decoders use their packed weights."""
    if not can_pack(model):
        yield
        return
    replaced = _packed_layers(model)
    for layer, forward in replaced:
        layer.forward = forward
    try:
        yield
    finally:
        for layer, _ in replaced:
            del layer.forward  # the class's own comes back


def _packed_layers(model: PolyReplyModel) -> list[tuple[nn.Module, Any]]:
    layers = [layer for decoder in model.decoders for layer in decoder.modules() if type(layer) is nn.Linear]
    head = model.backbone.get_output_embeddings()
    if type(head) is nn.Linear:
        layers.append(head)
    signature = tuple((layer.weight.data_ptr(), layer.weight._version) for layer in layers)
    known = _kept.get(model)
    if known is None or known[0] != signature:
        known = (signature, [(layer, _packed_forward(layer)) for layer in layers])
        _kept[model] = known
    return known[1]


def _packed_forward(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _ROWS)
    bias = None if layer.bias is None else layer.bias.detach()

    def forward(x: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return found

    return forward
