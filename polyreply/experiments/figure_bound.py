"""figure-bound: the theorem. How far the mean posterior of a decoder is from 1/K on samples that were never seen.

On real data two of the theorem's three terms are known. On smalltalk the true posterior is known too, because every
response has one act: there the whole bound is drawn, with decoders matched to acts.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyreply.analysis.recovery import held_out_ids, held_out_likelihoods
from polyreply.analysis.theorem import BoundCurve, bound_curve, posterior_error
from polyreply.data.dialogue import Dialogue
from polyreply.data.folder import write_dialogues
from polyreply.data.read import read_dialogues
from polyreply.data.smalltalk import ACTS
from polyreply.em.posterior import posterior
from polyreply.em.settings import EMSettings
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, over, within
from polyreply.experiments.mode_recovery import Smalltalk
from polyreply.experiments.pictures import Line, Panel, draw_lines
from polyreply.experiments.result import Findings, Picture
from polyreply.experiments.score_table import seeds_note, training_notes
from polyreply.experiments.splits import merge_contexts
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import EQHARD
from polyreply.files import write_file
from polyreply.models.score import Reduce
from polyreply.reply import PolyReply
from polyreply.tables import Column, Table

_FILE, _CURVE, _SAMPLES = "bound.png", "bound.json", "pairs.jsonl"
_MOST_PAIRS = 5000
"""Held-out pairs of real data."""
_SEED = 13
_SMALLTALK_SEED = 0
"""Of the training on smalltalk."""
CLAIMS = (
    Claim(
        "The deviation from 1/K falls as data grows (in percent of the samples)",
        "Theorem 1",
        over("real data, fewest samples", "real data, all samples", "deviation"),
    ),
    Claim(
        "On smalltalk the bound holds for at least 95 % of the data sets of every size (most that exceed it, %)",
        "Theorem 1",
        within("smalltalk", "violations", at_most=5),
    ),
)


def _tasks(systems: Systems) -> Sequence[Task]:
    return [_on_real_data(systems), _on_smalltalk(systems)]


def _on_real_data(systems: Systems) -> Task:
    trained, final = systems.training(EQHARD, systems.preset.seeds[0]), systems.data.final
    likelihood, pairs = systems.preset.em.likelihood, min(_MOST_PAIRS, systems.preset.contexts)
    inputs = {"model": trained.name, "data": final.name, "pairs": pairs, "likelihood": likelihood}
    compute = partial(_measure, trained, systems.data.final_file, pairs, likelihood, False)
    work = systems.work("bound", pairs * systems.num_decoders)
    return systems.cache.task("bound", "", inputs, compute, [trained, final], work)


def _on_smalltalk(systems: Systems) -> Task:
    smalltalk = Smalltalk(systems.cache, systems.preset.smalltalk)
    trained, pairs = smalltalk.training("EqHard-EM", _SMALLTALK_SEED), systems.preset.smalltalk.pairs
    compute = partial(_measure, trained, smalltalk.held_out(), pairs, "sum", True)
    work = smalltalk.work("bound", pairs * len(ACTS))
    inputs = {"model": trained.name, "pairs": pairs}
    return systems.cache.task("bound", "smalltalk", inputs, compute, [trained], work)


def _measure(trained: Task, data: Path, pairs: int, likelihood: Reduce, has_acts: bool, out: Path) -> None:
    """Compare both sides of the theorem on held-out pairs, one of each context."""
    dialogues = one_each(read_dialogues(data))
    write_dialogues(out / _SAMPLES, dialogues)
    model = PolyReply.from_pretrained(trained.path / "model").to("auto")
    likelihoods = held_out_likelihoods(model, out / _SAMPLES, pairs, EMSettings(likelihood=likelihood))
    posterior_NK = posterior(likelihoods.nll_NK.numpy(), likelihoods.log_prior_NK.numpy())
    error_K = None
    if has_acts:
        acts_N = [dialogues[place].acts[0] for place in held_out_ids(len(dialogues), pairs)]
        half = len(acts_N) // 2  # measured on the same samples, error and deviation could not disagree
        error_K = posterior_error(posterior_NK[:half], acts_N[:half], ACTS)
        posterior_NK = posterior_NK[half:]
    curve = bound_curve(posterior_NK, error_K=error_K)
    write_file(out / _CURVE, json.dumps(asdict(curve)), overwrite=True)


def one_each(dialogues: Iterable[Dialogue]) -> list[Dialogue]:
    """One response for each context, drawn at random: the theorem is about independent pairs."""
    random, pairs = np.random.default_rng(_SEED), []
    for dialogue in merge_contexts(dialogues):
        place = int(random.integers(len(dialogue.responses)))
        pairs.append(Dialogue(dialogue.context, (dialogue.responses[place],), dialogue.acts[place : place + 1]))
    return pairs


def _report(systems: Systems, folder: Path) -> Findings:
    tasks = {systems.data.name: _on_real_data(systems), "smalltalk": _on_smalltalk(systems)}
    real, whole = (
        msgspec.json.decode((systems.cache.get(task) / _CURVE).read_bytes(), type=BoundCurve) for task in tasks.values()
    )
    draw_lines([_panel(name, curve) for name, curve in zip(tasks, (real, whole), strict=True)], folder / _FILE)
    numbers = {
        "real data, all samples": {"deviation": 100 * real.deviation[-1]},
        "smalltalk": {"violations": 100 * max(whole.violations)},
    }
    if len(real.sizes) > 1:
        numbers["real data, fewest samples"] = {"deviation": 100 * real.deviation[0]}
    notes = training_notes(systems.with_seeds(systems.preset.seeds[:1]), [EQHARD])
    caption = "Deviation from 1/K on unseen samples (band: up to the 95th percentile) and the theorem's terms."
    return Findings(
        [_table("real data", real, notes), _table("smalltalk", whole, [seeds_note([_SMALLTALK_SEED])])],
        [Picture(_FILE, caption)],
        check(CLAIMS, numbers),
        [_remark(systems.data.name, real)],
        {"real data": asdict(real), "smalltalk": asdict(whole)},
    )


def _remark(name: str, real: BoundCurve) -> str:
    """Whether chance explains the deviation on real data."""
    beyond = real.deviation[-1] - real.hoeffding[-1]
    given = f"On {name}, with {real.sizes[-1]} samples of different contexts"
    if beyond <= 0:
        return f"{given}, chance can explain the whole deviation."
    return (
        f"{given}, {beyond:.4f} of the deviation is more than the theorem attributes to chance: under the paper's "
        "uniform prior, with probability 95 %, the posterior of some decoder is wrong by at least that much on average."
    )


def _panel(name: str, curve: BoundCurve) -> Panel:
    lines = [
        Line("deviation from 1/K", curve.sizes, curve.deviation, low=curve.deviation, high=curve.deviation_high),
        Line("Hoeffding term", curve.sizes, curve.hoeffding, "--"),
    ]
    if curve.posterior_error is not None:
        error = max(curve.posterior_error)
        lines.append(Line("posterior error", curve.sizes, [error] * len(curve.sizes), ":"))
        lines.append(Line("the whole bound", curve.sizes, [term + error for term in curve.hoeffding], "-"))
    return Panel(name, "samples", "largest over decoders", lines, log=True)


def _table(name: str, curve: BoundCurve, training: list[str]) -> Table:
    terms = ("deviation", "95th percentile", "Hoeffding term", "posterior error")
    columns: list[str | Column] = ["samples", *(Column(term, digits=4) for term in terms)]
    columns.append(Column("above the bound, %", digits=1))
    error = None if curve.posterior_error is None else max(curve.posterior_error)
    values = zip(curve.sizes, curve.deviation, curve.deviation_high, curve.hoeffding, curve.violations, strict=True)
    rows = [[size, mean, high, chance, error, 100 * violations] for size, mean, high, chance, violations in values]
    note = "The posterior error is unknown here; above the bound: above the Hoeffding term alone."
    if error is not None:
        note = "The posterior error is measured on one half of the held-out samples, the deviation on the other."
    notes = [note, "One response of each context, so that samples are independent.", *training]
    return Table(f"The theorem's terms, {name}", columns, rows, notes)


def _origin(systems: Systems) -> dict[str, Any]:
    """Half of it is on smalltalk."""
    origin, pairs = systems.origin(systems.preset.seeds[:1]), systems.preset.smalltalk.pairs
    final = f"{origin['final_numbers_from']}; of smalltalk, {pairs} held-out pairs; one response of each context"
    data = f"{systems.data.name}, and smalltalk (seed {_SMALLTALK_SEED})"
    return {**origin, "data": data, "final_numbers_from": final}


EXPERIMENT = Experiment(_tasks, _report, origin=_origin)
