"""What the paper claims, as small functions over numbers: each holds, does not hold, or was not measured."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from polyreply.experiments.paper import Numbers
from polyreply.metrics.registry import direction, label

Outcome = Literal["holds", "holds, not significantly", "does not hold", "not measured"]
_DECIMALS = 2
"""Numbers that are equal when shown are equal."""
_ZERO = 1e-9
"""BLEU without a common n-gram is not quite 0."""
_ALPHA = 0.05
_LEAST = 0.001
"""P-values below it are told so."""
_PAIRWISE, _IDENTICAL = "pairwise_bleu", "identical"
Judged = tuple[bool | None, str]
"""Whether a claim holds (None: the numbers cannot tell), and by which of them."""
Judge = Callable[[Numbers], Judged]
"""Judges by numbers; a KeyError: one is missing."""


@dataclass(frozen=True)
class Significance:
    """What a test says of the difference between two systems in a number."""

    p_value: float
    """How likely luck with the contexts alone gives such a difference."""
    seeds_agree: bool = True
    """Whether it points the same way with every seed."""


Test = Callable[[str, str, str], Significance | None]
"""Tests two systems in a number; None where it cannot be tested."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that numbers can confirm."""

    text: str
    source: str
    judge: Judge


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    text: str
    source: str
    outcome: Outcome
    ours: str
    """Our numbers for it."""
    paper: str
    """The paper's, where it has them."""


def check(
    claims: Sequence[Claim], ours: Numbers, paper: Numbers | None = None, test: Test | None = None
) -> list[Verdict]:
    """Judges each claim by our numbers, and puts the paper's own beside them. Who is best is tested, if that can be."""
    verdicts = []
    for claim in claims:
        holds, told = _judged(claim, ours)
        outcome: Outcome = "not measured" if holds is None else "holds" if holds else "does not hold"
        if holds and test and isinstance(claim.judge, Best) and (tested := _tested(claim.judge, ours, test)):
            told += f"; p = {tested.p_value:.3f}" if tested.p_value >= _LEAST else f"; p < {_LEAST:g}"
            told += "" if tested.seeds_agree else "; not with every seed"
            outcome = "holds" if tested.p_value < _ALPHA and tested.seeds_agree else "holds, not significantly"
        verdicts.append(Verdict(claim.text, claim.source, outcome, told, _judged(claim, paper or {})[1]))
    return verdicts


def _tested(best: "Best", numbers: Numbers, test: Test) -> Significance | None:
    """Whoever is best has to beat each of the others: the largest p-value counts, and all seeds against all of them."""
    tests = (test(best.system, rival, best.number) for rival in best.rivals(numbers))
    found = [one for one in tests if one]
    return Significance(max(one.p_value for one in found), all(one.seeds_agree for one in found)) if found else None


def _judged(claim: Claim, numbers: Numbers) -> Judged:
    try:
        return claim.judge(numbers)
    except KeyError:
        return None, ""


def corrected(test: Test, tries: int) -> Test:
    """The test for the best of several that were tried: p-values times their number, at most 1 (Bonferroni)."""

    def corrected_test(system: str, other: str, number: str) -> Significance | None:
        found = test(system, other, number)
        return found and replace(found, p_value=min(1.0, found.p_value * tries))

    return corrected_test


@dataclass(frozen=True)
class Best:
    """The judge of whether a system has the best (or the worst) value of a number among some.

    Those that were not measured do not count.
    """

    system: str
    number: str
    among: Sequence[str]
    sign: int
    """1 where the system's value is to be the highest, -1 for the lowest."""

    def __call__(self, numbers: Numbers) -> Judged:
        """Judges by numbers."""
        rivals = self.rivals(numbers)
        own, other = numbers[self.system][self.number], numbers[rivals[0]][self.number]
        told = f"{own:.2f}; of the others {rivals[0]}, {other:.2f}"
        return _firm(numbers, (self.system, *rivals), self.number, self._leads, told)

    def _leads(self, own: float, *others: float) -> bool:
        return all(_sign(self.sign * (own - other)) > 0 for other in others)

    def rivals(self, numbers: Numbers) -> list[str]:
        """The others that have the number, the best of them first."""
        found = [name for name in self.among if name != self.system and self.number in numbers.get(name, {})]
        if not found:
            raise KeyError("nothing to compare with")
        return sorted(found, key=lambda name: -self.sign * numbers[name][self.number])


