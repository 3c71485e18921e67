"""Several systems side by side, each tested against a baseline: `compare(...)`, a `Comparison` and its tables."""

import json
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polyreply.arrays import Floats
from polyreply.errors import PolyReplyError
from polyreply.metrics.registry import METRICS, PAPER_NUMBERS, column, direction
from polyreply.metrics.scores import Scores, load_scores
from polyreply.metrics.significance import TESTS, Difference, TestName, intervals, paired_test
from polyreply.progress import Notify, silent
from polyreply.tables import Cell, Table, Value, one_line

SHOWN = (*PAPER_NUMBERS, "identical")
"""The default columns of a table: the paper's, and what Pairwise-BLEU does not see."""
DECIMALS = 2
"""As in the paper; scores that are equal when shown are equally good."""
FEW_CONTEXTS = 10
"""With fewer contexts than this the bootstrap reports too many differences."""


@dataclass(frozen=True)
class System:
    """One system with the scores of its seeds."""

    name: str
    seeds: list[Scores]

    def mean(self, score: str) -> float | None:
        """The score, averaged over seeds; None unless every seed has it."""
        values = self._values(score)
        return statistics.fmean(values) if values else None

    def std(self, score: str) -> float | None:
        """The sample standard deviation over seeds; None for a single seed."""
        values = self._values(score)
        return statistics.stdev(values) if len(values) > 1 else None

    def columns(self) -> dict[str, Floats]:
        """Per-context values, averaged over seeds."""
        names = [name for name in self.seeds[0].per_context if all(name in one.per_context for one in self.seeds)]
        return {name: np.mean([one.per_context[name] for one in self.seeds], axis=0) for name in names}

    @property
    def signature(self) -> str:
        """The signature of its seeds, or all of them if they differ."""
        return " and ".join(dict.fromkeys(str(one.signature) for one in self.seeds))

    def _values(self, score: str) -> list[float]:
        values = [one.numbers.get(score) for one in self.seeds]
        known = [value for value in values if value is not None]
        return known if len(known) == len(values) else []


ScoresOrFile = Scores | Path | str
SystemOrScores = System | ScoresOrFile | Mapping[str, ScoresOrFile | Sequence[ScoresOrFile]]


def compare(
    *systems: SystemOrScores,
    baseline: str | None = None,
    test: TestName = "bootstrap",
    samples: int = 1000,
    seed: int = 0,
    alpha: float = 0.05,
    columns: Sequence[str] = (),
    notify: Notify = silent,
) -> "Comparison":
    """Test every system against the baseline (by default the first one) on every score.

    A system is `Scores`, a score file (a path, or text such as `ours=seed1.json,seed2.json`), or an entry of a mapping
    from names to one or several of these. Scores with the same name are the seeds of one system. `columns` are the
    scores that tables show.
    """
    compared = gather_systems(systems)
    scores, names = all_scores(compared), [system.name for system in compared]
    _check_options(names, baseline, test, alpha, columns, scores)
    first = compared[names.index(baseline)] if baseline is not None else compared[0]
    comparison = Comparison(compared, first.name, test, samples, seed, alpha, tuple(dict.fromkeys(columns)))
    comparison.incomparable.update({one.name: why for one in compared if (why := _why_incomparable(first, one))})
    comparison.remarks.extend(_remarks(comparison, first))
    for place, system in enumerate(compared):
        notify(f"resampling {system.name}", place / len(compared))
        if len({one.num_contexts for one in system.seeds}) > 1:
            continue
        values = system.columns()
        comparison.intervals[system.name] = intervals(values, scores, samples=samples, seed=seed)
        if system is not first and not {system.name, first.name} & set(comparison.incomparable):
            comparison.differences[system.name] = paired_test(
                values, first.columns(), scores, test=test, samples=samples, seed=seed
            )
    return comparison


