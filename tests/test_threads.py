"""Threads give way to other processes, come back when there is room, and never override what a user has set."""

import os

import pytest
import torch

from polyreply import threads
from polyreply.threads import Threads, Usage, adapt, adaptive_threads, usage_now


class Machine:
    """A processor whose load the test decides; a look at it takes place a second after the last one."""

    def __init__(self, monkeypatch):
        self.seconds = self.everybody = self.own = 0.0
        self.others = 0.0
        monkeypatch.setattr(threads.time, "perf_counter", lambda: self.seconds)

    def read(self):
        return Usage(self.seconds, self.everybody, self.own)

    def work(self, control):
        """A second in which our threads and the others share the cores."""
        self.seconds += 1
        self.own += control.now
        self.everybody += control.now + self.others
        return control.look()


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_one_busy_process_costs_one_thread_and_gives_it_back(machine):
    control = Threads(4, 4, machine.read)
    assert [machine.work(control) for _ in range(3)] == [4, 4, 4]
    machine.others = 0.9
    assert [machine.work(control) for _ in range(3)] == [4, 3, 3]
    machine.others = 0.0
    assert [machine.work(control) for _ in range(4)] == [3, 3, 4, 4]


def test_there_is_always_one_thread(machine):
    control = Threads(2, 2, machine.read)
    machine.others = 7.0
    assert [machine.work(control) for _ in range(3)] == [2, 1, 1]


def test_a_moment_of_load_changes_nothing(machine):
    control = Threads(2, 2, machine.read)
    for others in (2.0, 0.0, 2.0, 0.0):
        machine.others = others
        assert machine.work(control) == 2


def test_a_little_load_of_others_changes_nothing(machine):
    control = Threads(2, 2, machine.read)
    machine.others = 0.2
    assert [machine.work(control) for _ in range(5)] == [2] * 5


def test_the_load_is_read_once_in_a_while(machine):
    control = Threads(2, 2, machine.read)
    machine.others, machine.everybody, machine.seconds = 2.0, 1.0, 0.1
    assert control.look() == 2  # too early to tell


def test_usage_is_counted_by_the_system():
    before = usage_now()
    sum(range(3_000_000))
    after = usage_now()
    assert after.clock > before.clock
    assert after.own > before.own
    assert after.everybody >= before.everybody


@pytest.fixture
def two_threads(monkeypatch):
    """PyTorch as it starts on a machine with two cores and nothing set."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_own_cores", lambda: [0, 1])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_number_of_threads_follows_and_is_restored(two_threads, monkeypatch):
    with adaptive_threads():
        monkeypatch.setattr(threads._threads, "look", lambda: setattr(threads._threads, "now", 1) or 1)
        adapt()
        assert torch.get_num_threads() == 1
        with adaptive_threads():  # work within work
            adapt()
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_what_the_user_set_in_the_environment_stays(name, two_threads, monkeypatch):
    monkeypatch.setenv(name, "2")
    with adaptive_threads():
        assert threads._threads is None


def test_what_the_user_set_in_pytorch_stays(two_threads):
    torch.set_num_threads(3)
    with adaptive_threads():
        assert threads._threads is None
    assert torch.get_num_threads() == 3


def test_importing_the_library_sets_nothing():
    assert not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(os.environ)
