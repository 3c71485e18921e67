"""`polyreply bench roofline`: how close scoring and decoding come to what the processor can do.

Scoring is bound by arithmetic, so its FLOP are compared with those of a large product; decoding a few rows is bound by
reading weights, so its bytes are compared with what reading memory achieves. Both count the weights that cannot be
avoided: attention, norms and softmax are on top and count as loss.
"""

from collections.abc import Callable
from typing import Any

import torch

from polyreply.bench.reply import precisions, reply_ways
from polyreply.bench.t5_small import RESPONSE_QUANTILES, natural_lengths, natural_samples, t5_small
from polyreply.bench.timing import medians
from polyreply.models.model import PolyReplyModel
from polyreply.models.packed import packed_linear
from polyreply.models.score import nll_NK
from polyreply.progress import Notify

K, SAMPLES = 10, 32
_ROWS, _SIZE = 1024, 2048
_FLOATS = 1 << 26
"""Of an array much larger than any cache."""


def bench_roofline(notify: Notify, *, repeats: int = 3) -> dict[str, Any]:
    """What the processor measured, what a pass needs at least, and the share of the bound that is reached."""
    notify("memory", 0.0)
    array = torch.rand(_FLOATS)
    bandwidth = 4 * _FLOATS / medians({"read": array.sum}, repeats)["read"]
    figures = {"roofline.memory_gb_per_second": bandwidth / 1e9}
    types = precisions()
    for place, (dtype, suffix) in enumerate(types):
        notify(f"scoring and decoding{suffix}", (1 + place) / (1 + len(types)))
        shares = _shares(dtype, bandwidth, repeats)
        figures |= {f"roofline.{name}{suffix}": value for name, value in shares.items()}
    return figures


@torch.no_grad()
def _shares(dtype: torch.dtype, bandwidth: float, repeats: int) -> dict[str, float]:
    """The figures of one type; the product is the faster one, on packed weights (`models/packed.py`)."""
    x, layer = torch.rand(_ROWS, _SIZE, dtype=dtype), torch.nn.Linear(_SIZE, _SIZE, bias=False, dtype=dtype)
    model, samples = t5_small(K, dtype), natural_samples(SAMPLES)
    packed = packed_linear(model, [layer])
    work: dict[str, Callable[[], Any]] = {
        "stock_product": lambda: layer(x),
        "product": lambda: packed(x),
        "score": lambda: nll_NK(model, samples),
        "reply": reply_ways(model, 1)["ours"],
    }
    seconds = medians(work, repeats)
    flops = 2 * _ROWS * _SIZE**2 / seconds["product"]
    tokens = K * int(samples.response_mask_NT.sum())
    steps = max(natural_lengths(K, RESPONSE_QUANTILES, seed=1))
    score_flop, reply_bytes = 2 * _weights(model) * tokens, dtype.itemsize * _weights_read(model, steps)
    return {
        "gflops": flops / 1e9,
        "packed_gain": seconds["stock_product"] / seconds["product"],
        "score_gflop": score_flop / 1e9,
        "score_share": score_flop / flops / seconds["score"],
        "reply_b1_gb": reply_bytes / 1e9,
        "reply_b1_share": reply_bytes / bandwidth / seconds["reply"],
    }


def _weights(model: PolyReplyModel) -> int:
    """Weights that a response token of one decoder is multiplied with: its layers, its adapters and the vocabulary."""
    return _shared(model) + _count(model.adapters) // model.num_decoders


def _weights_read(model: PolyReplyModel, steps: int) -> int:
    """Weights that are read when one token of each row follows the other: everything of the decoders in every step."""
    return steps * (_shared(model) + _count(model.adapters))


def _shared(model: PolyReplyModel) -> int:
    """Weights that all decoders have in common, without the encoder's."""
    return _count(model.decoders[0].block) + int(model.vocabulary.weight.numel())


def _count(module: Any) -> int:
    return sum(int(p.numel()) for p in module.parameters())
