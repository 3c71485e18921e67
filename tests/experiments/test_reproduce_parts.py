"""The parts behind `polyreply reproduce`: renderers, pictures, profiles, the theorem's terms."""

from collections import Counter

import numpy as np
import pytest

from polyreply.analysis.bound import bound_curve, match_modes, posterior_error
from polyreply.analysis.decoder_profiles import log_odds, profile_decoders, typical_words
from polyreply.cli.reproduce import print_table
from polyreply.em.usage_bound import hoeffding
from polyreply.errors import PolyReplyError
from polyreply.experiments import pictures
from polyreply.experiments.claims import Claim, check, over
from polyreply.experiments.figure_decoders import common_word
from polyreply.experiments.pictures import Bars, Line, Panel, draw_bars, draw_lines, draw_shares
from polyreply.experiments.render import latex, markdown
from polyreply.experiments.report import html_report
from polyreply.experiments.result import Findings, Number, Picture, Result, Row, Table, load_result
from polyreply.experiments.score_table import starved
from polyreply.experiments.table_cases import shorten
from polyreply.experiments.table_efficiency import time_shares
from polyreply.experiments.usage_table import course


@pytest.fixture
def result(tmp_path):
    draw_bars([[Bars("tokens", [1.0, 2.0], "decoder")]], tmp_path / "a.png")
    table = Table(
        "A & B <i>",
        ["system", "BLEU2-F ↑"],
        [
            Row(["ours_1 | x", Number(7.25, 0.5, is_best=True, is_significant=True)]),
            Row(["paper, Weibo", Number(10.13)], is_paper=True),
            Row(["none", Number(None)]),
        ],
        ["a note"],
    )
    verdicts = check(
        [Claim("a > b", "Table 2", over("a", "b", "bleu2_f"))], {"a": {"bleu2_f": 3.0}, "b": {"bleu2_f": 2.0}}
    )
    found = Findings([table], [Picture("a.png", "A <picture>")], verdicts, ["a remark"], {"x": 1.5})
    return Result(
        "table-em", "Title", found, {"data": "d", "seconds": 90.0, "machines": [{"cpu": "fast"}, {"cpu": "slow"}]}
    )


def test_a_result_is_kept_as_it_is(result, tmp_path):
    assert load_result(result.save(tmp_path)) == result
    (tmp_path / "result.json").write_text('{"schema_version": 9}')
    with pytest.raises(PolyReplyError, match="schema version 9"):
        load_result(tmp_path / "result.json")


def test_a_result_as_markdown_latex_and_html(result, tmp_path):
    text = markdown(result)
    assert r"| ours\_1 \| x | **7.25**\* ± 0.50 |" in text and "| *paper, Weibo* | *10.13* |" in text
    assert "| none | – |" in text and "**holds**" in text and "![A \\<picture\\>](a.png)" in text
    assert "time: 1.5 minutes for all its stages" in text and "machines: fast; slow" in text
    assert "What is claimed" in text and "the paper claims" not in text
    text = latex(result)
    assert (
        r"ours\_1 \textbar{} x & \textbf{7.25}$^*$$_{\pm 0.50}$ \\" in text and r"\textbf{A \& B \textless{}i" in text
    )
    page = html_report([(result, tmp_path), (result, tmp_path)])
    assert "A &amp; B &lt;i&gt;" in page and "<i>" not in page and '<span class="yes">holds</span>' in page
    assert '<b>7.25</b>*<span class="std"> ± 0.50</span>' in page and page.count("data:image/png;base64,") == 2
    assert "<nav>" in page and "<script" not in page


def test_names_and_headings_stay_whole_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    headings = ["method", *(f"largest share number {column}, %" for column in range(6))]
    print_table(Table("title", headings, [Row(["Hard-EM, a long name", *map(Number, range(6))])]))
    shown = capsys.readouterr().out
    assert "Hard-EM, a long name" in shown and all(f"{column}, %" in shown for column in range(6))
    assert shown.count("largest") == shown.count("share") == shown.count(".00") == 6


def test_texts_of_data_cannot_break_a_page():
    rows = [Row(["[eos]", "a\n\nb"]), Row(["* &amp;", "x"])]
    found = Findings([Table("Context: one\n\ntwo", ["[a]", "b"], rows, ["a\n\nnote"])])
    result = Result("table-cases", "A *title*\nof two", found, {"data": "a_b | c\n\n\\end"})
    text = latex(result)
    assert r"{}[eos] & a b \\" in text and r"{}[a] & b \\ \hline\hline" in text and r"{}* \&amp; & x \\" in text
    assert "one two" in text and "% A *title* of two\n% data: a_b | c \\end\n" in text and "a note" in text
    assert "\n\n" not in text.partition("\n\n")[2]
    text = markdown(result)
    assert r"| \* \&amp; | x |" in text and text.startswith("# A \\*title\\* of two\n")
    assert r"data: a\_b \| c \\end" in text


