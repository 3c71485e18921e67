"""table-settings: EqHard-EM with one setting changed at a time, and EqSoft-EM annealed from other temperatures.

All of it is measured on the selection half of valid: it is for finding causes and choosing defaults, not for reporting.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import score_table
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import BEAM, EQHARD, EQSOFT, Variant, annealing

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
"""What a row changes in the preset; numbers of steps and samples are factors."""
_WARMTH = {"a quarter of the first temperature": 1 / 4, "a sixteenth of the first temperature": 1 / 16}
"""First temperatures of EqSoft-EM, as factors of its own."""


def rows(systems: Systems) -> list[Variant]:
    """The variants that differ under this preset; all have the learning rate of the method that they change."""
    preset = systems.preset
    hard = [EQHARD.changed(name, _absolute(systems, one), rate_of=EQHARD) for name, one in _ONE_CHANGE.items()]
    first = {"em.temperature": preset.em.temperature, **annealing(preset.em, preset.stage_2.steps)}["em.temperature"]
    soft = [
        EQSOFT.changed(name, {"em.temperature": factor * first}, rate_of=EQSOFT) for name, factor in _WARMTH.items()
    ]
    return systems.distinct([BEAM, EQHARD, *hard, EQSOFT, *soft])


def _absolute(systems: Systems, change: Mapping[str, Any]) -> dict[str, Any]:
    """A change with numbers of steps and samples in place of factors; N stays a multiple of K."""
    preset, k = systems.preset, systems.num_decoders
    scaled = {
        "steps": lambda factor: max(1, round(factor * preset.stage_2.steps)),
        "em.e_step_size": lambda factor: k * max(1, round(factor * preset.em.e_step_size / k)),
    }
    return {name: scaled[name](value) if name in scaled else value for name, value in change.items()}


def _tasks(systems: Systems) -> Sequence[Task]:
    selecting = systems.on_selection()
    return selecting.all_scores(rows(selecting))


def _report(systems: Systems, folder: Path) -> Findings:
    selecting, preset = systems.on_selection(), systems.preset
    scored = score_table(selecting, "One setting changed at a time", rows(selecting), baseline=EQHARD.name)
    remark = (
        f"EqHard-EM itself: {preset.stage_2.steps} EM steps, N = {preset.em.e_step_size}, cost {preset.em.cost}, "
        f"likelihood {preset.em.likelihood}, initialisation {preset.model.adapter_init}. These numbers are for "
        "choices: the best of them is best partly by luck."
    )
    return Findings([scored.table], remarks=[remark], numbers=scored.tree(), signatures=scored.signatures)


EXPERIMENT = Experiment(_tasks, _report, origin=lambda systems: systems.on_selection().origin())
