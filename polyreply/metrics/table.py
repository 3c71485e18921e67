"""The paper's table from a comparison: for the terminal, Markdown, LaTeX, CSV and JSON."""

import csv
import io
import json
from collections.abc import Callable
from typing import Any

from polyreply.metrics.comparison import DECIMALS, SHOWN, Comparison, System
from polyreply.metrics.scores import LOWER_IS_BETTER

GROUPS = (("BLEU1", 3), ("BLEU2", 3), ("Distinct n-gram", 2), ("Pairwise BLEU", 1), ("Identical", 1))
"""The upper line of the heading: what the columns below have in common, and how many they are."""
_LOWER = ("F", "P", "R", "F", "P", "R", "Dist-1", "Dist-2", "", "")
_NONE = "–"


def render(comparison: Comparison, form: str) -> str:
    """The table as text that ends in a line break."""
    return RENDERERS[form](comparison)


def markdown(comparison: Comparison) -> str:
    """A GitHub table; best numbers in bold, significant differences with an asterisk."""
    headings = ["System", *_flat_headings()]
    lines = [_pipes(headings), _pipes(["---", *["---:"] * len(SHOWN)])]
    for system in comparison.systems:
        cells = [_cell(comparison, system, number, "**", "**", r"\*", " ± ") for number in SHOWN]
        lines.append(_pipes([system.name.replace("|", r"\|"), *cells]))
    return "\n".join([*lines, "", *(f"{note}  " for note in _all_notes(comparison))]) + "\n"


def latex(comparison: Comparison) -> str:
    """A tabular laid out as in the paper; needs the package multirow."""
    rows = []
    for system in comparison.systems:
        cells = [_cell(comparison, system, number, r"\textbf{", "}", "$^*$", r"$_{\pm ", "}$") for number in SHOWN]
        rows.append(" & ".join([_escape_latex(system.name), *cells]).replace(_NONE, "--") + r" \\")
    columns = "|l|" + "|".join("r" * size for _, size in GROUPS) + "|"
    upper = [
        rf"\multicolumn{{{size}}}{{c|}}{{{name.replace('n-', '$n$-')}{_arrow(start)}}}"
        for name, size, start in _spans()
    ]
    lower = [rf"\multicolumn{{1}}{{c{bar}}}{{{name}}}" for name, bar in zip(_LOWER, _bars(), strict=True)]
    comments = [f"% {note}" for note in _all_notes(comparison)]
    lines = [
        *comments,
        rf"\begin{{tabular}}{{{columns}}}",
        r"\hline",
        r"\multirow{2}{*}{System} & " + " & ".join(upper) + r" \\ \cline{2-9}",
        " & " + " & ".join(lower) + r" \\ \hline\hline",
        *rows,
        r"\hline",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def comma_separated(comparison: Comparison) -> str:
    """One line for each system, in full precision: every number with its deviation, interval and p-value."""
    stream = io.StringIO()
    parts = ("", "_std", "_low", "_high", "_p_value")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["system", "seeds", *(number + part for number in SHOWN for part in parts), "signature"])
    for system in comparison.systems:
        facts = [_facts(comparison, system, number) for number in SHOWN]
        values = ["" if fact[key] is None else fact[key] for fact in facts for key in _FACTS]
        writer.writerow([system.name, len(system.seeds), *values, str(system.seeds[0].signature)])
    return stream.getvalue()


_FACTS = ("mean", "std", "low", "high", "p_value")


def as_json(comparison: Comparison) -> str:
    """Everything that is known about the comparison."""
    return json.dumps(as_tree(comparison), ensure_ascii=False, indent=2) + "\n"


