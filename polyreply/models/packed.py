"""Linear layers repacked for the CPU's matrix kernels.

A decoding step multiplies a few rows with large matrices, so it is bound by reading the weights. PyTorch's plain
product of ten rows reads memory at a fraction of its speed; oneDNN's own blocked layout comes much closer (5 ms instead
of 14 for T5-small's vocabulary). Scoring multiplies many rows and is bound by arithmetic; there oneDNN is faster too,
in float32 more than twice on AMD's processors with AVX-512, which PyTorch's own product does not use. Copies take as
much memory as the weights they copy, once for scoring and once for decoding, which joins layers; they are kept with
the model, in a weak dictionary.

What the LoRAs of all decoders read is packed with the layers they are at; what they add to the layers' outputs is a
packed product that also sums (`packed_outer`).

On request (`decodes_in_int8`) decoding multiplies with copies in eight bits, which a quarter of the memory traffic
suffices for: a scale for each output, and one for all inputs of a product, found as they come. So a reply may depend on
what it is decoded with. Scoring never uses them.

A copy must never outlive the weights it was made from: each is stored with the address and the version counter of its
weights, which PyTorch raises at every in-place change, and is rebuilt when either differs. The arithmetic is that of
the stock layer up to the order of summation.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from polyreply.models.adapters import LowRanks
from polyreply.models.families import part

if TYPE_CHECKING:
    from polyreply.models.model import PolyReplyModel


_ROWS = 10
"""The number of rows the layout is chosen for; it works with any other number too."""
_LINEAR = (nn.Linear, Conv1D)

Linear = Callable[[Tensor], Tensor]
Outer = Callable[[Tensor, Tensor], Tensor]
_Packed = TypeVar("_Packed")
_Kept = dict[tuple[int, ...], tuple[Any, Any]]
_kept: "weakref.WeakKeyDictionary[PolyReplyModel, _Kept]" = weakref.WeakKeyDictionary()


def can_pack(layers: Sequence[Any]) -> bool:
    """Whether packing helps: weights on a CPU, of a type that oneDNN multiplies in, and no gradients needed."""
    if torch.is_grad_enabled() or not torch.backends.mkldnn.is_available():
        return False
    types = {(layer.weight.device.type, layer.weight.dtype) for layer in layers}
    if types == {("cpu", torch.bfloat16)}:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return types == {("cpu", torch.float32)}


def packed_linear(model: "PolyReplyModel", layers: Sequence[Any], *, for_decoding: bool = True) -> Linear:
    """One product for several layers that read the same input; their outputs are concatenated."""
    if not can_pack(layers):
        return layers[0].forward if len(layers) == 1 else lambda x: torch.cat([layer(x) for layer in layers], -1)
    pack = _pack_int8 if model.decodes_in_int8 and for_decoding else _pack
    if pack is _pack_int8 and type(layers[-1]) is LowRanks:  # what is small and exact stays so
        eight_bits, ranks = packed_linear(model, layers[:-1]), layers[-1]
        return lambda x: torch.cat([eight_bits(x), ranks(x)], -1)
    return _kept_for(model, pack, layers)


def packed_outer(model: "PolyReplyModel", ranks: LowRanks) -> Outer:
    """A function of each row's own ranks (R, C) and outputs of layers (R, O): the outputs with what LoRAs add to them.

    Both are of the weights' type; the outputs may be some columns of a larger matrix.
    """
    if not can_pack([ranks]):
        return lambda own_RC, output_RO: output_RO.addmm(own_RC, ranks.outer_CO)
    return _kept_for(model, _pack_outer, [ranks])


def _kept_for(model: "PolyReplyModel", pack: Callable[[Sequence[Any]], _Packed], layers: Sequence[Any]) -> _Packed:
    """What `pack` makes of the layers, rebuilt if their weights have changed since."""
    kept = _kept.setdefault(model, {})
    name = (id(pack), *(id(layer) for layer in layers))
    signature = tuple((p.data_ptr(), p._version) for layer in layers for p in layer.parameters())
    if name not in kept or kept[name][0] != signature:
        kept[name] = (signature, pack(layers))
    packed: _Packed = kept[name][1]
    return packed


@contextmanager
def packed(model: "PolyReplyModel", layers: Sequence[Any], *, for_decoding: bool = True) -> Iterator[None]:
    """Use packed weights in these linear layers while the block lasts, if that helps."""
    layers = [layer for layer in layers if type(layer) in _LINEAR and can_pack([layer])]
    forwards = [packed_linear(model, [layer], for_decoding=for_decoding) for layer in layers]
    before = [vars(layer).get("forward") for layer in layers]
    for layer, forward in zip(layers, forwards, strict=True):
        layer.forward = forward
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            if forward is None:
                del layer.forward  # the method of the class is visible again
            else:
                layer.forward = forward


def scoring_layers(model: "PolyReplyModel") -> list[Any]:
    """The linear layers that scoring calls; of a sharded model only the vocabulary's, which is whole.

    Under autocast those whose weights are of another type than it computes in are left out: packed, they would be
    multiplied in their own. That is what the vocabulary is to be, for exact logits.
    """
    if model.sharded is not None:
        return [model.vocabulary]
    kind = model.device.type
    computed = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return [
        layer
        for layer in model.modules()
        if type(layer) in _LINEAR and (layer is model.vocabulary or computed in (None, layer.weight.dtype))
    ]


def encoder_layers(model: "PolyReplyModel") -> list[Any]:
    """The linear layers of an encoder; a decoder-only model has none that its steps do not pack."""
    if model.sharded is not None or not model.family.encoder:
        return []
    return [layer for layer in part(model.backbone, model.family.encoder).modules() if type(layer) in _LINEAR]


def _rows_out(layer: Any) -> Tensor:
    """A layer's weight with a row for each output; GPT-2's Conv1D stores it the other way round."""
    weight: Tensor = layer.weight.detach()
    return weight.t() if isinstance(layer, Conv1D) else weight


def _concatenated(layers: Sequence[Any]) -> tuple[Tensor, Tensor | None]:
    """The weights of several layers, with a row for each output, and their biases."""
    weights = [_rows_out(layer) for layer in layers]
    if all(layer.bias is None for layer in layers):
        return torch.cat(weights), None
    biases = [
        weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
        for layer, weight in zip(layers, weights, strict=True)
    ]
    return torch.cat(weights), torch.cat(biases)


def _pack(layers: Sequence[Any]) -> Linear:
    weights, bias = _concatenated(layers)
    weight, dtype = torch.ops.mkldnn._reorder_linear_weight(weights, _ROWS), weights.dtype

    def forward(x: Tensor) -> Tensor:
        # Under autocast the weights may be narrower than what they are multiplied with.
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x.to(dtype), weight, bias, "none", [], "")
        return product

    return forward


def _pack_outer(ranks: Sequence[Any]) -> Outer:
    weight = torch.ops.mkldnn._reorder_linear_weight(ranks[0].outer_CO.t().contiguous(), _ROWS)

    def forward(own_RC: Tensor, output_RO: Tensor) -> Tensor:
        added: Tensor = torch.ops.mkldnn._linear_pointwise.binary(own_RC, output_RO, weight, None, "add")
        return added

    return forward


def _pack_int8(layers: Sequence[Any]) -> Linear:
    weights, bias = _concatenated(layers)
    scales = weights.abs().amax(1).clamp(min=torch.finfo(weights.dtype).tiny) / 127
    zeros = torch.zeros(len(weights), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # tensors of quantised types will have another constructor
        quantised = torch.quantize_per_channel(weights.float(), scales.double(), zeros, 0, torch.qint8)
        weight = torch.ops.quantized.linear_prepack(quantised, None if bias is None else bias.float())

    def forward(x: Tensor) -> Tensor:
        product: Tensor = torch.ops.quantized.linear_dynamic(x, weight, reduce_range=True)
        return product

    return forward
