"""Plots: equal data give equal files, and no global state of matplotlib changes."""

import sys

import pytest

from polyreply.errors import MissingExtraError, PolyReplyError
from polyreply.plots import ENDINGS, check_plot, image, new_figure, save, style


def figure():
    made = new_figure(3, 2)
    axes = made.add_subplot()
    axes.plot([0, 1], [0, 1])
    style(axes)
    return made


@pytest.mark.parametrize("ending", ENDINGS)
def test_equal_data_give_equal_files(ending, tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    save(figure(), tmp_path / f"a{ending}")
    assert (tmp_path / f"a{ending}").read_bytes() == image(figure(), ending)
    assert matplotlib.__version__.encode() not in image(figure(), ending) and dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_a_plot_that_cannot_be_drawn_is_refused_early(tmp_path, monkeypatch):
    with pytest.raises(PolyReplyError, match=r"a\.gif.*\.png"):
        check_plot(tmp_path / "a.gif")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="matplotlib"):
        check_plot(tmp_path / "a.png")
