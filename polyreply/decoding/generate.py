"""The ways to decode behind one door: a request is checked before any work, then carried out batch by batch.

Legend: B contexts, S context tokens.
"""

import copy
import difflib
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import GenerationConfig

from polyreply.decoding.all_decoders import decode
from polyreply.decoding.response import Response
from polyreply.decoding.settings import decoding_of
from polyreply.errors import PolyReplyError
from polyreply.models.polyreply_model import PolyReplyModel

Decode = Literal["decoders", "mbr", "beam", "nucleus", "diverse-beam"]

BASELINE_K = 10
"""How many responses beam, nucleus and diverse-beam give unless told."""
_SAMPLING = ("temperature", "top_p", "top_k")
_OWN_OPTIONS = {
    "mbr": {"samples", "top_p", "beta"},
    "nucleus": {"top_p"},
    "diverse-beam": {"num_groups", "diversity_penalty"},
}
"""Options of a way to decode that are arguments of its function, not fields of a GenerationConfig."""


@dataclass(frozen=True)
class How:
    """A checked request."""

    decode: Decode
    k: int
    config: GenerationConfig
    generator: torch.Generator
    own_options: dict[str, Any]


def how_to_decode(
    model: PolyReplyModel, way: Decode, k: int | None, seed: int, options: dict[str, Any], *, eos: int | None = None
) -> How:
    """Checks a request; `options` go on top of the model's generation config, `eos` is used where it has none."""
    if way not in get_args(Decode):
        raise PolyReplyError(f"expected decode to be one of {', '.join(get_args(Decode))}, found {way!r}")
    k = _checked_k(model, way, k)
    own = {name: options[name] for name in _OWN_OPTIONS.get(way, ()) if name in options}
    fields = {name: value for name, value in options.items() if name not in own}
    generator = torch.Generator(model.device).manual_seed(seed)
    return How(way, k, _config(model, way, fields, eos), generator, own)


def respond(model: PolyReplyModel, context_BS: Tensor, mask_BS: Tensor, how: How) -> list[list[Response]]:
    """The responses to each context."""
    if how.decode == "decoders":
        chosen = range(how.k)
        return decode(model, context_BS, mask_BS, how.config, decoders=chosen, generator=how.generator)
    if how.decode == "mbr":
        from polyreply.decoding.mbr import mbr

        return mbr(model, context_BS, mask_BS, how.k, how.config, **how.own_options, generator=how.generator)
    if how.decode == "diverse-beam":
        from polyreply.decoding.diverse_beam import diverse_beam

        return diverse_beam(model, context_BS, mask_BS, how.k, how.config, **how.own_options)
    from polyreply.decoding.single_decoder import beam, nucleus

    if how.decode == "beam":
        return beam(model, context_BS, mask_BS, how.k, how.config)
    return nucleus(model, context_BS, mask_BS, how.k, how.config, generator=how.generator, **how.own_options)


def _checked_k(model: PolyReplyModel, way: Decode, k: int | None) -> int:
    if way == "decoders":
        most = model.num_decoders
        if k is not None and not 1 <= k <= most:
            raise PolyReplyError(f"expected k from 1 to {most}, the number of decoders, found {k}")
        return most if k is None else k
    if k is not None and k < 1:
        raise PolyReplyError(f"expected k of 1 or more, found {k}")
    if way == "mbr" and k is None:
        return model.num_decoders
    return BASELINE_K if k is None else k


def _config(model: PolyReplyModel, way: Decode, fields: dict[str, Any], eos: int | None) -> GenerationConfig:
    """The model's generation config with the user's fields on top."""
    config: GenerationConfig = copy.deepcopy(model.generation_config)
    if config.eos_token_id is None:
        config.eos_token_id = eos
    for name, value in fields.items():
        if not hasattr(config, name) or name.startswith("_"):
            near = difflib.get_close_matches(name, vars(config), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PolyReplyError(f"{name} is no option of reply and no field of a GenerationConfig{hint}")
        setattr(config, name, value)
    own = [name for name in ("do_sample", "temperature", "top_k") if name in fields and way == "mbr"]
    if own:
        raise PolyReplyError(f"{', '.join(own)}: mbr samples by itself, from a nucleus of top_p; remove it")
    idle = [name for name in _SAMPLING if name in fields and way != "nucleus" and not config.do_sample]
    if idle:
        raise PolyReplyError(f"{', '.join(idle)}: no effect without sampling; add do_sample=True (--sample)")
    _check_values(config)
    return config


def _check_values(config: GenerationConfig) -> None:
    """Raises one clear line for a value that one of Transformers' processors refuses."""
    try:
        decoding_of(config, 1)
    except PolyReplyError:
        raise
    except (TypeError, ValueError) as error:
        raise PolyReplyError(str(error).splitlines()[0]) from error
