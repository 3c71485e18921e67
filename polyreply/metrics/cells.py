"""What every form of a table has in common: a number with its marks, and the notes below the table."""

from collections.abc import Callable
from dataclasses import dataclass

from polyreply.metrics.comparison import DECIMALS, Comparison
from polyreply.metrics.systems import System

NONE = "–"
"""A number that a system does not have."""


@dataclass(frozen=True)
class Marks:
    """How a form of a table writes what is special about a number."""

    bold: tuple[str, str]
    """Before and after the best number of a column."""
    star: str
    """Behind a number that differs significantly from the baseline's."""
    deviation: tuple[str, str]
    """Before and after the standard deviation over seeds."""
    plus_minus: str = "±"
    escape: Callable[[str], str] = str
    """Makes any text harmless in that form."""


def cell(comparison: Comparison, system: System, number: str, marks: Marks) -> str:
    """A number with its marks."""
    mean, std = system.mean(number), system.std(number)
    if mean is None:
        return NONE
    text = f"{mean:.{DECIMALS}f}"
    if system.name in comparison.best(number):
        text = text.join(marks.bold)
    if comparison.significant(system.name, number):
        text += marks.star
    return text if std is None else text + f"{std:.{DECIMALS}f}".join(marks.deviation)


def legend(comparison: Comparison, marks: Marks) -> list[str]:
    """What the marks of a table mean; nothing where there can be none."""
    lines = []
    if any(one.p_value is not None for tested in comparison.differences.values() for one in tested.values()):
        told = (
            f" differs from {comparison.baseline}: paired {comparison.test} over contexts, {comparison.samples} "
            f"resamples, seed {comparison.seed}, p < {comparison.alpha:g}"
        )
        lines.append(marks.star + marks.escape(told))
    several = [f"{system.name} {len(system.seeds)}" for system in comparison.systems if len(system.seeds) > 1]
    if several:
        told = marks.escape(f" standard deviation over seeds: {', '.join(several)}")
        lines.append(f"mean {marks.plus_minus}{told}")
    return lines


def origins(comparison: Comparison) -> list[str]:
    """How the numbers were made, and what speaks against comparing them."""
    signatures = comparison.signatures
    if len(signatures) == 1:
        lines = [f"signature {text}" for text in signatures]
    else:
        lines = [f"signature ({', '.join(names)}): {text}" for text, names in signatures.items()]
    return [*lines, *(f"warning: {warning}" for warning in comparison.warnings)]
