"""Quality against diversity: BLEU2-F over Pairwise-BLEU and over Dist-2, one point for each system."""

import io
from collections.abc import Iterator, Sequence
from math import cos, hypot, pi, sin
from pathlib import Path
from typing import Any

from polyreply.errors import MissingExtraError, PolyReplyError
from polyreply.metrics.comparison import Comparison, System
from polyreply.metrics.scores import write_atomically

QUALITY = ("bleu2_f", "BLEU2-F (higher is better)")
PANELS = (
    ("pairwise_bleu", "Pairwise-BLEU (lower is more diverse; reversed axis)"),
    ("dist2", "Dist-2 (higher is more diverse)"),
)
ENDINGS = (".png", ".svg", ".pdf")
_COLOURS = ("#1f4e9c", "#c8441b", "#00795a", "#8d3f8f", "#8a5a00", "#007a8c", "#333333")  # dark enough for names
_MARKERS = "osD^vPX*p"


def check_plot(path: Path) -> None:
    """Raises one clear line, before any work, when no plot can be drawn there."""
    if path.suffix.lower() not in ENDINGS:
        raise PolyReplyError(f"{path}: expected a name ending in {', '.join(ENDINGS)}, found {path.name!r}; rename it")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError("matplotlib", "demo", "a plot") from None


def plot(comparison: Comparison, path: Path, *, overwrite: bool = False) -> None:
    """Draws both panels into a file; bars are 95 % intervals over contexts, small points are seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    check_plot(path)
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    drawn = 0
    for place, (number, label) in enumerate(PANELS):
        axes = figure.add_subplot(1, 2, place + 1)
        shown = [(n, one) for n, one in enumerate(comparison.systems) if _point(one, number) is not None]
        for n, system in shown:
            _draw_system(axes, comparison, system, number, n)
        _dress(axes, number, label, first=place == 0)
        drawn += len(shown)
    if not drawn:
        raise PolyReplyError(
            "a plot needs BLEU2-F and Pairwise-BLEU or Dist-2, found no system with them; evaluate with --references"
        )
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # names are placed on the axes as they are now
    for axes, (number, _) in zip(figure.axes, PANELS, strict=True):
        _label(axes, comparison.systems, number)
    stream = io.BytesIO()
    figure.savefig(stream, format=path.suffix[1:].lower(), dpi=160)
    write_atomically(path, stream.getvalue(), overwrite=overwrite)


def _point(system: System, number: str) -> tuple[float, float] | None:
    x, y = system.mean(number), system.mean(QUALITY[0])
    return None if x is None or y is None else (x, y)


def _draw_system(axes: Any, comparison: Comparison, system: System, number: str, place: int) -> None:
    point = _point(system, number)
    assert point is not None
    colour, marker = _COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)]
    found = comparison.intervals.get(system.name, {})
    bars = {
        f"{axis}err": [[max(0.0, middle - found[name][0])], [max(0.0, found[name][1] - middle)]]
        for axis, name, middle in (("x", number, point[0]), ("y", QUALITY[0], point[1]))
        if name in found
    }
    axes.errorbar(*point, **bars, fmt=marker, color=colour, markersize=8, elinewidth=1, capsize=2, zorder=3)
    if len(system.seeds) > 1:
        seeds = [(one.numbers[number], one.numbers[QUALITY[0]]) for one in system.seeds]
        axes.plot(*zip(*seeds, strict=True), ".", color=colour, alpha=0.45, markersize=5, zorder=2)


def _dress(axes: Any, number: str, label: str, *, first: bool) -> None:
    axes.margins(0.22)
    _trim(axes)
    if number == "pairwise_bleu":
        axes.invert_xaxis()
    axes.set_xlabel(label)
    if first:
        axes.set_ylabel(QUALITY[1])
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.text(0.99, 0.99, "better and more diverse ↗", transform=axes.transAxes, ha="right", va="top", color="0.5")


def _trim(axes: Any) -> None:
    """Keeps the axes within what percentages can be, with a little room."""
    for low, high, limit in ((*axes.get_xlim(), axes.set_xlim), (*axes.get_ylim(), axes.set_ylim)):
        room = 0.04 * (high - low)
        limit(max(low, -room), min(high, 100 + room))


def _label(axes: Any, systems: Sequence[System], number: str) -> None:
    """Writes each name beside its point, where it covers neither another name nor a point, as close as it can."""
    renderer = axes.figure.canvas.get_renderer()
    at = {place: axes.transData.transform(point) for place, one in enumerate(systems) if (point := _point(one, number))}
    points = [_box(x, y, 9) for x, y in at.values()]
    names = [text.get_window_extent(renderer) for text in axes.texts]
    for place, point in at.items():
        choices: list[tuple[float, int, tuple[float, float], Any]] = []
        for offset in _offsets():
            text = _write(axes, systems[place].name, point, offset, _COLOURS[place % len(_COLOURS)])
            box = _text_box(text, renderer)
            text.remove()
            hidden = sum(box.overlaps(other) for other in [*points, *names])
            hidden += _sticks_out(box, axes.get_window_extent(renderer))
            crossed = _line_crosses(point, box, names)
            choices.append((10 * hidden + crossed + hypot(*offset) / 40, len(choices), offset, box))
            if not hidden and not crossed:  # what comes after is farther
                break
        _, _, offset, box = min(choices, key=lambda choice: choice[:2])
        _write(axes, systems[place].name, point, offset, _COLOURS[place % len(_COLOURS)])
        names.append(box)


def _line_crosses(point: Any, box: Any, names: Sequence[Any]) -> bool:
    """Whether the line from a point to its name would run through another name."""
    x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
    steps = [(point[0] + (x - point[0]) * t / 20, point[1] + (y - point[1]) * t / 20) for t in range(21)]
    return any(other.contains(*step) for step in steps for other in names)


def _sticks_out(box: Any, of: Any) -> bool:
    return not (of.x0 <= box.x0 and box.x1 <= of.x1 and of.y0 <= box.y0 and box.y1 <= of.y1)


def _text_box(text: Any, renderer: Any) -> Any:
    """The extent of the words of an annotation, without its line."""
    from matplotlib.text import Text

    text.update_positions(renderer)
    return Text.get_window_extent(text, renderer).padded(2)


def _write(axes: Any, name: str, at: tuple[float, float], offset: tuple[float, float], colour: str) -> Any:
    """The name at an offset in pixels from its point, with a line to it when it is not right beside it."""
    dx, dy = offset
    scale = 72 / axes.figure.dpi
    return axes.annotate(
        name,
        axes.transData.inverted().transform(at),
        (dx * scale, dy * scale),
        textcoords="offset points",
        fontsize=9,
        color=colour,
        ha="left" if dx > 1 else "right" if dx < -1 else "center",
        va="center" if abs(dx) > 1 else "bottom" if dy > 0 else "top",
        zorder=4,
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkB": 5} if abs(dy) > 1 else None,
    )


def _offsets() -> Iterator[tuple[float, float]]:
    """Places around a point in pixels, the nearest first; right and left before above and below."""
    for radius in (14, 22, 34, 50, 70, 95, 125):
        for turn in (0, 1, 1 / 4, -1 / 4, 3 / 4, -3 / 4, 1 / 2, -1 / 2, 1 / 8, -1 / 8, 7 / 8, -7 / 8):
            yield radius * cos(turn * pi), radius * sin(turn * pi)


def _box(x: float, y: float, half: float) -> Any:
    from matplotlib.transforms import Bbox

    return Bbox.from_extents(x - half, y - half, x + half, y + half)
