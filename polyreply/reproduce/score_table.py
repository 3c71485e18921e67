"""The nine numbers of several variants in one table: ours with deviation, best and significance, the paper's below."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polyreply.metrics.cells import Marks, legend, origins
from polyreply.metrics.comparison import SHOWN, Comparison, compare_systems
from polyreply.metrics.labels import direction, label
from polyreply.metrics.systems import System
from polyreply.metrics.table_data import as_tree
from polyreply.reproduce.lab import Lab, Variant
from polyreply.reproduce.paper import Published
from polyreply.reproduce.result import Number, Row, Table

_STARVED = 0.1
"""A decoder is starved when it was trained on less than this part of an equal share."""


@dataclass(frozen=True)
class Scored:
    """A table with the numbers behind it."""

    table: Table
    numbers: dict[str, dict[str, float]]
    """For each variant all its numbers, means over seeds."""
    comparison: Comparison

    def tree(self) -> dict[str, Any]:
        """All of it for programs: means, every seed by itself, intervals and tests."""
        return {
            "means": self.numbers,
            "per_seed": {one.name: [scores.numbers for scores in one.seeds] for one in self.comparison.systems},
            "comparison": as_tree(self.comparison),
        }

    @property
    def signatures(self) -> list[str]:
        """How the scores were made."""
        return list(self.comparison.signatures)


def score_table(
    lab: Lab, title: str, variants: Sequence[Variant], published: Published | None = None, baseline: str | None = None
) -> Scored:
    """Scores the variants, where that is not done, and tests each against the baseline (the first, unless named)."""
    systems = [lab.scored(variant) for variant in variants]
    comparison = compare_systems(systems, baseline=baseline, notify=lab.workshop.notify)
    rows = []
    for system in systems:
        rows.append(Row([system.name, *(_number(comparison, system, name) for name in SHOWN)]))
        if published and system.name in published.numbers:
            theirs = published.numbers[system.name]
            rows.append(
                Row([f"paper, {published.dataset}", *(Number(theirs.get(name)) for name in SHOWN)], is_paper=True)
            )
    headings = ["system", *(label(name).full + {1: " ↑", -1: " ↓", 0: ""}[direction(name)] for name in SHOWN)]
    notes = [*legend(comparison, Marks(("", ""), "*", ("", ""))), *origins(comparison)]
    if published:
        notes.append(f"The paper's numbers are of its {published.source}, on {published.dataset}.")
    numbers = {
        variant.name: {**_means(system), **_usage(lab, variant)}
        for variant, system in zip(variants, systems, strict=True)
    }
    return Scored(Table(title, headings, rows, notes), numbers, comparison)


def _number(comparison: Comparison, system: System, name: str) -> Number:
    is_best, is_significant = system.name in comparison.best(name), comparison.significant(system.name, name)
    return Number(system.mean(name), system.std(name), is_best, is_significant)


def _means(system: System) -> dict[str, float]:
    names = dict.fromkeys(name for one in system.seeds for name in one.numbers)
    return {name: mean for name in names if (mean := system.mean(name)) is not None}


def _usage(lab: Lab, variant: Variant) -> dict[str, float]:
    """How unequally the decoders were trained; nothing for variants without decoders of their own."""
    if not variant.is_trained_by_em:
        return {}
    shares = [lab.usage(variant, seed)["share"] for seed in lab.seeds(variant)]
    return {
        "starved": sum(starved(share) for share in shares) / len(shares),
        "largest_share": 100 * sum(map(max, shares)) / len(shares),
        "smallest_share": 100 * sum(map(min, shares)) / len(shares),
    }


def starved(share_K: Sequence[float]) -> float:
    """Percentage of the decoders that got less than a tenth of an equal share."""
    return 100 * sum(share < _STARVED / len(share_K) for share in share_K) / len(share_K)
