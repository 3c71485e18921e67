"""What the paper claims, as small functions over numbers: each holds, does not hold, or was not measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from polyreply.metrics.labels import direction, label
from polyreply.reproduce.paper import Numbers

Outcome = Literal["holds", "does not hold", "not measured"]
_DECIMALS = 2
"""Numbers that are equal when shown are equal."""
_ZERO = 1e-9
"""BLEU without a common n-gram is not quite 0."""
Judge = Callable[[Numbers], tuple[bool | None, str]]
"""Says of numbers whether a claim holds (None: they cannot tell), and by which of them; a KeyError: one is missing."""


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


def check(claims: Sequence[Claim], ours: Numbers, paper: Numbers | None = None) -> list[Verdict]:
    """Judges each claim by our numbers, and puts the paper's own beside them."""
    verdicts = []
    for claim in claims:
        holds, told = _judged(claim, ours)
        outcome: Outcome = "not measured" if holds is None else "holds" if holds else "does not hold"
        verdicts.append(Verdict(claim.text, claim.source, outcome, told, _judged(claim, paper or {})[1]))
    return verdicts


def _judged(claim: Claim, numbers: Numbers) -> tuple[bool | None, str]:
    try:
        return claim.judge(numbers)
    except KeyError:
        return None, ""


def best(system: str, number: str, among: Sequence[str]) -> Judge:
    """The system has the best value of a number among these; those that were not measured do not count."""

    def judge(numbers: Numbers) -> tuple[bool | None, str]:
        own, sign = numbers[system][number], direction(number)
        others = {name: numbers[name][number] for name in among if name != system and name in numbers}
        if not others:
            raise KeyError("nothing to compare with")
        rival = max(others, key=lambda name: sign * others[name])
        return sign * own > sign * others[rival], f"{own:.2f}; of the others {rival}, {others[rival]:.2f}"

    return judge


def times(system: str, other: str, number: str, *, at_least: float = 0.0, at_most: float = float("inf")) -> Judge:
    """The ratio of a number of two systems lies within limits. Two that are shown as 0 have none."""

    def judge(numbers: Numbers) -> tuple[bool | None, str]:
        one, two = numbers[system][number], numbers[other][number]
        if not round(one, _DECIMALS) and not round(two, _DECIMALS):
            return None, "both are 0"
        ratio = one / two if two > _ZERO else float("inf")
        return at_least <= ratio <= at_most, f"{one:.2f} against {two:.2f}: {ratio:.2f}×"

    return judge


def over(system: str, other: str, number: str) -> Judge:
    """A number of one system is higher than that of another."""

    def judge(numbers: Numbers) -> tuple[bool | None, str]:
        one, two = numbers[system][number], numbers[other][number]
        return round(one - two, _DECIMALS) > 0, f"{one:.2f} against {two:.2f}"

    return judge


def within(system: str, number: str, *, at_least: float = float("-inf"), at_most: float = float("inf")) -> Judge:
    """A number of a system lies within limits."""

    def judge(numbers: Numbers) -> tuple[bool | None, str]:
        value = numbers[system][number]
        return at_least <= value <= at_most, f"{value:.4g}"

    return judge


def directions(ours: Numbers, paper: Numbers, baseline: str, numbers: Sequence[str]) -> list[str]:
    """Where ours and the paper's agree in direction, and where not: each system against the baseline, each number."""
    agree, differ = 0, dict[str, list[str]]()
    for system in (name for name in paper if name != baseline and name in ours):
        for number in numbers:
            if not all(number in found for found in (ours[system], ours.get(baseline, {}), paper[system])):
                continue
            here, there = (round(found[system][number] - found[baseline][number], _DECIMALS) for found in (ours, paper))
            if (here > 0, here < 0) == (there > 0, there < 0):
                agree += 1
            else:
                told = f"{label(number).full} ({here:+.2f} here, {there:+.2f} in the paper)"
                differ.setdefault(system, []).append(told)
    total = agree + sum(map(len, differ.values()))
    if not total:
        return ["Nothing to compare with the paper was measured."]
    summary = f"Against {baseline}, {agree} of {total} differences have the paper's direction."
    return [summary, *(f"Another direction than in the paper, {name}: {', '.join(differ[name])}." for name in differ)]
