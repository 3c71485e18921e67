"""What a step and a validation report: the one source of the live view, the log, the alarms and the statistics.

Legend: K decoders.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_RECENT = 50
"""Steps over which loss, speed and usage are averaged."""
_DIGITS = 6
"""Significant digits in the log: finer than anybody reads, and a third of the bytes."""


@dataclass(frozen=True)
class StepRecord:
    """What one EM step (or, in stage 1, one update) did."""

    step: int
    epoch: int
    loss: float
    """Mean NLL per token of the samples under the decoders they were given."""
    learning_rate: float
    samples: int
    e_seconds: float
    """Zero in stage 1, as `assign_seconds`."""
    assign_seconds: float
    m_seconds: float
    usage_K: tuple[float, ...] = ()
    """Share of this step's samples (or of their posterior mass) each decoder was trained on; empty in stage 1."""
    max_posterior: float | None = None
    """Mean over samples of the largest posterior."""
    posterior_distance: float | None = None
    """Mean total-variation distance of the posterior from uniform: near 0 when training is synchronous."""
    deviation: float | None = None
    """Largest deviation from 1/K of the running mean posterior: the left side of the paper's theorem."""
    hoeffding: float | None = None
    """The theorem's term for a finite number of samples."""
    gradient_norm: float | None = None
    weight_std_K: tuple[float, ...] = ()
    """Standard deviation over this step's samples of the weight each decoder gave them, as in the paper's figure of the
    assignment: about 0 when training is synchronous, √(1/K − 1/K²) for equal hard assignments."""

    @property
    def seconds(self) -> float:
        """What the step took, without reading data."""
        return self.e_seconds + self.assign_seconds + self.m_seconds

    def to_json(self) -> dict[str, Any]:
        """Plain values, rounded; None where a number is not finite, for which JSON has no word. Without the times."""
        return _without_times(self)

    def times(self) -> dict[str, Any]:
        """What took how long, which is another thing in every run."""
        return _times(self)


@dataclass(frozen=True)
class ValidationRecord:
    """What one validation found."""

    step: int
    nll: float
    """Mean NLL per token."""
    metrics: dict[str, float]
    """Numbers by the names they have in a score file."""
    replies: list[dict[str, Any]]
    """A few contexts, the same each time, with a reply of each decoder: {"context": …, "responses": […]}."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain values, rounded; None where a number is not finite. Without the time."""
        return _without_times(self)

    def times(self) -> dict[str, Any]:
        """What it took."""
        return _times(self)


class Meter:
    """How a run is doing, each number from its last steps; NaN where there is none yet."""

    def __init__(self, total_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_steps = total_steps
        self._clock = clock
        self._begin = clock()
        self._from: tuple[int, float] | None = None
        self._recent: deque[StepRecord] = deque(maxlen=_RECENT)
        self.last: StepRecord | None = None
        self.checked: ValidationRecord | None = None

    def add(self, record: StepRecord) -> None:
        """Takes a step in."""
        if self._from is None:  # neither loading a model nor what an interrupted run did counts for the pace
            self._from = record.step - 1, self._clock() - record.seconds
        self._recent.append(record)
        self.last = record

    @property
    def step(self) -> int:
        """The step the run is at."""
        return self.last.step if self.last else 0

    @property
    def elapsed(self) -> float:
        """Seconds since the view was made."""
        return self._clock() - self._begin

    @property
    def remaining(self) -> float:
        """Seconds to the last step, at the pace so far, validations included."""
        if self._from is None or self.step <= self._from[0]:
            return math.nan
        pace = (self._clock() - self._from[1]) / (self.step - self._from[0])
        return pace * max(0, self.total_steps - self.step)

    @property
    def loss(self) -> float:
        """Mean over the last steps."""
        return _mean([record.loss for record in self._recent])

    @property
    def samples_per_second(self) -> float:
        """Over the last steps, reading data not counted."""
        seconds = sum(record.seconds for record in self._recent)
        return sum(record.samples for record in self._recent) / seconds if seconds > 0 else math.nan

    @property
    def time_shares(self) -> tuple[float, float, float]:
        """Of E-step, assignment and M-step."""
        parts = [(record.e_seconds, record.assign_seconds, record.m_seconds) for record in self._recent]
        e, assign, m = (sum(column) for column in zip(*parts, strict=True)) if parts else (0.0, 0.0, 0.0)
        total = e + assign + m
        return (e / total, assign / total, m / total) if total > 0 else (math.nan, math.nan, math.nan)

    @property
    def usage_K(self) -> list[float]:
        """Mean share of each decoder; empty in stage 1."""
        shares = [record.usage_K for record in self._recent if record.usage_K]
        return [_mean(column) for column in zip(*shares, strict=True)]

    @property
    def max_posterior(self) -> float:
        """Mean over the last steps of the largest posterior."""
        return _mean([record.max_posterior for record in self._recent if record.max_posterior is not None])


def _without_times(record: StepRecord | ValidationRecord) -> dict[str, Any]:
    return {name: _plain(value) for name, value in asdict(record).items() if not name.endswith("seconds")}


def _times(record: StepRecord | ValidationRecord) -> dict[str, Any]:
    return {name: _plain(value) for name, value in asdict(record).items() if name == "step" or name.endswith("seconds")}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
