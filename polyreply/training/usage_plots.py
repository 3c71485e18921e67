"""Plots of a run: the usage of each decoder over time, and the assignment's mean ± deviation as in the paper's figure.

Legend: K decoders, P points.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyreply.arrays import Floats
from polyreply.errors import PolyReplyError
from polyreply.plots import COLOURS, check_plot, new_figure, save, style

_BAR, _EQUAL_SHARE, _DARK = "#4a78b5", COLOURS[1], "0.15"
_NAMED_COLOURS = 10
_NAMED_DECODERS = 24
"""More would make a legend longer than the plot, so they share a colour bar."""
_SMOOTH = 25
"""A moving average spans one of so many parts of the points."""


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
