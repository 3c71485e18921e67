"""One table in every format: numbers with their marks, and text that is never read as markup."""

import csv
import io
import json
import re

import pytest
from rich.console import Console

from polyreply.tables import FORMATS, Cell, Column, Row, Table

ODD = r"a*b_c <i> [x](y) \ `z` | 100% $#&~^{ " + '"q" [bold]'
ROWS = [
    ["beam", 7.25, 1234567],
    ["ours", Cell(9.5, std=0.25, bold=True, star=True), None],
    Row(["paper", 8.0, "diverged"], muted=True),
]
TABLE = Table(
    "Scores",
    ["system", Column("BLEU2-F", better=1, group="BLEU2", own="F"), "samples"],
    ROWS,
    ["* differs"],
    ["made by x"],
)


def printed(table, width):
    stream = io.StringIO()
    table.print(Console(file=stream, width=width))
    return stream.getvalue()


def test_markdown():
    assert TABLE.render("markdown").splitlines() == [
        "**Scores**",
        "",
        "| system | BLEU2-F ↑ | samples |",
        "| --- | ---: | ---: |",
        "| beam | 7.25 | 1\u2009234\u2009567 |",
        r"| ours | **9.50**\* ± 0.25 | – |",
        "| *paper* | *8.00* | *diverged* |",
        "",
        r"\* differs  ",
        "made by x  ",
    ]


def test_latex():
    text = TABLE.render("latex")
    assert text.startswith("% needs \\usepackage{multirow}\n% made by x\n")
    assert r"ours & \textbf{9.50}$^*$$_{\pm 0.25}$ & -- \\" in text and r"\begin{tabular}{|l|r|r|}" in text
    assert r"\textit{paper} & \textit{8.00} & \textit{diverged} \\" in text and r"beam & 7.25 & 1\,234\,567 \\" in text
    assert r"\multicolumn{1}{c|}{BLEU2$^\uparrow$}" in text and r"\footnotesize $^*$ differs\par" in text
    plain = Table("", ["a", Column("b", better=-1)], [["x", 1]]).render("latex")
    assert r"a & b $\downarrow$ \\ \hline\hline" in plain and "multirow" not in plain


def test_html():
    text = TABLE.render("html")
    assert '<td class="r"><b>9.50</b>*<span class="std"> ± 0.25</span></td>' in text and '<tr class="muted">' in text


def test_csv_and_json_keep_full_precision():
    table = Table("t", ["name", "value"], [["a", 1 / 3], ["b", Cell(0.5, std=0.125)], ["c", None]])
    rows = list(csv.reader(io.StringIO(table.render("csv"))))
    assert rows == [["name", "value", "value std"], ["a", str(1 / 3), ""], ["b", "0.5", "0.125"], ["c", "", ""]]
    tree = json.loads(table.render("json"))
    assert tree["rows"] == [["a", 1 / 3], ["b", {"value": 0.5, "std": 0.125}], ["c", None]] and tree["title"] == "t"


def test_a_terminal_shows_marks_and_groups_once():
    columns = ["system", *(Column(f"BLEU2-{own}", group="BLEU2", own=own) for own in "FPR")]
    lines = printed(Table("", columns, [["ours", 1.0, Cell(2.0, std=0.5, star=True), 3.0]]), 80).splitlines()
    assert [line.split() for line in lines] == [
        ["BLEU2"],
        ["system", "F", "P", "R"],
        ["ours", "1.00", "2.00*", "3.00"],
        ["±0.50"],
    ]


@pytest.mark.parametrize("width, lines", [(83, 2), (76, 2), (70, 3), (20, 2)])
def test_names_wrap_at_spaces_only_if_the_table_fits_then(width, lines):
    table = Table("", ["system", *(f"n{n}" for n in range(6))], [["a name of words", *[12345.678] * 6]])
    shown = printed(table, width).splitlines()
    assert "\n".join(shown).count("12\u2009345.68") == 6 and len(shown) == lines
    assert ("a name of words" in shown[1]) == (lines == 2)


def test_headings_of_numbers_break_on_a_narrow_terminal():
    headings = ["method", *(f"largest share number {column}, %" for column in range(6))]
    shown = printed(Table("title", headings, [["Hard-EM, a long name", *map(float, range(6))]]), 70)
    assert "Hard-EM, a long name" in shown and all(f"{column}, %" in shown for column in range(6))
    assert shown.count("largest") == shown.count("share") == shown.count(".00") == 6


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_table_has_every_format(form):
    assert Table("nothing", ["a", "b"], []).render(form).endswith("\n")


def test_text_is_never_markup():
    table = Table(ODD, [ODD, "x"], [[ODD, 1.0]], [ODD], [ODD])
    assert ODD in printed(table, 200) and ODD in str(table)
    escaped = r"a\*b\_c \<i\> \[x\](y) \\ \`z\` \| 100% \$\#\&\~^\{ " + r'"q" \[bold\]'
    assert table.render("markdown").count(escaped) == 5
    latex = "\n".join(line for line in table.render("latex").splitlines() if not line.startswith("%"))
    bare = re.sub(r"\\[{}&%$#_]", "", latex.replace(r"\\", ""))
    assert bare.count("{") == bare.count("}") and bare.count("$") % 2 == 0
    assert "<i>" not in table.render("html") and table.render("html").count("&lt;i&gt;") == 5


def test_line_breaks_and_control_characters_are_harmless():
    table = Table("one\n\ntwo", ["[a]", "b"], [["a\n\nb", "x"], ["[eos]", "\x1b[31m"], ["* &amp;", "y"]])
    latex, markdown = table.render("latex"), table.render("markdown")
    assert "\n\n" not in latex and r"a b & x \\" in latex
    assert r"{}[eos] & " in latex and r"{}[a] & b" in latex and r"{}* \&amp; & y" in latex
    assert r"| \* \&amp; | y |" in markdown and "**one two**" in markdown
    assert not any("\x1b" in text for text in (latex, markdown, str(table)))
