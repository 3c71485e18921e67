"""`polyreply compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from polyreply.errors import PolyReplyError

if TYPE_CHECKING:
    from polyreply.metrics.comparison import Comparison

_FORMATS = ("terminal", "markdown", "latex", "csv", "json")
_BY_ENDING = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json"}


def compare(
    scores: Annotated[
        list[str],
        typer.Argument(metavar="SCORES", help="Score files; NAME=FILE,FILE names a system and gives its seeds."),
    ],
    baseline: Annotated[
        str | None, typer.Option(help="The system the others are tested against; the first, if not given.")
    ] = None,
    test: Annotated[str, typer.Option(help="bootstrap or permutation, both paired over contexts.")] = "bootstrap",
    samples: Annotated[int, typer.Option(min=1, help="Resamples of the test and of the intervals.")] = 1000,
    alpha: Annotated[float, typer.Option(help="Differences with a p-value below it are marked.")] = 0.05,
    seed: Annotated[int, typer.Option(min=0, help="Decides what is resampled.")] = 0,
    columns: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="The numbers to show, by their names in score files.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", help="terminal, markdown, latex, csv or json; by --output's ending if any."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file for the table.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="A picture of quality against diversity: .png, .svg or .pdf.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the table and the picture.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> None:
    """All systems in one table laid out as in the paper: best in bold, significant differences marked.

    \b
    Examples:
      polyreply compare scores/*.json
      polyreply compare beam=beam.json eqhard=seed1.json,seed2.json,seed3.json --baseline beam
      polyreply compare scores/*.json --columns bleu2_f,self_bleu,length
      polyreply compare scores/*.json --format latex --output table.tex --plot quality.png
    """
    form = _format("json" if as_json else format, output)
    from polyreply.cli.display import progress_bar
    from polyreply.metrics import comparison, significance, systems

    _check_places(output, plot, overwrite)
    with progress_bar() as notify:
        notify("reading", 0.0)
        found = comparison.compare_systems(
            systems.read_systems(scores),
            baseline=baseline,
            test=cast(significance.TestName, test),
            samples=samples,
            seed=seed,
            alpha=alpha,
            columns=[name.strip() for name in columns.split(",")] if columns is not None else (),
            notify=notify,
        )
        notify("drawing", 0.9)
        files = _render(found, form, output, plot)
    for line in _warnings(found, form, plot):
        typer.echo(f"warning: {line}", err=True)
    _write(found, form, output, files, overwrite)


def _check_places(output: Path | None, plot: Path | None, overwrite: bool) -> None:
    """Raises, before any work, when the table or the picture cannot be written."""
    from polyreply.files import check_new_file
    from polyreply.plots import check_plot

    for path in (output, plot):
        if path is not None:
            check_new_file(path, overwrite)
    if plot is not None:
        check_plot(plot)
        if output is not None and output.resolve() == plot.resolve():
            raise PolyReplyError(f"--plot: expected another file than --output, found {plot} for both; rename one")


def _format(wanted: str | None, output: Path | None) -> str:
    if wanted is None:
        ending = "" if output is None else output.suffix.lower()
        wanted = "terminal" if output is None else _BY_ENDING.get(ending)
    if wanted not in _FORMATS or (output is not None and wanted == "terminal"):
        choices = ", ".join(_FORMATS[1:] if output is not None else _FORMATS)
        raise PolyReplyError(f"format: expected one of {choices}, found {wanted or output}; say --format")
    return wanted


def _render(found: "Comparison", form: str, output: Path | None, plot: Path | None) -> dict[Path, bytes]:
    """The contents of the files that were asked for."""
    from polyreply.metrics import comparison_plot as plotting
    from polyreply.metrics import table

    files = {}
    if plot is not None:
        files[plot] = plotting.draw(found, plot.suffix)
    if output is not None:
        files[output] = table.render(found, form).encode()
    return files


def _warnings(found: "Comparison", form: str, plot: Path | None) -> list[str]:
    """What the table does not say itself: the one on the terminal ends with its warnings."""
    from polyreply.plots import missing_letters

    letters = "" if plot is None else missing_letters([system.name for system in found.systems])
    return [*(found.warnings if form != "terminal" else ()), *([letters] if letters else ())]


def _write(found: "Comparison", form: str, output: Path | None, files: dict[Path, bytes], overwrite: bool) -> None:
    from polyreply.files import write_files
    from polyreply.metrics import table

    write_files(files, overwrite=overwrite)
    if form == "terminal":
        table.print_terminal(found)
    elif output is None:
        typer.echo(table.render(found, form), nl=False)
    for path in files:
        typer.echo(f"the {'table' if path == output else 'picture'} is in {path}", err=True)
