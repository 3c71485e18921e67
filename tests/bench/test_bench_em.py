"""`polyreply bench em`: every variant is trained for its time and measured, and a busy process is noticed."""

import time

import pytest
from runs import write_corpus

from polyreply.bench import em, timing
from polyreply.bench.timing import Measured
from polyreply.progress import silent


@pytest.mark.slow
def test_every_variant_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(em, "_busy", dict)
    monkeypatch.setitem(em._SHARED, "em.e_step_size", 20)
    monkeypatch.setattr(em, "VARIANTS", {"full": {}, "passes_2": {"em.m_step_passes": 2}})
    figures = em.bench_em(silent, data=write_corpus(tmp_path, rows=60), seconds=1)
    assert {name.split(".")[1] for name in figures} == {"full", "passes_2"}
    assert figures["em.full.steps"] >= 1
    assert figures["em.passes_2.mixture_nll_all"] > 0


def test_a_ratio_has_the_widest_spread_that_its_runs_allow():
    ratio = Measured.of([4.0, 6.0, 5.0]).per(Measured.of([2.0, 1.0, 4.0]))
    assert (float(ratio), ratio.low, ratio.high) == (2.5, 1.0, 6.0)


def test_rates_count_the_second_half_of_the_calls():
    calls = []
    found = timing.rate(lambda: calls.append(time.sleep(0.01)), 0.1)
    assert 40 < found < 110
    assert len(calls) > 0.1 * found


def test_a_busy_process_ends_with_its_block():
    with timing.busy_process(nice=10):
        pass
    assert set(timing.busy_slowdown(lambda: None, 0.01, rounds=1)) == {
        "busy_slowdown",
        "busy_slowdown_nice10",
        "idle_cost",
    }
