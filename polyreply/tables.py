"""Tables for people and for programs: one `Table`, rendered for a terminal or as Markdown, LaTeX, HTML, CSV or JSON.

```python
rows = [["beam", 7.25], ["ours", Cell(9.5, std=0.2, bold=True)]]
table = Table("Scores", ["system", Column("BLEU2-F", better=1)], rows)
table.print()
table.render("latex")
```

Cells hold text from anywhere (names of systems, replies of a model, rows of a corpus). Each format escapes it, so text
is never read as markup. Numbers are rounded for people; CSV and JSON keep their full precision.
"""

import csv
import io
import json
import re
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape as escape_html
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

NO_VALUE = "–"
ARROWS = {1: " ↑", -1: " ↓", 0: ""}
"""After the heading of a column: whether higher or lower numbers are better."""
ENDINGS = {".md": "markdown", ".tex": "latex", ".html": "html", ".csv": "csv", ".json": "json"}
"""The format that a file's ending implies."""

_HEADING_WIDTH, _NAME_WIDTH = 8, 24
"""On a terminal: where headings of numbers are broken, and how much of a row's name is kept on one line."""

Value = str | int | float | None


@dataclass(frozen=True)
class Column:
    """A column: its heading, and how its numbers are shown."""

    heading: str
    digits: int = 2
    """Decimals of numbers; integers have none."""
    better: int = 0
    """1 if higher is better, -1 if lower is, 0 for neither."""
    group: str = ""
    """What neighbouring columns have in common; LaTeX and terminals show it once, above them."""
    own: str = ""
    """The heading below the group."""
    narrow: str = ""
    """A heading of short lines for a terminal, by default the group and what is below it."""


@dataclass(frozen=True)
class Cell:
    """A value with marks; a value without marks needs no Cell."""

    value: Value
    std: float | None = None
    """Standard deviation, shown as ±."""
    bold: bool = False
    """For the best number of a column."""
    star: bool = False
    """For a number that differs significantly from the baseline's."""


@dataclass(frozen=True)
class Row:
    """A row with marks; a row without marks may be a plain sequence of cells."""

    cells: Sequence[Value | Cell]
    muted: bool = False
    """Italic or dim, for numbers from elsewhere."""


@dataclass(frozen=True)
class Table:
    """A title, columns (headings or `Column`s), rows of values, and notes below them.

    `provenance` says how the numbers were made: lines below the notes, comments in LaTeX.
    """

    title: str
    columns: Sequence[str | Column]
    rows: Sequence[Row | Sequence[Value | Cell]]
    notes: Sequence[str] = field(default_factory=list)
    provenance: Sequence[str] = field(default_factory=list)

    def render(self, form: str) -> str:
        """The table as text in one of the `FORMATS`, with a line break at its end."""
        return FORMATS[form](self)

    def print(self, console: "Console | None" = None) -> None:
        """Print the table on a terminal."""
        _print(self, console)

    def __str__(self) -> str:
        return self.render("terminal").rstrip("\n")


def one_line(text: str) -> str:
    """The text without line breaks and control characters; thin spaces stay."""
    return re.sub(r"[^\S\u2009]+", " ", "".join("�" if _is_control(char) else char for char in text))


