"""`polyreply bench assign`: the balanced assignment against SciPy on duplicated columns and POT's network simplex.

All solvers get the same costs in float64: −posterior, where the posterior is the softmax of random NLLs, at K=10. What
the others need in addition (duplicated columns, marginals) is built before the clock starts. Two further matrices are
nothing but ties: saturated posteriors, exactly 0 or 1, and a constant one. POT is left out where it is not installed
(pip install POT), and both alternatives where one solution would take minutes.

Legend: N samples, K decoders.
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
    """Another solver: `prepare` returns a function that solves, `total` the cost of its solution."""

    prepare: Callable[[Floats], Solve]
    total: Callable[[Floats, Any], float]
    once: int
    """From this N on, a single run on a single problem is measured."""
    largest: int


def bench_assign(notify: Notify, sizes: Sequence[int] = SIZES, rounds: int = 7) -> dict[str, Any]:
    """Seconds, ratios to the alternatives, ratios of tied to random costs, and growth, under stable names."""
    figures: dict[str, Any] = {}
    difference = 0.0
    for index, number in enumerate(sizes):
        notify(f"N = {number}", index / len(sizes))
        problems = [-posterior(number, seed) for seed in range(max(1, min(9, 64_000 // number)))]
        others = {name: other for name, other in alternatives().items() if number <= other.largest}
        seconds, solutions = _measure(problems, others, rounds)
        figures[f"assign.n{number}_seconds"] = seconds["random"]
        for name in ("saturated", "constant"):
            figures[f"assign.{name}.n{number}_vs_random"] = seconds[name] / seconds["random"]
        for name, other in others.items():
            figures[f"assign.n{number}_vs_{name}"] = seconds[name] / seconds["random"]
            for cost_NK, ours, theirs in zip(problems, solutions["random"], solutions[name], strict=False):
                total = total_cost(cost_NK, ours.decoder_N)
                difference = max(difference, abs(other.total(cost_NK, theirs) - total) / abs(total))
    figures["assign.largest_difference"] = difference
    if len(sizes) > 1:
        largest, before = (figures[f"assign.n{number}_seconds"] for number in (sizes[-1], sizes[-2]))
        figures["assign.growth"] = largest / before
    return figures


def _measure(
    problems: list[Floats], others: dict[str, Alternative], rounds: int
) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """Seconds of each solver, and its solution of each problem.

    The seconds are medians over the problems and the lowest of several rounds: other load on the machine can only
    make a round slower.
    """
    number, count = len(problems[0]), len(problems)
    slow = {name: other for name, other in others.items() if number >= other.once}
    solves: dict[str, list[Solve]] = {
        "random": [partial(balanced_assignment, cost_NK) for cost_NK in problems],
        "saturated": [partial(balanced_assignment, -saturated(number, seed)) for seed in range(count)],
        "constant": [partial(balanced_assignment, np.full((number, K), -1 / K))],
        **{name: [other.prepare(problems[0])] for name, other in slow.items()},
        **{name: [other.prepare(one) for one in problems] for name, other in others.items() if name not in slow},
    }
    turns = {name: _Turns(each) for name, each in solves.items()}
    quick = {name: turn for name, turn in turns.items() if name not in slow}
    measured = [medians(quick, count) for _ in range(rounds)]
    seconds: dict[str, float] = {name: min(one[name] for one in measured) for name in quick}
    warm_up = {name: other.prepare(problems[0][: 10 * K]) for name, other in slow.items()}
    seconds |= medians({name: turns[name] for name in slow}, 1, warm_up)
    return seconds, {name: turn.solutions for name, turn in turns.items()}


class _Turns:
    """Solves the next problem at each call, cyclically, and keeps the solutions."""

    def __init__(self, solves: list[Solve]) -> None:
        self.solves = solves
        self.solutions: list[Any] = [None] * len(solves)
        self.calls = 0

    def __call__(self) -> None:
        index = self.calls % len(self.solves)
        self.solutions[index] = self.solves[index]()
        self.calls += 1


def posterior(number: int, seed: int = 0) -> Floats:
    """Posteriors of random NLLs under a uniform prior."""
    weight_NK = np.exp(-np.random.default_rng(seed).normal(size=(number, K)))
    posterior_NK: Floats = weight_NK / weight_NK.sum(1, keepdims=True)
    return posterior_NK


def saturated(number: int, seed: int = 0) -> Floats:
    """Posteriors without doubt: exactly 1 for one decoder, exactly 0 for the others."""
    return np.eye(K).take(np.random.default_rng(seed).integers(K, size=number), 0)


def alternatives() -> dict[str, Alternative]:
    """SciPy, and POT if it is installed."""
    solvers = {"scipy": Alternative(_scipy, _scipy_total, once=6400, largest=6400)}
    if find_spec("ot"):
        solvers["pot"] = Alternative(_pot, _pot_total, once=64_000, largest=64_000)
    return solvers


def total_cost(cost_NK: Floats, decoder_N: Any) -> float:
    """Sum over the samples of their cost under the decoder they are assigned to."""
    return math.fsum(cost_NK[np.arange(len(cost_NK)), decoder_N])


def _scipy(cost_NK: Floats) -> Solve:
    return partial(linear_sum_assignment, np.repeat(cost_NK, len(cost_NK) // K, 1))


def _scipy_total(cost_NK: Floats, solution: Any) -> float:
    _, column_N = solution
    return total_cost(cost_NK, column_N // (len(cost_NK) // K))


def _pot(cost_NK: Floats) -> Solve:
    sample_mass_N, decoder_mass_K = np.ones(len(cost_NK)), np.full(K, len(cost_NK) / K)
    return partial(import_module("ot").emd, sample_mass_N, decoder_mass_K, cost_NK, numItermax=10**9)


def _pot_total(cost_NK: Floats, plan_NK: Any) -> float:
    return math.fsum((cost_NK * plan_NK).ravel())
