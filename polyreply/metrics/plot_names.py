"""Writes the names of systems beside their points, where they cover as little as can be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import cos, hypot, pi, sin
from typing import Any

from polyreply.metrics.plot_fonts import families

_POINT, _SEED, _BAR = 9.0, 4.0, 2.0
"""Half the width of what is drawn for a system, in pixels."""
_RADII = (16, 24, 36, 52, 72, 97, 127)
_TURNS = (1 / 4, -1 / 4, 3 / 4, -3 / 4, 0, 1, 1 / 2, -1 / 2, 1 / 8, -1 / 8, 7 / 8, -7 / 8)
"""Directions in half turns; diagonals first, since error bars run to the right and left, up and down."""


@dataclass(frozen=True)
class Spot:
    """What is drawn for one system in one panel, in the units of its axes."""

    name: str
    point: tuple[float, float]
    colour: str
    bars: tuple[tuple[float, float] | None, tuple[float, float] | None] = (None, None)
    """From where to where its error bars run, along x and along y."""
    seeds: list[tuple[float, float]] = field(default_factory=list)


def write_names(axes: Any, spots: Sequence[Spot]) -> None:
    """Writes each name where it covers neither another name nor anything drawn, as close to its point as it can."""
    renderer = axes.figure.canvas.get_renderer()
    fonts = families([spot.name for spot in spots])
    points = [_around(axes, spot.point, _POINT) for spot in spots]
    details = [box for spot in spots for box in _details(axes, spot)]
    names = [text.get_window_extent(renderer) for text in axes.texts]
    frame = axes.get_window_extent(renderer)
    for spot in spots:
        at = axes.transData.transform(spot.point)
        choices: list[tuple[float, int, tuple[float, float], Any]] = []
        for offset in _offsets():
            text = _write(axes, spot, offset, fonts)
            box = text_box(text, renderer)
            text.remove()
            hidden = 10 * sum(box.overlaps(other) for other in [*points, *names]) + 10 * _sticks_out(box, frame)
            hidden += 3 * sum(box.overlaps(other) for other in details) + _line_crosses(at, box, names)
            choices.append((hidden + hypot(*offset) / 40, len(choices), offset, box))
            if not hidden:  # what comes after is farther
                break
        _, _, offset, box = min(choices, key=lambda choice: choice[:2])
        _write(axes, spot, offset, fonts)
        names.append(box)


def _details(axes: Any, spot: Spot) -> Iterator[Any]:
    """The boxes of a system's error bars and seeds, in pixels."""
    from matplotlib.transforms import Bbox

    (x, y), (along_x, along_y) = spot.point, spot.bars
    for ends in ([(end, y) for end in along_x or ()], [(x, end) for end in along_y or ()]):
        if ends:
            (x0, y0), (x1, y1) = sorted(map(tuple, axes.transData.transform(ends)))
            yield Bbox.from_extents(x0, min(y0, y1), x1, max(y0, y1)).padded(_BAR)
    for seed in spot.seeds:
        yield _around(axes, seed, _SEED)


def _around(axes: Any, point: tuple[float, float], half: float) -> Any:
    from matplotlib.transforms import Bbox

    x, y = axes.transData.transform(point)
    return Bbox.from_extents(x - half, y - half, x + half, y + half)


def _line_crosses(point: Any, box: Any, names: Sequence[Any]) -> bool:
    """Whether the line from a point to its name would run through another name."""
    x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
    steps = [(point[0] + (x - point[0]) * t / 20, point[1] + (y - point[1]) * t / 20) for t in range(21)]
    return any(other.contains(*step) for step in steps for other in names)


def _sticks_out(box: Any, of: Any) -> bool:
    return not (of.x0 <= box.x0 and box.x1 <= of.x1 and of.y0 <= box.y0 and box.y1 <= of.y1)


def text_box(text: Any, renderer: Any) -> Any:
    """The extent of the words of an annotation, without its line."""
    from matplotlib.text import Text

    text.update_positions(renderer)
    return Text.get_window_extent(text, renderer).padded(2)


def _write(axes: Any, spot: Spot, offset: tuple[float, float], fonts: list[str]) -> Any:
    """The name at an offset in pixels from its point, with a line to it when it is not right beside it."""
    dx, dy = offset
    scale = 72 / axes.figure.dpi
    far = hypot(dx, dy) > _RADII[0] + 1
    return axes.annotate(
        spot.name,
        spot.point,
        (dx * scale, dy * scale),
        textcoords="offset points",
        fontsize=9,
        fontfamily=fonts,
        color=spot.colour,
        parse_math=False,  # a name may have a dollar sign
        ha="left" if dx > 1 else "right" if dx < -1 else "center",
        va="center" if abs(dy) < 1 else "bottom" if dy > 0 else "top",
        zorder=4,
        arrowprops={"arrowstyle": "-", "color": spot.colour, "linewidth": 0.7, "shrinkB": 5} if far else None,
    )


def _offsets() -> Iterator[tuple[float, float]]:
    """Places around a point in pixels, the nearest first."""
    for radius in _RADII:
        for turn in _TURNS:
            yield radius * cos(turn * pi), radius * sin(turn * pi)
