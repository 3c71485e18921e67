"""`polyreply bench reply`: ten replies to a message, against what you would use otherwise.

- T5-small's sizes: against K calls of `generate`, beam search and nucleus sampling, with replies of natural lengths,
  forced in the same way.
- The shipped `smollm2-10`, where its backbone is installed: ten trained LoRAs against ten samples of the backbone by
  `generate`, and against ten samples that share one prefilled cache; every reply has the same number of tokens. Ours
  is without the guidance that the model has by default, and with it (`guided`).

All use the same weights, threads and attention kernel. Where the processor is faster in bfloat16, all is measured in
both types. Of sixteen messages the two slowest ways are measured once.
"""

from collections.abc import Callable
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList

from polyreply.bench.t5_small import (
    EOS,
    RESPONSE_QUANTILES,
    ForcedLengths,
    natural_lengths,
    natural_samples,
    t5_small,
)
from polyreply.bench.timing import Measured, busy_slowdown, medians
from polyreply.decoding.all_decoders import decode
from polyreply.decoding.settings import Decoding
from polyreply.decoding.single_decoder import without_own_settings
from polyreply.models.model import PolyReplyModel
from polyreply.models.shipped import SMOLLM2_10, better_model
from polyreply.precision import auto_dtype
from polyreply.progress import Notify
from polyreply.reply import PolyReply

CURVE = (1, 5, 10, 20, 40)
K, TOKENS = 10, 16
MESSAGE = "Do you want to come over for dinner on Friday?"


def bench_reply(repeats: int, notify: Notify) -> dict[str, Any]:
    """Ratios at batch 1 and 16 under stable names, seconds per K at batch 1, and the slowdown on a busy machine."""
    figures: dict[str, Any] = {}
    for dtype, suffix in precisions():
        model = t5_small(K, dtype)
        single, many = reply_ways(model, 1), reply_ways(model, 16)
        notify(f"batch 1{suffix}", 0.0)
        figures |= _against_ours("reply.b1", suffix, medians(single, repeats))
        notify(f"batch 16{suffix}", 0.2)
        slow = {way: many.pop(way) for way in ("loop", "nucleus")}
        figures |= _against_ours("reply.b16", suffix, medians(many, repeats, single) | medians(slow, 1, single))
    for place, num_decoders in enumerate(CURVE):
        notify(f"K = {num_decoders}", 0.5 + place / 20)
        one = reply_ways(t5_small(num_decoders), 1)["ours"]
        figures[f"reply.k{num_decoders}_seconds"] = medians({"ours": one}, 1)["ours"]
    notify("beside a busy process", 0.75)
    figures |= {f"reply.{name}": value for name, value in busy_slowdown(reply_ways(t5_small(K), 1)["ours"], 3).items()}
    if not better_model():
        for dtype, suffix in precisions():
            notify(f"smollm2-10{suffix}", 0.85)
            figures |= _against_ours("reply.smollm2.b1", suffix, medians(_smollm2_ways(dtype), repeats))
        notify("smollm2-10, int8", 0.95)
        int8 = medians({"ours": _smollm2_ways("int8")["ours"]}, repeats)["ours"]
        figures["reply.smollm2.b1.int8_seconds"] = int8
        figures["reply.smollm2.b1.int8_gain"] = figures["reply.smollm2.b1.ours_seconds"].per(int8)
    return figures


def precisions() -> list[tuple[torch.dtype, str]]:
    """The types to measure in, each with what it adds to a figure's name: bfloat16 only where it is faster."""
    fastest = auto_dtype("cpu")
    return [(torch.float32, "")] + ([(fastest, "_bfloat16")] if fastest == torch.bfloat16 else [])


def _against_ours(name: str, suffix: str, seconds: dict[str, Measured]) -> dict[str, Measured]:
    """The seconds of each way, and how many times ours each of the others is."""
    figures = {f"{name}.{way}_seconds{suffix}": value for way, value in seconds.items()}
    others = {way: value for way, value in seconds.items() if way != "ours"}
    return figures | {f"{name}.vs_{way}{suffix}": value.per(seconds["ours"]) for way, value in others.items()}


