"""What the decoders of several variants were trained on, as a table and as a picture.

Legend: S EM steps, K decoders.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyreply.experiments.result import Number, Picture, Row, Table
from polyreply.experiments.score_table import starved, training_notes
from polyreply.experiments.systems import Lab, Variant
from polyreply.training.plots import plot_assignment
from polyreply.training.run_log import read

_COLUMNS = {
    "smallest": "smallest share, %",
    "largest": "largest share, %",
    "largest_at_first": "largest at first, %",
    "largest_at_last": "largest at last, %",
    "std": "std over samples, %",
    "starved": "starved decoders, %",
}
_NOTES = (
    "starved: less than a tenth of an equal share",
    "at first, at last: in the first tenth of the EM steps and in the last quarter",
)


@dataclass(frozen=True)
class Usage:
    """What the decoders of some variants were trained on, with the first seed of a lab."""

    table: Table
    picture: Picture
    numbers: dict[str, dict[str, float]]
    """For each variant that was trained."""
    shares: dict[str, list[float]]
    """Each decoder's share of the samples."""
    diverged: list[str]
    """What is to be said of those whose training diverged."""


def usage_table(lab: Lab, variants: Sequence[Variant], folder: Path, drawn: Collection[str] | None = None) -> Usage:
    """Trains the variants, where that is not done, and draws all or some in `assignment.png`; the first seed counts."""
    seed = lab.preset.seeds[0]
    lab = lab.with_seeds((seed,))
    trained, diverged = lab.trained(variants)
    usages = {one.name: lab.usage(one, seed) for one in trained}
    panels = {_short(name): usage for name, usage in usages.items() if drawn is None or name in drawn}
    plot_assignment(panels or usages, folder / "assignment.png")
    logs = {one.name: read(lab.workshop.make(lab.training(one, seed)) / "log.jsonl") for one in trained}
    numbers = {name: {**_numbers(usage), **course(logs[name])} for name, usage in usages.items()}
    rows = [Row([name, *(Number(found[column]) for column in _COLUMNS)]) for name, found in numbers.items()]
    notes = [*_NOTES, *training_notes(lab, trained)]
    caption = f"Assignment of training samples to decoders, mean ± deviation over samples; seed {seed}."
    return Usage(
        Table("What the decoders were trained on", ["method", *_COLUMNS.values()], rows, notes),
        Picture("assignment.png", caption),
        numbers,
        {name: list(usage["share"]) for name, usage in usages.items()},
        [f"Diverged: {told}." for told in diverged],
    )


def _short(name: str) -> str:
    """A name for a narrow panel."""
    method, _, detail = name.partition(", ")
    return f"{method} ({detail.replace('initialisation', 'init')})" if detail else method


def _numbers(usage: Mapping[str, Any]) -> dict[str, float]:
    share_K = np.array(usage["share"])
    std = 100 * float(np.mean(usage["sample_std"] or usage["step_std"]))
    return {
        "smallest": 100 * float(share_K.min()),
        "largest": 100 * float(share_K.max()),
        "largest_to_smallest": float(share_K.max() / max(share_K.min(), 1e-9)),
        "std": std,
        "relative_std": std * len(share_K),
        "starved": starved(usage["share"]),
    }


def course(log: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The largest share of a decoder in the first tenth of the steps and in the last quarter, in percent."""
    usage_SK = np.array([line["usage_K"] for line in log if line["kind"] == "step"])
    parts = {
        "largest_at_first": usage_SK[: max(1, len(usage_SK) // 10)],
        "largest_at_last": usage_SK[-len(usage_SK) // 4 :],
    }
    return {name: 100 * float(part_SK.mean(0).max()) for name, part_SK in parts.items()}