def _is_control(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs") and not char.isspace()


# --- what all formats share


def _columns(table: Table) -> list[Column]:
    return [column if isinstance(column, Column) else Column(column) for column in table.columns]


def _rows(table: Table) -> list[tuple[list[Cell], bool]]:
    """The cells of each row, and whether it is muted."""
    rows = [row if isinstance(row, Row) else Row(row) for row in table.rows]
    return [([cell if isinstance(cell, Cell) else Cell(cell) for cell in row.cells], row.muted) for row in rows]


def _are_numbers(table: Table) -> list[bool]:
    """For each column whether it holds numbers, which are aligned to the right."""
    are_numbers = [False] * len(table.columns)
    for cells, _ in _rows(table):
        for place, cell in enumerate(cells):
            are_numbers[place] |= isinstance(cell.value, int | float) and not isinstance(cell.value, bool)
    return are_numbers


def _text(cell: Cell, column: Column) -> str:
    """A value as people read it, with thin spaces between thousands and a dash where there is none."""
    if cell.value is None:
        return NO_VALUE
    if isinstance(cell.value, str | bool):
        return str(cell.value)
    digits = 0 if isinstance(cell.value, int) else column.digits
    return f"{cell.value:,.{digits}f}".replace(",", "\u2009")


def _std(cell: Cell, column: Column) -> str:
    return "" if cell.std is None else f"{cell.std:.{column.digits}f}"


def _groups(columns: Sequence[Column]) -> list[list[Column]]:
    """Neighbouring columns of one group; a column without a group is alone."""
    numbered = enumerate(columns)
    return [[column for _, column in few] for _, few in groupby(numbered, lambda pair: pair[1].group or pair[0])]


# --- Markdown


_MARKDOWN_SIGNS = frozenset(r"\`*_{}[]<>|~&$#")


def escape_markdown(text: str) -> str:
    """Text on one line that Markdown shows as it is."""
    return "".join(f"\\{char}" if char in _MARKDOWN_SIGNS else char for char in one_line(text))


def _markdown(table: Table) -> str:
    columns = _columns(table)
    lines = [f"**{escape_markdown(table.title)}**", ""] if table.title else []
    lines.append(_pipes([escape_markdown(column.heading) + ARROWS[column.better] for column in columns]))
    lines.append(_pipes(["---:" if number else "---" for number in _are_numbers(table)]))
    for cells, muted in _rows(table):
        pairs = zip(cells, columns, strict=True)
        lines.append(_pipes([_markdown_cell(cell, column, muted) for cell, column in pairs]))
    notes = [f"{escape_markdown(note)}  " for note in (*table.notes, *table.provenance)]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _markdown_cell(cell: Cell, column: Column, muted: bool) -> str:
    text = escape_markdown(_text(cell, column))
    if text and (muted or cell.bold):
        text = text.join(("*", "*") if muted else ("**", "**"))
    std = _std(cell, column)
    return text + (r"\*" if cell.star else "") + (f" ± {std}" if std else "")


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# --- LaTeX


_LATEX_SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "\u2009": r"\,",
    **{char: rf"\{char}" for char in "&%$#_{}"},
}


def escape_latex(text: str) -> str:
    """Text on one line that LaTeX shows as it is; an empty line would end the paragraph, and with it the table."""
    return "".join(_LATEX_SIGNS.get(char, char) for char in one_line(text))


def _latex(table: Table) -> str:
    """A tabular with rules between groups of columns, its notes below it and its provenance as comments above it."""
    columns, numbers = _columns(table), _are_numbers(table)
    rows = [
        _latex_row([_latex_cell(cell, column, muted) for cell, column in zip(cells, columns, strict=True)])
        for cells, muted in _rows(table)
    ]
    groups = _groups(columns)
    heading = _latex_heading(groups)
    sides = iter("r" if number else "l" for number in numbers)
    layout = "|".join("".join(next(sides) for _ in group) for group in groups)
    title = [rf"\par\medskip\textbf{{{escape_latex(table.title)}}}\par\smallskip"] if table.title else []
    comments = [r"needs \usepackage{multirow}"] if any("multirow" in line for line in heading) else []
    if not all(line.isascii() for line in (*heading, *rows)):
        comments.append("some letters are not ASCII: use XeLaTeX or LuaLaTeX and a font that has them")
    notes = (re.sub(r"^\* ", "$^*$ ", escape_latex(note)) for note in table.notes)
    lines = [
        *(f"% {comment}" for comment in (*comments, *map(one_line, table.provenance))),
        *title,
        rf"\begin{{tabular}}{{|{layout}|}}",
        r"\hline",
        *heading,
        *rows,
        r"\hline",
        r"\end{tabular}",
        *(rf"\par\smallskip{{\footnotesize {note}\par}}" for note in notes),
    ]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    """A line of a tabular; one that begins with [ or * would be read as an argument of the line break before it."""
    line = " & ".join(cells)
    return ("{}" if line.lstrip().startswith(("[", "*")) else "") + line + r" \\"


def _latex_cell(cell: Cell, column: Column, muted: bool) -> str:
    text = escape_latex(_text(cell, column))
    if text and (muted or cell.bold):
        text = rf"\textit{{{text}}}" if muted else rf"\textbf{{{text}}}"
    std = _std(cell, column)
    return text + ("$^*$" if cell.star else "") + (rf"$_{{\pm {std}}}$" if std else "")