def best(system: str, number: str, among: Sequence[str]) -> Best:
    """The system has the best value of a number among these."""
    return Best(system, number, among, direction(number))


def worst(system: str, number: str, among: Sequence[str]) -> Best:
    """The system has the worst value of a number among these."""
    return Best(system, number, among, -direction(number))


def _sign(difference: float) -> int:
    shown = round(difference, _DECIMALS)
    return (shown > 0) - (shown < 0)


def _firm(numbers: Numbers, systems: Sequence[str], number: str, holds: Callable[..., bool], told: str) -> Judged:
    """Whether a claim about a number of some systems holds; None where identical replies could turn it round.

    Pairwise-BLEU does not see equal replies of under four tokens. If it did, it would be higher by at most the share of
    identical pairs: a claim has to hold with and without them. Those of the first two systems are told.
    """
    values: list[tuple[float, ...]] = [(numbers[name][number],) for name in systems]
    if number == _PAIRWISE and all(_IDENTICAL in numbers[name] for name in systems):
        same = [numbers[name][_IDENTICAL] for name in systems]
        values = [(*value, value[0] + share) for value, share in zip(values, same, strict=True)]
        told += f"; identical pairs {' against '.join(f'{share:.2f} %' for share in same[:2])}"
    outcomes = {holds(*chosen) for chosen in itertools.product(*values)}
    return (outcomes.pop(), told) if len(outcomes) == 1 else (None, f"{told}, which could turn it round")


def times(system: str, other: str, number: str, *, at_least: float = 0.0, at_most: float = float("inf")) -> Judge:
    """The ratio of a number of two systems lies within limits. Two that are shown as 0 have none."""

    def ratio(one: float, two: float) -> float:
        return one / two if two > _ZERO else float("inf")

    def judge(numbers: Numbers) -> Judged:
        one, two = numbers[system][number], numbers[other][number]
        if not round(one, _DECIMALS) and not round(two, _DECIMALS):
            return None, "both are 0"
        told = f"{one:.2f} against {two:.2f}: {ratio(one, two):.2f}×"
        return _firm(numbers, (system, other), number, lambda *both: at_least <= ratio(*both) <= at_most, told)

    return judge


def over(system: str, other: str, number: str) -> Judge:
    """A number of one system is higher than that of another; with itself there is nothing to compare."""

    def judge(numbers: Numbers) -> Judged:
        if system == other:
            return None, ""
        told = f"{numbers[system][number]:.2f} against {numbers[other][number]:.2f}"
        return _firm(numbers, (system, other), number, lambda one, two: _sign(one - two) > 0, told)

    return judge


def within(system: str, number: str, *, at_least: float = float("-inf"), at_most: float = float("inf")) -> Judge:
    """A number of a system lies within limits."""

    def judge(numbers: Numbers) -> Judged:
        told = f"{numbers[system][number]:.4g}"
        return _firm(numbers, [system], number, lambda value: at_least <= value <= at_most, told)

    return judge


def directions(ours: Numbers, paper: Numbers, baseline: str, numbers: Sequence[str]) -> list[str]:
    """Where ours and the paper's agree in direction, and where not: each system against the baseline, each number."""
    agree, differ = 0, dict[str, list[str]]()
    for system in (name for name in paper if name != baseline and name in ours):
        for number in numbers:
            if not all(number in found for found in (ours[system], ours.get(baseline, {}), paper[system])):
                continue
            gaps = (found[system][number] - found[baseline][number] for found in (ours, paper))
            here, there = (round(gap, _DECIMALS) + 0.0 for gap in gaps)  # and no -0.0
            if (here > 0, here < 0) == (there > 0, there < 0):
                agree += 1
            else:
                told = f"{label(number)} ({here:+.2f} here, {there:+.2f} in the paper)"
                differ.setdefault(system, []).append(told)
    total = agree + sum(map(len, differ.values()))
    if not total:
        return ["Nothing to compare with the paper was measured."]
    summary = f"Against {baseline}, {agree} of {total} differences have the paper's direction."
    return [summary, *(f"Another direction than in the paper, {name}: {', '.join(differ[name])}." for name in differ)]