def as_tree(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain values."""
    return {
        "baseline": comparison.baseline,
        "test": comparison.test,
        "samples": comparison.samples,
        "seed": comparison.seed,
        "alpha": comparison.alpha,
        "signatures": comparison.signatures,
        "warnings": comparison.warnings,
        "systems": [
            {
                "system": system.name,
                "seeds": len(system.seeds),
                "numbers": {number: _facts(comparison, system, number) for number in SHOWN},
                "others": {name: system.mean(name) for name in system.seeds[0].numbers if name not in SHOWN},
            }
            for system in comparison.systems
        ],
    }


def _facts(comparison: Comparison, system: System, number: str) -> dict[str, Any]:
    low, high = comparison.intervals.get(system.name, {}).get(number, (None, None))
    found = comparison.differences.get(system.name, {}).get(number)
    return {
        "mean": system.mean(number),
        "std": system.std(number),
        "low": low,
        "high": high,
        "difference": found and found.value,
        "p_value": found and found.p_value,
        "significant": comparison.significant(system.name, number),
        "best": system.name in comparison.best(number),
    }


def print_terminal(comparison: Comparison) -> None:
    """The table on the screen; with several seeds the deviation stands below the mean."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="underline")
    table.add_column("\nsystem", overflow="fold", min_width=8)
    for heading in _two_line_headings():
        table.add_column(heading, justify="right", no_wrap=True)
    for system in comparison.systems:
        cells = [_cell(comparison, system, number, "[bold]", "[/bold]", "*", "\n±") for number in SHOWN]
        table.add_row(escape(system.name), *cells)
    console = Console()
    console.print(table)
    for note in notes(comparison):
        console.print(escape(note), soft_wrap=True, highlight=False)


def notes(comparison: Comparison) -> list[str]:
    """What has to be said below a table."""
    lines = []
    if comparison.differences:
        lines.append(
            f"* differs from {comparison.baseline}: paired {comparison.test} over contexts, {comparison.samples} "
            f"resamples, seed {comparison.seed}, p < {comparison.alpha:g}"
        )
    if any(len(system.seeds) > 1 for system in comparison.systems):
        several = [system for system in comparison.systems if len(system.seeds) > 1]
        seeds = ", ".join(f"{system.name} {len(system.seeds)}" for system in several)
        lines.append(f"mean ± standard deviation over seeds: {seeds}")
    signatures = comparison.signatures
    return [*lines, *(f"signature {text}" for text in signatures)]


def _all_notes(comparison: Comparison) -> list[str]:
    """The notes of a table that may be read where nobody sees the warnings."""
    return [*notes(comparison), *(f"warning: {warning}" for warning in comparison.warnings)]


def _cell(
    comparison: Comparison, system: System, number: str, bold: str, end: str, star: str, plus: str, after: str = ""
) -> str:
    """A number with its marks."""
    mean, std = system.mean(number), system.std(number)
    if mean is None:
        return _NONE
    text = f"{mean:.{DECIMALS}f}"
    if system.name in comparison.best(number):
        text = bold + text + end
    if comparison.significant(system.name, number):
        text += star
    return text if std is None else f"{text}{plus}{std:.{DECIMALS}f}{after}"


def _flat_headings() -> list[str]:
    bleu = [f"{group}-{name}{_arrow_sign(number)}" for group, name, number in _bleu_columns()]
    rest = ["Dist-1", "Dist-2", "Pairwise-BLEU", "Identical"]
    return [*bleu, *(name + _arrow_sign(number) for name, number in zip(rest, SHOWN[6:], strict=True))]


def _bleu_columns() -> list[tuple[str, str, str]]:
    return [(number[:5].upper(), number[-1].upper(), number) for number in SHOWN[:6]]


def _two_line_headings() -> list[str]:
    bleu = [f"{group if name == 'F' else ''}\n{name}" for group, name, _ in _bleu_columns()]
    return [*bleu, "\nDist-1", "\nDist-2", "Pair-\nwise", "Iden-\ntical"]


def _spans() -> list[tuple[str, int, str]]:
    """The groups with the number their first column shows."""
    starts = [sum(size for _, size in GROUPS[:place]) for place in range(len(GROUPS))]
    return [(name, size, SHOWN[start]) for (name, size), start in zip(GROUPS, starts, strict=True)]


def _bars() -> list[str]:
    """A rule behind the last column of each group."""
    return [bar for _, size in GROUPS for bar in [*[""] * (size - 1), "|"]]


def _arrow(number: str) -> str:
    return r"$^\downarrow$" if number in LOWER_IS_BETTER else r"$^\uparrow$"


def _arrow_sign(number: str) -> str:
    return " ↓" if number in LOWER_IS_BETTER else " ↑"


def _pipes(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(char, rf"\{char}" if char in "&%$#_{}" else char) for char in text)


RENDERERS: dict[str, Callable[[Comparison], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
    "json": as_json,
}
FORMATS = ("terminal", *RENDERERS)