@dataclass(frozen=True)
class Comparison:
    """Systems, and the differences between them; `print(comparison)` shows the table."""

    systems: list[System]
    baseline: str
    test: str
    samples: int
    seed: int
    alpha: float
    columns: tuple[str, ...] = ()
    """The scores to show; empty for the default ones."""
    intervals: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """95 % interval of each score of each system, over contexts."""
    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)
    """For each system that is comparable with the baseline, its scores less the baseline's."""
    incomparable: dict[str, str] = field(default_factory=dict)
    """Why a system cannot be compared with the baseline; such a system is neither bold nor tested."""
    remarks: list[str] = field(default_factory=list)
    """What else weakens the comparison."""

    def __str__(self) -> str:
        return str(self.table())

    @property
    def shown(self) -> tuple[str, ...]:
        """The scores in a table for people: metrics from outside the package follow the default ones."""
        added = [name for name in all_scores(self.systems) if name in METRICS and METRICS[name].version]
        return self.columns or (*SHOWN, *added)

    @property
    def warnings(self) -> list[str]:
        """All that a reader has to know before trusting a mark."""
        return [*self.incomparable.values(), *self.remarks]

    @property
    def signatures(self) -> dict[str, list[str]]:
        """Every signature that occurs, with the names of its systems."""
        systems: dict[str, list[str]] = {}
        for system in self.systems:
            for text in dict.fromkeys(str(one.signature) for one in system.seeds):
                systems.setdefault(text, []).append(system.name)
        return systems

    def best(self, score: str) -> set[str]:
        """The systems with the best value of a score, as it is shown, among at least two that are comparable."""
        shown = {
            system.name: round(value, DECIMALS)
            for system in self.systems
            if system.name not in self.incomparable and (value := system.mean(score)) is not None
        }
        better = direction(score)
        if len(shown) < 2 or not better:
            return set()
        top = better * max(better * value for value in shown.values())
        return {name for name, value in shown.items() if value == top}

    def significant(self, system: str, score: str) -> bool:
        """Whether the difference from the baseline is unlikely to be chance."""
        difference = self.differences.get(system, {}).get(score)
        return difference is not None and difference.p_value is not None and difference.p_value < self.alpha

    def cell(self, system: System, score: str) -> Cell:
        """A score with its deviation over seeds; bold if it is the best, with a star if it is significant."""
        is_best, is_significant = system.name in self.best(score), self.significant(system.name, score)
        return Cell(system.mean(score), system.std(score), is_best, is_significant)

    def table(self) -> Table:
        """The table for people, laid out as in the paper."""
        rows: list[list[Value | Cell]] = [
            [system.name, *(self.cell(system, score) for score in self.shown)] for system in self.systems
        ]
        return Table("", ["System", *map(column, self.shown)], rows, self.legend(), self.provenance())

    def legend(self) -> list[str]:
        """What the marks of the table mean."""
        lines = []
        if any(one.p_value is not None for tested in self.differences.values() for one in tested.values()):
            lines.append(
                f"* differs from {self.baseline}: paired {self.test} over contexts, {self.samples} resamples, seed "
                f"{self.seed}, p < {self.alpha:g}"
            )
        seeds = [f"{system.name} {len(system.seeds)}" for system in self.systems if len(system.seeds) > 1]
        return [*lines, f"mean ± standard deviation over seeds: {', '.join(seeds)}"] if seeds else lines

    def provenance(self) -> list[str]:
        """How the scores were made, and what speaks against comparing them."""
        if len(self.signatures) == 1:
            lines = [f"signature {text}" for text in self.signatures]
        else:
            lines = [f"signature ({', '.join(names)}): {text}" for text, names in self.signatures.items()]
        return [*lines, *(f"warning: {warning}" for warning in self.warnings)]

    def tree(self) -> dict[str, Any]:
        """Everything in full precision, as plain values."""
        return {
            "baseline": self.baseline,
            "test": self.test,
            "samples": self.samples,
            "seed": self.seed,
            "alpha": self.alpha,
            "signatures": list(self.signatures),
            "warnings": self.warnings,
            "systems": [
                {
                    "system": system.name,
                    "seeds": len(system.seeds),
                    "signature": system.signature,
                    "comparable": system.name not in self.incomparable,
                    "numbers": {score: self._facts(system, score) for score in self._listed()},
                }
                for system in self.systems
            ],
        }

    def data_table(self) -> Table:
        """One row for each system: every score with its deviation, interval, difference and p-value."""
        headings = [score if part == "mean" else f"{score}_{part}" for score in self._listed() for part in _PARTS]
        rows: list[list[Value]] = []
        for system in self.systems:
            facts = [self._facts(system, score) for score in self._listed()]
            values = [fact[part] for fact in facts for part in _PARTS]
            warning = self.incomparable.get(system.name, "")
            rows.append([system.name, len(system.seeds), *values, system.signature, warning])
        return Table("", ["system", "seeds", *headings, "signature", "warning"], rows)

    def render(self, form: str) -> str:
        """The comparison as text: `table` in most formats, `data_table` as CSV, `tree` as JSON."""
        if form == "json":
            return json.dumps(self.tree(), ensure_ascii=False, indent=2) + "\n"
        return (self.data_table() if form == "csv" else self.table()).render(form)

    def plot(self, ending: str = ".png") -> bytes:
        """Quality against diversity, as the content of a .png, .svg or .pdf file."""
        from polyreply.metrics.comparison_plot import draw_figure
        from polyreply.plots import image

        return image(draw_figure(self), ending)

    def _listed(self) -> Sequence[str]:
        """The scores for programs: all that there are, unless some were asked for."""
        return self.columns or all_scores(self.systems)

    def _facts(self, system: System, score: str) -> dict[str, Any]:
        low, high = self.intervals.get(system.name, {}).get(score, (None, None))
        difference = self.differences.get(system.name, {}).get(score)
        return {
            "mean": system.mean(score),
            "std": system.std(score),
            "low": low,
            "high": high,
            "difference": difference and difference.value,
            "difference_low": difference and difference.low,
            "difference_high": difference and difference.high,
            "p_value": difference and difference.p_value,
            "significant": self.significant(system.name, score),
            "best": system.name in self.best(score),
        }


