"""figure-scaling: beam search against K decoders, for several K."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from polyreply.errors import DivergedError
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, over, times
from polyreply.experiments.pictures import Line, Panel, draw_lines
from polyreply.experiments.result import Findings, Picture
from polyreply.experiments.score_table import rates_notes, seeds_note
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import BEAM, EQHARD, Variant
from polyreply.metrics import System
from polyreply.metrics.registry import label
from polyreply.tables import Cell, Row, Table

_FILE, _SHOWN = "scaling.png", ("bleu1_f", "bleu2_f", "dist2", "pairwise_bleu")
_GAP, _FIVE = "bleu2_f_gap", 5
SIMILAR = Claim(
    f"At K = {_FIVE} it performs similarly to beam search (BLEU2-F within a tenth)",
    "Appendix C",
    times(f"K = {_FIVE}, {EQHARD.name}", f"K = {_FIVE}, {BEAM.name}", "bleu2_f", at_least=0.9, at_most=1.1),
)


def _pair(systems: Systems, k: int) -> tuple[Variant, Variant]:
    """Beam search and the decoders for one K; a decoder gets as many samples per E-step as in the preset."""
    capacity = systems.preset.em.e_step_size // systems.num_decoders
    settings = {} if k == systems.num_decoders else {"model.num_decoders": k, "em.e_step_size": k * capacity}
    return replace(BEAM, k=k), EQHARD.changed("", settings)


def _tasks(systems: Systems) -> Sequence[Task]:
    return [task for k in systems.preset.scaling for task in systems.all_scores(_pair(systems, k))]


def _report(systems: Systems, folder: Path) -> Findings:
    diverged = {k: text for k in systems.preset.scaling for text in systems.diverged(_pair(systems, k)).values()}
    measured = [k for k in systems.preset.scaling if k not in diverged]
    if not measured:
        raise DivergedError(f"{next(iter(diverged.values()))}, and so did all others; use a lower learning rate")
    scored = {k: tuple(systems.scored(variant) for variant in _pair(systems, k)) for k in measured}
    numbers = {f"K = {k}": {_GAP: _bleu2_f(ours) - _bleu2_f(beam)} for k, (beam, ours) in scored.items()}
    numbers |= {f"K = {k}, {one.name}": {"bleu2_f": _bleu2_f(one)} for k, both in scored.items() for one in both}
    rows = [
        Row([str(k), one.name, *(Cell(one.mean(number), one.std(number)) for number in _SHOWN)])
        for k, both in scored.items()
        for one in both
    ]
    few, many = min(scored), max(scored)
    grows = Claim(
        f"The gain over beam search in BLEU2-F is larger at K = {many} than at K = {few}",
        "Appendix C",
        over(f"K = {many}", f"K = {few}", _GAP),
    )
    notes = ["Numbers of different K are not comparable.", seeds_note(systems.preset.seeds)]
    notes += [f"K = {k}: {note}" for k in scored for note in rates_notes(systems, _pair(systems, k))]
    notes += [f"Diverged: {message}." for message in diverged.values()]
    columns = ["K", "system", *(label(number) for number in _SHOWN)]
    _draw(scored, folder / _FILE)
    bands = "; bands: ± a standard deviation over seeds" if len(systems.preset.seeds) > 1 else ""
    return Findings(
        [Table("Scaling with the number of decoders", columns, rows, notes)],
        [Picture(_FILE, f"Beam search and EqHard-EM for several K{bands}.")],
        check([SIMILAR, grows], numbers),
        ["The paper's points are not in its text: similar at 5, and a gap that grows with more decoders."],
        {
            f"K = {k}": {one.name: {number: one.mean(number) for number in _SHOWN} for one in both}
            | numbers[f"K = {k}"]
            for k, both in scored.items()
        },
        sorted({str(one.signature) for both in scored.values() for system in both for one in system.seeds}),
    )


def _bleu2_f(system: System) -> float:
    return round(system.mean("bleu2_f") or 0.0, 4)


def _draw(scored: dict[int, tuple[System, ...]], path: Path) -> None:
    panels = []
    for number in ("bleu1_f", "bleu2_f"):
        lines = []
        for place in range(2):
            systems = [both[place] for both in scored.values()]
            mean = [round(one.mean(number) or 0.0, 4) for one in systems]
            std = [one.std(number) or 0.0 for one in systems]
            low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
            band = (low, high) if any(std) else ((), ())
            lines.append(Line(systems[0].name, list(scored), mean, low=band[0], high=band[1]))
        panels.append(Panel(label(number), "K", label(number), lines, ticks=list(scored)))
    draw_lines(panels, path)


EXPERIMENT = Experiment(_tasks, _report)
