"""`polyreply bench score`: NLL of N responses under all K decoders, against two plain loops.

- loop: a loop over decoders, batches of 64 samples in their given order, padded to the longest of the batch;
- authors: the same loop padded to 64 tokens, with one cross-entropy call for each sample, as the paper's authors do.
Both encode once. All use the same weights, threads and attention kernel. `vs_authors` is ours in the type that is
fastest here against theirs in float32; `vs_loop` is in the same type, and in each one that is measured.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from polyreply.bench.reply import precisions
from polyreply.bench.t5_small import natural_samples, t5_small
from polyreply.bench.timing import medians, peak_growth
from polyreply.models.model import PolyReplyModel
from polyreply.models.score import Samples, nll_NK
from polyreply.progress import Notify

BATCH, PADDED = 64, 64
CURVE = (1, 5, 10, 20, 40)


def bench_score(number: int, repeats: int, curve_number: int, notify: Notify) -> dict[str, Any]:
    """Ratios at K=10 under stable names, and seconds per K."""
    samples = natural_samples(number)
    model = t5_small(10)
    notify("speed", 0.0)
    few = samples.select(torch.arange(min(8, number)))
    warm_up = {name: partial(run, model, few) for name, run in _WAYS.items()}
    seconds = medians({name: partial(run, model, samples) for name, run in _WAYS.items()}, repeats, warm_up)
    as_shipped = seconds["ours"]
    for dtype, suffix in precisions()[1:]:
        other = t5_small(10, dtype)
        runs = {name: partial(run, other, samples) for name, run in _WAYS.items()}
        seconds |= {f"{name}{suffix}": value for name, value in medians(runs, repeats, warm_up).items()}
        as_shipped = seconds[f"ours{suffix}"]
    notify("memory", 0.5)
    memory = {name: peak_growth(partial(_memory_of, name, number)) for name in ("ours", "loop")}
    figures: dict[str, Any] = {
        "score.n": number,
        **{f"score.{name}_seconds": value for name, value in seconds.items()},
        "score.vs_loop": seconds["loop"].per(seconds["ours"]),
        "score.vs_authors": seconds["authors"].per(as_shipped),
        **{f"score.vs_loop{suffix}": seconds[f"loop{suffix}"].per(as_shipped) for _, suffix in precisions()[1:]},
        "score.memory_mb": memory["ours"],
        "score.loop_memory_mb": memory["loop"],
        "score.memory_vs_loop": memory["ours"] / memory["loop"],
    }
    some = natural_samples(curve_number)
    for place, num_decoders in enumerate(CURVE):
        notify(f"K = {num_decoders}", 0.6 + 0.4 * place / len(CURVE))
        one = t5_small(num_decoders)
        figures[f"score.k{num_decoders}_seconds"] = medians({"ours": partial(nll_NK, one, some)}, 1)["ours"]
    return figures


def _memory_of(name: str, number: int, begin: Callable[[], None]) -> None:
    model, samples = t5_small(10), natural_samples(number)
    nll_NK(model, samples.select(torch.arange(2)))  # one-time costs of the libraries
    begin()
    _WAYS[name](model, samples)


def loop_nll(model: PolyReplyModel, samples: Samples) -> Tensor:
    """A loop over decoders with dynamic padding."""
    return _loop(model, samples, None, _at_once)


def authors_nll(model: PolyReplyModel, samples: Samples) -> Tensor:
    """The same loop padded to 64 tokens, one cross-entropy call for each sample."""
    return _loop(model, samples, PADDED, _one_by_one)


@torch.no_grad()
def _loop(
    model: PolyReplyModel, samples: Samples, length: int | None, nll_of: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    columns: list[list[Tensor]] = [[] for _ in range(model.num_decoders)]
    for batch, states, mask in _encoded(model, samples, length):
        for k, column in enumerate(columns):
            column.append(nll_of(*_decoder_logits(model, k, batch, states, mask)))
    return torch.stack([torch.cat(column) for column in columns], 1)


def _at_once(logits: Tensor, labels: Tensor) -> Tensor:
    token_nll = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none")
    return token_nll.view(labels.shape).sum(1)


def _one_by_one(logits: Tensor, labels: Tensor) -> Tensor:
    pairs = zip(logits, labels, strict=True)
    return torch.stack([cross_entropy(one, label, ignore_index=-100, reduction="sum") for one, label in pairs])


def _encoded(model: PolyReplyModel, samples: Samples, length: int | None) -> Any:
    """Batches in the order of the samples, each with its encoder states: the encoder runs once."""
    for index in torch.arange(len(samples)).split(BATCH):
        batch = samples.select(index) if length is None else _padded(samples, index, length)
        mask = batch.context_mask_NS.long()
        yield batch, model.backbone.encoder(input_ids=batch.context_NS, attention_mask=mask).last_hidden_state, mask


def _padded(samples: Samples, index: Tensor, length: int) -> Samples:
    parts = (samples.context_NS, samples.context_mask_NS, samples.response_NT, samples.response_mask_NT)
    return Samples(*(torch.nn.functional.pad(part[index], (0, length - part.shape[1])) for part in parts))


def _decoder_logits(
    model: PolyReplyModel, k: int, batch: Samples, states: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    labels = batch.response_NT.masked_fill(~batch.response_mask_NT.bool(), -100)
    with model.as_decoder(k) as backbone:
        return backbone(encoder_outputs=(states,), attention_mask=mask, labels=labels).logits, labels


_WAYS: dict[str, Callable[[PolyReplyModel, Samples], Tensor]] = {
    "ours": nll_NK,
    "loop": loop_nll,
    "authors": authors_nll,
}
