"""A result as Markdown and as LaTeX."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from polyreply.experiments.result import Number, Result, Row, Table
from polyreply.tables import escape_latex as escape
from polyreply.tables import one_line

CLAIMS = "What is claimed"
"""The heading of the verdicts; the source of each says by whom."""
_MARKDOWN_SIGNS = frozenset(r"\`*_[]<>|~$#&")


def markdown(result: Result) -> str:
    """The result as a page for GitHub: tables, pictures, verdicts and origin."""
    found = result.findings
    lines = [f"# {_plain(result.title)}", ""]
    lines += [f"{_plain(line)}  " for line in origin_lines(result.origin)] + [""]
    for table in found.tables:
        lines += [*_markdown_table(table), ""]
    for picture in found.pictures:
        lines += [f"![{_plain(picture.caption)}]({picture.file})", "", _plain(picture.caption), ""]
    if found.verdicts:
        lines += [f"## {CLAIMS}", ""]
        lines += ["| claim | source | | ours | the paper's |", "|---|---|---|---|---|"]
        for one in found.verdicts:
            cells = (one.text, one.source, f"**{one.outcome}**", one.ours or "–", one.paper or "–")
            lines.append(_pipes([cell if cell.startswith("**") else _plain(cell) for cell in cells]))
        lines.append("")
    lines += [f"- {_plain(remark)}" for remark in found.remarks]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(table: Table) -> Iterator[str]:
    yield f"**{_plain(table.title)}**"
    yield ""
    yield _pipes([_plain(heading) for heading in table.headings])
    yield _pipes(["---:" if right else "---" for right in to_the_right(table)])
    for row in table.rows:
        yield _pipes([_markdown_cell(cell, row) for cell in row.cells])
    yield ""
    yield from (f"{_plain(note)}  " for note in table.notes)


def _markdown_cell(cell: str | Number, row: Row) -> str:
    if isinstance(cell, str):
        return f"*{_plain(cell)}*" if row.is_paper and cell else _plain(cell)
    text = cell.text()
    if row.is_paper:
        return f"*{text}*"
    text = f"**{text}**" if cell.is_best else text
    return text + (r"\*" if cell.is_significant else "") + deviation(cell)


def _plain(text: str) -> str:
    """Harmless in Markdown, on one line."""
    return "".join(f"\\{char}" if char in _MARKDOWN_SIGNS else char for char in " ".join(text.split()))


def _pipes(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def latex(result: Result) -> str:
    """The tables as tabulars, one below the other, with their notes; the origin as comments."""
    lines = [f"% {one_line(line)}" for line in (result.title, *origin_lines(result.origin))]
    for table in result.findings.tables:
        lines += ["", *_latex_table(table)]
    for picture in result.findings.pictures:
        lines += ["", rf"\includegraphics[width=\linewidth]{{{picture.file}}}", rf"\par {escape(picture.caption)}"]
    return "\n".join(lines) + "\n"


def _latex_table(table: Table) -> Iterator[str]:
    yield rf"\par\medskip\textbf{{{escape(table.title)}}}\par\smallskip"
    yield r"\begin{tabular}{|" + "|".join("r" if right else "l" for right in to_the_right(table)) + "|}"
    yield r"\hline"
    yield _latex_row([escape(heading) for heading in table.headings]) + r" \hline\hline"
    for row in table.rows:
        yield _latex_row([_latex_cell(cell, row) for cell in row.cells])
    yield r"\hline"
    yield r"\end{tabular}"
    yield from (rf"\par\smallskip{{\footnotesize {escape(note)}\par}}" for note in table.notes)


def _latex_row(cells: list[str]) -> str:
    """A line of a tabular; one that begins with [ or * would be taken for an argument of the line break before it."""
    line = " & ".join(cells)
    return ("{}" if line.lstrip().startswith(("[", "*")) else "") + line + r" \\"


def _latex_cell(cell: str | Number, row: Row) -> str:
    if isinstance(cell, str):
        return rf"\textit{{{escape(cell)}}}" if row.is_paper and cell else escape(cell)
    text = escape(cell.text())
    if row.is_paper:
        return rf"\textit{{{text}}}"
    text = rf"\textbf{{{text}}}" if cell.is_best else text
    std = "" if cell.std is None else rf"$_{{\pm {cell.std:.{cell.digits}f}}}$"
    return text + ("$^*$" if cell.is_significant else "") + std


def deviation(cell: Number) -> str:
    """The deviation over seeds, if there is one."""
    return "" if cell.std is None else f" ± {cell.std:.{cell.digits}f}"


def to_the_right(table: Table) -> list[bool]:
    """For each column whether it holds numbers."""
    columns = zip(*(row.cells for row in table.rows), strict=True)
    found = [any(isinstance(cell, Number) for cell in column) for column in columns]
    return found or [False] * len(table.headings)


def _commas(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def origin_lines(origin: Mapping[str, Any]) -> list[str]:
    """Where a result comes from, in a few lines for people."""
    told: list[tuple[str, Callable[[Any], str]]] = [
        ("data", str),
        ("preparation", str),
        ("final_numbers_from", str),
        ("preset", str),
        ("seeds", _commas),
        ("second_block_seeds", _commas),
        ("signatures", lambda found: "; ".join(found)),
        ("command", str),
        ("machines", lambda found: "; ".join(", ".join(map(str, one.values())) for one in found)),
        ("seconds", lambda seconds: f"{seconds / 60:.1f} minutes for all its stages"),
        ("made", str),
    ]
    headings = {"seconds": "time"}
    return [
        f"{headings.get(name, name).replace('_', ' ')}: {show(origin[name])}" for name, show in told if origin.get(name)
    ]
