"""Several systems side by side, each of them tested against the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from polyreply.errors import PolyReplyError
from polyreply.metrics.labels import direction
from polyreply.metrics.scores import PAPER_NUMBERS
from polyreply.metrics.significance import TESTS, Difference, TestName, intervals, paired_test
from polyreply.metrics.systems import System
from polyreply.progress import Notify, silent

SHOWN = (*PAPER_NUMBERS, "identical")
"""The columns of a table: the paper's, and what Pairwise-BLEU hides."""
DECIMALS = 2
"""As in the paper; numbers that are equal when shown are equally good."""
FEW_CONTEXTS = 10
"""With fewer contexts than this the bootstrap finds more than there is."""


@dataclass(frozen=True)
class Comparison:
    """Systems with what was found about them."""

    systems: list[System]
    baseline: str
    test: str
    samples: int
    seed: int
    alpha: float
    columns: tuple[str, ...] = ()
    """The numbers that were asked for; empty for the usual ones."""
    intervals: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """95 % interval of each number of each system, over contexts."""
    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)
    """Each system that is comparable with the baseline, but itself: its numbers less the baseline's."""
    incomparable: dict[str, str] = field(default_factory=dict)
    """Why a system cannot be compared with the baseline: neither bold nor tested."""
    remarks: list[str] = field(default_factory=list)
    """What else weakens the comparison."""

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns of a table for people."""
        return self.columns or SHOWN

    @property
    def listed(self) -> tuple[str, ...]:
        """The numbers of a table for programs: all that there are, unless some were asked for."""
        return self.columns or tuple(all_numbers(self.systems))

    @property
    def warnings(self) -> list[str]:
        """All that a reader has to know before trusting a mark."""
        return [*self.incomparable.values(), *self.remarks]

    @property
    def signatures(self) -> dict[str, list[str]]:
        """Every signature that occurs, with the names of its systems."""
        found: dict[str, list[str]] = {}
        for system in self.systems:
            for text in dict.fromkeys(str(one.signature) for one in system.seeds):
                found.setdefault(text, []).append(system.name)
        return found

    def best(self, number: str) -> set[str]:
        """The systems with the best value of a number, as it is shown, among at least two that are comparable."""
        shown = {
            system.name: round(value, DECIMALS)
            for system in self.systems
            if system.name not in self.incomparable and (value := system.mean(number)) is not None
        }
        better = direction(number)
        if len(shown) < 2 or not better:
            return set()
        top = better * max(better * value for value in shown.values())
        return {name for name, value in shown.items() if value == top}

    def significant(self, system: str, number: str) -> bool:
        """Whether the difference from the baseline is unlikely to be luck."""
        found = self.differences.get(system, {}).get(number)
        return found is not None and found.p_value is not None and found.p_value < self.alpha


def all_numbers(systems: Sequence[System]) -> list[str]:
    """The names of all numbers that a file of these systems holds, in the order of the files."""
    return list(dict.fromkeys(name for system in systems for one in system.seeds for name in one.numbers))


def compare_systems(
    systems: Sequence[System],
    *,
    baseline: str | None = None,
    test: TestName = "bootstrap",
    samples: int = 1000,
    seed: int = 0,
    alpha: float = 0.05,
    columns: Sequence[str] = (),
    notify: Notify = silent,
) -> Comparison:
    """Tests every system against the baseline (the first one, unless named) on every number."""
    numbers, names = all_numbers(systems), [system.name for system in systems]
    _check_options(names, baseline, test, alpha, columns, numbers)
    first = systems[names.index(baseline)] if baseline is not None else systems[0]
    found = Comparison(list(systems), first.name, test, samples, seed, alpha, tuple(dict.fromkeys(columns)))
    found.incomparable.update({one.name: why for one in systems if (why := _why_incomparable(first, one))})
    found.remarks.extend(_remarks(found, first))
    for place, system in enumerate(systems):
        notify(f"resampling {system.name}", place / len(systems))
        if len({one.num_contexts for one in system.seeds}) > 1:
            continue
        values = system.columns()
        found.intervals[system.name] = intervals(values, numbers, samples=samples, seed=seed)
        if system is not first and not {system.name, first.name} & set(found.incomparable):
            found.differences[system.name] = paired_test(
                values, first.columns(), numbers, test=test, samples=samples, seed=seed
            )
    return found


def _check_options(
    names: Sequence[str], baseline: str | None, test: str, alpha: float, columns: Sequence[str], numbers: Sequence[str]
) -> None:
    if test not in TESTS:
        raise PolyReplyError(f"test: expected {' or '.join(TESTS)}, found {test!r}; name one of these")
    if not 0 < alpha < 1:
        raise PolyReplyError(f"alpha: expected a level between 0 and 1, found {alpha}; the usual one is 0.05")
    if baseline is not None and baseline not in names:
        raise PolyReplyError(f"baseline: expected one of {', '.join(names)}, found {baseline!r}; name one of these")
    unknown = next((name for name in columns if name not in numbers), None)
    if unknown is not None:
        raise PolyReplyError(f"columns: expected some of {', '.join(numbers)}, found {unknown!r}; name some of these")


def _why_incomparable(first: System, system: System) -> str:
    """Empty when all seeds of both were scored in the same way on the same contexts."""
    pairs = [(one, two) for one in first.seeds for two in system.seeds]
    differ = dict.fromkeys("; ".join(one.signature.differences(two.signature)) for one, two in pairs)
    told = next((text for text in differ if text), "")
    both = f"the seeds of {system.name}" if system is first else f"{first.name} and {system.name}"
    if told:
        return (
            f"the signatures of {both} differ ({told}): their numbers are not comparable, {_NO_MARKS}; evaluate "
            "both in the same way"
        )
    if any((one.data, one.num_contexts) != (two.data, two.num_contexts) for one, two in pairs):
        return (
            f"{both} were not scored on the same contexts and references: no significance is computed, "
            f"{_NO_MARKS}; evaluate both on one file"
        )
    return ""


_NO_MARKS = "no bold and no *"


def _remarks(found: Comparison, first: System) -> list[str]:
    """What weakens the tests that can be made."""
    if len(found.systems) - len(found.incomparable) < 2:
        return []
    remarks, contexts = [], first.seeds[0].num_contexts
    if contexts < 2:
        remarks.append("one context says nothing about others: nothing is tested; evaluate more contexts")
    elif contexts < FEW_CONTEXTS and found.test == "bootstrap":
        remarks.append(
            f"with {contexts} contexts the bootstrap finds differences that are none; say --test permutation, or "
            "evaluate more contexts"
        )
    if 1 / (1 + found.samples) >= found.alpha:
        enough = int(1 / found.alpha) + 1
        remarks.append(
            f"with {found.samples} resamples no p-value falls below {found.alpha:g}: nothing can be marked; say "
            f"--samples {max(1000, enough)}"
        )
    if not first.seeds[0].data:
        remarks.append("nothing says that the systems answered the same contexts: significance assumes it")
    return remarks
