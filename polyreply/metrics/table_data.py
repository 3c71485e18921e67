"""A comparison for programs: CSV and JSON in full precision."""

import csv
import io
import json
from typing import Any

from polyreply.metrics.comparison import Comparison
from polyreply.metrics.systems import System

_PARTS = ("mean", "std", "low", "high", "difference", "difference_low", "difference_high", "p_value")
"""What is known of a number; in CSV each is a column, the mean under the number's own name."""


def comma_separated(comparison: Comparison) -> str:
    """One line for each system: every number with its deviation, interval, difference and p-value."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    headings = [number if part == "mean" else f"{number}_{part}" for number in comparison.listed for part in _PARTS]
    writer.writerow(["system", "seeds", *headings, "signature", "warning"])
    for system in comparison.systems:
        facts = [_facts(comparison, system, number) for number in comparison.listed]
        values = ["" if fact[part] is None else fact[part] for fact in facts for part in _PARTS]
        warning = comparison.incomparable.get(system.name, "")
        writer.writerow([system.name, len(system.seeds), *values, system.signature, warning])
    return stream.getvalue()


def as_json(comparison: Comparison) -> str:
    """Everything that is known about the comparison."""
    return json.dumps(as_tree(comparison), ensure_ascii=False, indent=2) + "\n"


def as_tree(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain values."""
    return {
        "baseline": comparison.baseline,
        "test": comparison.test,
        "samples": comparison.samples,
        "seed": comparison.seed,
        "alpha": comparison.alpha,
        "signatures": list(comparison.signatures),
        "warnings": comparison.warnings,
        "systems": [
            {
                "system": system.name,
                "seeds": len(system.seeds),
                "signature": system.signature,
                "comparable": system.name not in comparison.incomparable,
                "numbers": {number: _facts(comparison, system, number) for number in comparison.listed},
            }
            for system in comparison.systems
        ],
    }


def _facts(comparison: Comparison, system: System, number: str) -> dict[str, Any]:
    low, high = comparison.intervals.get(system.name, {}).get(number, (None, None))
    found = comparison.differences.get(system.name, {}).get(number)
    return {
        "mean": system.mean(number),
        "std": system.std(number),
        "low": low,
        "high": high,
        "difference": found and found.value,
        "difference_low": found and found.low,
        "difference_high": found and found.high,
        "p_value": found and found.p_value,
        "significant": comparison.significant(system.name, number),
        "best": system.name in comparison.best(number),
    }
