"""`polyreply bench precision`: what computing in bfloat16, or decoding in eight bits, changes besides the time.

- The E-step of a trained model in float32 and, as training computes, in bfloat16 by autocast: how many samples get
  another decoder in draws of whole contexts, and how far their NLLs are apart.
- Replies to held-out contexts in each type: how many are the same to the letter, and the difference of the paper's
  scores from float32's with its p-value (paired bootstrap over contexts).

A trained model and real data are needed: how close decoders are to each other depends on what they have learnt.

Legend: N samples, K decoders.
"""

from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyreply.arrays import Floats, Ints
from polyreply.bench.timing import timed
from polyreply.data.batches import ContextDrawStream, collate
from polyreply.data.folder import split_files
from polyreply.data.read import read_dialogues
from polyreply.data.token_corpus import TokenCorpus
from polyreply.em.assign import Evidence, assign
from polyreply.em.e_step import e_step
from polyreply.errors import DataError
from polyreply.metrics.evaluation import evaluate
from polyreply.metrics.registry import PAPER_NUMBERS
from polyreply.metrics.scores import Scores
from polyreply.metrics.significance import paired_test
from polyreply.models.score import Samples
from polyreply.precision import computing_in
from polyreply.progress import Notify
from polyreply.reply import PolyReply

MAX_NEW_TOKENS, BATCH = 24, 16
TYPES = ("float32", "bfloat16", "int8")


def bench_precision(
    model: str, data: Path, notify: Notify, *, draws: int = 10, draw_size: int = 60, contexts: int = 1000
) -> dict[str, Any]:
    """Agreement of assignments and of replies with those in float32, under stable names."""
    figures: dict[str, Any] = {}
    files = split_files(data)
    if draws and "train" not in files:
        raise DataError(f"{data}: expected a train split to draw samples from, found {', '.join(files)}")
    if contexts and not {"test", "valid"} & set(files):
        raise DataError(f"{data}: expected a test or valid split to reply to, found {', '.join(files)}")
    if draws:
        figures |= _assignments(PolyReply.from_pretrained(model, dtype="float32"), data, draws, draw_size, notify)
    if contexts:
        figures |= _replies(model, data, contexts, notify)
    return figures


def _assignments(poly: PolyReply, data: Path, draws: int, draw_size: int, notify: Notify) -> dict[str, Any]:
    corpus = TokenCorpus.build(split_files(data)["train"], poly.tokenizer, poly.model.config.format())
    stream = ContextDrawStream(corpus.context_of, size=draw_size)
    drawn = [next(stream) for _ in range(draws)]
    for parameter in poly.model.shared_parameters():  # as in training, which converts frozen weights
        parameter.requires_grad_(False)

    def samples(ids_N: Ints) -> Samples:
        return Samples.of(collate(corpus, ids_N, poly.tokenizer.pad_token_id or 0))

    seconds, chosen, nll = list[float](), list[Ints](), list[Floats]()
    for place, cast in enumerate((None, torch.bfloat16)):
        spent, assigned, found = 0.0, list[Ints](), list[Floats]()
        with computing_in(cast, poly.model, poly.model.device, exact=[poly.model.vocabulary]):
            e_step(poly.model, samples(drawn[0][:8]))  # converts and packs the weights
            for draw, ids_N in enumerate(drawn):
                notify("assignments", (place + draw / draws) / 4)
                (nll_NK, log_prior_NK), took = timed(partial(e_step, poly.model, samples(ids_N)))
                spent += took
                evidence = Evidence(nll_NK.numpy(), log_prior_NK.numpy(), ids_N)
                assigned.append(assign("eqhard-em", evidence).weights_NK.argmax(1))
                found.append(nll_NK.numpy())
        seconds.append(spent)
        chosen.append(np.concatenate(assigned))
        nll.append(np.concatenate(found))
    return {
        "precision.samples": len(chosen[0]),
        "precision.agreement": float((chosen[0] == chosen[1]).mean()),
        "precision.nll_apart": float(abs(nll[0] - nll[1]).mean()),
        "precision.e_step_gain": seconds[0] / seconds[1],
    }


def _replies(model: str, data: Path, number: int, notify: Notify) -> dict[str, Any]:
    files = split_files(data)
    rows = list(islice(read_dialogues(files.get("test") or files["valid"]), number))
    said, references = [row.context for row in rows], [list(row.responses) for row in rows]
    figures: dict[str, Any] = {"precision.contexts": len(rows)}
    texts, scores = dict[str, list[list[str]]](), dict[str, Scores]()
    for place, dtype in enumerate(TYPES):
        notify(f"replies in {dtype}", 0.5 + place / len(TYPES) / 2)
        poly = PolyReply.from_pretrained(model, dtype=dtype)
        texts[dtype], figures[f"precision.{dtype}.seconds"] = timed(partial(_texts, poly, said))
        scores[dtype] = evaluate(texts[dtype], references)
        numbers = {name: scores[dtype][name] for name in PAPER_NUMBERS}
        figures |= {f"precision.{dtype}.{name}": value for name, value in numbers.items() if value is not None}
    for dtype in TYPES[1:]:
        pairs = zip(chain(*texts[dtype]), chain(*texts["float32"]), strict=True)
        figures[f"precision.{dtype}.same_replies"] = float(np.mean([one == other for one, other in pairs]))
        tested = paired_test(scores[dtype].per_context, scores["float32"].per_context, PAPER_NUMBERS)
        for name, one in tested.items():
            figures[f"precision.{dtype}.{name}.difference"] = one.value
            if one.p_value is not None:  # there are two contexts or more
                figures[f"precision.{dtype}.{name}.p_value"] = one.p_value
    return figures


def _texts(poly: PolyReply, said: list[tuple[str, ...]]) -> list[list[str]]:
    parts = (said[begin : begin + BATCH] for begin in range(0, len(said), BATCH))
    return [[one.text for one in row] for part in parts for row in poly.reply(part, max_new_tokens=MAX_NEW_TOKENS)]
