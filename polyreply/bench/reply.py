"""`polyreply bench reply`: ten replies to a message, against K calls of `generate`, beam search and nucleus sampling.

All use the same weights, type, threads and attention kernel, and replies of the same lengths, forced in the same way.
"""

from collections.abc import Callable
from typing import Any

from transformers import GenerationConfig, LogitsProcessorList

from polyreply.bench.t5_small import (
    EOS,
    RESPONSE_QUANTILES,
    ForcedLengths,
    natural_lengths,
    natural_samples,
    t5_small,
)
from polyreply.bench.timing import medians
from polyreply.decoding.all_decoders import decode
from polyreply.decoding.settings import Decoding
from polyreply.models.model import PolyReplyModel
from polyreply.progress import Notify

CURVE = (1, 5, 10, 20, 40)
K = 10


def bench_reply(repeats: int, notify: Notify) -> dict[str, Any]:
    """Ratios at batch 1 and 16 under stable names, and seconds per K at batch 1."""
    figures: dict[str, Any] = {}
    model = t5_small(K)
    for place, batch in enumerate((1, 16)):
        notify(f"batch {batch}", place / 3)
        seconds = medians(_ways(model, batch), repeats)
        figures |= {f"reply.b{batch}.{name}_seconds": value for name, value in seconds.items()}
        for name in ("loop", "beam", "nucleus"):
            figures[f"reply.b{batch}.vs_{name}"] = seconds[name] / seconds["ours"]
    for place, num_decoders in enumerate(CURVE):
        notify(f"K = {num_decoders}", 2 / 3 + place / 15)
        one = t5_small(num_decoders)
        figures[f"reply.k{num_decoders}_seconds"] = medians({"ours": _ways(one, 1)["ours"]}, repeats)["ours"]
    return figures


def _ways(model: PolyReplyModel, batch: int) -> dict[str, Callable[[], Any]]:
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
