"""Several systems side by side: seeds of one system together, each system tested against the baseline."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from polyreply.errors import PolyReplyError
from polyreply.metrics.scores import LOWER_IS_BETTER, PAPER_NUMBERS, Scores, load_scores
from polyreply.metrics.significance import TESTS, Difference, Floats, TestName, intervals, paired_test
from polyreply.progress import Notify, silent

SHOWN = (*PAPER_NUMBERS, "identical")
"""The columns of a table: the paper's, and what Pairwise-BLEU hides."""
DECIMALS = 2
"""As in the paper; numbers that are equal when shown are equally good."""


@dataclass(frozen=True)
class System:
    """One system with the scores of its seeds."""

    name: str
    seeds: list[Scores]

    def mean(self, number: str) -> float | None:
        """The number, averaged over seeds; None where a seed has none."""
        values = self._values(number)
        return statistics.fmean(values) if values else None

    def std(self, number: str) -> float | None:
        """The sample standard deviation over seeds; None for a single one."""
        values = self._values(number)
        return statistics.stdev(values) if len(values) > 1 else None

    def columns(self) -> dict[str, Floats]:
        """Per-context values, averaged over seeds."""
        names = [name for name in self.seeds[0].per_context if all(name in one.per_context for one in self.seeds)]
        return {name: np.mean([one.per_context[name] for one in self.seeds], axis=0) for name in names}

    def _values(self, number: str) -> list[float]:
        values = [one.numbers.get(number) for one in self.seeds]
        known = [value for value in values if value is not None]
        return known if len(known) == len(values) else []


@dataclass(frozen=True)
class Comparison:
    """Systems with what was found about them."""

    systems: list[System]
    baseline: str
    test: str
    samples: int
    seed: int
    alpha: float
    intervals: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """95 % interval of each number of each system, over contexts."""
    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)
    """Each system but the baseline: its numbers less the baseline's. Empty when the contexts differ."""
    warnings: list[str] = field(default_factory=list)

    def best(self, number: str) -> set[str]:
        """The systems with the best value of a number, as it is shown; none when there is only one system."""
        shown = {
            system.name: round(value, DECIMALS) for system in self.systems if (value := system.mean(number)) is not None
        }
        if len(shown) < 2:
            return set()
        top = min(shown.values()) if number in LOWER_IS_BETTER else max(shown.values())
        return {name for name, value in shown.items() if value == top}

    def significant(self, system: str, number: str) -> bool:
        """Whether the difference from the baseline is unlikely to be luck."""
        found = self.differences.get(system, {}).get(number)
        return found is not None and found.p_value < self.alpha

    @property
    def signatures(self) -> list[str]:
        """Every signature that occurs, once."""
        return list(dict.fromkeys(str(one.signature) for system in self.systems for one in system.seeds))


def read_systems(arguments: Sequence[str]) -> list[System]:
    """Systems from `FILE` or `NAME=FILE,FILE,…` arguments; what has one name is one system, a file for each seed."""
    found: dict[str, list[Scores]] = {}
    seen: set[Path] = set()
    for argument in arguments:
        name, files = _name_and_files(argument)
        for path in files:
            scores = load_scores(path)
            if path.resolve() in seen:
                raise PolyReplyError(f"{path}: expected each score file once, found it twice; leave one out")
            seen.add(path.resolve())
            found.setdefault(name or scores.system, []).append(scores)
    return [System(name, seeds) for name, seeds in found.items()]


def _name_and_files(argument: str) -> tuple[str, list[Path]]:
    """What an argument names; a file that exists is taken as it is, whatever signs its name has."""
    name, equals, files = argument.partition("=")
    if not equals or Path(argument).exists():
        name, files = "", argument
    parts = [files] if Path(files).exists() else files.split(",")
    return name, [Path(part) for part in parts]


def compare_systems(
    systems: Sequence[System],
    *,
    baseline: str | None = None,
    test: TestName = "bootstrap",
    samples: int = 1000,
    seed: int = 0,
    alpha: float = 0.05,
    notify: Notify = silent,
) -> Comparison:
    """Tests every system against the baseline (the first one, unless named) on every number of the table."""
    names = [system.name for system in systems]
    if test not in TESTS:
        raise PolyReplyError(f"test: expected {' or '.join(TESTS)}, found {test!r}; name one of these")
    if not 0 < alpha < 1:
        raise PolyReplyError(f"alpha: expected a level between 0 and 1, found {alpha}; the usual one is 0.05")
    if baseline is not None and baseline not in names:
        raise PolyReplyError(f"baseline: expected one of {', '.join(names)}, found {baseline!r}; name one of these")
    first = systems[names.index(baseline)] if baseline is not None else systems[0]
    found = Comparison(list(systems), first.name, test, samples, seed, alpha, warnings=_warnings(systems))
    paired = _same_contexts(systems)
    for place, system in enumerate(systems):
        notify(f"resampling {system.name}", place / len(systems))
        if _same_contexts([system]):
            columns = system.columns()
            found.intervals[system.name] = intervals(columns, SHOWN, samples=samples, seed=seed)
            if paired and system is not first:
                found.differences[system.name] = paired_test(
                    columns, first.columns(), SHOWN, test=test, samples=samples, seed=seed
                )
    return found


def _same_contexts(systems: Sequence[System]) -> bool:
    return len({(one.data, one.num_contexts) for system in systems for one in system.seeds}) == 1


def _warnings(systems: Sequence[System]) -> list[str]:
    """What makes these scores incomparable."""
    warnings = []
    files = [(system.name, one) for system in systems for one in system.seeds]
    name, first = files[0]
    told: set[tuple[str, str]] = set()
    for other_name, other in files[1:]:
        differ = "; ".join(first.signature.differences(other.signature))
        if differ and (other_name, differ) not in told:
            told.add((other_name, differ))
            warnings.append(
                f"the signatures of {name} and {other_name} differ ({differ}): their numbers are not comparable; "
                "evaluate both in the same way"
            )
    if not _same_contexts(systems):
        warnings.append(
            "the systems were not scored on the same contexts and references: no significance is computed; evaluate "
            "all of them on one file"
        )
    elif not first.data:
        warnings.append("nothing says that the systems answered the same contexts: significance assumes it")
    return warnings
