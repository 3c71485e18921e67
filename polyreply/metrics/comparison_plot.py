"""Quality against diversity: BLEU2-F over Pairwise-BLEU and over Dist-2, one point for each system."""

import warnings
from collections.abc import Sequence
from typing import Any

from polyreply.errors import PolyReplyError
from polyreply.metrics.comparison import Comparison, System
from polyreply.plots import (
    COLOURS,
    MARKERS,
    NamedPoint,
    draw_point,
    font_families,
    new_figure,
    style,
    write_names,
)

QUALITY = ("bleu2_f", "BLEU2-F (higher is better)")
PANELS = (
    ("pairwise_bleu", "Pairwise-BLEU (lower is more diverse; reversed axis)", "no pairs"),
    ("dist2", "Dist-2 (higher is more diverse)", "no Dist-2"),
)
"""The score of a panel, the label of its axis, and the note on systems that lack it."""
_MOST_ABSENT = 4
"""How many systems that a panel lacks are named in it."""


def draw_figure(comparison: Comparison) -> Any:
    """Both panels, on one y axis; bars are 95 % intervals over contexts, small points are seeds."""
    figure = new_figure(11, 5)
    panels = list(zip(figure.subplots(1, 2, sharey=True), PANELS, strict=True))
    points = [_draw_systems(axes, comparison, score) for axes, (score, _, _) in panels]
    if not any(points):
        raise PolyReplyError(
            "a plot needs BLEU2-F and Pairwise-BLEU or Dist-2, found no system with them; evaluate with --references"
        )
    for axes, (score, label, absent) in panels:
        axes.margins(0.22)
        for low, high, set_limits in ((*axes.get_xlim(), axes.set_xlim), (*axes.get_ylim(), axes.set_ylim)):
            room = 0.04 * (high - low)  # scores are percentages
            set_limits(max(low, -room), min(high, 100 + room))
        if score == "pairwise_bleu":
            axes.invert_xaxis()
        axes.set_xlabel(label)
        style(axes, "both")
        axes.text(0.99, 0.99, "better and more diverse ↗", transform=axes.transAxes, ha="right", va="top", color="0.5")
        _name_absent(axes, comparison.systems, score, absent)
    panels[0][0].set_ylabel(QUALITY[1])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # names are placed on the axes as they are now
        for (axes, _), named in zip(panels, points, strict=True):
            write_names(axes, named)
    return figure


def _draw_systems(axes: Any, comparison: Comparison, score: str) -> list[NamedPoint]:
    """Draw a point with its bars and seeds for each system that has the panel's scores."""
    points = []
    for place, system in enumerate(comparison.systems):
        x, y = system.mean(score), system.mean(QUALITY[0])
        if x is None or y is None:
            continue
        bars = comparison.intervals.get(system.name, {})
        seeds = [(one.numbers[score], one.numbers[QUALITY[0]]) for one in system.seeds]
        point = NamedPoint(
            system.name,
            (x, y),
            COLOURS[place % len(COLOURS)],
            (bars.get(score), bars.get(QUALITY[0])),
            [(x, y) for x, y in seeds if x is not None and y is not None] if len(seeds) > 1 else [],
        )
        draw_point(axes, point, MARKERS[place % len(MARKERS)])
        points.append(point)
    return points


def _name_absent(axes: Any, systems: Sequence[System], score: str, absent: str) -> None:
    """Name in a corner of the panel the systems that are not on it, and why."""
    without_quality = [one.name for one in systems if one.mean(QUALITY[0]) is None]
    others = [one.name for one in systems if one.name not in without_quality and one.mean(score) is None]
    lines = []
    for why, names in ((absent, others), ("no BLEU2-F", without_quality)):
        more = f" and {len(names) - _MOST_ABSENT} more" if len(names) > _MOST_ABSENT else ""
        lines += [f"{why}: {', '.join(names[:_MOST_ABSENT])}{more}"] if names else []
    if lines:
        look = {"va": "bottom", "color": "0.4", "fontsize": 9, "parse_math": False}
        fonts = font_families([one.name for one in systems])
        axes.text(0.01, 0.01, "\n".join(lines), transform=axes.transAxes, fontfamily=fonts, **look)
