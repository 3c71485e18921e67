"""The nine numbers of several variants in one table: ours with deviation, best and significance, the paper's below."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from polyreply.experiments.claims import Significance
from polyreply.experiments.paper import Published
from polyreply.experiments.result import Number, Row, Table
from polyreply.experiments.systems import Lab, Variant
from polyreply.metrics.comparison import SHOWN, Comparison, System, compare
from polyreply.metrics.registry import direction, label
from polyreply.metrics.significance import paired_test

RESAMPLES = 10_000
"""For the p-values of claims, which may be multiplied by how many systems were tried."""
_STARVED = 0.1
"""A decoder is starved when it was trained on less than this part of an equal share."""


@dataclass(frozen=True)
class Scored:
    """A table with the numbers behind it."""

    table: Table
    numbers: dict[str, dict[str, float]]
    """For each variant all its numbers, means over seeds."""
    comparison: Comparison
    learning_rates: dict[str, float]
    """Of stage 2, for each variant that has one."""

    def test(self, system: str, other: str, number: str) -> Significance | None:
        """Tests means over seeds, paired over contexts; None where that cannot be done."""
        found = {one.name: one for one in self.comparison.systems if one.name not in self.comparison.incomparable}
        if not {system, other} <= found.keys():
            return None
        columns = found[system].columns(), found[other].columns()
        difference = paired_test(*columns, [number], samples=RESAMPLES).get(number)
        if difference is None or difference.p_value is None:
            return None
        return Significance(difference.p_value, _agree(found[system], found[other], number))

    def tree(self) -> dict[str, Any]:
        """All of it for programs: means, every seed by itself, intervals and tests."""
        return {
            "means": self.numbers,
            "learning_rates": self.learning_rates,
            "per_seed": {one.name: [scores.numbers for scores in one.seeds] for one in self.comparison.systems},
            "comparison": self.comparison.tree(),
        }

    @property
    def signatures(self) -> list[str]:
        """How the scores were made."""
        return list(self.comparison.signatures)


def score_table(
    lab: Lab, title: str, variants: Sequence[Variant], published: Published | None = None, baseline: str | None = None
) -> Scored:
    """Scores the variants, where that is not done, and tests each against the baseline (the first, unless named).

    A variant whose training diverged has a row that says so, and no numbers.
    """
    trained, diverged = lab.trained(variants)
    systems = {variant.name: lab.scored(variant) for variant in trained}
    baseline = baseline if baseline in systems else None
    comparison = compare(*systems.values(), baseline=baseline, notify=lab.workshop.notify)
    rows = []
    for name in (variant.name for variant in variants):
        rows.append(_row(comparison, systems[name]) if name in systems else _diverged_row(name))
        if published and name in published.numbers:
            theirs = published.numbers[name]
            rows.append(
                Row([f"paper, {published.dataset}", *(Number(theirs.get(number)) for number in SHOWN)], is_paper=True)
            )
    headings = ["system", *(label(name) + {1: " ↑", -1: " ↓", 0: ""}[direction(name)] for name in SHOWN)]
    notes = [*comparison.legend(), *comparison.provenance()]
    if published:
        notes.append(f"The paper's numbers are of its {published.source}, on {published.dataset}.")
    rates = {variant.name: lab.learning_rate(variant) for variant in trained if variant.is_trained_by_em}
    notes += [*training_notes(lab, trained), *(f"Diverged: {told}." for told in diverged)]
    numbers = {variant.name: {**_means(systems[variant.name]), **_usage(lab, variant)} for variant in trained}
    return Scored(Table(title, headings, rows, notes), numbers, comparison, rates)


def training_notes(lab: Lab, variants: Iterable[Variant]) -> list[str]:
    """The seeds of a lab, and the learning rates that the variants have got."""
    return [seeds_note(lab.preset.seeds), *rates_notes(lab, variants)]


def seeds_note(seeds: Sequence[int]) -> str:
    """The seeds that a table's systems were trained with."""
    return f"{'Seed' if len(seeds) == 1 else 'Seeds'} of stage 2: {', '.join(map(str, seeds))}."


def rates_notes(lab: Lab, variants: Iterable[Variant]) -> list[str]:
    """The learning rates that the variants have got, a line for each list they were chosen from."""
    families: dict[tuple[float, ...], list[str]] = {}
    for one in variants:
        if one.is_trained_by_em:
            families.setdefault(lab.rates(one), []).append(f"{one.name} {lab.learning_rate(one):g}")
    select = lab.preset.rates.select
    return [
        f"Learning rates of stage 2, {_how(offered, select)}: {', '.join(got)}." for offered, got in families.items()
    ]


def _how(offered: Sequence[float], select: str) -> str:
    if len(offered) == 1:
        return "the same for all"
    told = ", ".join(f"{rate:g}" for rate in offered)
    return f"the first of {told}" if select == "first" else f"chosen by {select} from {told}"


def _row(comparison: Comparison, system: System) -> Row:
    return Row([system.name, *(_number(comparison, system, name) for name in SHOWN)])


def _diverged_row(name: str) -> Row:
    return Row([name, "diverged", *(Number(None) for _ in SHOWN[1:])])


def _number(comparison: Comparison, system: System, name: str) -> Number:
    is_best, is_significant = system.name in comparison.best(name), comparison.significant(system.name, name)
    return Number(system.mean(name), system.std(name), is_best, is_significant)


def _means(system: System) -> dict[str, float]:
    names = dict.fromkeys(name for one in system.seeds for name in one.numbers)
    return {name: mean for name in names if (mean := system.mean(name)) is not None}


def _agree(one: System, two: System, number: str) -> bool:
    """Whether the same of two systems is ahead with every seed; a system with one seed meets all of the other's."""
    seeds = max(len(one.seeds), len(two.seeds))
    pairs = zip(*(one.seeds * seeds if len(one.seeds) == 1 else one.seeds for one in (one, two)), strict=False)
    gaps = [first.numbers[number] - second.numbers[number] for first, second in pairs]
    return all(gap > 0 for gap in gaps) or all(gap < 0 for gap in gaps)


def _usage(lab: Lab, variant: Variant) -> dict[str, float]:
    """How unequally the decoders of all seeds were trained; nothing for variants without decoders of their own."""
    if not variant.is_trained_by_em:
        return {}
    shares = [lab.usage(variant, seed)["share"] for seed in lab.seeds(variant)]
    return {
        "starved": sum(starved(share) for share in shares) / len(shares),
        "largest_share": 100 * max(map(max, shares)),
        "smallest_share": 100 * min(map(min, shares)),
    }


def starved(share_K: Sequence[float]) -> float:
    """Percentage of the decoders that got less than a tenth of an equal share."""
    return 100 * sum(share < _STARVED / len(share_K) for share in share_K) / len(share_K)
