"""`polyreply bench distributed`, small: its figures are there, and what is sent is what the design says."""

import pytest

from polyreply.bench.distributed import bench_distributed
from polyreply.progress import silent

ADAPTERS = 10 * 12 * (2 * 256 * 128 + 128 + 256)
"""Trained weights: K decoders with three adapters in each of four layers."""


@pytest.mark.slow
def test_two_processes_send_the_gradients_and_the_costs():
    figures = bench_distributed(silent, samples=10, steps=1, rounds=1)
    assert set(figures) == {
        f"distributed.{name}"
        for name in (
            "speedup_2",
            "samples_per_second_1",
            "samples_per_second_2",
            "bytes_per_step",
            "collective_share",
        )
    }
    costs = 2 * 8 * 5 * 10  # this process's five samples under ten decoders: NLL and log prior
    small = 8 * (10 + 10 + 10)  # token mass, shares and losses of the decoders
    assert figures["distributed.bytes_per_step"] == 4 * ADAPTERS + costs + small
    assert 0 < figures["distributed.collective_share"] < 1
