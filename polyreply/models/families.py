"""Backbone families: where each architecture keeps its layers, and which outputs an adapter acts on.

A family is a few paths into the stock Transformers model, and no code. Register a new one from anywhere with
`FAMILIES["phi"] = Family(…)`; docs/model.md shows how, and what a backbone has to fulfil.
"""

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from polyreply.errors import PolyReplyError


@dataclass(frozen=True)
class Family:
    """Paths, with dots between names, from a language model to its parts."""

    decoder: str
    """The stack that generates."""
    layers: str
    """The list of layers inside that stack."""
    sublayers: tuple[str, ...]
    """Inside a layer: the modules whose output is added to the residual. An adapter acts on it before the sum."""
    encoder: str = ""
    """The stack that reads the context; empty in decoder-only models, which read and generate with one stack."""
    encoder_sublayers: tuple[str, ...] = ()
    """The same as `sublayers` in a layer of the encoder."""
    memory_readers: tuple[str, ...] = ()
    """Inside a decoder layer: the modules whose input is not the row's own states but the encoder's."""


_T5 = Family(
    decoder="decoder",
    layers="block",
    sublayers=("layer.0.SelfAttention", "layer.1.EncDecAttention", "layer.2.DenseReluDense"),
    encoder="encoder",
    encoder_sublayers=("layer.0.SelfAttention", "layer.1.DenseReluDense"),
    memory_readers=("layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"),
)
_BART = Family(
    decoder="model.decoder",
    layers="layers",
    sublayers=("self_attn", "encoder_attn", "fc2"),
    encoder="model.encoder",
    encoder_sublayers=("self_attn", "fc2"),
    memory_readers=("encoder_attn.k_proj", "encoder_attn.v_proj"),
)
_DIALOGBERT = replace(_BART, decoder="decoder", encoder="encoder", encoder_sublayers=())
_LLAMA = Family("model", "layers", ("self_attn", "mlp"))

FAMILIES: dict[str, Family] = {
    "t5": _T5,  # also Flan-T5 and ByT5
    "mt5": _T5,
    "bart": _BART,
    "dialogbert": _DIALOGBERT,
    "gpt2": Family("transformer", "h", ("attn", "mlp")),
    "llama": _LLAMA,  # also SmolLM
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "mistral": _LLAMA,
    "smollm3": _LLAMA,
    "gemma3_text": _LLAMA,
    "granite": _LLAMA,
    "olmo": _LLAMA,
    "olmo2": _LLAMA,
    "olmo3": _LLAMA,
    "phi": _LLAMA,
    "phi3": _LLAMA,
}
"""By the `model_type` of the backbone's configuration."""


def family_of(model_type: str) -> Family:
    """The family of an architecture; the error for an unknown one lists those that are registered."""
    if model_type not in FAMILIES:
        raise PolyReplyError(
            f"expected a backbone of one of the architectures {', '.join(FAMILIES)}, found {model_type!r}; "
            "register it in polyreply.models.families.FAMILIES"
        )
    return FAMILIES[model_type]


def part(module: Any, path: str) -> Any:
    """The part of a module at a path such as `model.decoder` or `layer.0.SelfAttention`."""
    return reduce(lambda at, name: at[int(name)] if name.isdigit() else getattr(at, name), path.split("."), module)
