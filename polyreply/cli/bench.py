"""`polyreply bench NAME`."""

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Speed and memory against targets and alternatives, side by side in one run.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    pass


@app.command()
def data(
    rows: Annotated[int, typer.Option(min=1000, help="Rows of train at the larger of the two sizes.")] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Cost of `prepare` at two sizes ten times apart, and whether it finds planted duplicates.

    \b
    Examples:
      polyreply bench data
      polyreply bench data --rows 100000 --json
    """
    from polyreply.bench.data import CORPORA, bench_data
    from polyreply.cli.display import print_json, print_table, progress_bar

    with progress_bar() as notify:
        figures = bench_data(rows, notify)
    if as_json:
        print_json(figures)
        return
    headings = ("corpus", "rows", "seconds", "rows per second", "peak MB", "exact found %", "near found %")
    table = [
        [corpus.name, rows if label == "large" else rows // 10, *_row(figures, f"data.{corpus.name}.{label}")]
        for corpus in CORPORA
        for label in ("small", "large")
    ]
    growth = ", ".join(f"{corpus.name} {figures[f'data.{corpus.name}.growth']:.1f}x" for corpus in CORPORA)
    print_table("polyreply prepare", headings, table, note=f"growth for 10x the rows: {growth}")


def _row(figures: dict[str, Any], prefix: str) -> list[Any]:
    near = figures.get(f"{prefix}.near_found")
    return [
        figures[f"{prefix}.seconds"],
        round(figures[f"{prefix}.rows_per_second"]),
        round(figures[f"{prefix}.peak_mb"]),
        100 * figures[f"{prefix}.exact_found"],
        "" if near is None else f"{100 * near:.1f}",
    ]


@app.command()
def score(
    number: Annotated[int, typer.Option("--n", min=1, help="Samples to score.")] = 640,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of which the median counts.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Scoring all K decoders at once against a loop over decoders and the paper's authors' way (T5-small, K=10).

    \b
    Examples:
      polyreply bench score
      polyreply bench score --n 64 --repeats 1 --json
    """
    from polyreply.bench.score import bench_score
    from polyreply.cli.display import progress_bar

    with progress_bar() as notify:
        figures = bench_score(number, repeats, min(number, 32), notify)
    _print(figures, "Scoring", as_json)


@app.command()
def reply(
    repeats: Annotated[int, typer.Option(min=1, help="Runs of which the median counts.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Ten replies at once against K calls of generate, beam search and nucleus sampling (T5-small, K=10).

    \b
    Examples:
      polyreply bench reply
      polyreply bench reply --repeats 1 --json
    """
    from polyreply.bench.reply import bench_reply
    from polyreply.cli.display import progress_bar

    with progress_bar() as notify:
        figures = bench_reply(repeats, notify)
    _print(figures, "Replying", as_json)


@app.command()
def assign(
    rounds: Annotated[int, typer.Option(min=1, help="Runs of which the median counts.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """The balanced assignment against SciPy and POT, on random, saturated and constant posteriors (K=10).

    \b
    Examples:
      polyreply bench assign
      polyreply bench assign --rounds 3 --json
    """
    from polyreply.bench.assign import bench_assign
    from polyreply.cli.display import progress_bar

    with progress_bar() as notify:
        figures = bench_assign(notify, rounds=rounds)
    _print(figures, "Balanced assignment", as_json)


@app.command()
def prefix(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A trained K-decoder model.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A folder made by `polyreply prepare`.")],
    number: Annotated[int, typer.Option("--n", min=1, help="Samples of the E-step.")] = 640,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """An E-step that looks only at the beginning of each response: agreement with the full one, and time saved.

    \b
    Examples:
      polyreply bench prefix runs/eqhard-em/model data/chitchat
      polyreply bench prefix runs/eqhard-em/model data/chitchat --n 200 --json
    """
    from polyreply.bench.prefix import bench_prefix
    from polyreply.cli.display import progress_bar

    with progress_bar() as notify:
        figures = bench_prefix(model, data, number, notify)
    _print(figures, "E-step on beginnings", as_json)


@app.command()
def metrics(
    contexts: Annotated[int, typer.Option(min=10, help="Contexts that are scored.")] = 12_000,
    sample: Annotated[int, typer.Option(min=1, help="Contexts on which NLTK is measured.")] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """The paper's nine numbers against calls of NLTK (10 responses, 5 references).

    \b
    Examples:
      polyreply bench metrics
      polyreply bench metrics --contexts 1200 --sample 50 --json
    """
    from polyreply.bench.metrics import bench_metrics
    from polyreply.cli.display import progress_bar

    with progress_bar() as notify:
        figures = bench_metrics(contexts, sample, notify)
    _print(figures, "Metrics", as_json)


@app.command()
def distributed(
    samples: Annotated[int, typer.Option("--n", min=10, help="Samples of an EM step, a multiple of 10.")] = 320,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of which the median counts.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """EM training with two processes of one thread each against one (a small T5, K=10).

    \b
    Examples:
      polyreply bench distributed
      polyreply bench distributed --n 80 --rounds 1 --json
    """
    from polyreply.bench.distributed import bench_distributed
    from polyreply.cli.display import progress_bar

    with progress_bar() as notify:
        figures = bench_distributed(notify, samples=samples, rounds=rounds)
    _print(figures, "Two processes", as_json)


def _print(figures: dict[str, Any], title: str, as_json: bool) -> None:
    from polyreply.cli.display import print_json, print_table

    if as_json:
        print_json(figures)
    else:
        print_table(title, ("figure", "value"), [[name, f"{value:.4g}"] for name, value in figures.items()])
