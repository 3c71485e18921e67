"""The architectures polyreply can give K decoders: where each keeps its layers, and what an adapter acts on.

A new architecture is one entry of `FAMILIES`: paths into the stock Transformers model, no code of its own.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any

from polyreply.errors import PolyReplyError


@dataclass(frozen=True)
class Family:
    """Paths, dots between names, from a language model to its parts."""

    decoder: str
    """The stack that generates."""
    layers: str
    """The list of layers inside that stack."""
    sublayers: tuple[str, ...]
    """Inside a layer: the modules whose output goes into a residual sum. An adapter acts on it before the sum."""
    encoder: str = ""
    """The stack that reads the context; empty in decoder-only models, which read and generate with one."""


_T5 = Family(
    decoder="decoder",
    layers="block",
    sublayers=("layer.0.SelfAttention", "layer.1.EncDecAttention", "layer.2.DenseReluDense"),
    encoder="encoder",
)
_BART = Family("model.decoder", "layers", ("self_attn", "encoder_attn", "fc2"), "model.encoder")
_LLAMA = Family("model", "layers", ("self_attn", "mlp"))

FAMILIES: dict[str, Family] = {
    "t5": _T5,  # also Flan-T5 and ByT5
    "mt5": _T5,
    "bart": _BART,
    "gpt2": Family("transformer", "h", ("attn", "mlp")),
    "llama": _LLAMA,  # also SmolLM
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "mistral": _LLAMA,
    "smollm3": _LLAMA,
}


def family_of(model_type: str) -> Family:
    """The entry of an architecture, or an error that lists those there are."""
    if model_type not in FAMILIES:
        raise PolyReplyError(
            f"expected a backbone of one of the architectures {', '.join(FAMILIES)}, found {model_type!r}; "
            "a new one is an entry of polyreply/model/families.py"
        )
    return FAMILIES[model_type]


def part(module: Any, path: str) -> Any:
    """The part of a module at a path such as `model.decoder` or `layer.0.SelfAttention`."""
    return reduce(lambda at, name: at[int(name)] if name.isdigit() else getattr(at, name), path.split("."), module)
