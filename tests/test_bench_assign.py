"""The alternatives of the benchmark solve the same problem."""

import numpy as np
import pytest

from polyreply.bench import assign
from polyreply.progress import silent


@pytest.mark.parametrize("kind", ["random", *assign.TIED])
def test_all_ways_agree(kind):
    pytest.importorskip("ot")
    cost = assign.problem(kind, 200)
    totals = [cost[np.arange(200), way(cost)].sum() for way in (assign.ours, assign.with_scipy, assign.with_pot)]
    assert totals == pytest.approx([totals[0]] * 3, abs=1e-9)


def test_names_are_stable():
    figures = assign.bench_assign(1, silent, sizes=(100, 200))
    assert {"assign.n100_seconds", "assign.n200_vs_scipy", "assign.growth", "assign.constant.n100_vs_random"} <= set(
        figures
    )
