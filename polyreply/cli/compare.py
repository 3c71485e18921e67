"""`polyreply compare`."""

from pathlib import Path
from typing import Annotated, cast

import typer

from polyreply.errors import PolyReplyError


def compare(
    scores: Annotated[
        list[str],
        typer.Argument(metavar="SCORES", help="Score files; NAME=FILE,FILE names a system and gives its seeds."),
    ],
    baseline: Annotated[
        str | None, typer.Option(help="The system the others are tested against; by default the first.")
    ] = None,
    test: Annotated[str, typer.Option(help="bootstrap or permutation, both paired over contexts.")] = "bootstrap",
    samples: Annotated[int, typer.Option(min=1, help="Resamples of the test and of the intervals.")] = 1000,
    alpha: Annotated[float, typer.Option(help="Differences with a p-value below it are marked.")] = 0.05,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resampling.")] = 0,
    columns: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="The scores to show, by their names in score files.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format", "-f", help="terminal, markdown, latex, html, csv or json; by default as --output's ending says."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file for the table.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A plot of quality against diversity: .png, .svg or .pdf.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the table and the plot.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> None:
    """Compare systems in one table: best scores in bold, significant differences marked.

    \b
    Examples:
      polyreply compare scores/*.json
      polyreply compare beam=beam.json eqhard=seed1.json,seed2.json,seed3.json --baseline beam
      polyreply compare scores/*.json --columns bleu2_f,self_bleu,length
      polyreply compare scores/*.json --format latex --output table.tex --plot quality.png
    """
    from polyreply import metrics
    from polyreply.files import write_files
    from polyreply.metrics.significance import TestName
    from polyreply.plots import missing_letters
    from polyreply.progress import progress_bar

    form = _format("json" if as_json else format, output)
    _check_outputs(output, plot, overwrite)
    with progress_bar() as notify:
        notify("reading", 0.0)
        comparison = metrics.compare(
            *scores,
            baseline=baseline,
            test=cast(TestName, test),
            samples=samples,
            seed=seed,
            alpha=alpha,
            columns=[name.strip() for name in columns.split(",")] if columns is not None else (),
            notify=notify,
        )
        notify("drawing", 0.9)
        files: dict[Path, bytes | str] = {} if plot is None else {plot: comparison.plot(plot.suffix)}
        if output is not None:
            files[output] = comparison.render(form)
    # The table on the terminal ends with its warnings.
    warnings = list(comparison.warnings) if form != "terminal" else []
    if plot is not None:
        warnings.append(missing_letters([system.name for system in comparison.systems]))
    for line in filter(None, warnings):
        typer.echo(f"warning: {line}", err=True)
    write_files(files, overwrite=overwrite)
    if form == "terminal":
        comparison.table().print()
    elif output is None:
        typer.echo(comparison.render(form), nl=False)
    for path in files:
        typer.echo(f"the {'table' if path == output else 'plot'} is in {path}", err=True)


def _format(wanted: str | None, output: Path | None) -> str:
    from polyreply.tables import ENDINGS, FORMATS

    if wanted is None:
        wanted = "terminal" if output is None else ENDINGS.get(output.suffix.lower())
    choices = [form for form in FORMATS if output is None or form != "terminal"]
    if wanted not in choices:
        raise PolyReplyError(f"format: expected one of {', '.join(choices)}, found {wanted or output}; pass --format")
    return wanted


def _check_outputs(output: Path | None, plot: Path | None, overwrite: bool) -> None:
    """Raise, before any work, if the table or the plot cannot be written."""
    from polyreply.files import check_new_file
    from polyreply.plots import check_plot

    for path in (output, plot):
        if path is not None:
            check_new_file(path, overwrite)
    if plot is not None:
        check_plot(plot)
        if output is not None and output.resolve() == plot.resolve():
            raise PolyReplyError(f"--plot: expected another file than --output, found {plot} for both; rename one")
