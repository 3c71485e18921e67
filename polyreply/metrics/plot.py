"""Quality against diversity: BLEU2-F over Pairwise-BLEU and over Dist-2, one point for each system."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyreply.errors import MissingExtraError, PolyReplyError
from polyreply.metrics.comparison import Comparison
from polyreply.metrics.plot_fonts import families
from polyreply.metrics.plot_names import Spot, write_names
from polyreply.metrics.systems import System

QUALITY = ("bleu2_f", "BLEU2-F (higher is better)")
PANELS = (
    ("pairwise_bleu", "Pairwise-BLEU (lower is more diverse; reversed axis)", "no pairs"),
    ("dist2", "Dist-2 (higher is more diverse)", "no Dist-2"),
)
"""The number of a panel, the name of its axis, and what is said of a system without it."""
ENDINGS = (".png", ".svg", ".pdf")
_COLOURS = ("#1f4e9c", "#c8441b", "#00795a", "#8d3f8f", "#8a5a00", "#007a8c", "#333333")  # dark enough for names
_MARKERS = "osD^vPX*p"
_MOST_ABSENT = 4
"""How many systems that a panel lacks are named in it."""


def check_plot(path: Path) -> None:
    """Raises one clear line, before any work, when no plot can be drawn there."""
    if path.suffix.lower() not in ENDINGS:
        raise PolyReplyError(f"{path}: expected a name ending in {', '.join(ENDINGS)}, found {path.name!r}; rename it")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError("matplotlib", "demo", "a plot") from None


def draw(comparison: Comparison, ending: str) -> bytes:
    """The picture as a file of that ending; bars are 95 % intervals over contexts, small points are seeds."""
    figure = draw_figure(comparison)
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # `missing_letters` says it in one line
        figure.savefig(stream, format=ending.removeprefix(".").lower(), dpi=160)
    return stream.getvalue()


def draw_figure(comparison: Comparison) -> Any:
    """Both panels with everything on them, one y axis for both."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(zip(figure.subplots(1, 2, sharey=True), PANELS, strict=True))
    spots = [_draw_systems(axes, comparison, number) for axes, (number, _, _) in panels]
    if not any(spots):
        raise PolyReplyError(
            "a plot needs BLEU2-F and Pairwise-BLEU or Dist-2, found no system with them; evaluate with --references"
        )
    for axes, (number, title, absent) in panels:
        _dress(axes, number, title)
        _name_absent(axes, comparison.systems, number, absent)
    panels[0][0].set_ylabel(QUALITY[1])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # names are placed on the axes as they are now
        for (axes, _), names in zip(panels, spots, strict=True):
            write_names(axes, names)
    return figure


def _point(system: System, number: str) -> tuple[float, float] | None:
    x, y = system.mean(number), system.mean(QUALITY[0])
    return None if x is None or y is None else (x, y)


def _draw_systems(axes: Any, comparison: Comparison, number: str) -> list[Spot]:
    """Draws a point with its bars and seeds for each system that has the panel's numbers."""
    spots = []
    for place, system in enumerate(comparison.systems):
        point = _point(system, number)
        if point is not None:
            bars = comparison.intervals.get(system.name, {})
            seeds = [(one.numbers[number], one.numbers[QUALITY[0]]) for one in system.seeds]
            spot = Spot(
                system.name,
                point,
                _COLOURS[place % len(_COLOURS)],
                (bars.get(number), bars.get(QUALITY[0])),
                [(x, y) for x, y in seeds if x is not None and y is not None] if len(seeds) > 1 else [],
            )
            _draw_spot(axes, spot, _MARKERS[place % len(_MARKERS)])
            spots.append(spot)
    return spots


def _draw_spot(axes: Any, spot: Spot, marker: str) -> None:
    bars = {
        f"{axis}err": [[max(0.0, middle - bar[0])], [max(0.0, bar[1] - middle)]]
        for axis, bar, middle in zip("xy", spot.bars, spot.point, strict=True)
        if bar is not None
    }
    axes.errorbar(*spot.point, **bars, fmt=marker, color=spot.colour, markersize=8, elinewidth=1, capsize=2, zorder=3)
    for seed in spot.seeds:
        axes.plot(*seed, ".", color=spot.colour, alpha=0.45, markersize=5, zorder=2)


def _dress(axes: Any, number: str, title: str) -> None:
    axes.margins(0.22)
    _trim(axes)
    if number == "pairwise_bleu":
        axes.invert_xaxis()
    axes.set_xlabel(title)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.text(0.99, 0.99, "better and more diverse ↗", transform=axes.transAxes, ha="right", va="top", color="0.5")


def _trim(axes: Any) -> None:
    """Keeps the axes within what percentages can be, with a little room."""
    for low, high, limit in ((*axes.get_xlim(), axes.set_xlim), (*axes.get_ylim(), axes.set_ylim)):
        room = 0.04 * (high - low)
        limit(max(low, -room), min(high, 100 + room))


def _name_absent(axes: Any, systems: Sequence[System], number: str, absent: str) -> None:
    """Says in a corner of the panel which systems are not on it, and why."""
    without_quality = [one.name for one in systems if one.mean(QUALITY[0]) is None]
    others = [one.name for one in systems if one.name not in without_quality and one.mean(number) is None]
    told = [(absent, others), ("no BLEU2-F", without_quality)]
    lines = [f"{why}: {_few(names)}" for why, names in told if names]
    if lines:
        axes.text(
            0.01,
            0.01,
            "\n".join(lines),
            transform=axes.transAxes,
            va="bottom",
            color="0.4",
            fontsize=9,
            fontfamily=families([one.name for one in systems]),
            parse_math=False,
        )


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_ABSENT
    return ", ".join(names[:_MOST_ABSENT]) + (f" and {more} more" if more > 0 else "")
