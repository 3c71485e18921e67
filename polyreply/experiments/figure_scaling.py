"""figure-scaling: beam search against K decoders, for several K."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from polyreply.experiments.cache import Diverged
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, over, times
from polyreply.experiments.pictures import Line, Panel, draw_lines
from polyreply.experiments.result import Findings, Number, Picture, Row, Table
from polyreply.experiments.score_table import rates_notes, seeds_note
from polyreply.experiments.stage import Stage
from polyreply.experiments.systems import Lab, Variant
from polyreply.experiments.variants import BEAM, EQHARD, changed
from polyreply.metrics.comparison import System
from polyreply.metrics.registry import label

_FILE, _SHOWN = "scaling.png", ("bleu1_f", "bleu2_f", "dist2", "pairwise_bleu")
_GAP, _FIVE = "bleu2_f_gap", 5
SIMILAR = Claim(
    f"At K = {_FIVE} it performs similarly to beam search (BLEU2-F within a tenth)",
    "Appendix C",
    times(f"K = {_FIVE}, {EQHARD.name}", f"K = {_FIVE}, {BEAM.name}", "bleu2_f", at_least=0.9, at_most=1.1),
)


def pair(lab: Lab, k: int) -> tuple[Variant, Variant]:
    """Beam search and the decoders for some K; a decoder gets as many samples of an E-step as in the preset."""
    capacity = lab.preset.em.e_step_size // lab.num_decoders
    settings = {} if k == lab.num_decoders else {"model.num_decoders": k, "em.e_step_size": k * capacity}
    return replace(BEAM, k=k), changed(EQHARD, "", settings)


def _needs(lab: Lab) -> Sequence[Stage]:
    return [stage for k in lab.preset.scaling for stage in lab.all_scores(pair(lab, k))]


def _report(lab: Lab, folder: Path) -> Findings:
    diverged = {k: told for k in lab.preset.scaling for told in lab.diverged(pair(lab, k)).values()}
    measured = [k for k in lab.preset.scaling if k not in diverged]
    if not measured:
        raise Diverged(f"{next(iter(diverged.values()))}, and so did all others; use a lower learning rate")
    found = {k: tuple(lab.scored(variant) for variant in pair(lab, k)) for k in measured}
    numbers = {f"K = {k}": {_GAP: _value(ours) - _value(beam)} for k, (beam, ours) in found.items()}
    numbers |= {f"K = {k}, {one.name}": {"bleu2_f": _value(one)} for k, both in found.items() for one in both}
    rows = [
        Row([str(k), system.name, *(Number(system.mean(name), system.std(name)) for name in _SHOWN)])
        for k, pair_of_k in found.items()
        for system in pair_of_k
    ]
    headings = ["K", "system", *(label(name) for name in _SHOWN)]
    _draw(found, folder / _FILE)
    few, many = min(found), max(found)
    grows = Claim(
        f"The gain over beam search in BLEU2-F is larger at K = {many} than at K = {few}",
        "Appendix C",
        over(f"K = {many}", f"K = {few}", _GAP),
    )
    bands = "; bands: ± a standard deviation over seeds" if len(lab.preset.seeds) > 1 else ""
    notes = ["Numbers of different K are not comparable.", seeds_note(lab.preset.seeds)]
    notes += [f"K = {k}: {told}" for k in found for told in rates_notes(lab, pair(lab, k))]
    notes += [f"Diverged: {told}." for told in diverged.values()]
    return Findings(
        [Table("Scaling with the number of decoders", headings, rows, notes)],
        [Picture(_FILE, f"Beam search and EqHard-EM for several K{bands}.")],
        check([SIMILAR, grows], numbers),
        ["The paper's points are not in its text: similar at 5, and a gap that grows with more decoders."],
        {f"K = {k}": {one.name: _numbers(one) for one in both} | numbers[f"K = {k}"] for k, both in found.items()},
        sorted({str(one.signature) for both in found.values() for system in both for one in system.seeds}),
    )


def _value(system: System, name: str = "bleu2_f") -> float:
    return round(system.mean(name) or 0.0, 4)


def _numbers(system: System) -> dict[str, float | None]:
    return {name: system.mean(name) for name in _SHOWN}


def _draw(found: dict[int, tuple[System, ...]], path: Path) -> None:
    panels = []
    for name in ("bleu1_f", "bleu2_f"):
        lines = []
        for place in range(2):
            systems = [both[place] for both in found.values()]
            mean, std = [_value(one, name) for one in systems], [one.std(name) or 0.0 for one in systems]
            low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
            band = (low, high) if any(std) else ((), ())
            lines.append(Line(systems[0].name, list(found), mean, low=band[0], high=band[1]))
        panels.append(Panel(label(name), "K", label(name), lines, ticks=list(found)))
    draw_lines(panels, path)


EXPERIMENT = Experiment(_needs, _report)
