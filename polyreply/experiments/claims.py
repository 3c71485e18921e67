"""Claims as small functions over numbers: each holds, does not hold, or was not measured."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from polyreply.experiments.paper import Numbers
from polyreply.metrics.registry import direction, label

Outcome = Literal["holds", "holds, not significantly", "does not hold", "not measured"]
_DECIMALS = 2
"""Numbers that look equal in a table count as equal."""
_ZERO = 1e-9
"""BLEU without a common n-gram is slightly above 0."""
_ALPHA = 0.05
_LEAST = 0.001
"""P-values below it are reported as such."""
_PAIRWISE, _IDENTICAL = "pairwise_bleu", "identical"
Judged = tuple[bool | None, str]
"""Whether a claim holds (None: the numbers do not decide it), and the numbers."""
Judge = Callable[[Numbers], Judged]
"""Judges by the numbers of all systems; a KeyError means that one is missing."""


@dataclass(frozen=True)
class Significance:
    """How sure the difference between two systems in a number is."""

    p_value: float
    """Probability that chance, in the choice of contexts, gives such a difference."""
    seeds_agree: bool = True
    """Whether the same system is ahead with every seed."""


Test = Callable[[str, str, str], Significance | None]
"""Tests two systems in a number; None where that is impossible."""


@dataclass(frozen=True)
class Claim:
    """A statement, of the paper or ours, that numbers can confirm."""

    text: str
    source: str
    judge: Judge


@dataclass(frozen=True)
class Verdict:
    """The outcome of a claim."""

    text: str
    source: str
    outcome: Outcome
    ours: str
    """Our numbers."""
    paper: str
    """The paper's numbers, where it has them."""


def check(
    claims: Sequence[Claim], ours: Numbers, paper: Numbers | None = None, test: Test | None = None
) -> list[Verdict]:
    """Judge each claim by our numbers, next to the paper's own. A claim to be the best is tested, if possible."""
    verdicts = []
    for claim in claims:
        holds, text = _judge(claim, ours)
        outcome: Outcome = "not measured" if holds is None else "holds" if holds else "does not hold"
        if holds and test and isinstance(claim.judge, Best) and (tested := claim.judge.tested(ours, test)):
            text += f"; p = {tested.p_value:.3f}" if tested.p_value >= _LEAST else f"; p < {_LEAST:g}"
            text += "" if tested.seeds_agree else "; not with every seed"
            outcome = "holds" if tested.p_value < _ALPHA and tested.seeds_agree else "holds, not significantly"
        verdicts.append(Verdict(claim.text, claim.source, outcome, text, _judge(claim, paper or {})[1]))
    return verdicts


def _judge(claim: Claim, numbers: Numbers) -> Judged:
    try:
        return claim.judge(numbers)
    except KeyError:
        return None, ""


def corrected(test: Test, tries: int) -> Test:
    """The test for the best of several that were tried: p-values times their number, at most 1 (Bonferroni)."""

    def corrected_test(system: str, other: str, number: str) -> Significance | None:
        significance = test(system, other, number)
        return significance and replace(significance, p_value=min(1.0, significance.p_value * tries))

    return corrected_test


@dataclass(frozen=True)
class Best:
    """Judges whether a system has the best (or the worst) value of a number among several that were measured."""

    system: str
    number: str
    among: Sequence[str]
    sign: int
    """1 if its value should be the highest, -1 if it should be the lowest."""

    def __call__(self, numbers: Numbers) -> Judged:
        """Judge by the numbers of all systems."""
        rivals = self.rivals(numbers)
        own, other = numbers[self.system][self.number], numbers[rivals[0]][self.number]
        text = f"{own:.2f}; of the others {rivals[0]}, {other:.2f}"

        def leads(own: float, *others: float) -> bool:
            return all(_sign(self.sign * (own - other)) > 0 for other in others)

        return _firm(numbers, (self.system, *rivals), self.number, leads, text)

    def tested(self, numbers: Numbers, test: Test) -> Significance | None:
        """The significance of its lead over each of the others together: the largest p-value, and all seeds."""
        tests = [one for rival in self.rivals(numbers) if (one := test(self.system, rival, self.number))]
        return Significance(max(one.p_value for one in tests), all(one.seeds_agree for one in tests)) if tests else None

    def rivals(self, numbers: Numbers) -> list[str]:
        """The others that have the number, the best of them first."""
        others = [name for name in self.among if name != self.system and self.number in numbers.get(name, {})]
        if not others:
            raise KeyError("nothing to compare with")
        return sorted(others, key=lambda name: -self.sign * numbers[name][self.number])


