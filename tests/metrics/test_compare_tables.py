"""The tables of `polyreply compare`: what each form shows, and that any name is harmless in it."""

import csv
import io
import json
import re

import pytest
from test_compare import found, scores  # noqa: F401

from polyreply.metrics.comparison import SHOWN, compare_systems
from polyreply.metrics.systems import System
from polyreply.metrics.table import render
from polyreply.metrics.table_data import as_tree

ODD = r"a*b_c <i> [x](y) \ `z` | 100% $#&~^{ " + '"q"'


def test_markdown(found):  # noqa: F811
    lines = render(found, "markdown").splitlines()
    assert lines[0] == (
        "| System | BLEU1-F ↑ | BLEU1-P ↑ | BLEU1-R ↑ | BLEU2-F ↑ | BLEU2-P ↑ | BLEU2-R ↑ | Dist-1 ↑ | Dist-2 ↑ "
        "| Pairwise-BLEU ↓ | Identical pairs ↓ |"
    )
    [row] = [line for line in lines if line.startswith("| good ")]
    assert re.match(r"\| good \| \*\*\d+\.\d\d\*\*\\\* ± \d\.\d\d \|", row)
    assert any(
        line.startswith(r"\* differs from beam\_1 \& co: paired bootstrap over contexts, 300 ") for line in lines
    )
    assert any("signature tok:wordpunct" in line for line in lines)


def test_latex_has_the_papers_layout(found):  # noqa: F811
    text = render(found, "latex")
    assert r"\begin{tabular}{|l|rrr|rrr|rr|r|r|}" in text and r"\multicolumn{3}{c|}{BLEU2$^\uparrow$}" in text
    assert r"beam\_1 \& co & " in text and re.search(
        r"good & \\textbf\{\d+\.\d\d\}\$\^\*\$\$_\{\\pm \d\.\d\d\}\$", text
    )
    assert r" \\ \cline{2-4} \cline{5-7} \cline{8-9}" in text


def test_csv(found):  # noqa: F811
    rows = list(csv.DictReader(io.StringIO(render(found, "csv"))))
    assert [row["system"] for row in rows] == ["beam_1 & co", "good", "same"]
    assert float(rows[1]["bleu2_f"]) == found.systems[1].mean("bleu2_f")
    assert rows[0]["bleu2_f_p_value"] == "" and float(rows[1]["bleu2_f_p_value"]) < 0.05
    assert rows[1]["seeds"] == "3" and rows[1]["signature"] == next(iter(found.signatures))


def test_json(found):  # noqa: F811
    tree = json.loads(render(found, "json"))
    assert tree == json.loads(json.dumps(as_tree(found)))
    good = tree["systems"][1]["numbers"]["bleu2_f"]
    assert good["significant"] and good["best"] and good["difference"] > 0 and good["low"] < good["mean"] < good["high"]


@pytest.fixture(scope="module")
def odd():
    """Names with every sign that means something somewhere, several seeds, several signatures."""
    one, two = scores(0.4, 9), scores(0.9, 1)
    systems = [System(ODD, [one]), System("plain", [two, scores(0.9, 2)]), System("other", [scores(0.5, k=3)])]
    return compare_systems(systems, samples=100)


def columns_of_row(row):
    """How many columns of a tabular a row fills."""
    cells = re.split(r"(?<!\\)&", row)
    spans = [re.match(r"\s*\\multicolumn\{(\d+)\}", cell) for cell in cells]
    return sum(int(span[1]) if span else 1 for span in spans)


@pytest.mark.parametrize("columns", [(), ("bleu2_f",), ("self_bleu", "dist1", "inter_dist2", "length", "bleu1_p")])
def test_latex_is_well_formed(odd, columns):
    shown = compare_systems(odd.systems, samples=100, columns=columns)
    lines = [line for line in render(shown, "latex").splitlines() if not line.startswith("%")]
    text = "\n".join(lines).replace(r"\\", "")
    bare = re.sub(r"\\[{}&%$#_]", "", text)
    depth = 0
    for char in bare:
        depth += (char == "{") - (char == "}")
        assert depth >= 0
    assert depth == 0 and bare.count("$") % 2 == 0 and not re.search(r"[~^](?!\\|\*)", bare)
    [spec] = re.findall(r"\\begin\{tabular\}\{(.*)\}$", text, re.MULTILINE)
    wanted = 1 + len(columns or SHOWN)
    rows = [line.partition(r"\\")[0] for line in lines if r"\\" in line]
    assert spec.replace("|", "") == "l" + "r" * (wanted - 1)
    assert [columns_of_row(row) for row in rows] == [wanted] * (2 + len(odd.systems))


