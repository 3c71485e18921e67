"""How a backbone gets K decoders: adapters behind its modules (`multi-adapter`), or more decoders (`multi-decoder`)."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from polyreply.models.adapters import AdapterStack, Router
from polyreply.models.attention import SHARED_ATTENTION
from polyreply.models.config import PolyReplyConfig
from polyreply.models.families import family_of, part


def new_backbone(config: PolyReplyConfig) -> PreTrainedModel:
    """A backbone without trained weights, as the configuration describes it."""
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    backbone: PreTrainedModel = kind.from_config(config.backbone_config())
    return backbone


def share_attention(backbone: PreTrainedModel) -> None:
    """Lets every part of a backbone attend in the way that many rows can share a context."""
    modules: Iterator[Any] = backbone.modules()
    for module in modules:
        if hasattr(module, "config"):
            module.config._attn_implementation = SHARED_ATTENTION


def insert_adapters(backbone: Any, config: PolyReplyConfig, router: Router) -> nn.ModuleList:
    """Puts K adapters behind every sublayer or layer of the backbone's decoder."""
    family = family_of(config.backbone["model_type"])
    sites: list[nn.Module] = []
    for layer in part(backbone, f"{family.decoder}.{family.layers}"):
        sites += [layer] if config.adapter_sites == "layer" else [part(layer, path) for path in family.sublayers]
    model_size = int(backbone.get_input_embeddings().weight.shape[1])
    inner_size = config.adapter_size or model_size // 2
    stacks = nn.ModuleList()
    for site in sites:
        stack = AdapterStack(
            config.num_decoders,
            model_size,
            inner_size,
            router,
            activation=config.adapter_activation,
            init=config.adapter_init,
            skip=config.adapter_skip,
        )
        site.register_forward_hook(stack.hook)
        stacks.append(stack)
    return stacks


def copy_decoders(backbone: Any, config: PolyReplyConfig) -> nn.ModuleList:
    """K-1 more decoders beside the backbone's own, which share its embedding or copy it."""
    path = family_of(config.backbone["model_type"]).decoder
    first = part(backbone, path)
    shared = backbone.get_input_embeddings().weight
    memo = {id(shared): shared}
    if config.copy_embeddings:
        first.embed_tokens = copy.deepcopy(first.embed_tokens)
        _untie(backbone, f"{path}.embed_tokens.weight")
        memo = {}
    return nn.ModuleList(copy.deepcopy(first, dict(memo)) for _ in range(config.num_decoders - 1))


def tied_embeddings(backbone: Any, num_extra_decoders: int) -> dict[str, str]:
    """Names of the embeddings of copied decoders, each with the name of the backbone's, which they share."""
    shared = backbone.get_input_embeddings().weight
    source = next(name for name, found in backbone.named_parameters() if found is shared)
    return {f"extra_decoders.{i}.embed_tokens.weight": f"backbone.{source}" for i in range(num_extra_decoders)}


@contextmanager
def swapped(backbone: Any, path: str, decoder: Any, *, own_head: bool) -> Iterator[None]:
    """Within it a backbone generates with another decoder, and with its embedding as output layer if `own_head`."""
    parent, _, name = path.rpartition(".")
    place = part(backbone, parent) if parent else backbone
    stock, head = getattr(place, name), backbone.get_output_embeddings()
    setattr(place, name, decoder)
    if own_head:
        backbone.set_output_embeddings(_head_over(decoder.embed_tokens.weight))
    try:
        yield
    finally:
        setattr(place, name, stock)
        backbone.set_output_embeddings(head)


def _head_over(weight_VD: nn.Parameter) -> nn.Linear:
    """An output layer over an embedding's own weights."""
    head = nn.Linear(weight_VD.shape[1], weight_VD.shape[0], bias=False, device="meta")
    head.weight = weight_VD
    return head


def _untie(backbone: PreTrainedModel, name: str) -> None:
    """Makes Transformers forget that a weight of the backbone is tied to another."""
    for submodel in backbone.modules():
        if isinstance(submodel, PreTrainedModel):
            keys = dict(submodel._tied_weights_keys or {})
            submodel._tied_weights_keys = {key: source for key, source in keys.items() if not name.endswith(key)}
    backbone.all_tied_weights_keys = {k: v for k, v in backbone.all_tied_weights_keys.items() if k != name}
