"""One style for all plots, fonts for names in any script, and names placed next to their points.

A figure belongs to nobody's window and to no global state of matplotlib, and equal data give equal files. Plots need
the extra `demo`: call `check_plot` before the work where a plot was asked for, `can_plot` where it is only welcome.
"""

import importlib.util
import io
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import cos, hypot, pi, sin
from pathlib import Path
from typing import Any, Literal

from polyreply.errors import MissingExtraError, PolyReplyError
from polyreply.files import write_file

ENDINGS = (".png", ".svg", ".pdf")
COLOURS = ("#1f4e9c", "#c8441b", "#00795a", "#8d3f8f", "#8a5a00", "#007a8c", "#333333")
"""Dark enough for text on white."""
MARKERS = "osD^vPX*p"

_NO_ORIGIN: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Fields that would put a date or a version into a file."""


# --- figures


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def check_plot(path: Path) -> None:
    """Raise unless a plot can be written as a file of that name."""
    if path.suffix.lower() not in ENDINGS:
        raise PolyReplyError(f"{path}: expected a name ending in {', '.join(ENDINGS)}, found {path.name!r}; rename it")
    if not can_plot():
        raise MissingExtraError("matplotlib", "demo", "a plot")


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches, that lays out its own panels."""
    if not can_plot():
        raise MissingExtraError("matplotlib", "demo", "a plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style(axes: Any, grid: Literal["both", "x", "y"] = "y") -> None:
    """Give a panel a light grid behind the data and no frame on top and right."""
    axes.grid(axis=grid, color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def image(figure: Any, ending: str) -> bytes:
    """The content of a file of that ending; letters without a font are boxes (`missing_letters` names them)."""
    from matplotlib import rc_context

    kind = ending.removeprefix(".").lower()
    stream = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "polyreply"}):  # SVG ids are random otherwise
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(stream, format=kind, dpi=160, metadata=_NO_ORIGIN[kind])
    return stream.getvalue()


def save(figure: Any, path: Path) -> None:
    """Write the figure atomically, replacing an earlier one."""
    check_plot(path)
    write_file(path, image(figure, path.suffix), overwrite=True)


# --- fonts


_PREFERRED = ("Noto Sans CJK", "Source Han Sans", "PingFang", "Microsoft YaHei", "WenQuanYi", "SimHei", "Noto Sans")
"""Fonts whose names begin with one of these are tried before others."""
_NO_LETTERS = ("Last Resort", "STIXSize", "STIXNonUnicode", "cm")
"""Fonts that come with matplotlib and show boxes, or other signs in place of letters."""


def font_families(texts: Sequence[str]) -> list[str]:
    """The default fonts, followed by installed fonts for the letters that these lack."""
    return list(_find_fonts("".join(texts))[0])


def missing_letters(texts: Sequence[str]) -> str:
    """One line about letters that no installed font has; empty if there are none."""
    missing = _find_fonts("".join(texts))[1]
    if not missing:
        return ""
    return (
        f"no installed font has the letters {missing[:20]}: the plot shows boxes; install a font for them (for "
        "Chinese, Noto Sans CJK), or use other names"
    )


@lru_cache(maxsize=8)
def _find_fonts(text: str) -> tuple[tuple[str, ...], str]:
    """Families that cover most letters of the text, and the letters that no font has."""
    from matplotlib import font_manager, rcParams

    usual = tuple(rcParams["font.family"])
    base = font_manager.findfont(font_manager.FontProperties(family=list(usual)))
    missing = {char for char in text if unicodedata.category(char) not in ("Cf", "Mn", "Zs")} - _letters(base)
    added = []
    fonts = font_manager.fontManager.ttflist if missing else []
    for entry in sorted(fonts, key=lambda entry: (not entry.name.startswith(_PREFERRED), entry.name)):
        if entry.name.startswith(_NO_LETTERS) or entry.style != "normal":
            continue
        known = missing & _letters(entry.fname)
        if known:
            missing -= known
            added.append(entry.name)
        if not missing:
            break
    return (*usual, *added), "".join(sorted(missing))


def _letters(path: str) -> frozenset[str]:
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (OSError, RuntimeError):  # one of the installed fonts is damaged
        return frozenset()


# --- names next to points
#
# Each name is tried at growing distances around its point, diagonals first because error bars run along the axes. The
# first place that covers nothing is taken; if there is none, the one that covers least.


_POINT, _SMALL_POINT, _BAR = 9.0, 4.0, 2.0
"""Half the width of what is drawn for a point, in pixels."""
_RADII = (16, 24, 36, 52, 72, 97, 127)
_HALF_TURNS = (1 / 4, -1 / 4, 3 / 4, -3 / 4, 0, 1, 1 / 2, -1 / 2, 1 / 8, -1 / 8, 7 / 8, -7 / 8)
_OFFSETS = [(radius * cos(turn * pi), radius * sin(turn * pi)) for radius in _RADII for turn in _HALF_TURNS]
"""Places around a point in pixels, the nearest first."""


