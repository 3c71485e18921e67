"""Flan-T5-small from the package index: the weights of `traceforge-title-model` 0.2.0 (MIT), back in float32.

The package carries `encoder.onnx`, `decoder.onnx` and `tokenizer.json`: Flan-T5-small after a distillation on short
titles, exported to ONNX with onnxruntime's dynamic quantisation. Layer norms are floats there; every other weight is
8-bit, one scale and one zero point per tensor (or per output column). Only the weights are taken, not the arithmetic:
the graphs also round every activation to 8 bits, which alone moved an encoder output by half its norm.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from polyreply.errors import MissingExtraError
from polyreply.models.backbones import FLAN

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, T5Config

Array = npt.NDArray[np.float32]

ROOTS = {"enc": "encoder", "m": ""}
"""The first part of a name in the two graphs, and the T5ForConditionalGeneration's name for it."""


def flan_config() -> "T5Config":
    """Give the configuration of Flan-T5-small: gated GELU, and a separate output layer."""
    from transformers import T5Config

    make: Any = T5Config  # its signature leaves out the settings that all configurations have
    return make(  # type: ignore[no-any-return]
        vocab_size=32128,
        d_model=512,
        d_kv=64,
        d_ff=1024,
        num_layers=8,
        num_heads=6,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )


def flan_tokenizer() -> "PreTrainedTokenizerFast":
    """Give the package's T5 tokenizer without the truncation and padding that its file switches on."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_file(str(_folder() / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    fast: Any = PreTrainedTokenizerFast
    return fast(  # type: ignore[no-any-return]
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def flan_weights() -> dict[str, Array]:
    """Give every weight in float32 under the name, and in the layout, that T5ForConditionalGeneration has for it.

    The embedding is there twice, from either graph, as `shared.weight` and `encoder.embed_tokens.weight`.
    """
    onnx = _optional("onnx")
    weights: dict[str, Array] = {}
    for file in ("encoder.onnx", "decoder.onnx"):
        graph = onnx.load(str(_folder() / file)).graph
        tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
        weights.update(_named_weights(tensors))
        weights.update(_matrix_weights(graph, tensors))
    return weights


def _named_weights(tensors: dict[str, npt.NDArray[Any]]) -> Iterator[tuple[str, Array]]:
    """Yield the tensors that kept their parameter's name: layer norms, and (quantised) whatever is looked up."""
    for name, tensor in tensors.items():
        if name.endswith(".weight"):
            yield _parameter(name.split(".")), np.array(tensor, np.float32)
        elif name.endswith(".weight_quantized"):
            stem = name.removesuffix("_quantized")
            yield _parameter(stem.split(".")), _dequantised(stem, tensors)


def _matrix_weights(graph: Any, tensors: dict[str, npt.NDArray[Any]]) -> Iterator[tuple[str, Array]]:
    """Yield the matrices, which the export left nameless: the node that uses `onnx::MatMul_1022` has its name.

    The node `/enc/block.0/layer.0/SelfAttention/q/MatMul_quant` multiplies by the transpose of that q.weight.
    """
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            *path, _ = node.name.strip("/").split("/")
            stem = node.input[1].removesuffix("_quantized")
            yield _parameter([*path, "weight"]), np.ascontiguousarray(_dequantised(stem, tensors).T)


def _parameter(path: list[str]) -> str:
    root, *rest = path
    return ".".join([part for part in [ROOTS.get(root, root)] if part] + rest)


def _dequantised(stem: str, tensors: dict[str, npt.NDArray[Any]]) -> Array:
    """Compute (q - zero point) · scale, in which one scale per column is broadcast over the rows."""
    quantised, zero_point = (tensors[stem + end].astype(np.int32) for end in ("_quantized", "_zero_point"))
    return np.asarray((quantised - zero_point).astype(np.float32) * tensors[stem + "_scale"], np.float32)


def _folder() -> Path:
    return Path(_optional("traceforge_title_model").span_dir())


def _optional(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(module.replace("_", "-"), "flan", f"the backbone {FLAN}") from None
