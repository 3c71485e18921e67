"""Pictures of the experiments: panels of bars, panels of lines, and maps of shares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyreply.plots import COLOURS, font_families, new_figure, save, style


@dataclass(frozen=True)
class Bars:
    """A panel of bars: one for each decoder, or each rank of a beam."""

    title: str
    values: Sequence[float]
    axis: str
    colour: str = COLOURS[0]


@dataclass(frozen=True)
class Line:
    """A line of a panel."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "o-"
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    """A band around it, if given."""


@dataclass(frozen=True)
class Panel:
    """A panel of lines."""

    title: str
    x_axis: str
    y_axis: str
    lines: Sequence[Line]
    log: bool = False
    """Whether both axes are logarithmic."""
    ticks: Sequence[float] = ()
    """Of the x axis; empty: matplotlib chooses."""


def draw_bars(rows: Sequence[Sequence[Bars]], path: Path) -> None:
    """Draw rows of panels; panels of one column share their y axis."""
    figure = new_figure(4.0 * len(rows[0]), 2.9 * len(rows))
    panels = figure.subplots(len(rows), len(rows[0]), sharey="col", squeeze=False)
    fonts = font_families([bars.title for row in rows for bars in row])
    tops = [max(max(bars.values, default=0.0) for bars in column) for column in zip(*rows, strict=True)]
    for panels_of_row, row in zip(panels, rows, strict=True):
        for axes, bars, top in zip(panels_of_row, row, tops, strict=True):
            axes.bar(range(len(bars.values)), bars.values, width=0.72, color=bars.colour, zorder=2)
            axes.set_title(bars.title, loc="left", fontsize=10, fontfamily=fonts)
            axes.set_xlabel(bars.axis, fontsize=9)
            axes.set_xticks(range(len(bars.values)))
            axes.set_ylim(0, max(1.0, 1.05 * top))
            style(axes)
    save(figure, path)


def draw_lines(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels of lines side by side."""
    figure = new_figure(5.6 * len(panels), 4.6)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for place, line in enumerate(panel.lines):
            colour = COLOURS[place % len(COLOURS)]
            axes.plot(line.x, line.y, line.style, color=colour, label=line.name, markersize=5, linewidth=1.6)
            if line.low:
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
        if panel.log:
            _make_logarithmic(axes)
        if panel.ticks:
            axes.set_xticks(panel.ticks)
        axes.set_title(panel.title, loc="left", fontsize=11)
        axes.set_xlabel(panel.x_axis)
        axes.set_ylabel(panel.y_axis)
        axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
        style(axes)
    save(figure, path)


def draw_shares(shares: Mapping[str, Sequence[Sequence[float]]], columns: Sequence[str], path: Path) -> None:
    """Draw a map of percentages under each name: a row for each decoder, a column for each thing that is counted."""
    figure = new_figure(1.2 + 4.4 * len(shares), 4.6)
    for axes, (name, share_KA) in zip(figure.subplots(1, len(shares), squeeze=False)[0], shares.items(), strict=True):
        image = axes.imshow(share_KA, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=8)
        axes.set_yticks(range(len(share_KA)))
        axes.set_ylabel("decoder")
    figure.colorbar(image, ax=axes, label="share of its replies")
    save(figure, path)


def _make_logarithmic(axes: Any) -> None:
    """Logarithmic axes whose ticks are plain numbers: 1, 2, 5 and so on."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