def _latex_heading(groups: Sequence[Sequence[Column]]) -> list[str]:
    """One line, or two if groups name their columns: the groups, a rule, and the columns below them."""
    columns = [column for group in groups for column in group]
    if not any(column.own for column in columns):
        return [_latex_row([escape_latex(one.heading + ARROWS[one.better]) for one in columns]) + r" \hline\hline"]
    upper, lower, rules, place = [], [], "", 1
    for group in groups:
        first, bars = group[0], ("|" if place == 1 else "") + "c|"
        if not first.group:
            upper.append(rf"\multirow{{2}}{{*}}{{{escape_latex(first.heading + ARROWS[first.better])}}}")
            lower.append("")
        else:
            arrow = {1: r"$^\uparrow$", -1: r"$^\downarrow$", 0: ""}[first.better]
            upper.append(rf"\multicolumn{{{len(group)}}}{{{bars}}}{{{escape_latex(first.group)}{arrow}}}")
            for column in group:
                bar = "|" if column is group[-1] else ""
                lower.append(rf"\multicolumn{{1}}{{c{bar}}}{{{escape_latex(column.own)}}}")
            rules += rf" \cline{{{place}-{place + len(group) - 1}}}" if first.own else ""
        place += len(group)
    return [" & ".join(upper) + r" \\" + rules, " & ".join(lower) + r" \\ \hline\hline"]


# --- HTML


def _html(table: Table) -> str:
    """A heading, a `<table>` and paragraphs; the classes `r`, `muted`, `std`, `note` are for a stylesheet."""
    columns = _columns(table)
    sides = [' class="r"' if number else "" for number in _are_numbers(table)]
    heads = (
        f"<th{side}>{escape_html(one.heading)}{ARROWS[one.better]}</th>"
        for one, side in zip(columns, sides, strict=True)
    )
    lines = [f"<h3>{escape_html(table.title)}</h3>"] if table.title else []
    lines.append(f'<div class="scroll"><table><tr>{"".join(heads)}</tr>')
    for cells, muted in _rows(table):
        parts = (
            f"<td{side}>{_html_cell(cell, column)}</td>"
            for cell, column, side in zip(cells, columns, sides, strict=True)
        )
        lines.append(('<tr class="muted">' if muted else "<tr>") + "".join(parts) + "</tr>")
    lines.append("</table></div>")
    lines += [f'<p class="note">{escape_html(note)}</p>' for note in (*table.notes, *table.provenance)]
    return "\n".join(lines) + "\n"


def _html_cell(cell: Cell, column: Column) -> str:
    text, std = escape_html(_text(cell, column)), _std(cell, column)
    text = f"<b>{text}</b>" if cell.bold and text else text
    return text + ("*" if cell.star else "") + (f'<span class="std"> ± {std}</span>' if std else "")


# --- CSV and JSON


def _csv(table: Table) -> str:
    """The values under their headings, in full precision; a column with deviations is followed by these."""
    columns, rows = _columns(table), [cells for cells, _ in _rows(table)]
    spread = [any(cells[place].std is not None for cells in rows) for place in range(len(columns))]
    headings = [
        (one.heading, f"{one.heading} std") if has else (one.heading,) for one, has in zip(columns, spread, strict=True)
    ]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([heading for pair in headings for heading in pair])
    for cells in rows:
        pairs = [(cell.value, cell.std) if has else (cell.value,) for cell, has in zip(cells, spread, strict=True)]
        writer.writerow(["" if value is None else value for pair in pairs for value in pair])
    return stream.getvalue()


def _json(table: Table) -> str:
    """The title, the headings, the rows as lists and the notes; a cell with marks is an object."""
    tree = {
        "title": table.title,
        "columns": [column.heading for column in _columns(table)],
        "rows": [[_json_cell(cell) for cell in cells] for cells, _ in _rows(table)],
        "notes": [*table.notes, *table.provenance],
    }
    return json.dumps(tree, ensure_ascii=False, indent=2) + "\n"