def test_pictures_are_the_same_for_the_same_data(tmp_path):
    lines = [Line("deviation", [8, 100], [0.2, 0.1], low=[0.1, 0.1], high=[0.3, 0.2]), Line("term", [8, 100], [1, 0.3])]
    for name in ("a.png", "b.png"):
        draw_lines([Panel("t", "x", "y", lines, log=True), Panel("t", "x", "y", lines, ticks=[8])], tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    draw_shares({"x": [[0.0, 1.0], [0.5, 0.5]]}, ["ask", "joke"], tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_log_odds_find_what_one_decoder_says_and_the_others_do_not():
    count_KV = np.array([[50.0, 20.0, 1.0], [50.0, 1.0, 20.0]])
    z_KV = log_odds(count_KV)
    assert abs(z_KV[0, 0]) < 0.5 and z_KV[0, 1] > 1.96 and z_KV[0, 2] < -1.96
    assert z_KV[0] == pytest.approx(-z_KV[1])
    # by hand: prior (50, 10.5, 10.5); own 30.5 of 142, the others' 11.5 of 142
    odds = np.log(30.5 / (142 - 30.5)) - np.log(11.5 / (142 - 11.5))
    assert z_KV[0, 1] == pytest.approx(odds / np.sqrt(1 / 30.5 + 1 / 11.5))
    found = typical_words([Counter(the=50, what=20, yes=1), Counter(the=50, what=1, yes=20)], 3)
    assert [[word for word, _ in words] for words in found] == [["what"], ["yes"]]
    assert typical_words([Counter()], 3) == [[]]


def test_the_word_that_is_counted_is_a_frequent_one_of_the_references():
    assert common_word(["You know what?", "I know.", "What, what, what!", "the the the", "know-how"]) == "know"
    assert common_word(["a b", "?"]) == "like"


def test_panels_of_a_column_are_as_high_as_the_highest_bar_of_all_rows(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: shown.extend(axes.get_ylim() for axes in figure.axes))
    draw_bars([[Bars("beam", [20.0], "place")], [Bars("decoders", [50.0], "decoder")]], tmp_path / "a.png")
    assert [limits[1] >= 50 for limits in shown] == [True, True]


def test_a_profile_says_what_is_remarkable():
    said = [["what is that ?", "i like it very much , thank you", "ok ."]] * 30
    asking, liking, short = profile_decoders(said, word="like")
    assert asking.questions == 100 and liking.with_word == 100 and asking.with_word == 0 and short.length == 2
    assert asking.line.startswith("asks questions (100 %); says “") and "“what”" in asking.line
    assert liking.line.startswith("long replies") and short.line.startswith("short replies")
    assert asking.distinct == pytest.approx(100 / 30)
    [one, two] = profile_decoders([["我很喜欢", "是吗？"]] * 30, "characters", "喜欢")
    assert one.with_word == 100 and two.with_word == 0 and two.questions == 100 and "喜欢" in dict(one.words)


def test_decoders_are_matched_to_modes_and_the_bound_holds():
    random, modes = np.random.default_rng(0), ["x", "y", "z"]
    of_N = random.integers(0, 3, 400)
    posterior_NK = np.full((400, 3), 0.1)
    posterior_NK[np.arange(400), (of_N + 1) % 3] = 0.8
    names_N = [modes[mode] for mode in of_N]
    assert match_modes(posterior_NK, names_N, modes) == [2, 0, 1]
    error_K = posterior_error(posterior_NK, names_N, modes)
    share_K = np.bincount((of_N + 1) % 3) / 400
    assert error_K == pytest.approx(0.2 * share_K + 0.1 * (1 - share_K))
    curve = bound_curve(posterior_NK, draws=50, error_K=error_K)
    assert curve.sizes == [8, 16, 32, 64, 128, 256, 400] and max(curve.violations) == 0
    assert curve.hoeffding[0] == pytest.approx(hoeffding(8, 3)) and curve.deviation[0] > curve.deviation[-1]


def test_one_sided_posteriors_are_above_what_chance_explains():
    posterior_NK = np.tile([0.9, 0.05, 0.05], (500, 1))
    curve = bound_curve(posterior_NK, draws=5)
    assert curve.violations[-1] == 1 and curve.posterior_error is None


@pytest.mark.parametrize(
    "text, shown",
    [
        ("what what what what what", "what what what [repeat]"),
        ("no pe pe pe pe now", "no pe pe pe [repeat] now"),
        ("江江江江江", "江江江 [repeat]"),
        ("no, no, no!", "no, no, no!"),
        ("I seeeee", "I seeeee"),
        ("  ", "[eos]"),
    ],
)
def test_repetitions_are_shown_as_in_the_paper(text, shown):
    assert shorten(text) == shown


def test_the_course_of_usage_is_told_by_its_beginning_and_its_end():
    steps = [{"kind": "step", "usage_K": [0.5, 0.5]}] * 4 + [{"kind": "step", "usage_K": [0.6, 0.4]}] * 26
    steps += [{"kind": "validation"}] + [{"kind": "step", "usage_K": [0.1, 0.9]}] * 10
    assert course(steps) == pytest.approx({"largest_at_first": 50, "largest_at_last": 90})
    assert course(steps[:1]) == pytest.approx({"largest_at_first": 50, "largest_at_last": 50})


def test_time_shares_count_the_assignment_as_a_part_of_the_e_step():
    step = {"kind": "step", "e_seconds": 5.0, "assign_seconds": 1.0, "m_seconds": 4.0}
    found = time_shares([step, step, {"kind": "validation", "seconds": 9.0}])
    assert found == pytest.approx({"e_step": 60, "m_step": 40, "assignment": 10})


def test_starved_decoders_get_less_than_a_tenth_of_an_equal_share():
    assert starved([0.25] * 4) == 0 and starved([0.97, 0.01, 0.01, 0.01]) == 75
