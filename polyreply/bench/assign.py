"""`polyreply bench assign`: the balanced assignment against SciPy on duplicated columns and POT's network simplex.

All solve the same problems at K=10 and agree in total cost. SciPy's cost grows with the cube of N and POT's nearly with
its square, so they stop earlier.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from polyreply.bench.timing import medians
from polyreply.em.balanced import balanced_assignment
from polyreply.progress import Notify

Floats = npt.NDArray[np.float64]
K = 10
SIZES = (640, 6_400, 64_000, 640_000)
SCIPY_UP_TO, POT_UP_TO = 6_400, 64_000
TIED = ("saturated", "constant")


def problem(kind: str, number: int, num_decoders: int = K) -> Floats:
    """Costs −posterior of random likelihoods; `saturated` ones are exactly 0 or −1, `constant` ones all equal."""
    random = np.random.default_rng(number)
    if kind == "constant":
        return np.full((number, num_decoders), -1 / num_decoders)
    if kind == "saturated":
        cost = np.zeros((number, num_decoders))
        cost[np.arange(number), random.integers(0, num_decoders, number)] = -1.0
        return cost
    score = 3 * random.standard_normal((number, num_decoders))
    share = np.exp(score - score.max(1, keepdims=True))
    found: Floats = -share / share.sum(1, keepdims=True)
    return found


def ours(cost_NK: Floats) -> npt.NDArray[np.intp]:
    """The solver of EqHard-EM."""
    return balanced_assignment(cost_NK).decoder_N


def with_scipy(cost_NK: Floats) -> npt.NDArray[np.intp]:
    """Columns repeated N/K times, then the assignment problem."""
    from scipy.optimize import linear_sum_assignment

    number, num_decoders = cost_NK.shape
    owner = np.repeat(np.arange(num_decoders), number // num_decoders)
    return owner[linear_sum_assignment(cost_NK[:, owner])[1]]  # type: ignore[no-any-return]


def with_pot(cost_NK: Floats) -> npt.NDArray[np.intp]:
    """Optimal transport between N samples and K decoders of N/K places."""
    import ot

    number, num_decoders = cost_NK.shape
    places = np.full(num_decoders, number / num_decoders)
    plan = ot.emd(np.ones(number), places, cost_NK, numItermax=100_000_000)
    return plan.argmax(1)  # type: ignore[no-any-return]


def bench_assign(repeats: int, notify: Notify, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Seconds and ratios under stable names; POT's are left out where it is not installed."""
    figures: dict[str, Any] = {}
    for place, number in enumerate(sizes):
        notify(f"N = {number}", place / len(sizes))
        cost = problem("random", number)
        seconds = {name: _seconds(way, cost, name, repeats) for name, way in _ways(number).items()}
        figures[f"assign.n{number}_seconds"] = seconds["ours"]
        figures |= {
            f"assign.n{number}_vs_{name}": seconds[name] / seconds["ours"] for name in seconds if name != "ours"
        }
        for kind in TIED:
            tied = _seconds(ours, problem(kind, number), "ours", repeats)
            figures[f"assign.{kind}.n{number}_vs_random"] = tied / seconds["ours"]
    if len(sizes) > 1:
        figures["assign.growth"] = figures[f"assign.n{sizes[-1]}_seconds"] / figures[f"assign.n{sizes[-2]}_seconds"]
    return figures


def _ways(number: int) -> dict[str, Callable[[Floats], Any]]:
    ways: dict[str, Callable[[Floats], Any]] = {"ours": ours}
    if number <= SCIPY_UP_TO:
        ways["scipy"] = with_scipy
    if number <= POT_UP_TO and _has_pot():
        ways["pot"] = with_pot
    return ways


def _has_pot() -> bool:
    import importlib.util

    return importlib.util.find_spec("ot") is not None


def _seconds(way: Callable[[Floats], Any], cost: Floats, name: str, repeats: int) -> float:
    """Long runs are measured once, without a warm-up: SciPy takes a minute at N=6 400."""
    slow = (name == "scipy" and len(cost) > 1000) or (name == "pot" and len(cost) > 10_000)
    run = partial(way, cost)
    if slow:
        return medians({name: run}, 1, {name: partial(way, cost[:K])})[name]
    return medians({name: run}, repeats if len(cost) > 10_000 else 5 * repeats)[name]
