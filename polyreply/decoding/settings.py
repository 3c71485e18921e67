"""How to decode: `Decoding`, one checked description of a request, which every way to decode reads.

It holds a Transformers GenerationConfig of which every field is either honoured or refused. Settings for beam search
are refused too: they ask for something that K decoders do not do. Those that come with a backbone never get here,
because a K-decoder model does not take them over (`polyreply.models.pretrained.without_beam_search`).

Legend: B contexts, S context tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    GenerationConfig,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from polyreply.errors import PolyReplyError
from polyreply.models.model import PolyReplyModel

DEFAULT_MAX_NEW_TOKENS = 64
_HONOURED = {
    "max_new_tokens",
    "max_length",
    "min_new_tokens",
    "min_length",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "guidance_scale",
    "bad_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "eos_token_id",
    "pad_token_id",
    "bos_token_id",
    "decoder_start_token_id",
}
_STOCK = vars(GenerationConfig())
_WITHOUT_EFFECT = {"use_cache", "transformers_version", "cache_implementation", "num_beams", "early_stopping"}
_BLIND = MinNewTokensLengthLogitsProcessor | ForcedEOSTokenLogitsProcessor | SuppressTokensLogitsProcessor
"""Constraints that do not look at the tokens so far."""


@dataclass
class Response:
    """The tokens that one decoder generated for one context, with EOS if it came, and their log-probability."""

    context: int
    decoder: int
    """The decoder; for ways to decode without decoders, the place in the result."""
    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn: None, or 0 for `top_k`, leaves the distribution as it is."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    @cached_property
    def warpers(self) -> LogitsProcessorList:
        """What reshapes the distribution before a token is drawn from it."""
        warpers: list[Any] = []
        if self.temperature not in (None, 1.0):
            warpers.append(TemperatureLogitsWarper(self.temperature))
        if self.top_k:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p is not None and self.top_p < 1.0:
            warpers.append(TopPLogitsWarper(self.top_p))
        if self.min_p is not None:
            warpers.append(MinPLogitsWarper(self.min_p))
        return LogitsProcessorList(warpers)


@dataclass(frozen=True)
class Decoding:
    """A checked request: how many responses, under which constraints, and the options of single ways to decode.

    Derive variants with `dataclasses.replace`; `config` is not to be changed.
    """

    k: int
    """Responses to each context."""
    config: GenerationConfig
    """Lengths, token ids and constraints; what it says about sampling is in `sampling`."""
    sampling: Sampling | None = None
    """None is greedy."""
    generator: torch.Generator | None = None
    """Source of the random numbers of sampling; None is PyTorch's own."""
    top_p: float | None = None
    """nucleus, mbr: share of probability of the tokens that samples are drawn from; None is the way's default."""
    top_k: int | None = None
    """top-k: how many of the likeliest tokens samples are drawn from; None is the way's default."""
    min_p: float | None = None
    """min-p: least probability of a token that may be drawn, relative to the likeliest; None is the way's default."""
    samples: int | None = None
    """mbr: samples drawn for each reply; None is the way's default."""
    beta: float | None = None
    """mbr: how much more recall counts than precision; None is the way's default."""
    num_groups: int | None = None
    """diverse-beam: groups of beams; None is one for each beam."""
    diversity_penalty: float | None = None
    """diverse-beam: penalty for a token that an earlier group chose at this step; None is the way's default."""
    processors: tuple[Any, ...] = ()
    """Further constraints, as for Transformers' `generate`."""
    empty_context: tuple[int, ...] = ()
    """decoders and mbr with guidance: the tokens of a context in which nothing is said."""

    def __post_init__(self) -> None:
        if self.k < 1:
            raise PolyReplyError(f"k must be 1 or more, found {self.k}")
        _refuse_unsupported(self.config)
        scale: Any = self.config.guidance_scale
        if scale is not None and not (isinstance(scale, int | float) and 1 <= scale < math.inf):
            raise PolyReplyError(f"guidance_scale: expected a finite number of 1 (no guidance) or more, found {scale}")

    @staticmethod
    def of(config: GenerationConfig, k: int, generator: torch.Generator | None = None) -> "Decoding":
        """A request that is a GenerationConfig: nothing is filled in from the model's own."""
        given = (config.temperature, config.top_k, config.top_p, config.min_p)
        sampling = Sampling(*given) if config.do_sample else None
        return Decoding(k, config, sampling, generator)

    @property
    def guidance_scale(self) -> float | None:
        """How much replies of decoders move away from those to an empty context (`guidance.py`); None: not at all."""
        scale = self.config.guidance_scale
        return None if scale is None or scale == 1 else float(scale)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a response."""
        eos = self.config.eos_token_id
        return tuple(eos) if isinstance(eos, list | tuple) else () if eos is None else (int(eos),)

    def max_new_tokens(self, prompt_length: int) -> int:
        """Most tokens of a response; `prompt_length` counts those before it, as Transformers does for `max_length`."""
        longest = self.config.max_new_tokens
        if longest is None:
            longest = self.config.max_length - prompt_length if self.config.max_length else DEFAULT_MAX_NEW_TOKENS
        if longest < 1:
            raise PolyReplyError(f"max_new_tokens must be 1 or more, found {longest}")
        return int(longest)

    def constraints(self, prompt_length: int, device: torch.device | str = "cpu") -> LogitsProcessorList:
        """Processors that forbid or force tokens, in the order in which Transformers applies them."""
        config, eos_ids = self.config, list(self.eos_ids)
        found: list[Any] = []
        if config.repetition_penalty not in (None, 1.0):
            found.append(RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
        if config.no_repeat_ngram_size:
            found.append(NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
        if config.bad_words_ids:
            found.append(NoBadWordsLogitsProcessor(config.bad_words_ids, eos_ids))
        least = config.min_new_tokens
        if least is None:
            least = max(0, (config.min_length or 0) - prompt_length)
        if least and eos_ids:
            found.append(MinNewTokensLengthLogitsProcessor(prompt_length, least, eos_ids, str(device)))
        if config.forced_bos_token_id is not None:
            found.append(ForcedBOSTokenLogitsProcessor(config.forced_bos_token_id))
        if config.forced_eos_token_id is not None:
            last = prompt_length + self.max_new_tokens(prompt_length)
            found.append(ForcedEOSTokenLogitsProcessor(last, config.forced_eos_token_id))
        if config.suppress_tokens:
            found.append(SuppressTokensLogitsProcessor(config.suppress_tokens, str(device)))
        return LogitsProcessorList([*found, *self.processors])


def _refuse_unsupported(config: GenerationConfig) -> None:
    # Not `to_diff_dict`, which copies every value: a server does this for each request.
    changed = {name for name, value in vars(config).items() if value != _STOCK.get(name)}
    ignored = changed - _HONOURED - _WITHOUT_EFFECT
    ignored = {name for name in ignored if not name.startswith("_") and getattr(config, name) not in (None, False)}
    if config.num_beams not in (None, 1):
        ignored.add("num_beams")
    if ignored:
        raise PolyReplyError(
            f"generation settings not supported here: {', '.join(sorted(ignored))}; remove them "
            f"(supported: {', '.join(sorted(_HONOURED))})"
        )


# Batches of contexts of different lengths.


def prompt_length(model: PolyReplyModel, context_BS: Tensor) -> int:
    """How many tokens come before the first generated one: the context, or a start token."""
    return 1 if model.family.encoder else context_BS.shape[1]


def by_length(
    model: PolyReplyModel,
    context_BS: Tensor,
    mask_BS: Tensor,
    decoding: Decoding,
    decode: Callable[[Tensor, Tensor], list[list[Response]]],
) -> list[list[Response]]:
    """Decode all contexts together or, if constraints would see a prompt's padding, those of each length."""
    if not len(context_BS):
        return []
    mask_BS = mask_BS.bool()
    constraints = decoding.constraints(prompt_length(model, context_BS))
    if model.family.encoder or mask_BS.all() or all(isinstance(one, _BLIND) for one in constraints):
        return decode(context_BS, mask_BS)
    length_B = mask_BS.sum(1)
    replies: list[list[Response]] = [[] for _ in range(len(context_BS))]
    for length in length_B.unique().tolist():
        index_B = (length_B == length).nonzero()[:, 0]
        tokens_BS = context_BS[index_B][mask_BS[index_B]].view(len(index_B), length)
        for row, responses in zip(index_B.tolist(), decode(tokens_BS, torch.ones_like(tokens_BS)), strict=True):
            for response in responses:
                response.context = row
            replies[row] = responses
    return replies


def pad_left(context_BS: Tensor, mask_BS: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """Move the padding of each row to its left end, where `generate` expects it."""
    order = torch.argsort(mask_BS.long(), dim=1, stable=True)
    context_BS, mask_BS = context_BS.gather(1, order), mask_BS.bool().gather(1, order)
    return context_BS.masked_fill(~mask_BS, pad), mask_BS
