"""Decoding: a request is checked once, before any work; then its way to decode runs batch by batch.

A way to decode is one function and one entry in `WAYS`. The function takes the model, contexts (B, S) with their mask,
and a `Decoding`, and returns for each context its responses.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypedDict

import torch
from torch import Tensor
from transformers import GenerationConfig

from polyreply.decoding.settings import Decoding, Response
from polyreply.errors import PolyReplyError
from polyreply.models.model import PolyReplyModel

Function = Callable[[PolyReplyModel, Tensor, Tensor, Decoding], list[list[Response]]]

SINGLE_DECODER_K = 10
"""How many responses the ways without K decoders give by default."""
_SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p")
_SHARES = ("top_p", "top_k", "min_p")
"""Options for sampling that are also the option of a way to decode."""
_OWN = {"samples", "beta", "num_groups", "diversity_penalty"}
"""Options of single ways to decode that are not fields of a GenerationConfig, or not with that meaning."""
_OF_SOME_WAYS = {*_SAMPLING, *_OWN, "guidance_scale"}
"""What has no effect with a way to decode that does not list it."""


class GenerationOptions(TypedDict, total=False):
    """Options of decoding; None leaves one to the model's own generation config, or to the way's default."""

    max_new_tokens: int | None
    """Most tokens of a reply."""
    min_new_tokens: int | None
    """Fewest tokens of a reply."""
    no_repeat_ngram_size: int | None
    """No sequence of this many tokens occurs twice in a reply."""
    repetition_penalty: float | None
    """Above 1: tokens that have occurred become less likely."""
    guidance_scale: float | None
    """decoders, mbr: above 1, replies move away from what a decoder would say to an empty context."""
    do_sample: bool | None
    """decoders: sample instead of greedy decoding."""
    temperature: float | None
    """With `do_sample`: below 1 sharpens the distribution, above 1 flattens it."""
    top_k: int | None
    """With `do_sample` or top-k: sample from this many likeliest tokens."""
    top_p: float | None
    """With `do_sample`, nucleus or mbr: sample from the likeliest tokens that have this probability together."""
    min_p: float | None
    """With `do_sample` or min-p: sample from tokens at least this probable, relative to the likeliest."""
    samples: int | None
    """mbr: samples drawn for each reply."""
    beta: float | None
    """mbr: how much more recall counts than precision."""
    num_groups: int | None
    """diverse-beam: groups of beams."""
    diversity_penalty: float | None
    """diverse-beam: penalty for tokens that earlier groups chose."""
    generation_config: GenerationConfig | None
    """Any other setting; fields that are set go on top of the model's own generation config."""


@dataclass(frozen=True)
class Way:
    """A way to decode."""

    function: Function | str
    """The function, or `module:name` to import it when it is first used."""
    options: tuple[str, ...] = ()
    """What it honours of the options for sampling and of those that only some ways have."""
    of_decoders: bool = True
    """Whether replies come from the K decoders, one of each by default; otherwise they are numbered by their rank."""

    def __call__(
        self, model: PolyReplyModel, context_BS: Tensor, mask_BS: Tensor, decoding: Decoding
    ) -> list[list[Response]]:
        """For each context its responses."""
        function = self.function
        if isinstance(function, str):
            module, name = function.split(":")
            function = getattr(import_module(module), name)
        return function(model, context_BS, mask_BS, decoding)


WAYS: dict[str, Way] = {
    "decoders": Way(
        "polyreply.decoding.all_decoders:decode",
        ("guidance_scale", "do_sample", "temperature", "top_k", "top_p", "min_p"),
    ),
    "mbr": Way("polyreply.decoding.mbr:mbr", ("guidance_scale", "samples", "beta", "top_p")),
    "beam": Way("polyreply.decoding.single_decoder:beam", of_decoders=False),
    "nucleus": Way("polyreply.decoding.single_decoder:nucleus", ("do_sample", "top_p"), of_decoders=False),
    "top-k": Way("polyreply.decoding.single_decoder:top_k", ("do_sample", "top_k"), of_decoders=False),
    "min-p": Way("polyreply.decoding.single_decoder:min_p", ("do_sample", "min_p"), of_decoders=False),
    "diverse-beam": Way(
        "polyreply.decoding.diverse_beam:diverse_beam", ("num_groups", "diversity_penalty"), of_decoders=False
    ),
}


def way_of(name: str) -> Way:
    """A registered way to decode; the error for an unknown one lists those that are registered."""
    if name not in WAYS:
        raise PolyReplyError(f"expected decode to be one of {', '.join(WAYS)}, found {name!r}")
    return WAYS[name]


def check_request(
    model: PolyReplyModel,
    decode: str = "decoders",
    k: int | None = None,
    seed: int = 0,
    options: GenerationOptions | None = None,
    *,
    eos: int | None = None,
) -> Decoding:
    """Check a request; options go on top of the model's generation config, `eos` is used where that has none."""
    way = way_of(decode)
    given: dict[str, Any] = {name: value for name, value in (options or {}).items() if value is not None}
    extra: GenerationConfig | None = given.pop("generation_config", None)
    if extra is not None:
        fields = {name: getattr(extra, name, None) for name in extra.to_diff_dict() if name != "transformers_version"}
        given = {name: value for name, value in fields.items() if value is not None} | given
    unused = sorted(name for name in given if name in _OF_SOME_WAYS and name not in way.options)
    if unused:
        used = f"it uses {', '.join(way.options)}" if way.options else "it has no options of its own"
        raise PolyReplyError(f"{', '.join(unused)}: no effect with decode {decode}, {used}; remove it")
    own = {name: given.pop(name) for name in [*given] if name in _OWN}
    config: GenerationConfig = copy.deepcopy(model.generation_config)
    if config.eos_token_id is None:
        config.eos_token_id = eos
    for name, value in given.items():
        setattr(config, name, value)
    idle = sorted(name for name in given if name in _SAMPLING and "temperature" in way.options)
    if idle and not config.do_sample:
        raise PolyReplyError(f"{', '.join(idle)}: no effect without sampling; add do_sample=True (--sample)")
    if k is None:
        k = model.num_decoders if way.of_decoders else SINGLE_DECODER_K
    own |= {name: given[name] for name in _SHARES if name in given}
    generator = torch.Generator(model.device).manual_seed(seed)
    return _check_values(replace(Decoding.of(config, k, generator), **own))


def _check_values(decoding: Decoding) -> Decoding:
    """Raise an error of one line for a value that one of Transformers' processors refuses."""
    try:
        decoding.max_new_tokens(1)
        decoding.constraints(1)
        if decoding.sampling is not None:
            _ = decoding.sampling.warpers
    except PolyReplyError:
        raise
    except (TypeError, ValueError) as error:
        raise PolyReplyError(str(error).splitlines()[0]) from error
    return decoding
