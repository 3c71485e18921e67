"""table-settings: EqHard-EM with one setting changed at a time, and EqSoft-EM cooled from other temperatures.

All of it on the half of valid for choices, with one seed: it is there to choose defaults by, and to find causes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.cooling import cooling
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import score_table
from polyreply.experiments.stage import Stage
from polyreply.experiments.systems import Lab, Variant
from polyreply.experiments.variants import BEAM, EQHARD, EQSOFT, changed, without_twins

_ONE_CHANGE: Mapping[str, Mapping[str, Any]] = {
    "half the EM steps": {"steps": 0.5},
    "twice the EM steps": {"steps": 2},
    "half of N": {"em.e_step_size": 0.5},
    "twice N": {"em.e_step_size": 2},
    "dropout in the E-step": {"em.e_step_dropout": True},
    "NLL as cost": {"em.cost": "nll"},
    "mean likelihood": {"em.likelihood": "mean"},
    "adapters of size 16": {"model.adapter_size": 16},
    "adapters of size 256": {"model.adapter_size": 256},
    "authors' initialisation": {"model.adapter_init": "linear"},
    "large initialisation": {"model.adapter_init": "large"},
}
"""What a row changes of the preset; numbers of steps and samples are factors."""
_WARMTH = {"a quarter as warm at first": 1 / 4, "a sixteenth as warm at first": 1 / 16}
"""Temperatures that EqSoft-EM begins with, as parts of its own."""


def rows(lab: Lab) -> list[Variant]:
    """The variants that differ under this preset, all with EqHard-EM's learning rate (EqSoft-EM's with its own)."""
    hard = [replace(changed(EQHARD, name, _absolute(lab, one)), rate_of=EQHARD) for name, one in _ONE_CHANGE.items()]
    warmth = {"em.temperature": lab.preset.em.temperature, **cooling(lab.preset.em, lab.preset.stage_2.steps)}
    soft = [
        replace(changed(EQSOFT, name, {"em.temperature": part * warmth["em.temperature"]}), rate_of=EQSOFT)
        for name, part in _WARMTH.items()
    ]
    return without_twins(lab, [BEAM, EQHARD, *hard, EQSOFT, *soft])


def _absolute(lab: Lab, change: Mapping[str, Any]) -> dict[str, Any]:
    """Factors as numbers of steps and samples; N stays a multiple of K."""
    preset, k = lab.preset, lab.num_decoders
    made = {
        "steps": lambda factor: max(1, round(factor * preset.stage_2.steps)),
        "em.e_step_size": lambda factor: k * max(1, round(factor * preset.em.e_step_size / k)),
    }
    return {name: made[name](value) if name in made else value for name, value in change.items()}


def _needs(lab: Lab) -> Sequence[Stage]:
    choosing = lab.on_choices()
    return choosing.all_scores(rows(choosing))


def _report(lab: Lab, folder: Path) -> Findings:
    choosing = lab.on_choices()
    scored = score_table(choosing, "One setting changed at a time", rows(choosing), baseline=EQHARD.name)
    preset = lab.preset
    told = (
        f"EqHard-EM itself: {preset.stage_2.steps} EM steps, N = {preset.em.e_step_size}, cost {preset.em.cost}, "
        f"likelihood {preset.em.likelihood}, initialisation {preset.model.adapter_init}. These numbers are for "
        "choices: whoever reports the best of them reports luck too."
    )
    return Findings([scored.table], remarks=[told], numbers=scored.tree(), signatures=scored.signatures)


EXPERIMENT = Experiment(_needs, _report, origin=lambda lab: lab.on_choices().origin())
