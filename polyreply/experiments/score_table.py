"""The scores of several variants in one table: ours with deviations, best and significance, the paper's below them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from polyreply.experiments.claims import Significance
from polyreply.experiments.paper import Published
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import Variant
from polyreply.metrics import Comparison, System, compare
from polyreply.metrics.registry import column
from polyreply.metrics.significance import paired_test
from polyreply.tables import Row, Table

RESAMPLES = 10_000
"""For the p-values of claims, which may be multiplied by the number of systems that were tried."""
_STARVED = 0.1
"""A decoder is starved if it was trained on less than this part of an equal share."""


@dataclass(frozen=True)
class Scored:
    """A table and the numbers behind it."""

    table: Table
    numbers: dict[str, dict[str, float]]
    """All numbers of each variant, means over seeds."""
    comparison: Comparison
    learning_rates: dict[str, float]
    """Of stage 2 or of the method's own training, for each variant that has one."""

    @property
    def signatures(self) -> list[str]:
        """How the scores were computed."""
        return list(self.comparison.signatures)

    def test(self, system: str, other: str, number: str) -> Significance | None:
        """Test means over seeds, paired over contexts; None where that is impossible."""
        comparable = {one.name: one for one in self.comparison.systems if one.name not in self.comparison.incomparable}
        if not {system, other} <= comparable.keys():
            return None
        one, two = comparable[system], comparable[other]
        difference = paired_test(one.columns(), two.columns(), [number], samples=RESAMPLES).get(number)
        if difference is None or difference.p_value is None:
            return None
        return Significance(difference.p_value, _seeds_agree(one, two, number))

    def tree(self) -> dict[str, Any]:
        """All of it for programs: means, each seed, intervals and tests."""
        return {
            "means": self.numbers,
            "learning_rates": self.learning_rates,
            "per_seed": {one.name: [scores.numbers for scores in one.seeds] for one in self.comparison.systems},
            "comparison": self.comparison.tree(),
        }


def score_table(
    systems: Systems,
    title: str,
    variants: Sequence[Variant],
    published: Published | None = None,
    baseline: str | None = None,
) -> Scored:
    """Score the variants, where that is missing, and test each against the baseline (by default the first).

    A variant whose training diverged gets a row without numbers.
    """
    trained, diverged = systems.trained(variants)
    scored = {variant.name: systems.scored(variant) for variant in trained}
    baseline = baseline if baseline in scored else None
    comparison = compare(*scored.values(), baseline=baseline, notify=systems.cache.notify)
    shown, rows = comparison.shown, []
    for name in (variant.name for variant in variants):
        if name in scored:
            rows.append(Row([name, *(comparison.cell(scored[name], number) for number in shown)]))
        else:
            rows.append(Row([name, "diverged", *(None for _ in shown[1:])]))
        if published and name in published.numbers:
            theirs = published.numbers[name]
            rows.append(Row([f"paper, {published.dataset}", *map(theirs.get, shown)], muted=True))
    notes = [*comparison.legend(), *comparison.provenance()]
    if published:
        notes.append(f"The paper's numbers are from its {published.source}, on {published.dataset}.")
    notes += [*training_notes(systems, trained), *(f"Diverged: {message}." for message in diverged)]
    numbers = {one.name: {**_means(scored[one.name]), **_usage(systems, one)} for one in trained}
    rates = {variant.name: systems.learning_rate(variant) for variant in trained if variant.is_trained}
    return Scored(Table(title, ["system", *map(column, shown)], rows, notes), numbers, comparison, rates)


def _means(system: System) -> dict[str, float]:
    names = dict.fromkeys(name for one in system.seeds for name in one.numbers)
    return {name: mean for name in names if (mean := system.mean(name)) is not None}


def _seeds_agree(one: System, two: System, number: str) -> bool:
    """Whether the same system is ahead with every seed; a single seed is compared with all of the other system's."""
    seeds = max(len(one.seeds), len(two.seeds))
    pairs = zip(*(one.seeds * seeds if len(one.seeds) == 1 else one.seeds for one in (one, two)), strict=False)
    gaps = [first.numbers[number] - second.numbers[number] for first, second in pairs]
    return all(gap > 0 for gap in gaps) or all(gap < 0 for gap in gaps)


def _usage(systems: Systems, variant: Variant) -> dict[str, float]:
    """How unequally the decoders of all seeds were trained; nothing for variants without a stage 2."""
    if not variant.is_trained_by_em:
        return {}
    shares = [systems.usage(variant, seed)["share"] for seed in systems.seeds(variant)]
    return {
        "starved": sum(starved(share) for share in shares) / len(shares),
        "largest_share": 100 * max(map(max, shares)),
        "smallest_share": 100 * min(map(min, shares)),
    }


def starved(share_K: Sequence[float]) -> float:
    """Percentage of the decoders that got less than a tenth of an equal share."""
    return 100 * sum(share < _STARVED / len(share_K) for share in share_K) / len(share_K)


def training_notes(systems: Systems, variants: Iterable[Variant]) -> list[str]:
    """The seeds, and the learning rates that the variants were trained with."""
    return [seeds_note(systems.preset.seeds), *rates_notes(systems, variants)]


def seeds_note(seeds: Sequence[int]) -> str:
    """The seeds that the systems of a table were trained with."""
    return f"{'Seed' if len(seeds) == 1 else 'Seeds'} of stage 2: {', '.join(map(str, seeds))}."


def rates_notes(systems: Systems, variants: Iterable[Variant]) -> list[str]:
    """The learning rates that the variants were trained with, a line for each list they were chosen from."""
    families: dict[tuple[str, tuple[float, ...]], list[str]] = {}
    for one in variants:
        if one.is_trained:
            where = "Learning rates of stage 2" if one.is_trained_by_em else "Learning rates"
            family = families.setdefault((where, systems.rates(one)), [])
            family.append(f"{one.name} {systems.learning_rate(one):g}")
    select, notes = systems.preset.rates.select, []
    for (where, offered), chosen in families.items():
        rates = ", ".join(f"{rate:g}" for rate in offered)
        how = f"the first of {rates}" if select == "first" else f"chosen by {select} from {rates}"
        how = "the same for all" if len(offered) == 1 else how
        notes.append(f"{where}, {how}: {', '.join(chosen)}.")
    return notes
