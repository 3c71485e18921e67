"""The paper's table in LaTeX."""

from itertools import groupby

from polyreply.metrics.cells import NONE, Marks, cell, legend, origins
from polyreply.metrics.comparison import Comparison
from polyreply.metrics.labels import direction, label
from polyreply.metrics.latex_text import escape


def latex(comparison: Comparison) -> str:
    """A tabular laid out as in the paper, with what its marks mean below it; the notes are comments."""
    marks = Marks((r"\textbf{", "}"), "$^*$", (r"$_{\pm ", "}$"), r"$\pm$", escape)
    rows = []
    for system in comparison.systems:
        cells = [cell(comparison, system, number, marks).replace(NONE, "--") for number in comparison.shown]
        rows.append(" & ".join([escape(system.name), *cells]) + r" \\")
    groups = _groups(comparison.shown)
    lines = [
        *(f"% {note}" for note in [*_needs(comparison), *origins(comparison)]),
        r"\begin{tabular}{|l|" + "|".join("r" * len(numbers) for _, numbers in groups) + "|}",
        r"\hline",
        *_heading(groups),
        *rows,
        r"\hline",
        r"\end{tabular}",
        *(rf"\par\smallskip{{\footnotesize {line}\par}}" for line in legend(comparison, marks)),
    ]
    return "\n".join(lines) + "\n"


def _needs(comparison: Comparison) -> list[str]:
    needs = [r"needs \usepackage{multirow}"]
    if not all(system.name.isascii() for system in comparison.systems):
        needs.append("the names have letters beyond ASCII: use XeLaTeX or LuaLaTeX and a font that has them")
    return needs


def _groups(numbers: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """Neighbouring columns with what they have in common."""
    return [(name, list(few)) for name, few in groupby(numbers, key=lambda number: label(number).group)]


def _heading(groups: list[tuple[str, list[str]]]) -> list[str]:
    """Two lines: the groups, and below them the columns, with a rule between them where a group has several."""
    upper, lower, rules, column = [r"\multirow{2}{*}{System}"], [""], "", 2
    for name, numbers in groups:
        shown = escape(name).replace("n-gram", "$n$-gram")
        upper.append(rf"\multicolumn{{{len(numbers)}}}{{c|}}{{{shown}{_arrow(numbers[0])}}}")
        for number in numbers:
            bar = "|" if number == numbers[-1] else ""
            lower.append(rf"\multicolumn{{1}}{{c{bar}}}{{{escape(label(number).own)}}}")
        if label(numbers[0]).own:
            rules += rf" \cline{{{column}-{column + len(numbers) - 1}}}"
        column += len(numbers)
    return [" & ".join(upper) + r" \\" + rules, " & ".join(lower) + r" \\ \hline\hline"]


def _arrow(number: str) -> str:
    return {1: r"$^\uparrow$", -1: r"$^\downarrow$", 0: ""}[direction(number)]
