"""glibc's malloc: when the memory of freed tensors goes back to the system.

By default a large tensor's memory does, so that each new one costs the system a fault for every page: a sixth of the
time of scoring in float32. The command line keeps it instead. A process whose weights are sharded gives it back at
once, because fragments of all layers would add up to the backbone that no process is to hold. Other systems'
allocators have no such settings, and what the user has set in the environment stays.
"""

import ctypes
import os

LARGE_BLOCK = 1 << 18
"""Bytes from which on `return_freed_memory` gives a block back; the matrices of a layer are larger."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Numbers of glibc's malloc.h."""
_LARGEST_THRESHOLD, _ANY_AMOUNT, _AT_ONCE = 1 << 25, (1 << 31) - 1, 1 << 26
_NAMES = ("mmap_threshold", "trim_threshold", "top_pad")


def keep_freed_memory() -> None:
    """Keep freed blocks of up to 32 MB, the most that glibc allows, for the next tensors."""
    if not _is_set(*_NAMES):
        _set({_MMAP_THRESHOLD: _LARGEST_THRESHOLD, _TRIM_THRESHOLD: _ANY_AMOUNT, _TOP_PAD: _AT_ONCE})


def return_freed_memory() -> None:
    """Give freed blocks of the size of a layer's matrices back to the system."""
    if not _is_set("mmap_threshold"):
        _set({_MMAP_THRESHOLD: LARGE_BLOCK})


def _is_set(*names: str) -> bool:
    """Whether the user has set one of these, as a variable of its own or among glibc's tunables."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return any(f"MALLOC_{name.upper()}_" in os.environ or f"malloc.{name}" in tunables for name in names)


def _set(values: dict[int, int]) -> None:
    mallopt = None if os.name == "nt" else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in values.items():
            mallopt(name, value)
