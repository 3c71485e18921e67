"""`polyreply bench assign`: the balanced assignment against SciPy on duplicated columns and POT's network simplex.

All get the same costs in float64: −posterior, the softmax of random NLLs, at K=10. What the others need besides
(the duplicated columns, the marginals) is made before the clock starts. Beside random posteriors come the two that are
all ties: saturated ones, exactly 0 or 1, and a constant matrix. POT's figures are left out where it is not installed
(pip install POT), and both are where one solution would take minutes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from polyreply.arrays import Floats
from polyreply.bench.timing import medians
from polyreply.em.solver.balanced import balanced_assignment
from polyreply.progress import Notify

K = 10
SIZES = (640, 6400, 64_000, 640_000)


Solve = Callable[[], Any]


@dataclass(frozen=True)
class Alternative:
    """Another solver: `prepare` gives a function that solves, `total` the cost of what that returns."""

    prepare: Callable[[Floats], Solve]
    total: Callable[[Floats, Any], float]
    once: int
    """From this N on, one run of one problem has to do."""
    largest: int


def bench_assign(notify: Notify, sizes: Sequence[int] = SIZES, rounds: int = 7) -> dict[str, Any]:
    """Seconds, ratios to the alternatives and of tied to random costs, growth, all under stable names."""
    figures: dict[str, Any] = {}
    difference = 0.0
    for place, number in enumerate(sizes):
        notify(f"N = {number}", place / len(sizes))
        problems = [-posterior(number, seed) for seed in range(max(1, min(9, 64_000 // number)))]
        others = {name: way for name, way in alternatives().items() if number <= way.largest}
        seconds, found = _measure(problems, others, rounds)
        figures[f"assign.n{number}_seconds"] = seconds["random"]
        for name in ("saturated", "constant"):
            figures[f"assign.{name}.n{number}_vs_random"] = seconds[name] / seconds["random"]
        for name, way in others.items():
            figures[f"assign.n{number}_vs_{name}"] = seconds[name] / seconds["random"]
            for cost_NK, ours, theirs in zip(problems, found["random"], found[name], strict=False):
                total = total_of_assignment(cost_NK, ours.decoder_N)
                difference = max(difference, abs(way.total(cost_NK, theirs) - total) / abs(total))
    figures["assign.largest_difference"] = difference
    if len(sizes) > 1:
        largest, before = (figures[f"assign.n{number}_seconds"] for number in (sizes[-1], sizes[-2]))
        figures["assign.growth"] = largest / before
    return figures


def _measure(
    problems: list[Floats], others: dict[str, Alternative], rounds: int
) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """Seconds of each way, and what it found for each problem.

    The seconds are medians over the problems, the lowest of several in rounds of all ways: what else a machine does
    only makes it slower.
    """
    number, count = len(problems[0]), len(problems)
    slow = {name: way for name, way in others.items() if number >= way.once}
    ways: dict[str, list[Solve]] = {
        "random": [partial(balanced_assignment, cost_NK) for cost_NK in problems],
        "saturated": [partial(balanced_assignment, -saturated(number, seed)) for seed in range(count)],
        "constant": [partial(balanced_assignment, np.full((number, K), -1 / K))],
        **{name: [way.prepare(problems[0])] for name, way in slow.items()},
        **{name: [way.prepare(one) for one in problems] for name, way in others.items() if name not in slow},
    }
    turns = {name: _Turns(solves) for name, solves in ways.items()}
    quick = {name: turn for name, turn in turns.items() if name not in slow}
    each = [medians(quick, count) for _ in range(rounds)]
    seconds = {name: min(one[name] for one in each) for name in quick}
    warm_up = {name: way.prepare(problems[0][: 10 * K]) for name, way in slow.items()}
    seconds |= medians({name: turns[name] for name in slow}, 1, warm_up)
    return seconds, {name: turn.found for name, turn in turns.items()}


class _Turns:
    """Solves one problem at each call, in turns, and keeps what it finds."""

    def __init__(self, solves: list[Solve]) -> None:
        self.solves = solves
        self.found: list[Any] = [None] * len(solves)
        self.calls = 0

    def __call__(self) -> None:
        place = self.calls % len(self.solves)
        self.found[place] = self.solves[place]()
        self.calls += 1


def posterior(number: int, seed: int = 0) -> Floats:
    """Posteriors under a uniform prior of random NLLs."""
    weight_NK = np.exp(-np.random.default_rng(seed).normal(size=(number, K)))
    posterior_NK: Floats = weight_NK / weight_NK.sum(1, keepdims=True)
    return posterior_NK


def saturated(number: int, seed: int = 0) -> Floats:
    """Posteriors that leave no doubt: one decoder has exactly 1, the others exactly 0."""
    return np.eye(K).take(np.random.default_rng(seed).integers(K, size=number), 0)


def alternatives() -> dict[str, Alternative]:
    """SciPy, and POT if it is installed."""
    ways = {"scipy": Alternative(_scipy, _scipy_total, once=6400, largest=6400)}
    if find_spec("ot"):
        ways["pot"] = Alternative(_pot, _pot_total, once=64_000, largest=64_000)
    return ways


def total_of_assignment(cost_NK: Floats, decoder_N: Any) -> float:
    """The sum of what each sample costs with its decoder."""
    return math.fsum(cost_NK[np.arange(len(cost_NK)), decoder_N])


def _scipy(cost_NK: Floats) -> Callable[[], Any]:
    return partial(linear_sum_assignment, np.repeat(cost_NK, len(cost_NK) // K, 1))


def _scipy_total(cost_NK: Floats, found: Any) -> float:
    _, column_N = found
    return total_of_assignment(cost_NK, column_N // (len(cost_NK) // K))


def _pot(cost_NK: Floats) -> Callable[[], Any]:
    samples_N, places_K = np.ones(len(cost_NK)), np.full(K, len(cost_NK) / K)
    return partial(import_module("ot").emd, samples_N, places_K, cost_NK, numItermax=10**9)


def _pot_total(cost_NK: Floats, plan_NK: Any) -> float:
    return math.fsum((cost_NK * plan_NK).ravel())
