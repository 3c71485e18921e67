"""Wins, ties and losses as bars from 0 to 100 percent."""

from typing import Any

from polyreply.errors import PolyReplyError
from polyreply.plots import COLOURS, font_families, new_figure
from polyreply.study.results import SIMULATED, PairResult, Results, p_value

_SHADES = (COLOURS[0], "#d9d9d9", COLOURS[1])
_INK = ("white", "#333333", "white")
_LEAST_LABELLED = 6
"""Percent from which on a part of a bar is wide enough for its number."""


def draw_results(results: Results) -> Any:
    """One bar for each question about each pair of systems; scripted annotators are named above it."""
    judged = [pair for pair in results.pairs if pair.judgements]
    if not judged:
        raise PolyReplyError("a plot needs judgements, found none; run `polyreply study serve` first")
    figure = new_figure(9, 1.3 + 0.75 * len(judged))
    axes = figure.subplots()
    fonts = font_families([name for pair in judged for name in (pair.question, *pair.systems)])
    for place, pair in enumerate(judged):
        _draw_bar(axes, place, pair, fonts)
    axes.set(xlim=(0, 100), ylim=(len(judged) - 0.5, -0.6), xlabel="% of judgements")
    axes.set_yticks(range(len(judged)), [f"{pair.question}\n{pair.judgements} judgements" for pair in judged])
    for label in axes.get_yticklabels():
        label.set(fontfamily=fonts, parse_math=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    title = "Human evaluation: wins, ties, losses"
    axes.set_title(title if results.simulated is None else SIMULATED, fontsize=11, loc="left")
    return figure


def _draw_bar(axes: Any, place: int, pair: PairResult, fonts: list[str]) -> None:
    left = 0.0
    for count, shade, ink in zip((pair.wins, pair.ties, pair.losses), _SHADES, _INK, strict=True):
        width = 100 * count / pair.judgements
        axes.barh(place, width, left=left, height=0.42, color=shade)
        if width >= _LEAST_LABELLED:
            axes.text(left + width / 2, place, f"{width:.1f}", ha="center", va="center", color=ink, fontsize=9)
        left += width
    look = {"fontsize": 9, "va": "bottom", "fontfamily": fonts, "parse_math": False}
    axes.text(0, place - 0.25, f"{pair.systems[0]} better", ha="left", color=_SHADES[0], **look)
    axes.text(50, place - 0.25, f"p {p_value(pair.one_sided)}", ha="center", color="#555555", **look)
    axes.text(100, place - 0.25, f"{pair.systems[1]} better", ha="right", color=_SHADES[2], **look)