_PARTS = ("mean", "std", "low", "high", "difference", "difference_low", "difference_high", "p_value")
"""What is known of a score; in CSV each is a column, the mean under the score's own name."""


def all_scores(systems: Sequence[System]) -> list[str]:
    """The names of all scores of these systems, in the order of their files."""
    return list(dict.fromkeys(name for system in systems for one in system.seeds for name in one.numbers))


def _check_options(
    names: Sequence[str], baseline: str | None, test: str, alpha: float, columns: Sequence[str], scores: Sequence[str]
) -> None:
    if test not in TESTS:
        raise PolyReplyError(f"test: expected {' or '.join(TESTS)}, found {test!r}")
    if not 0 < alpha < 1:
        raise PolyReplyError(f"alpha: expected a level between 0 and 1, found {alpha}; the usual one is 0.05")
    if baseline is not None and baseline not in names:
        raise PolyReplyError(f"baseline: expected one of {', '.join(names)}, found {baseline!r}")
    unknown = next((name for name in columns if name not in scores), None)
    if unknown is not None:
        raise PolyReplyError(f"columns: expected some of {', '.join(scores)}, found {unknown!r}")


def _why_incomparable(first: System, system: System) -> str:
    """Empty if all seeds of both were scored in the same way on the same contexts."""
    pairs = [(one, two) for one in first.seeds for two in system.seeds]
    differences = dict.fromkeys("; ".join(one.signature.differences(two.signature)) for one, two in pairs)
    difference = next((text for text in differences if text), "")
    both = f"the seeds of {system.name}" if system is first else f"{first.name} and {system.name}"
    if difference:
        return (
            f"the signatures of {both} differ ({difference}): their scores are not comparable and get neither bold nor "
            "*; evaluate both in the same way"
        )
    if any((one.data, one.num_contexts) != (two.data, two.num_contexts) for one, two in pairs):
        return (
            f"{both} were not scored on the same contexts and references: they are not tested and get neither bold nor "
            "*; evaluate both on one file"
        )
    return ""


def _remarks(comparison: Comparison, first: System) -> list[str]:
    """What weakens the tests that can be made."""
    if len(comparison.systems) - len(comparison.incomparable) < 2:
        return []
    remarks, contexts, samples = [], first.seeds[0].num_contexts, comparison.samples
    if contexts < 2:
        remarks.append("a single context cannot be resampled: nothing is tested; evaluate more contexts")
    elif contexts < FEW_CONTEXTS and comparison.test == "bootstrap":
        remarks.append(
            f"with {contexts} contexts the bootstrap reports differences that do not exist; use --test permutation, or "
            "evaluate more contexts"
        )
    if 1 / (1 + samples) >= comparison.alpha:
        remarks.append(
            f"with {samples} resamples no p-value falls below {comparison.alpha:g}: nothing can be marked; use "
            f"--samples {max(1000, int(1 / comparison.alpha) + 1)}"
        )
    if not first.seeds[0].data:
        remarks.append("without references nothing shows that the systems answered the same contexts; it is assumed")
    return remarks


