"""The picture of `polyreply compare`: every name can be read, and nothing is left out silently."""

import random
import warnings

import pytest
from scored import REFERENCES, scores

from polyreply.errors import PolyReplyError
from polyreply.metrics import evaluate
from polyreply.metrics.comparison import Comparison, System, compare
from polyreply.metrics.comparison_plot import draw_figure
from polyreply.plots import font_families, missing_letters, text_box


def near(n, rng, seeds=1):
    """A system close to others, with scores that say nothing about contexts."""
    one = scores(0.5, references=REFERENCES[:2])
    centre = {"bleu2_f": 8 + rng.gauss(0, 1.2), "pairwise_bleu": 20 + rng.gauss(0, 4), "dist2": 50 + rng.gauss(0, 4)}

    def seed():
        numbers = {name: value + (rng.gauss(0, 0.4) if seeds > 1 else 0) for name, value in centre.items()}
        return type(one)({**one.numbers, **numbers}, {}, one.signature, 40)

    return System(f"system number {n}", [seed() for _ in range(seeds)])


def bars(system, half):
    return {
        name: (system.mean(name) - half, system.mean(name) + half) for name in ("bleu2_f", "pairwise_bleu", "dist2")
    }


def names_and_drawn(figure):
    """The boxes of the names of each panel, and the pixels of its points, seeds and error bars."""
    figure.set_dpi(100)
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        names = [text_box(text, renderer).padded(-2) for text in axes.texts if hasattr(text, "arrow_patch")]
        points = [xy for line in axes.lines for xy in axes.transData.transform(line.get_xydata())]
        ends = [segment for bar in axes.collections for segment in bar.get_segments()]
        for ends_of_bar in ends:
            (x0, y0), (x1, y1) = axes.transData.transform(ends_of_bar)
            points += [(x0 + (x1 - x0) * t / 200, y0 + (y1 - y0) * t / 200) for t in range(201)]
        yield names, points


def test_names_in_the_picture_do_not_overlap():
    """Systems close together: every name is written, and no two of them cover each other."""
    rng = random.Random(3)
    figure = draw_figure(Comparison([near(n, rng) for n in range(12)], "", "bootstrap", 1, 0, 0.05))
    for names, points in names_and_drawn(figure):
        assert len(names) == 12
        assert not any(a.overlaps(b) for n, a in enumerate(names) for b in names[:n])
        assert not any(name.contains(*point) for name in names for point in points)


@pytest.mark.parametrize("half", [0.3, 1.0, 2.0])
def test_no_name_is_struck_through(half):
    """Error bars and seeds of all sizes, of the system itself and of others."""
    rng = random.Random(7)
    systems = [near(n, rng, seeds=3) for n in range(6)]
    intervals = {system.name: bars(system, half) for system in systems}
    figure = draw_figure(Comparison(systems, "", "bootstrap", 1, 0, 0.05, intervals=intervals))
    for names, points in names_and_drawn(figure):
        assert len(names) == 6 and len(points) > 2000
        assert not any(name.contains(*point) for name in names for point in points)


def test_names_with_real_intervals():
    found = compare(*[System(f"system {n}", [scores(0.3 + 0.2 * n, n)]) for n in range(4)], samples=100)
    for names, points in names_and_drawn(draw_figure(found)):
        assert len(names) == 4 and not any(name.contains(*point) for name in names for point in points)


def test_a_name_may_have_signs_of_formulas():
    found = compare(System("a$b_{$", [scores(0.5)]), System(r"$\frac$", [evaluate([["x y"]])]), samples=10)
    assert found.plot(".svg").startswith(b"<?xml")
    figure = draw_figure(found)
    assert [text.get_text() for text in figure.axes[0].texts][1:] == [r"no BLEU2-F: $\frac$", "a$b_{$"]


def test_what_a_panel_lacks_is_said_and_both_share_an_axis():
    alone = [System(f"k{n}", [scores(0.2 + 0.1 * n, k=1)]) for n in range(6)]
    figure = draw_figure(compare(System("k4", [scores(0.5)]), alone[1], samples=10))
    pairs, dist = ([text.get_text() for text in axes.texts] for axes in figure.axes)
    assert "no pairs: k1" in pairs and "k1" not in pairs and "k1" in dist
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    many = draw_figure(compare(*alone, samples=10))
    assert "no pairs: k0, k1, k2, k3 and 2 more" in [text.get_text() for text in many.axes[0].texts]


def test_letters_that_no_font_has_are_one_warning():
    found = compare(System("name \U0010abcd", [scores(0.5)]), samples=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found.plot(".png").startswith(b"\x89PNG")
    assert missing_letters(["name \U0010abcd"]).startswith("no installed font has the letters \U0010abcd: the plot")
    assert missing_letters(["Łódź é ± → Ω"]) == ""


def test_letters_that_another_font_has_come_from_it():
    """U+1D49E stands in STIX, which comes with matplotlib, and not in its usual font."""
    from matplotlib import rcParams

    assert font_families(["plain"]) == rcParams["font.family"]
    assert len(font_families(["\U0001d49e"])) > len(rcParams["font.family"]) and not missing_letters(["\U0001d49e"])


def test_a_plot_needs_quality_and_diversity():
    with pytest.raises(PolyReplyError, match="a plot needs BLEU2-F"):
        compare(System("a", [evaluate([["a b", "c"]])]), samples=10).plot()
