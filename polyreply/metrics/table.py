"""The paper's table from a comparison: for the terminal and in Markdown; LaTeX, CSV and JSON have their own files."""

from collections.abc import Callable

from polyreply.metrics.cells import Marks, cell, legend, origins
from polyreply.metrics.comparison import Comparison
from polyreply.metrics.labels import direction, label
from polyreply.metrics.latex import latex
from polyreply.metrics.table_data import as_json, comma_separated

_MARKDOWN_SIGNS = frozenset(r"\`*_{}[]<>|~&$#")


def render(comparison: Comparison, form: str) -> str:
    """The table as text that ends in a line break."""
    return RENDERERS[form](comparison)


def markdown(comparison: Comparison) -> str:
    """A GitHub table; best numbers in bold, significant differences with an asterisk."""
    marks = Marks(("**", "**"), r"\*", (" ± ", ""), escape=_escape_markdown)
    headings = [_escape_markdown(label(number).full) + _arrow(number) for number in comparison.shown]
    lines = [_pipes(["System", *headings]), _pipes(["---", *["---:"] * len(headings)])]
    for system in comparison.systems:
        cells = [cell(comparison, system, number, marks) for number in comparison.shown]
        lines.append(_pipes([_escape_markdown(system.name), *cells]))
    notes = [*legend(comparison, marks), *map(_escape_markdown, origins(comparison))]
    return "\n".join([*lines, "", *(f"{note}  " for note in notes)]) + "\n"


def _arrow(number: str) -> str:
    return {1: " ↑", -1: " ↓", 0: ""}[direction(number)]


def _pipes(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape_markdown(text: str) -> str:
    return "".join(f"\\{char}" if char in _MARKDOWN_SIGNS else char for char in text)


def print_terminal(comparison: Comparison) -> None:
    """The table on the screen; with several seeds the deviation stands below the mean."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    marks = Marks(("[bold]", "[/bold]"), "*", ("\n±", ""))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="underline")
    table.add_column("\nsystem", overflow="fold", min_width=8)
    for heading in _narrow_headings(comparison.shown):
        table.add_column(escape(heading), justify="right", no_wrap=True)
    for system in comparison.systems:
        cells = [cell(comparison, system, number, marks) for number in comparison.shown]
        table.add_row(escape(system.name), *cells)
    console = Console()
    console.width = max(console.width, console.measure(table, options=console.options.update(width=10_000)).minimum)
    console.print(table)  # a wide table wraps, which is better than numbers without their ends
    for note in [*legend(comparison, marks), *origins(comparison)]:
        console.print(escape(note), soft_wrap=True, highlight=False)


def _narrow_headings(numbers: tuple[str, ...]) -> list[str]:
    """Two lines each; what a column has in common with the one before it is not said again."""
    lines = [label(number).lines for number in numbers]
    before = ["", *(upper for upper, _ in lines)]
    return [f"{'' if upper == last else upper}\n{lower}" for (upper, lower), last in zip(lines, before, strict=False)]


RENDERERS: dict[str, Callable[[Comparison], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
    "json": as_json,
}
