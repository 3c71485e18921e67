"""What a run would do, and roughly how long that takes.

An estimate is the work of each missing stage (samples × decoders × steps) times the pace of such work: as measured by
the stages that are there, or else as calibrated once, on one core of a two-core machine, with `mini`'s model.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from polyreply.experiments.cache import Workshop
from polyreply.experiments.presets import Preset
from polyreply.experiments.smalltalk import STAGE_1 as SMALLTALK
from polyreply.experiments.stage import Stage
from polyreply.models.backbones import MiniConfig
from polyreply.models.shipped import SHIPPED
from polyreply.training.recipe import MINI

_CALIBRATED = {
    "stage 1": 1e-2,
    "EM": 3.8e-3,
    "replies by decoders": 7e-3,
    "replies by mbr": 6.3e-2,
    "replies by beam": 1.3e-2,
    "replies by nucleus": 1.3e-2,
    "replies by diverse-beam": 1.3e-2,
    "speed": 1e-2,
    "bound": 1.5e-3,
    "recovery": 7e-2,
}
"""Seconds of a sample in stage 1, of a sample under one decoder in an EM step, and of one reply: the processor's time
over 25 updates, 6 EM steps and 320 replies on DailyDialog. The others are assumed: nucleus and diverse-beam cost what
beam does, `mbr` nine replies, `speed` between beam and decoders for a reply, `bound` the E-step of a sample under one
decoder, `recovery` ten decoders for a pair or context."""
_SCORES = 1e-3
"""Seconds of one reply that is scored, whatever the model; assumed."""
_SMALL = (MINI, SHIPPED)
_MINI_SIZE = 4.1e6
_T5_SMALL_SIZE = 60e6
_LEAST = 0.5
"""Seconds of a stage of which nothing else is known: loading a model, reading and writing."""


@dataclass(frozen=True)
class Plan:
    """The stages of an experiment that are missing, in the order they will be made, and how long they may take."""

    missing: list[Stage]
    made: int
    seconds: float
    basis: str
    """What the estimate rests on."""

    def seconds_with(self, jobs: int) -> float:
        """With so many stages at once, as far as there are cores for them."""
        return self.seconds / min(jobs, os.cpu_count() or 1)

    def lines(self, jobs: int = 1) -> Iterator[str]:
        """What to tell before starting; `jobs`: how many stages are made at once."""
        for kind, stages in _by_kind(self.missing).items():
            yield f"  {len(stages)} × {kind}" if len(stages) > 1 else f"  {kind}"
        if self.missing:
            told = f"{len(self.missing)} stages to do, {self.made} are there"
            together = f", {jobs} stages at once" if jobs > 1 else ""
            yield f"{told}; roughly {duration(self.seconds_with(jobs))}{together} ({self.basis})"
        else:
            yield f"all {self.made} stages are there"


def plan(stages: Iterable[Stage], workshop: Workshop, preset: Preset) -> Plan:
    """What is missing for these stages. What stands on a training that diverged will never be made."""
    seen = [stage for stage in with_needs(stages) if not is_lost(stage)]
    missing = [stage for stage in seen if not stage.is_made]
    paces = workshop.paces()
    seconds = sum(_seconds(stage, paces, preset) for stage in missing)
    basis = "measured on one core of another machine"
    if any(stage.work.unit in paces for stage in missing):
        basis = "by what the stages that are there took"
    elif preset.model.backbone not in _SMALL:
        basis += " and scaled to T5-small; a GPU takes far less, and was never measured"
    return Plan(missing, len(seen) - len(missing), seconds, basis)


def with_needs(stages: Iterable[Stage]) -> list[Stage]:
    """Stages after all they stand on and are chosen by, each once."""
    seen: dict[str, Stage] = {}
    for stage in stages:
        _visit(stage, seen)
    return list(seen.values())


def _visit(stage: Stage, seen: dict[str, Stage]) -> None:
    if stage.name not in seen:
        for need in (*stage.choices, *stage.needs):
            _visit(need, seen)
        seen[stage.name] = stage


def is_lost(stage: Stage) -> bool:
    """Whether it stands on a training that diverged, and will never be made."""
    return any((need.is_made and need.diverged) or is_lost(need) for need in stage.needs)


def _seconds(stage: Stage, paces: dict[str, float], preset: Preset) -> float:
    if not stage.work.unit:
        return _LEAST
    pace = paces.get(stage.work.unit, _calibrated(stage.work.unit, preset))
    return _LEAST + pace * stage.work.amount


def _calibrated(unit: str, preset: Preset) -> float:
    """Seconds of a unit of work that was never measured here."""
    kind, _, model = unit.partition(", ")
    if kind == "scores":
        return _SCORES
    size = _relative_size(preset)
    if model == "smalltalk":
        size = _size(MiniConfig(**SMALLTALK["model.mini"]), SMALLTALK["model.vocab_size"])
    return _CALIBRATED.get(kind, 0.0) * size


def _relative_size(preset: Preset) -> float:
    """Roughly, how much more a token costs than with `mini`'s model: by the weights it goes through."""
    is_small = preset.model.backbone in _SMALL
    return _size(preset.model.mini, preset.model.vocab_size) if is_small else _T5_SMALL_SIZE / _MINI_SIZE


def _size(mini: MiniConfig, vocab_size: int) -> float:
    """The weights a token goes through, relative to those of `mini`'s model."""
    attention = 4 * mini.d_model * mini.num_heads * mini.d_kv
    feed_forward = 2 * mini.d_model * mini.d_ff
    encoder = mini.num_layers * (attention + feed_forward)
    decoder = mini.num_decoder_layers * (2 * attention + feed_forward)
    return max(0.1, (encoder + decoder + mini.d_model * vocab_size) / _MINI_SIZE)


def _by_kind(stages: Iterable[Stage]) -> dict[str, list[Stage]]:
    found: dict[str, list[Stage]] = {}
    for stage in stages:
        found.setdefault(stage.kind, []).append(stage)
    return found


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
