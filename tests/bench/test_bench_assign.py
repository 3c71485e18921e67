"""The benchmark of the assignment compares like with like: every way finds the same cost."""

import numpy as np
import pytest

from polyreply.bench import assign
from polyreply.progress import silent


def test_every_figure_is_reported_and_all_ways_agree():
    figures = assign.bench_assign(silent, sizes=(40, 200), rounds=1)
    ways = list(assign.alternatives())
    assert set(figures) == {
        *(f"assign.n{number}_{name}" for number in (40, 200) for name in ("seconds", *(f"vs_{way}" for way in ways))),
        *(f"assign.{name}.n{number}_vs_random" for number in (40, 200) for name in ("saturated", "constant")),
        "assign.growth",
        "assign.largest_difference",
    }
    assert figures["assign.largest_difference"] < 1e-12 and "scipy" in ways
    assert all(value > 0 for name, value in figures.items() if "difference" not in name)
    assert figures["assign.growth"] == figures["assign.n200_seconds"] / figures["assign.n40_seconds"]


def test_alternatives_are_only_measured_where_they_finish(monkeypatch):
    slow = assign.Alternative(assign._scipy, assign._scipy_total, once=20, largest=40)
    monkeypatch.setattr(assign, "alternatives", lambda: {"slow": slow})
    figures = assign.bench_assign(silent, sizes=(40, 80), rounds=1)
    assert "assign.n40_vs_slow" in figures and "assign.n80_vs_slow" not in figures


def test_a_wrong_solver_would_be_noticed(monkeypatch):
    def prepare(cost_NK):
        return lambda: (None, np.arange(len(cost_NK)))

    wrong = assign.Alternative(prepare, assign._scipy_total, once=100, largest=100)
    monkeypatch.setattr(assign, "alternatives", lambda: {"wrong": wrong})
    assert assign.bench_assign(silent, sizes=(40,), rounds=1)["assign.largest_difference"] > 1e-3


def test_posteriors_are_what_they_should_be():
    assert assign.posterior(50).sum(1) == pytest.approx(np.ones(50)) and 0.5 < assign.posterior(500).max() < 1
    assert set(assign.saturated(50).ravel()) == {0.0, 1.0} and (assign.saturated(50).sum(1) == 1).all()


@pytest.mark.slow
def test_fast_and_linear():
    """The targets with room for a busy machine, except SciPy at 6400, which takes a minute."""
    figures = assign.bench_assign(silent, sizes=(640, 64_000, 640_000))
    assert figures["assign.n640_vs_scipy"] > 5
    assert figures["assign.n64000_seconds"] < 1 and figures["assign.n640000_seconds"] < 15
    assert figures["assign.growth"] < 20
    tied = [value for name, value in figures.items() if name.endswith("_vs_random")]
    assert len(tied) == 6 and max(tied) < 5
