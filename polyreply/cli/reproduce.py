"""`polyreply reproduce`."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from polyreply.errors import PolyReplyError

if TYPE_CHECKING:
    from polyreply.experiments.plan import Plan
    from polyreply.experiments.result import Number, Result, Table
    from polyreply.experiments.run import Order

_ALL = "all"
_FIRST_COLUMN = 20
"""Characters of a name that stay on one line."""
_HEADING = 8
"""Characters of a heading that stay on one line, if there is a space to break it at."""


def reproduce(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME …] [key=value …]", help="Tables and figures (or all), and settings of the preset."
        ),
    ] = None,
    data: Annotated[
        str, typer.Option(help="A folder with train, valid and perhaps test, or the name of an embedded corpus.")
    ] = "chitchat",
    preset: Annotated[str, typer.Option(help="How large everything is: mini, smoke, flan or paper.")] = "mini",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for what is kept and for the results.")] = Path(
        "runs/reproduce"
    ),
    select: Annotated[
        str | None,
        typer.Option(help="Choose each method's learning rate by mixture_nll or bleu2_f; short for rates.select=…"),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", "-j", min=1, help="Stages to make at once, each in a process with its share of cores."),
    ] = 1,
    list_names: Annotated[bool, typer.Option("--list", help="Say what there is, and leave.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and leave.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan or the results as JSON.")] = False,
) -> None:
    """Make a table or figure of the paper, from raw data to the rendered result.

    What takes time is kept in OUT/stages: a second run does only what is missing, an interrupted one goes on.

    \b
    Examples:
      polyreply reproduce --list
      polyreply reproduce table-em --data data/dailydialog --out runs/paper --jobs 2
      polyreply reproduce table-em figure-assignment seeds=[0,1,2] stage_2.steps=400
      polyreply reproduce all --preset paper --data data/weibo --dry-run
    """
    from polyreply.experiments.catalogue import TITLES

    if list_names:
        _print_list(TITLES, as_json)
        return
    names, overrides = _split(arguments or [])
    overrides += [f"rates.select={select}"] if select else []
    from polyreply.experiments.run import Order, open_lab, plan_for

    order = Order(data, preset, out, tuple(overrides))
    found = plan_for(open_lab(order, is_plan=True), names)
    _print_plan(found, order, jobs, dry_run and as_json)
    if dry_run:
        return
    if jobs > 1:
        from polyreply.experiments.jobs import make_at_once

        make_at_once(names, order, jobs, _Lines())
    _run(names, order, as_json)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The names, each once, and the settings."""
    from polyreply.experiments.catalogue import TITLES, check_name

    names = [argument for argument in arguments if "=" not in argument]
    if not names:
        raise PolyReplyError("expected the name of a table or figure, found none; see `polyreply reproduce --list`")
    names = list(TITLES) if names == [_ALL] else list(dict.fromkeys(names))
    for name in names:
        check_name(name)
    return names, [argument for argument in arguments if "=" in argument]


def _print_list(titles: dict[str, str], as_json: bool) -> None:
    from polyreply.cli.display import print_json

    if as_json:
        print_json(titles)
        return
    width = max(map(len, titles))
    for name, title in titles.items():
        typer.echo(f"{name:<{width}}  {title}")


def _print_plan(found: "Plan", order: "Order", jobs: int, as_json: bool) -> None:
    """For people on standard error, because it comes before the result."""
    from polyreply.cli.display import print_json

    if as_json:
        missing = [stage.name for stage in found.missing]
        print_json({"missing": missing, "made": found.made, "seconds": round(found.seconds_with(jobs))})
        return
    typer.echo(f"preset {order.preset} on {order.data}, in {order.out}", err=True)
    for line in found.lines(jobs):
        typer.echo(line, err=True)


def _run(names: list[str], order: "Order", as_json: bool) -> None:
    from polyreply.cli.display import print_json
    from polyreply.experiments.cache import Diverged
    from polyreply.experiments.run import open_lab
    from polyreply.experiments.run import reproduce as run
    from polyreply.training.view import TrainingView

    results, failed = {}, []
    for name in names:
        try:
            result, files = run(name, order, open_lab(order, notify=_Lines(), callbacks=[TrainingView()]))
        except Diverged as error:  # what does not stand on that training can still be made
            failed.append(f"{name} cannot be made: {error}")
            continue
        results[name] = [str(path) for path in files]
        if not as_json:
            _print_result(result, files)
    if as_json:
        print_json(results)
    if failed:
        raise PolyReplyError("; ".join(failed))


class _Lines:
    """Tells of progress in plain lines: each stage once, and in long ones every tenth of it."""

    def __init__(self) -> None:
        self._stage, self._tenth = "", 0

    def __call__(self, stage: str, share: float) -> None:
        """Told the stage and the share of it that is done."""
        kind, tenth = stage.partition(",")[0], int(10 * share)
        if kind != self._stage or tenth > self._tenth:
            typer.echo(f"… {stage}", err=True)
        self._stage, self._tenth = kind, tenth


def _print_result(result: "Result", files: list[Path]) -> None:
    from polyreply.experiments.render import CLAIMS

    for table in result.findings.tables:
        print_table(table)
    if result.findings.verdicts:
        typer.echo(CLAIMS)
    width = max((len(one.outcome) for one in result.findings.verdicts), default=0) + 1
    for one in result.findings.verdicts:
        paper = f" (the paper: {one.paper})" if one.paper else ""
        typer.echo(f"  {one.outcome + ':':<{width}} {one.text}: {one.ours or '–'}{paper}")
    for line in ("", *result.findings.remarks, "", *(f"  {path}" for path in files)):
        typer.echo(line)


def _broken(heading: str) -> str:
    """A heading in short lines: long ones would leave no room for the names of the rows."""
    parts = heading.replace("-", "-\n", 1).split("\n")
    return "\n".join(line for part in parts for line in textwrap.wrap(part, _HEADING, break_long_words=False))


def print_table(found: "Table") -> None:
    """A table without lines, as wide as its numbers need; the paper's rows are dim."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from polyreply.experiments.render import to_the_right

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="underline")
    for place, (heading, right) in enumerate(zip(found.headings, to_the_right(found), strict=True)):
        words = _broken(heading) if right else heading
        texts = [words, *(_text(row.cells[place]) for row in found.rows)]
        longest = max(len(line) for text in texts for line in text.split("\n"))
        least = longest if right else min(longest, _FIRST_COLUMN) if place == 0 else None
        justify: Literal["right", "left"] = "right" if right else "left"
        shown.add_column(escape(words), justify=justify, no_wrap=right, overflow="fold", min_width=least)
    for row in found.rows:
        shown.add_row(*(escape(_text(cell)) for cell in row.cells), style="dim" if row.is_paper else "")
    console = Console()
    console.width = max(console.width, console.measure(shown, options=console.options.update(width=10_000)).minimum)
    console.print(f"\n[bold]{escape(found.title)}[/bold]")
    console.print(shown)
    for note in found.notes:
        console.print(escape(note), soft_wrap=True, highlight=False)
    console.print()


def _text(cell: "str | Number") -> str:
    if isinstance(cell, str):
        return cell
    std = "" if cell.std is None else f"\n±{cell.std:.{cell.digits}f}"
    return cell.text() + ("*" if cell.is_significant else "") + std
