"""figure-bound: the theorem. How far the mean posterior of a decoder is from 1/K on samples that were never seen.

On real data two of the theorem's three terms are known. On smalltalk the true posterior is known too, because every
response has one act: there the whole bound is drawn, with decoders matched to acts.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyreply.analysis.bound import BoundCurve, bound_curve, posterior_error
from polyreply.analysis.recovery import held_out_ids
from polyreply.arrays import Floats, Ints
from polyreply.data.batches import collate
from polyreply.data.dialogue import Dialogue
from polyreply.data.read import read_dialogues
from polyreply.data.smalltalk import ACTS
from polyreply.data.token_corpus import TokenCorpus
from polyreply.em.e_step import e_step
from polyreply.em.posterior import posterior
from polyreply.em.settings import EMSettings
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, over, within
from polyreply.experiments.corpus import merge_contexts, write_dialogues
from polyreply.experiments.pictures import Line, Panel, draw_lines
from polyreply.experiments.result import Findings, Number, Picture, Row, Table
from polyreply.experiments.score_table import seeds_note, training_notes
from polyreply.experiments.smalltalk import Smalltalk
from polyreply.experiments.stage import Stage, Work, revision
from polyreply.experiments.systems import Lab
from polyreply.experiments.variants import EQHARD
from polyreply.files import write_file
from polyreply.models.score import Reduce, Samples
from polyreply.reply import PolyReply

_FILE, _CURVE, _ASKED = "bound.png", "bound.json", "pairs.jsonl"
_PAIRS = 5000
"""Most held-out pairs of real data."""
_SEED = 13
_SMALLTALK_SEED = 0
"""Of the training on smalltalk."""
_ONE_EACH = {"references": "one of each context"}
CLAIMS = (
    Claim(
        "The deviation from 1/K falls as data grows (in percent of the samples)",
        "Theorem 1",
        over("real data, fewest samples", "real data, all samples", "deviation"),
    ),
    Claim(
        "On smalltalk the bound holds for at least 95 % of the data sets of every size (most that break it, %)",
        "Theorem 1",
        within("smalltalk", "violations", at_most=5),
    ),
)


def _real(lab: Lab) -> Stage:
    trained, asked = lab.training(EQHARD, lab.preset.seeds[0]), lab.corpus.asked
    likelihood, pairs = lab.preset.em.likelihood, min(_PAIRS, lab.preset.contexts)
    made_from = {"model": trained.name, "data": asked.name, "pairs": pairs, "likelihood": likelihood, **_ONE_EACH}
    return lab.workshop.planned(
        "bound",
        {**made_from, **revision("bound")},
        lambda path: _measure(trained, lab.corpus.final, pairs, path, likelihood=likelihood),
        [trained, asked],
        lab.work("bound", pairs * lab.num_decoders),
    )


def _smalltalk(lab: Lab) -> Stage:
    smalltalk = Smalltalk(lab.workshop, lab.preset.smalltalk)
    trained, pairs = smalltalk.training("EqHard-EM", _SMALLTALK_SEED), lab.preset.smalltalk.pairs
    made_from = {"model": trained.name, "pairs": pairs, "error_from": "the first half", **_ONE_EACH}
    return lab.workshop.planned(
        "bound-smalltalk",
        {**made_from, **revision("bound")},
        lambda path: _measure(trained, smalltalk.held_out(), pairs, path, acts=True),
        [trained],
        Work("bound, smalltalk", pairs * len(ACTS)),
    )


def _needs(lab: Lab) -> Sequence[Stage]:
    return [_real(lab), _smalltalk(lab)]


def _measure(
    trained: Stage, data: Path, pairs: int, path: Path, *, acts: bool = False, likelihood: Reduce = "sum"
) -> None:
    dialogues = one_each(read_dialogues(data))
    write_dialogues(path / _ASKED, dialogues)
    chosen = held_out_ids(len(dialogues), pairs)
    posterior_NK = _posterior(trained, path / _ASKED, chosen, likelihood)
    error_K = None
    if acts:
        acts_N = [dialogues[place].acts[0] for place in chosen]
        half = len(acts_N) // 2  # of the same samples, error and deviation could not disagree
        error_K = posterior_error(posterior_NK[:half], acts_N[:half], ACTS)
        posterior_NK = posterior_NK[half:]
    curve = bound_curve(posterior_NK, error_K=error_K)
    write_file(path / _CURVE, json.dumps(asdict(curve)).encode(), overwrite=True)


def one_each(dialogues: Iterable[Dialogue]) -> list[Dialogue]:
    """One response for each context, drawn at random: the theorem is about independent pairs."""
    random, found = np.random.default_rng(_SEED), []
    for dialogue in merge_contexts(dialogues):
        place = int(random.integers(len(dialogue.responses)))
        found.append(Dialogue(dialogue.context, (dialogue.responses[place],), dialogue.acts[place : place + 1]))
    return found


def _posterior(trained: Stage, data: Path, chosen: Ints, likelihood: Reduce) -> Floats:
    """Q(z|c, r) of some pairs, by the likelihood that the model was trained with."""
    model = PolyReply.from_pretrained(trained.path / "model").to("auto")
    corpus = TokenCorpus.build(data, model.tokenizer, model.model.config.format())
    samples = Samples.of(collate(corpus, chosen, model.tokenizer.pad_token_id or 0), model.device)
    evidence = e_step(model.model, samples, EMSettings(likelihood=likelihood))
    return posterior(evidence.nll_NK.cpu().numpy(), evidence.log_prior_NK.cpu().numpy())


def _report(lab: Lab, folder: Path) -> Findings:
    stages = {"real data": _real(lab), "smalltalk": _smalltalk(lab)}
    curves = {name: _load(lab.workshop.make(stage) / _CURVE) for name, stage in stages.items()}
    draw_lines([_panel(name, curve, lab.corpus.name) for name, curve in curves.items()], folder / _FILE)
    real, whole = curves["real data"], curves["smalltalk"]
    numbers = {
        "real data, all samples": {"deviation": 100 * real.deviation[-1]},
        "smalltalk": {"violations": 100 * max(whole.violations)},
    }
    if len(real.sizes) > 1:
        numbers["real data, fewest samples"] = {"deviation": 100 * real.deviation[0]}
    beyond = max(0.0, real.deviation[-1] - real.hoeffding[-1])
    given = f"On {lab.corpus.name}, with {real.sizes[-1]} samples of as many contexts"
    remark = f"{given}, chance can explain the whole deviation."
    if beyond:
        remark = (
            f"{given}, {beyond:.4f} of the deviation is beyond what the theorem gives to chance: under the paper's "
            "uniform prior, with probability 95 %, the posterior of some decoder is wrong by at least that much on "
            "average."
        )
    all_numbers: dict[str, Any] = {name: asdict(curve) for name, curve in curves.items()}
    return Findings(
        [
            _table("real data", real, training_notes(lab.with_seeds(lab.preset.seeds[:1]), [EQHARD])),
            _table("smalltalk", whole, [seeds_note([_SMALLTALK_SEED])]),
        ],
        [
            Picture(
                _FILE, "Deviation from 1/K on unseen samples (band: up to the 95th percentile) and the theorem's terms."
            )
        ],
        check(CLAIMS, numbers),
        [remark],
        all_numbers,
    )


def _load(path: Path) -> BoundCurve:
    return msgspec.json.decode(path.read_bytes(), type=BoundCurve)


def _error(curve: BoundCurve) -> float:
    return max(curve.posterior_error or [0.0])


def _panel(name: str, curve: BoundCurve, data: str) -> Panel:
    lines = [
        Line("deviation from 1/K", curve.sizes, curve.deviation, low=curve.deviation, high=curve.deviation_high),
        Line("Hoeffding term", curve.sizes, curve.hoeffding, "--"),
    ]
    if curve.posterior_error is not None:
        whole = [term + _error(curve) for term in curve.hoeffding]
        lines.append(Line("posterior error", curve.sizes, [_error(curve)] * len(curve.sizes), ":"))
        lines.append(Line("the whole bound", curve.sizes, whole, "-"))
    return Panel(data if name == "real data" else name, "samples", "largest over decoders", lines, log=True)


def _table(name: str, curve: BoundCurve, training: list[str]) -> Table:
    headings = ["samples", "deviation", "95th percentile", "Hoeffding term", "posterior error", "above the bound, %"]
    columns = zip(curve.sizes, curve.deviation, curve.deviation_high, curve.hoeffding, curve.violations, strict=True)
    error = _error(curve) if curve.posterior_error is not None else None
    rows = [
        Row(
            [
                Number(size, digits=0),
                *(Number(one, digits=4) for one in (mean, high, chance, error)),
                Number(100 * broken, digits=1),
            ]
        )
        for size, mean, high, chance, broken in columns
    ]
    note = "The posterior error is unknown here; above the bound: above the Hoeffding term alone."
    if error is not None:
        note = "The posterior error is measured on one half of the held-out samples, the deviation on the other."
    notes = [note, "One response of each context, so that samples are independent.", *training]
    return Table(f"The theorem's terms, {name}", headings, rows, notes)


def _origin(lab: Lab) -> dict[str, Any]:
    """Half of it is on smalltalk."""
    found = lab.origin(lab.preset.seeds[:1])
    return {
        **found,
        "data": f"{lab.corpus.name}, and smalltalk (seed {_SMALLTALK_SEED})",
        "final_numbers_from": (
            f"{found['final_numbers_from']}; of smalltalk, {lab.preset.smalltalk.pairs} held-out pairs; of each "
            "context one response"
        ),
    }


EXPERIMENT = Experiment(_needs, _report, origin=_origin)