@dataclass(frozen=True)
class NamedPoint:
    """A point of a panel with its name and what else is drawn for it, in the units of the axes."""

    name: str
    point: tuple[float, float]
    colour: str
    bars: tuple[tuple[float, float] | None, tuple[float, float] | None] = (None, None)
    """Ends of its error bars, along x and along y."""
    small_points: list[tuple[float, float]] = field(default_factory=list)
    """The parts that it is the mean of."""


def draw_point(axes: Any, point: NamedPoint, marker: str) -> None:
    """Draw a point with its error bars and small points."""
    bars = {
        f"{axis}err": [[max(0.0, middle - bar[0])], [max(0.0, bar[1] - middle)]]
        for axis, bar, middle in zip("xy", point.bars, point.point, strict=True)
        if bar is not None
    }
    look = {"color": point.colour, "markersize": 8, "elinewidth": 1, "capsize": 2, "zorder": 3}
    axes.errorbar(*point.point, **bars, fmt=marker, **look)
    for small in point.small_points:
        axes.plot(*small, ".", color=point.colour, alpha=0.45, markersize=5, zorder=2)


def write_names(axes: Any, points: Sequence[NamedPoint]) -> None:
    """Write each name as close to its point as it can be without covering another name or anything drawn.

    Places are measured in pixels, so the layout of the figure must be final.
    """
    renderer = axes.figure.canvas.get_renderer()
    fonts = font_families([one.name for one in points])
    centres = [_around(axes, one.point, _POINT) for one in points]
    details = [box for one in points for box in _detail_boxes(axes, one)]
    names = [text.get_window_extent(renderer) for text in axes.texts]
    frame = axes.get_window_extent(renderer)
    for one in points:
        start = axes.transData.transform(one.point)
        choices: list[tuple[float, int, tuple[float, float], Any]] = []
        for offset in _OFFSETS:
            text = _annotate(axes, one, offset, fonts)
            box = text_box(text, renderer)
            text.remove()
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            cost = 10 * sum(box.overlaps(other) for other in [*centres, *names]) + 10 * (not inside)
            cost += 3 * sum(box.overlaps(other) for other in details) + _line_crosses(start, box, names)
            choices.append((cost + hypot(*offset) / 40, len(choices), offset, box))
            if not cost:  # the places after it are farther away
                break
        _, _, offset, box = min(choices, key=lambda choice: choice[:2])
        _annotate(axes, one, offset, fonts)
        names.append(box)


def text_box(text: Any, renderer: Any) -> Any:
    """The extent of the words of an annotation, without its line."""
    from matplotlib.text import Text

    text.update_positions(renderer)
    return Text.get_window_extent(text, renderer).padded(2)


def _detail_boxes(axes: Any, one: NamedPoint) -> Iterator[Any]:
    """The boxes of error bars and small points, in pixels."""
    from matplotlib.transforms import Bbox

    (x, y), (along_x, along_y) = one.point, one.bars
    for ends in ([(end, y) for end in along_x or ()], [(x, end) for end in along_y or ()]):
        if ends:
            (x0, y0), (x1, y1) = sorted(map(tuple, axes.transData.transform(ends)))
            yield Bbox.from_extents(x0, min(y0, y1), x1, max(y0, y1)).padded(_BAR)
    for small in one.small_points:
        yield _around(axes, small, _SMALL_POINT)


def _around(axes: Any, point: tuple[float, float], half: float) -> Any:
    from matplotlib.transforms import Bbox

    x, y = axes.transData.transform(point)
    return Bbox.from_extents(x - half, y - half, x + half, y + half)


def _line_crosses(start: Any, box: Any, names: Sequence[Any]) -> bool:
    """Whether the line from a point to its name would cross another name."""
    x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
    steps = [(start[0] + (x - start[0]) * t / 20, start[1] + (y - start[1]) * t / 20) for t in range(21)]
    return any(other.contains(*step) for step in steps for other in names)


def _annotate(axes: Any, one: NamedPoint, offset: tuple[float, float], fonts: list[str]) -> Any:
    """Write the name at an offset in pixels, with a line to its point unless it is right next to it."""
    dx, dy = offset
    scale = 72 / axes.figure.dpi
    far = hypot(dx, dy) > _RADII[0] + 1
    return axes.annotate(
        one.name,
        one.point,
        (dx * scale, dy * scale),
        textcoords="offset points",
        fontsize=9,
        fontfamily=fonts,
        color=one.colour,
        parse_math=False,  # a name may contain a dollar sign
        ha="left" if dx > 1 else "right" if dx < -1 else "center",
        va="center" if abs(dy) < 1 else "bottom" if dy > 0 else "top",
        zorder=4,
        arrowprops={"arrowstyle": "-", "color": one.colour, "linewidth": 0.7, "shrinkB": 5} if far else None,
    )