def best(system: str, number: str, among: Sequence[str]) -> Best:
    """Judges whether a system has the best value of a number among these."""
    return Best(system, number, among, direction(number))


def worst(system: str, number: str, among: Sequence[str]) -> Best:
    """Judges whether a system has the worst value of a number among these."""
    return Best(system, number, among, -direction(number))


def _sign(difference: float) -> int:
    shown = round(difference, _DECIMALS)
    return (shown > 0) - (shown < 0)


def _firm(numbers: Numbers, systems: Sequence[str], number: str, holds: Callable[..., bool], text: str) -> Judged:
    """Whether a claim about a number of some systems holds; None where identical replies could reverse it.

    Pairwise-BLEU does not see equal replies of under four tokens. If it did, it would be higher by at most the share of
    identical pairs, so a claim has to hold with and without them. The text gets those of the first two systems.
    """
    values: list[tuple[float, ...]] = [(numbers[name][number],) for name in systems]
    if number == _PAIRWISE and all(_IDENTICAL in numbers[name] for name in systems):
        same = [numbers[name][_IDENTICAL] for name in systems]
        values = [(*value, value[0] + share) for value, share in zip(values, same, strict=True)]
        text += f"; identical pairs {' against '.join(f'{share:.2f} %' for share in same[:2])}"
    outcomes = {holds(*chosen) for chosen in itertools.product(*values)}
    return (outcomes.pop(), text) if len(outcomes) == 1 else (None, f"{text}, which could reverse it")


def times(system: str, other: str, number: str, *, at_least: float = 0.0, at_most: float = float("inf")) -> Judge:
    """Judges whether the ratio of a number of two systems is within limits; two zeros have no ratio."""

    def ratio(one: float, two: float) -> float:
        return one / two if two > _ZERO else float("inf")

    def judge(numbers: Numbers) -> Judged:
        one, two = numbers[system][number], numbers[other][number]
        if not round(one, _DECIMALS) and not round(two, _DECIMALS):
            return None, "both are 0"
        text = f"{one:.2f} against {two:.2f}: {ratio(one, two):.2f}×"
        return _firm(numbers, (system, other), number, lambda *both: at_least <= ratio(*both) <= at_most, text)

    return judge


def over(system: str, other: str, number: str) -> Judge:
    """Judges whether a number of one system is higher than that of another."""

    def judge(numbers: Numbers) -> Judged:
        if system == other:
            return None, ""
        text = f"{numbers[system][number]:.2f} against {numbers[other][number]:.2f}"
        return _firm(numbers, (system, other), number, lambda one, two: _sign(one - two) > 0, text)

    return judge


def within(system: str, number: str, *, at_least: float = float("-inf"), at_most: float = float("inf")) -> Judge:
    """Judges whether a number of a system is within limits."""

    def judge(numbers: Numbers) -> Judged:
        text = f"{numbers[system][number]:.4g}"
        return _firm(numbers, [system], number, lambda value: at_least <= value <= at_most, text)

    return judge


def directions(ours: Numbers, paper: Numbers, baseline: str, numbers: Sequence[str]) -> list[str]:
    """Where our differences from the baseline have the paper's direction and where not, for each system and number."""
    agree, differ = 0, dict[str, list[str]]()
    for system in (name for name in paper if name != baseline and name in ours):
        for number in numbers:
            if not all(number in row for row in (ours[system], ours.get(baseline, {}), paper[system])):
                continue
            gaps = (source[system][number] - source[baseline][number] for source in (ours, paper))
            here, there = (round(gap, _DECIMALS) + 0.0 for gap in gaps)  # + 0.0: not -0.0
            if (here > 0, here < 0) == (there > 0, there < 0):
                agree += 1
            else:
                text = f"{label(number)} ({here:+.2f} here, {there:+.2f} in the paper)"
                differ.setdefault(system, []).append(text)
    total = agree + sum(map(len, differ.values()))
    if not total:
        return ["Nothing to compare with the paper was measured."]
    summary = f"Against {baseline}, {agree} of {total} differences have the paper's direction."
    return [summary, *(f"Opposite direction to the paper, {name}: {', '.join(differ[name])}." for name in differ)]
