"""How much each decoder was trained: `usage.json`, and plots of it over time and as in the paper's figure.

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
from polyreply.plots import COLOURS, check_plot, new_figure, save, style

SCHEMA_VERSION = 1
_MOST_POINTS = 500
_DECIMALS = 6
_BAR, _EQUAL_SHARE, _DARK = "#4a78b5", COLOURS[1], "0.15"
_NAMED_COLOURS = 10
_NAMED_DECODERS = 24
"""More would make a legend longer than the plot, so they share a colour bar."""
_SMOOTH = 25
"""A moving average spans one of so many parts of the points."""


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


def plot_usage(usage: Mapping[str, Any], path: Path) -> None:
    """Draw the share of each decoder over the steps of a run, from the content of its `usage.json`."""
    usage_PK = np.array(usage["series"]["usage"], np.float64)
    if not len(usage_PK):
        raise PolyReplyError(f"{path}: a plot of usage needs the steps of an EM run, found none; train with K decoders")
    check_plot(path)
    figure = new_figure(9, 4.5)
    axes = figure.add_subplot()
    span = max(1, len(usage_PK) // _SMOOTH)
    _draw_lines(figure, axes, usage["series"]["step"], 100 * _smooth(usage_PK, span))
    method = f", {usage['method']}" if usage["method"] else ""
    axes.set_title(f"Usage of {usage['num_decoders']} decoders{method}", loc="left", fontsize=11)
    averaged = span * usage["series"]["steps_per_point"]
    axes.set_xlabel("EM step" + (f" (moving average over {averaged} steps)" if averaged > 1 else ""))
    axes.set_ylabel("share of training (%)")
    axes.set_ylim(0, max(200 / usage["num_decoders"], axes.get_ylim()[1]))
    axes.margins(x=0.01)
    save(figure, path)


def plot_assignment(usages: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw mean ± deviation of each decoder's assignment, one panel per method: {"eqhard-em": usage, …}.

    The deviation is over samples, as in the paper, if every run has it; otherwise over steps.
    """
    if not usages or not all(usage["steps"] for usage in usages.values()):
        raise PolyReplyError(f"{path}: a plot of the assignment needs EM runs with at least one step; train them first")
    over = _deviation_over(usages)
    check_plot(path)
    figure = new_figure(max(4.5, 1.2 + 3.4 * len(usages)), 3.8)
    panels = figure.subplots(1, len(usages), sharey=True, squeeze=False)[0]
    drawn = set[int]()
    for axes, (name, usage) in zip(panels, usages.items(), strict=True):
        num_decoders = _draw_bars(axes, usage, over)
        if num_decoders not in drawn:  # once for all panels, whose names may be long
            axes.legend(loc="lower right", bbox_to_anchor=(1.02, 0.985), frameon=False, fontsize=9)
        drawn.add(num_decoders)
        axes.set_title(name, loc="left", fontsize=11)
        axes.set_xlabel("decoder")
    panels[0].set_ylabel(f"assigned share, mean ± std over {over} (%)")
    panels[0].set_ylim(0, min(105, max(_highest(usage, over) for usage in usages.values()) * 1.08))
    save(figure, path)


def _deviation_over(usages: Mapping[str, Mapping[str, Any]]) -> str:
    return "samples" if all(usage.get("sample_std") for usage in usages.values()) else "steps"


def _draw_lines(figure: Any, axes: Any, steps_P: list[int], percent_PK: Floats) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    num_decoders = percent_PK.shape[1]
    few = num_decoders <= _NAMED_COLOURS
    colours = colormaps["tab10" if few else "turbo"]
    marker = "o" if len(steps_P) == 1 else None
    for k in range(num_decoders):
        colour = colours(k if few else k / (num_decoders - 1))
        axes.plot(steps_P, percent_PK[:, k], color=colour, linewidth=1.4, label=f"decoder {k}", marker=marker)
    equal = _equal_line(axes, num_decoders, _DARK)
    style(axes)
    if num_decoders <= _NAMED_DECODERS:
        columns = 1 if num_decoders <= 12 else 2
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, ncols=columns)
    else:
        axes.legend(handles=[equal], loc="lower right", bbox_to_anchor=(1, 1), frameon=False, fontsize=9)
        figure.colorbar(ScalarMappable(Normalize(0, num_decoders - 1), colours), ax=axes, label="decoder", pad=0.02)


def _draw_bars(axes: Any, usage: Mapping[str, Any], over: str) -> int:
    """Draw one panel; K. Whiskers end at 0 and 100 %: the deviation of hard assignments exceeds their mean."""
    from matplotlib.ticker import MultipleLocator

    mean_K, std_K = _mean_and_std(usage, over)
    below_K, above_K = np.minimum(std_K, mean_K), np.minimum(std_K, 100 - mean_K)
    whiskers = {"ecolor": "0.25", "elinewidth": 1.1, "capsize": min(4, 40 / len(mean_K))}
    axes.bar(range(len(mean_K)), mean_K, width=0.72, color=_BAR, yerr=[below_K, above_K], error_kw=whiskers, zorder=2)
    _equal_line(axes, len(mean_K), _EQUAL_SHARE)
    style(axes)
    axes.xaxis.set_major_locator(MultipleLocator(1 if len(mean_K) <= 16 else 5 if len(mean_K) <= 60 else 10))
    axes.set_xlim(-0.7, len(mean_K) - 0.3)
    return len(mean_K)


def _mean_and_std(usage: Mapping[str, Any], over: str) -> tuple[Floats, Floats]:
    """In percent. Over samples a large step weighs more than a small one; over steps all weigh the same."""
    mean, std = ("share", "sample_std") if over == "samples" else ("step_mean", "step_std")
    return 100 * np.array(usage[mean], np.float64), 100 * np.array(usage[std], np.float64)


def _highest(usage: Mapping[str, Any], over: str) -> float:
    mean_K, std_K = _mean_and_std(usage, over)
    return float(max((mean_K + std_K).max(), 150 / len(mean_K)))


def _equal_line(axes: Any, num_decoders: int, colour: str) -> Any:
    label = f"equal share, 1/{num_decoders}"
    return axes.axhline(100 / num_decoders, color=colour, linestyle="--", linewidth=1.2, label=label, zorder=3)


def _smooth(usage_PK: Floats, span: int) -> Floats:
    """The moving average over the points around each; fewer at the ends."""
    total_PK = np.vstack([np.zeros_like(usage_PK[:1]), usage_PK.cumsum(0)])
    at = np.arange(len(usage_PK))
    low, high = np.maximum(at - span // 2, 0), np.minimum(at - span // 2 + span, len(usage_PK))
    smoothed_PK: Floats = (total_PK[high] - total_PK[low]) / (high - low)[:, None]
    return smoothed_PK
