"""What the decoders of several variants were trained on, as a table and as a picture.

Legend: S EM steps, K decoders.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyreply.experiments.result import Picture
from polyreply.experiments.score_table import starved, training_notes
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import Variant
from polyreply.tables import Row, Table
from polyreply.training.run_log import read
from polyreply.training.usage import plot_assignment

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
    """What the decoders of some variants were trained on, with the first seed."""

    table: Table
    picture: Picture
    numbers: dict[str, dict[str, float]]
    """For each variant whose training did not diverge."""
    shares: dict[str, list[float]]
    """Each decoder's share of the samples."""
    diverged: list[str]
    """A remark on each variant whose training diverged."""


def usage_table(
    systems: Systems, variants: Sequence[Variant], folder: Path, drawn: Collection[str] | None = None
) -> Usage:
    """Train the variants, where that is missing, and draw `assignment.png` with all of them or those named."""
    seed = systems.preset.seeds[0]
    systems = systems.with_seeds((seed,))
    trained, diverged = systems.trained(variants)
    usages = {one.name: systems.usage(one, seed) for one in trained}
    panels = {_short(name): usage for name, usage in usages.items() if drawn is None or name in drawn}
    plot_assignment(panels or usages, folder / "assignment.png")
    numbers = {}
    for one in trained:
        log = read(systems.cache.get(systems.training(one, seed)) / "log.jsonl")
        numbers[one.name] = {**_numbers(usages[one.name]), **course(log)}
    rows = [Row([name, *(own[column] for column in _COLUMNS)]) for name, own in numbers.items()]
    notes = [*_NOTES, *training_notes(systems, trained)]
    caption = f"Assignment of training samples to decoders, mean ± deviation over samples; seed {seed}."
    return Usage(
        Table("What the decoders were trained on", ["method", *_COLUMNS.values()], rows, notes),
        Picture("assignment.png", caption),
        numbers,
        {name: list(usage["share"]) for name, usage in usages.items()},
        [f"Diverged: {message}." for message in diverged],
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