@torch.no_grad()
def _smollm2_ways(dtype: torch.dtype | str) -> dict[str, Callable[[], Any]]:
    """Ten replies of `TOKENS` tokens each to one message, of the shipped model and of its backbone."""
    poly = PolyReply.from_pretrained(SMOLLM2_10, dtype=dtype)
    model, own = poly.model, poly.check_request()
    context, mask = poly._encode([(MESSAGE,)])
    no_token = model.vocabulary.weight.shape[0]  # ends nothing, so lengths are equal
    ids = {"eos_token_id": no_token, "pad_token_id": poly.tokenizer.pad_token_id}
    config = GenerationConfig(max_new_tokens=TOKENS, **ids)
    with_guidance = GenerationConfig(max_new_tokens=TOKENS, guidance_scale=own.guidance_scale, **ids)
    sampled = GenerationConfig(max_new_tokens=TOKENS, do_sample=True, top_k=0, **ids)

    def ours() -> Any:
        return decode(model, context, mask, Decoding(K, config))

    def guided() -> Any:
        return decode(model, context, mask, Decoding(K, with_guidance, empty_context=own.empty_context))

    def sampling() -> Any:
        with model.routed(None), without_own_settings(model.backbone):
            options = {"attention_mask": mask.long(), "generation_config": sampled, "num_return_sequences": K}
            return model.backbone.generate(context, **options)

    def shared_prefix() -> Any:
        with model.routed(None), without_own_settings(model.backbone), torch.no_grad():
            cache = model.backbone(context[:, :-1], use_cache=True).past_key_values
            cache.batch_repeat_interleave(K)
            options = {"attention_mask": mask.long().repeat(K, 1), "generation_config": sampled}
            return model.backbone.generate(context.repeat(K, 1), past_key_values=cache, **options)

    return {"ours": ours, "guided": guided, "sampling": sampling, "shared_prefix": shared_prefix}


def reply_ways(model: PolyReplyModel, batch: int) -> dict[str, Callable[[], Any]]:
    """The four ways to get K replies to each of `batch` messages."""
    samples = natural_samples(batch)
    context, mask = samples.context_NS, samples.context_mask_NS
    replies = range(model.num_decoders)
    lengths = natural_lengths(batch * model.num_decoders, RESPONSE_QUANTILES, seed=batch)
    lengths_BK = [lengths[b * model.num_decoders : (b + 1) * model.num_decoders] for b in range(batch)]

    def forced(lengths_BX: list[list[int]], context_R: list[int]) -> LogitsProcessorList:
        return LogitsProcessorList([ForcedLengths(lengths_BX, context_R)])

    def ours() -> Any:
        processors = forced(lengths_BK, [*range(batch)] * len(replies))
        decoding = Decoding(len(replies), _config(), processors=tuple(processors))
        return decode(model, context, mask, decoding)

    def loop() -> None:
        for k in replies:
            with model.as_decoder(k) as backbone:
                processor = forced([[lengths_K[k]] for lengths_K in lengths_BK], [*range(batch)])
                options = {"generation_config": _config(), "logits_processor": processor}
                backbone.generate(context, attention_mask=mask.long(), **options)

    def stock(**settings: Any) -> Callable[[], Any]:
        def run() -> Any:
            with model.routed(None):
                options = _config(num_return_sequences=model.num_decoders, **settings)
                processor = forced(lengths_BK, [b for b in range(batch) for _ in replies])
                return model.backbone.generate(
                    context, attention_mask=mask.long(), generation_config=options, logits_processor=processor
                )

        return run

    beam = stock(num_beams=model.num_decoders, early_stopping=True)
    nucleus = stock(do_sample=True, top_p=0.95, top_k=0)
    return {"ours": ours, "loop": loop, "beam": beam, "nucleus": nucleus}


def _config(**settings: Any) -> GenerationConfig:
    ids = {"eos_token_id": EOS, "pad_token_id": 0, "decoder_start_token_id": 0}
    return GenerationConfig(max_new_tokens=max(RESPONSE_QUANTILES), **ids, **settings)
