"""How much each decoder was trained: `usage.json`, and the numbers behind the paper's figure of the assignment.

Legend: K decoders, P points of the series.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyreply.arrays import Floats
from polyreply.em.em_step import StepRecord
from polyreply.errors import PolyReplyError
from polyreply.files import check_schema_version, write_file

SCHEMA_VERSION = 1
_MOST_POINTS = 500
_DECIMALS = 6


class UsageStatistics:
    """Accumulates the usage of a run's EM steps, in constant memory."""

    def __init__(self, num_decoders: int) -> None:
        self.num_decoders = num_decoders
        self._steps = self._samples = 0
        self._trained_K = np.zeros(num_decoders)
        """Samples, or posterior mass, of each decoder."""
        self._mean_K, self._scatter_K = np.zeros(num_decoders), np.zeros(num_decoders)
        """Mean of the steps' shares, and the sum of squared distances from it."""
        self._squares_K: Floats | None = np.zeros(num_decoders)
        """Sum over samples of the squared weight; None once a step came without `weight_std_K`."""
        self._first: list[float] = []
        self._last: list[float] = []
        self._series = _Series(num_decoders)

    def add(self, record: StepRecord) -> None:
        """Add a step; one of stage 1, or whose numbers are not finite, is ignored."""
        if not record.usage_K or not all(map(math.isfinite, record.usage_K)):
            return
        if len(record.usage_K) != self.num_decoders:
            raise ValueError(f"expected the usage of {self.num_decoders} decoders, found {len(record.usage_K)}")
        usage_K = np.array(record.usage_K)
        self._steps += 1
        self._samples += record.samples
        self._trained_K += record.samples * usage_K
        distance_K = usage_K - self._mean_K
        self._mean_K += distance_K / self._steps
        self._scatter_K += distance_K * (usage_K - self._mean_K)
        self._add_squares(record, usage_K)
        self._first = self._first or [*record.usage_K]
        self._last = [*record.usage_K]
        self._series.add(record.step, usage_K)

    def summary(self, method: str) -> dict[str, Any]:
        """The content of `usage.json`; deviations are over steps and, where known, over samples."""
        share_K = self._trained_K / max(self._samples, 1)
        return {
            "schema_version": SCHEMA_VERSION,
            "method": method,
            "num_decoders": self.num_decoders,
            "steps": self._steps,
            "samples": self._samples,
            "share": _rounded(share_K),
            "step_mean": _rounded(self._mean_K),
            "step_std": _rounded(np.sqrt(self._scatter_K / max(self._steps, 1))),
            "sample_std": self._sample_std(share_K),
            "first": _rounded(np.array(self._first)),
            "last": _rounded(np.array(self._last)),
            "series": self._series.summary(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values with which a resumed run ends with the same file."""
        return {
            "steps": self._steps,
            "samples": self._samples,
            "trained": self._trained_K.tolist(),
            "mean": self._mean_K.tolist(),
            "scatter": self._scatter_K.tolist(),
            "squares": None if self._squares_K is None else self._squares_K.tolist(),
            "first": self._first,
            "last": self._last,
            "series": self._series.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._steps, self._samples = state["steps"], state["samples"]
        self._trained_K = np.array(state["trained"], np.float64)
        self._mean_K, self._scatter_K = np.array(state["mean"], np.float64), np.array(state["scatter"], np.float64)
        self._squares_K = None if state["squares"] is None else np.array(state["squares"], np.float64)
        self._first, self._last = [*state["first"]], [*state["last"]]
        self._series.load_state_dict(state["series"])

    def _add_squares(self, record: StepRecord, usage_K: Floats) -> None:
        if len(record.weight_std_K) != self.num_decoders:
            self._squares_K = None
        if self._squares_K is not None:
            self._squares_K += record.samples * (np.square(record.weight_std_K) + np.square(usage_K))

    def _sample_std(self, share_K: Floats) -> list[float] | None:
        if self._squares_K is None or not self._steps:
            return None
        return _rounded(np.sqrt(np.maximum(self._squares_K / max(self._samples, 1) - np.square(share_K), 0)))


class _Series:
    """The usage over time as means over equal numbers of steps; the number doubles when there are too many points."""

    def __init__(self, num_decoders: int) -> None:
        self._stride, self._pending = 1, 0
        self._sum_K = np.zeros(num_decoders)
        self._step = 0
        self._steps_P: list[int] = []
        self._usage_PK: list[list[float]] = []

    def add(self, step: int, usage_K: Floats) -> None:
        self._step, self._sum_K = step, self._sum_K + usage_K
        self._pending += 1
        if self._pending == self._stride:
            self._steps_P.append(step)
            self._usage_PK.append((self._sum_K / self._stride).tolist())
            self._pending, self._sum_K = 0, np.zeros_like(self._sum_K)
        if len(self._steps_P) == _MOST_POINTS:
            self._halve()

    def summary(self) -> dict[str, Any]:
        """The last step and the mean usage of each point; the last point may have fewer steps than the others."""
        steps_P, usage_PK = [*self._steps_P], [*self._usage_PK]
        if self._pending:
            steps_P.append(self._step)
            usage_PK.append((self._sum_K / self._pending).tolist())
        return {
            "steps_per_point": self._stride,
            "step": steps_P,
            "usage": [_rounded(np.array(usage_K)) for usage_K in usage_PK],
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "stride": self._stride,
            "pending": self._pending,
            "sum": self._sum_K.tolist(),
            "step": self._step,
            "steps": [*self._steps_P],
            "usage": [*self._usage_PK],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stride, self._pending, self._step = state["stride"], state["pending"], state["step"]
        self._sum_K = np.array(state["sum"], np.float64)
        self._steps_P, self._usage_PK = [*state["steps"]], [*state["usage"]]

    def _halve(self) -> None:
        self._stride *= 2
        self._steps_P = self._steps_P[1::2]
        usage_PK = np.array(self._usage_PK)
        self._usage_PK = ((usage_PK[0::2] + usage_PK[1::2]) / 2).tolist()


def write_usage(path: Path, summary: Mapping[str, Any]) -> None:
    """Write `usage.json` atomically, replacing an earlier one."""
    lines = (msgspec.json.encode(name) + b": " + msgspec.json.encode(value) for name, value in summary.items())
    write_file(path, b"{\n" + b",\n".join(lines) + b"\n}\n", overwrite=True)  # one line each, for people


def read_usage(path: Path) -> dict[str, Any]:
    """Read what `write_usage` wrote."""
    if not path.is_file():
        raise PolyReplyError(f"{path}: there is no such file; name the usage.json of a run folder")
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = {}
    if not {"schema_version", "share", "step_std", "series"} <= found.keys():
        raise PolyReplyError(f"{path}: expected the usage.json of a training run, found something else")
    check_schema_version(path, found["schema_version"], SCHEMA_VERSION)
    return found


def _rounded(values_K: Floats) -> list[float]:
    return [float(value) for value in np.round(values_K, _DECIMALS)]
