"""Results: how they are saved, rendered and joined on one page, and the pictures and numbers in them."""

from dataclasses import replace
from pathlib import Path

import pytest

from polyreply.errors import PolyReplyError
from polyreply.experiments import pictures
from polyreply.experiments.catalogue import TITLES
from polyreply.experiments.claims import Claim, check, over
from polyreply.experiments.figure_decoders import common_word
from polyreply.experiments.pictures import Bars, Line, Panel, draw_bars, draw_lines, draw_shares
from polyreply.experiments.report import html_report, latex, markdown
from polyreply.experiments.result import Findings, Picture, Result, load_result
from polyreply.experiments.run import write_joint_report
from polyreply.experiments.score_table import starved
from polyreply.experiments.table_cases import shorten
from polyreply.experiments.table_efficiency import time_shares
from polyreply.experiments.usage_table import course
from polyreply.tables import Cell, Column, Row, Table

DOCS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture
def result(tmp_path):
    draw_bars([[Bars("tokens", [1.0, 2.0], "decoder")]], tmp_path / "a.png")
    table = Table(
        "A & B <i>",
        ["system", Column("BLEU2-F", better=1)],
        [
            Row(["ours_1 | x", Cell(7.25, 0.5, bold=True, star=True)]),
            Row(["paper, Weibo", 10.13], muted=True),
            Row(["none", None]),
        ],
        ["a note"],
    )
    verdicts = check(
        [Claim("a > b", "Table 2", over("a", "b", "bleu2_f"))], {"a": {"bleu2_f": 3.0}, "b": {"bleu2_f": 2.0}}
    )
    findings = Findings([table], [Picture("a.png", "A <picture>")], verdicts, ["a remark"], {"x": 1.5})
    origin = {"data": "d", "seconds": 90.0, "machines": [{"cpu": "fast"}, {"cpu": "slow"}]}
    return Result("table-em", "Title", findings, origin)


def test_a_saved_result_is_read_as_it_was(result, tmp_path):
    assert load_result(result.save(tmp_path)) == result
    (tmp_path / "result.json").write_text('{"schema_version": 9}')
    with pytest.raises(PolyReplyError, match="schema version 9"):
        load_result(tmp_path / "result.json")
    (tmp_path / "result.json").write_text("[]")
    with pytest.raises(PolyReplyError, match=r"result\.json"):
        load_result(tmp_path / "result.json")


def test_a_result_as_markdown_latex_and_html(result, tmp_path):
    text = markdown(result)
    assert r"| ours\_1 \| x | **7.25**\* ± 0.50 |" in text and "| *paper, Weibo* | *10.13* |" in text
    assert "| none | – |" in text and "**holds**" in text and "![A \\<picture\\>](a.png)" in text
    assert "time: 1.5 minutes" in text and "machines: fast; slow" in text and "## Claims" in text
    text = latex(result)
    assert r"ours\_1 \textbar{} x & \textbf{7.25}$^*$$_{\pm 0.50}$ \\" in text
    assert r"\textbf{A \& B \textless{}i" in text
    page = html_report([(result, tmp_path), (result, tmp_path)])
    assert "A &amp; B &lt;i&gt;" in page and "<i>" not in page and '<span class="yes">holds</span>' in page
    assert '<b>7.25</b>*<span class="std"> ± 0.50</span>' in page and page.count("data:image/png;base64,") == 2
    assert "<nav>" in page and "<script" not in page


def test_texts_of_data_cannot_break_a_page():
    rows = [["[eos]", "a\n\nb"], ["* &amp;", "x"]]
    findings = Findings([Table("Context: one\n\ntwo", ["[a]", "b"], rows, ["a\n\nnote"])])
    result = Result("table-cases", "A *title*\nof two", findings, {"data": "a_b | c\n\n\\end"})
    text = latex(result)
    assert r"{}[eos] & a b \\" in text and r"{}[a] & b \\ \hline\hline" in text and r"{}* \&amp; & x \\" in text
    assert "one two" in text and "% A *title* of two\n% data: a_b | c \\end\n" in text and "a note" in text
    assert "\n\n" not in text.partition("\n\n")[2]
    text = markdown(result)
    assert r"| \* \&amp; | x |" in text and text.startswith("# A \\*title\\* of two\n")
    assert r"data: a\_b \| c \\end" in text


