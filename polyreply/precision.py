"""Precision: bfloat16 where the device computes in it faster than in float32.

Every device can compute in bfloat16, but only some have instructions for it; the others convert back and forth and are
slower. So `auto` asks what the device claims and, on a CPU, measures one product before it believes it.

Training computes in bfloat16 by autocast, with weights in float32. Autocast converts a frozen weight at every use;
`computing_in` converts it once.
"""

import os
import platform
import time
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from polyreply.errors import PolyReplyError

_VARIABLE = "POLYREPLY_PRECISION"
"""In the environment: what `auto` means, for results that must not depend on the machine."""
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_WORTH = 1.2
"""How many times as fast as float32 a product in bfloat16 must be."""
_ROWS, _ROUNDS = 16, 20
WIDE = 1024
"""The width of a model whose width is not known."""


def auto_dtype(device: torch.device | str = "cpu", width: int = WIDE) -> torch.dtype:
    """The type to compute in on a device, for a model of some width: bfloat16 where that is faster, else float32.

    Narrow models are slower in bfloat16 on a CPU: their time goes into what surrounds the products.
    """
    if chosen := os.environ.get(_VARIABLE):
        if chosen not in _TYPES:
            raise PolyReplyError(f"{_VARIABLE}: expected {' or '.join(_TYPES)}, found {chosen!r}")
        return _TYPES[chosen]
    kind = str(device).partition(":")[0]
    if kind == "cuda" and torch.cuda.is_available():
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if kind == "cpu" and _cpu_pays(width) else torch.float32


@lru_cache(maxsize=8)
def _cpu_pays(width: int) -> bool:
    """Whether the processor claims instructions for bfloat16 and is faster with them, with layers of some width."""
    return _cpu_claims() and _seconds(torch.float32, width) > _WORTH * _seconds(torch.bfloat16, width)


def _cpu_claims() -> bool:
    """Whether the processor says that it has products of bfloat16: AVX512-BF16 or AMX, or Arm's BF16."""
    if platform.machine() in ("aarch64", "arm64"):
        flags = Path("/proc/cpuinfo")
        return flags.is_file() and " bf16" in flags.read_text()
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _seconds(dtype: torch.dtype, width: int) -> float:
    """The best time of a feed-forward layer with its norm, for the rows of a decoding step."""
    x = torch.ones(_ROWS, width, dtype=dtype)
    inner, outer = torch.ones(4 * width, width, dtype=dtype), torch.ones(width, 4 * width, dtype=dtype)
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        normal = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True)).to(dtype)
        torch.nn.functional.linear(torch.relu(torch.nn.functional.linear(normal, inner)), outer)
        times.append(time.perf_counter() - start)
    return min(times)


_converted: "weakref.WeakKeyDictionary[nn.Module, tuple[tuple[int, int, torch.dtype], nn.Parameter]]"
_converted = weakref.WeakKeyDictionary()
"""For each linear layer its weight in another type, with the address and version of the weight it was made from."""


@contextmanager
def computing_in(
    dtype: torch.dtype | None, model: nn.Module, device: torch.device, *, exact: Collection[nn.Module] = ()
) -> Iterator[None]:
    """Compute in a type under autocast while the block lasts; None computes in the type of the weights.

    The weights of `exact` layers stay as they are.
    """
    if dtype is None:
        yield
        return
    layers = [
        layer
        for layer in model.modules()
        if type(layer) is nn.Linear and _is_frozen(layer.weight) and layer not in exact
    ]
    stock = [layer.weight for layer in layers]
    for layer in layers:
        layer.weight = _in_type(layer, dtype)
    try:
        with torch.autocast(device.type, dtype):
            yield
    finally:
        for layer, weight in zip(layers, stock, strict=True):
            layer.weight = weight


def _is_frozen(weight: torch.Tensor) -> bool:
    """Whether a weight does not change, and is whole on this process."""
    return not weight.requires_grad and weight.dtype == torch.float32 and not isinstance(weight, DTensor)


def _in_type(layer: nn.Linear, dtype: torch.dtype) -> nn.Parameter:
    made_from = layer.weight.data_ptr(), layer.weight._version, dtype
    if layer not in _converted or _converted[layer][0] != made_from:
        _converted[layer] = made_from, nn.Parameter(layer.weight.detach().to(dtype), requires_grad=False)
    return _converted[layer][1]