def test_latex_names_the_packages_it_needs(odd):
    kernel = (
        "begin end hline cline multicolumn textbf textbackslash textasciitilde textasciicircum textless textgreater"
    )
    known = {*kernel.split(), *"textbar par smallskip footnotesize pm uparrow downarrow".split()}
    text = render(odd, "latex")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%")).replace(r"\\", "")
    assert set(re.findall(r"\\([a-zA-Z]+)", body)) - known == {"multirow"}
    assert text.startswith("% needs \\usepackage{multirow}\n") and text.isascii()
    chinese = render(compare_systems([System("中文", odd.systems[0].seeds)], samples=10), "latex")
    assert "% the names have letters beyond ASCII: use XeLaTeX or LuaLaTeX" in chinese


def test_the_legend_of_the_star_is_visible_in_latex(odd):
    [line] = [line for line in render(odd, "latex").splitlines() if "differs from" in line]
    assert line.startswith(r"\par\smallskip{\footnotesize $^*$ differs from a*b\_c") and r"p \textless{} 0.05" in line


def test_markdown_shows_any_name_as_it_is(odd):
    lines = render(odd, "markdown").splitlines()
    escaped = r"a\*b\_c \<i\> \[x\](y) \\ \`z\` \| 100% \$\#\&\~^\{ " + '"q"'
    assert lines[2].startswith(f"| {escaped} | ")
    assert all(len(re.findall(r"(?<!\\)\|", line)) == len(SHOWN) + 2 for line in lines[:5])
    assert any(line.startswith(rf"\* differs from {escaped}: paired") for line in lines)


def test_each_signature_is_said_with_its_systems(odd):
    four, three = (str(system.seeds[0].signature) for system in (odd.systems[1], odd.systems[2]))
    text = render(odd, "latex")
    assert f"% signature ({ODD}, plain): {four}\n" in text and f"% signature (other): {three}\n" in text
    tree = as_tree(odd)
    assert [one["signature"] for one in tree["systems"]] == [four, four, three]
    assert [one["comparable"] for one in tree["systems"]] == [True, True, False]
    rows = list(csv.DictReader(io.StringIO(render(odd, "csv"))))
    assert [row["signature"] for row in rows] == [four, four, three]
    assert [row["warning"] for row in rows] == ["", "", odd.warnings[0]]


def test_programs_get_all_numbers(found):  # noqa: F811
    [row] = [row for row in csv.DictReader(io.StringIO(render(found, "csv"))) if row["system"] == "good"]
    tree = as_tree(found)["systems"][1]["numbers"]
    assert list(tree) == list(found.systems[1].seeds[0].numbers)
    for number in ("bleu2_f", "self_bleu", "length", "bleu4_p"):
        assert tree[number]["low"] <= tree[number]["mean"] <= tree[number]["high"]
        assert tree[number]["difference_low"] <= tree[number]["difference"] <= tree[number]["difference_high"]
        for part in ("std", "low", "high", "difference", "difference_low", "difference_high", "p_value"):
            assert float(row[f"{number}_{part}"]) == tree[number][part]
    assert tree["inter_dist1"]["mean"] is not None and tree["inter_dist1"]["p_value"] is None
    chosen = compare_systems(found.systems, samples=10, columns=["length"])
    assert list(as_tree(chosen)["systems"][0]["numbers"]) == ["length"]
    assert "bleu2_f" not in render(chosen, "csv")


def test_a_number_that_only_describes_is_never_the_best(found):  # noqa: F811
    assert found.best("length") == found.best("questions") == set() and found.best("self_bleu")