@pytest.mark.parametrize("path", sorted(DOCS.rglob("result.json")), ids=lambda path: str(path.parent.relative_to(DOCS)))
def test_the_published_results_are_what_is_rendered_today(path):
    result = load_result(path)
    for file, text in (("result.md", markdown(result)), ("result.tex", latex(result))):
        assert (path.parent / file).read_text(encoding="utf-8") == text, f"write {file} again: its rendering changed"
    assert all((path.parent / picture.file).is_file() for picture in result.findings.pictures)


def test_results_that_cannot_be_shown_are_left_out_of_the_joint_report(tmp_path):
    whole = Result("table-main", TITLES["table-main"], Findings([Table("t", ["a"], [])]), {"data": "d"})
    whole.save(tmp_path / "table-main")
    without_picture = replace(whole, name="figure-bound", findings=Findings(pictures=[Picture("gone.png", "")]))
    without_picture.save(tmp_path / "figure-bound")
    replace(whole, name="table-cases", title="Old cases").save(tmp_path / "table-cases")
    (tmp_path / "table-em").mkdir()
    (tmp_path / "table-em" / "result.json").write_text("{")
    page = write_joint_report(tmp_path).read_text(encoding="utf-8")
    assert "Main results" in page and "Old cases" not in page
    lines = [line for line in page.splitlines() if "Left out" in line]
    assert len(lines) == 3 and "table-em" in lines[0] and "table-cases" in lines[1] and "pictures" in lines[2]
    published = replace(whole, name="table-cases", title="New cases", origin={"may_be_published": True})
    published.save(tmp_path / "table-cases")
    assert "New cases" in write_joint_report(tmp_path).read_text(encoding="utf-8")


def test_pictures_are_the_same_for_the_same_data(tmp_path):
    lines = [Line("deviation", [8, 100], [0.2, 0.1], low=[0.1, 0.1], high=[0.3, 0.2]), Line("term", [8, 100], [1, 0.3])]
    for name in ("a.png", "b.png"):
        draw_lines([Panel("t", "x", "y", lines, log=True), Panel("t", "x", "y", lines, ticks=[8])], tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    draw_shares({"x": [[0.0, 1.0], [0.5, 0.5]]}, ["ask", "joke"], tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_panels_of_a_column_are_as_high_as_the_highest_bar_of_all_rows(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: shown.extend(axes.get_ylim() for axes in figure.axes))
    draw_bars([[Bars("beam", [20.0], "rank")], [Bars("decoders", [50.0], "decoder")]], tmp_path / "a.png")
    assert [limits[1] >= 50 for limits in shown] == [True, True]


def test_the_word_that_is_counted_is_a_frequent_one_of_the_references():
    assert common_word(["You know what?", "I know.", "What, what, what!", "the the the", "know-how"]) == "know"
    assert common_word(["a b", "?"]) == "like"


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


def test_the_course_of_usage_is_described_by_its_beginning_and_its_end():
    steps = [{"kind": "step", "usage_K": [0.5, 0.5]}] * 4 + [{"kind": "step", "usage_K": [0.6, 0.4]}] * 26
    steps += [{"kind": "validation"}] + [{"kind": "step", "usage_K": [0.1, 0.9]}] * 10
    assert course(steps) == pytest.approx({"largest_at_first": 50, "largest_at_last": 90})
    assert course(steps[:1]) == pytest.approx({"largest_at_first": 50, "largest_at_last": 50})


def test_time_shares_count_the_assignment_as_a_part_of_the_e_step():
    step = {"kind": "step", "e_seconds": 5.0, "assign_seconds": 1.0, "m_seconds": 4.0}
    shares = time_shares([step, step, {"kind": "validation", "seconds": 9.0}])
    assert shares == pytest.approx({"e_step": 60, "m_step": 40, "assignment": 10})


def test_starved_decoders_get_less_than_a_tenth_of_an_equal_share():
    assert starved([0.25] * 4) == 0 and starved([0.97, 0.01, 0.01, 0.01]) == 75
