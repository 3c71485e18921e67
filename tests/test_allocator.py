"""The allocator's settings: made by the command line, by what the user has not set."""

import subprocess
import sys

import pytest

from polyreply import allocator

SETTINGS = {-3: 1 << 25, -1: (1 << 31) - 1, -2: 1 << 26}


@pytest.fixture
def made(monkeypatch):
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    found = {}
    monkeypatch.setattr(allocator, "_set", found.update)
    return found


def test_freed_memory_is_kept(made):
    allocator.keep_freed_memory()
    assert made == SETTINGS


def test_sharded_weights_are_given_back(made):
    allocator.return_freed_memory()
    assert made == {-3: allocator.LARGE_BLOCK}


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_TRIM_THRESHOLD_", "1000"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1000")]
)
def test_what_the_user_has_set_stays(made, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    allocator.keep_freed_memory()
    assert not made


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts page faults of glibc's malloc")
def test_a_large_block_is_used_again():
    """A block of 16 MB costs thousands of page faults each time it comes from the system."""
    script = (
        "import resource, numpy as np\n"
        "from polyreply.allocator import keep_freed_memory\n"
        "keep_freed_memory()\n"
        "np.ones(1 << 21)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(20): np.ones(1 << 21)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    faults = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(faults) < 4000  # one block has 4096 pages
