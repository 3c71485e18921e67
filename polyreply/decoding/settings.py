"""How to decode: a Transformers GenerationConfig, of which every field is either honoured or refused.

Settings for beam search are refused too: who gives them expects something else than the K decoders do. Those that come
with a backbone never get here, because a K-decoder model does not take them over (`polyreply.models.generation`).
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    GenerationConfig,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from polyreply.errors import PolyReplyError

_HONOURED = {
    "max_new_tokens",
    "max_length",
    "min_new_tokens",
    "min_length",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "bad_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "eos_token_id",
    "pad_token_id",
    "bos_token_id",
    "decoder_start_token_id",
}
_WITHOUT_EFFECT = {"use_cache", "transformers_version", "cache_implementation", "num_beams", "early_stopping"}
DEFAULT_MAX_NEW_TOKENS = 64


@dataclass(frozen=True)
class Decoding:
    """What a decode loop needs to know."""

    max_new_tokens: int
    eos_ids: tuple[int, ...]
    sample: bool
    processors: LogitsProcessorList
    """Constraints: what may be said at all."""
    warpers: LogitsProcessorList
    """Reshaping of the distribution before sampling from it."""


def decoding_of(config: GenerationConfig, prompt_length: int, device: torch.device | None = None) -> Decoding:
    """Reads a GenerationConfig; a field that would be ignored is an error instead.

    `prompt_length` is how many tokens stand before the first generated one, as Transformers counts them.
    """
    _refuse_unsupported(config)
    eos = config.eos_token_id
    eos_ids = tuple(eos) if isinstance(eos, list | tuple) else () if eos is None else (int(eos),)
    max_new_tokens = config.max_new_tokens
    if max_new_tokens is None:
        max_new_tokens = (config.max_length - prompt_length) if config.max_length else DEFAULT_MAX_NEW_TOKENS
    if max_new_tokens < 1:
        raise PolyReplyError(f"max_new_tokens must be 1 or more, found {max_new_tokens}")
    sample = bool(config.do_sample)
    return Decoding(
        max_new_tokens,
        eos_ids,
        sample,
        _processors(config, prompt_length, max_new_tokens, eos_ids, str(device or "cpu")),
        _warpers(config) if sample else LogitsProcessorList(),
    )


def _refuse_unsupported(config: GenerationConfig) -> None:
    ignored = set(config.to_diff_dict()) - _HONOURED - _WITHOUT_EFFECT
    ignored = {name for name in ignored if not name.startswith("_") and getattr(config, name) not in (None, False)}
    if config.num_beams not in (None, 1):
        ignored.add("num_beams")
    if ignored:
        raise PolyReplyError(
            f"generation settings not supported here: {', '.join(sorted(ignored))}; remove them "
            f"(supported: {', '.join(sorted(_HONOURED))})"
        )


def _processors(
    config: GenerationConfig, prompt_length: int, max_new_tokens: int, eos_ids: tuple[int, ...], device: str
) -> LogitsProcessorList:
    """In the order Transformers applies them."""
    found: list[Any] = []
    if config.repetition_penalty not in (None, 1.0):
        found.append(RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
    if config.no_repeat_ngram_size:
        found.append(NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
    if config.bad_words_ids:
        found.append(NoBadWordsLogitsProcessor(config.bad_words_ids, list(eos_ids)))
    least = config.min_new_tokens
    if least is None:
        least = max(0, (config.min_length or 0) - prompt_length)
    if least and eos_ids:
        found.append(MinNewTokensLengthLogitsProcessor(prompt_length, least, list(eos_ids), device))
    if config.forced_bos_token_id is not None:
        found.append(ForcedBOSTokenLogitsProcessor(config.forced_bos_token_id))
    if config.forced_eos_token_id is not None:
        found.append(ForcedEOSTokenLogitsProcessor(prompt_length + max_new_tokens, config.forced_eos_token_id))
    if config.suppress_tokens:
        found.append(SuppressTokensLogitsProcessor(config.suppress_tokens, device))
    return LogitsProcessorList(found)


def _warpers(config: GenerationConfig) -> LogitsProcessorList:
    found: list[Any] = []
    if config.temperature not in (None, 1.0):
        found.append(TemperatureLogitsWarper(config.temperature))
    if config.top_k:
        found.append(TopKLogitsWarper(config.top_k))
    if config.top_p is not None and config.top_p < 1.0:
        found.append(TopPLogitsWarper(config.top_p))
    return LogitsProcessorList(found)