def _json_cell(cell: Cell) -> Any:
    marks = {name: mark for name in ("std", "bold", "star") if (mark := getattr(cell, name))}
    return {"value": cell.value, **marks} if marks else cell.value


# --- the terminal


def _terminal(table: Table) -> str:
    """What `print` shows, as plain text of 100 columns or more where numbers need them."""
    from rich.console import Console

    stream = io.StringIO()
    _print(table, Console(file=stream, width=100, color_system=None, force_terminal=False, force_jupyter=False))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _print(table: Table, console: "Console | None") -> None:
    """Print without vertical lines; a deviation is below its mean.

    Numbers and the names of rows stay whole; other text wraps. Where a table is too wide, columns move closer and names
    wrap at spaces. If it is still too wide it overflows, which is better than numbers without their ends.
    """
    from rich.console import Console
    from rich.text import Text

    console = console or Console(file=sys.stdout)
    names = [_text(cells[0], column) for cells, _ in _rows(table) for column in _columns(table)[:1] if cells]
    whole = min(max(map(len, names), default=0), _NAME_WIDTH)
    words = min(max((len(word) for name in names for word in name.split()), default=0), _NAME_WIDTH)
    everything = console.options.update(width=10_000)
    for gap, name_width in ((2, whole), (1, whole), (1, words), (1, whole)):
        shown = _rich_table(table, gap, name_width)
        least = console.measure(shown, options=everything).minimum
        if least <= console.width:
            break
    width, console.width = console.width, max(console.width, least)
    if table.title:
        console.print(Text(_printable(table.title), style="bold"), soft_wrap=True)
    console.print(shown)
    console.width = width
    for note in (*table.notes, *table.provenance):
        console.print(Text(_printable(note)), soft_wrap=True)
    if table.title:
        console.print()  # before the title of the next one


def _rich_table(table: Table, gap: int, name_width: int) -> "RichTable":
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="underline")
    columns, numbers = _columns(table), _are_numbers(table)
    lines = [_narrow_heading(column, number) for column, number in zip(columns, numbers, strict=True)]
    before = ["", *(heading.partition("\n")[0] for heading in lines)]
    rows = [
        ([_rich_cell(cell, column) for cell, column in zip(cells, columns, strict=True)], muted)
        for cells, muted in _rows(table)
    ]
    for place, (heading, above) in enumerate(zip(lines, before, strict=False)):
        upper, _, lower = heading.partition("\n")
        head = Text(f"\n{lower}" if columns[place].group and upper == above else heading)
        width = name_width if place == 0 else None
        if numbers[place]:  # rich would break numbers at their thin spaces
            width = max(line.cell_len for text in (head, *(cells[place] for cells, _ in rows)) for line in text.split())
        side: Literal["left", "right"] = "right" if numbers[place] else "left"
        shown.add_column(head, justify=side, no_wrap=numbers[place], overflow="fold", min_width=width)
    for cells, muted in rows:
        shown.add_row(*cells, style="dim" if muted else "")
    return shown


def _narrow_heading(column: Column, is_number: bool) -> str:
    """A heading in short lines: long ones would leave no room for the names of the rows."""
    if column.narrow or column.group:
        return column.narrow or f"{column.group}\n{column.own}"
    if not is_number:
        return column.heading
    parts = (column.heading + ARROWS[column.better]).replace("-", "-\n", 1).split("\n")
    return "\n".join(line for part in parts for line in textwrap.wrap(part, _HEADING_WIDTH, break_long_words=False))


def _rich_cell(cell: Cell, column: Column) -> "Text":
    from rich.text import Text

    text = Text(_printable(_text(cell, column)), style="bold" if cell.bold else "")
    std = _std(cell, column)
    return text.append("*" if cell.star else "", "not bold").append(f"\n±{std}" if std else "", "not bold")


def _printable(text: str) -> str:
    """The text without characters that could move the cursor; line breaks stay."""
    return "".join("�" if _is_control(char) else " " if char in "\r\t\v\f" else char for char in text)


FORMATS: dict[str, Callable[[Table], str]] = {
    "terminal": _terminal,
    "markdown": _markdown,
    "latex": _latex,
    "html": _html,
    "csv": _csv,
    "json": _json,
}
"""The formats of `Table.render`."""