# --- which scores belong to one system


def gather_systems(systems: Sequence[SystemOrScores]) -> list[System]:
    """Systems in their order, each with the scores of its name.

    Names come from a mapping or `NAME=FILE`, else from `evaluate(system=…)`, else from the file; scores without any
    name are numbered.
    """
    given = [one for system in systems for one in _entries(system)]
    files = Counter(source.resolve() for _, source in given if isinstance(source, Path))
    twice = next((path for path, count in files.items() if count > 1), None)
    if twice is not None:
        raise PolyReplyError(f"{twice}: expected each score file once, found it twice; leave one out")
    if not given:
        raise PolyReplyError("expected the scores of at least one system, found none")
    loaded = [(name, source, load_scores(source) if isinstance(source, Path) else source) for name, source in given]
    names = [one_line(name or scores.system).strip() for name, _, scores in loaded]
    unnamed = [source for name, (_, source, _) in zip(names, loaded, strict=True) if not name]
    of_files = _names_of_files([source for source in unnamed if isinstance(source, Path)], set(names))
    seeds_of: dict[str, list[Scores]] = {}
    for place, (name, (_, source, scores)) in enumerate(zip(names, loaded, strict=True), start=1):
        fallback = of_files[source] if isinstance(source, Path) and not name else f"system {place}"
        seeds_of.setdefault(name or fallback, []).append(scores)
    return [System(name, seeds) for name, seeds in seeds_of.items()]


def _entries(system: SystemOrScores) -> list[tuple[str, Scores | Path]]:
    """Scores and files, with the name that the caller gave them; `NAME=FILE,FILE` is text for several.

    A file that exists is taken as it is, whatever signs its name has.
    """
    if isinstance(system, System):
        return [(system.name, scores) for scores in system.seeds]
    if isinstance(system, Scores | Path):
        return [("", system)]
    if isinstance(system, Mapping):
        several = [(name, [one] if isinstance(one, Scores | Path | str) else one) for name, one in system.items()]
        return [(name, Path(one) if isinstance(one, str) else one) for name, seeds in several for one in seeds]
    name, equals, files = system.partition("=")
    if not equals or Path(system).exists():
        name, files = "", system
    return [(name, Path(part)) for part in ([files] if Path(files).exists() else files.split(","))]


def _names_of_files(paths: Sequence[Path], taken: Collection[str]) -> dict[Path, str]:
    """A name for each file that was given none: its own without endings, with folders where these are needed.

    If all files have the same name, their folders alone are the names.
    """
    parts = {path: _parts(path) for path in paths}
    same = len(paths) > 1 and len({one[-1] for one in parts.values()}) == 1
    if same and len({one[:-1] for one in parts.values()}) == len(paths):
        parts = {path: one[:-1] for path, one in parts.items()}
    elif len(set(parts.values())) < len(paths):  # a.json and a.json.gz
        parts = {path: (*one[:-1], path.name) for path, one in parts.items()}
    return {
        path: _shortest(one, [other for other in parts.values() if other != one], taken) for path, one in parts.items()
    }


def _parts(path: Path) -> tuple[str, ...]:
    """A file's folders and its name without endings."""
    whole = path.absolute()
    return (*whole.parts[1:-1], whole.name.removesuffix(".gz").removesuffix(".json"))


def _shortest(parts: tuple[str, ...], others: Sequence[tuple[str, ...]], taken: Collection[str]) -> str:
    """The fewest last parts of a path that no other path ends in and that are not the name of another system."""
    ends = (one_line("/".join(parts[-depth:])) for depth in range(1, len(parts) + 1))
    theirs = {one_line("/".join(other[-depth:])) for other in others for depth in range(1, len(other) + 1)}
    return next((end for end in ends if end not in theirs and end not in taken), one_line("/" + "/".join(parts)))
