"""`polyreply bench NAME`: every benchmark is one function in polyreply/bench and one registration here.

A benchmark returns its figures under stable names. What is registered here holds its options and help text, and
imports the benchmark when it runs, so that help stays instant.
"""

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from polyreply.progress import Notify

Figures = dict[str, Any]
Work = Callable[..., Figures]
"""A function of a progress callback and its options."""

bench = typer.Typer(
    help="Speed and memory against the alternatives, side by side in one run.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_OF_A_TRAINED_MODEL = ("precision", "prefix")
"""Benchmarks that need a model and data of the user's."""
_SHORTER: dict[str, dict[str, Any]] = {
    "assign": {"rounds": 3},
    "data": {"rows": 100_000},
    "metrics": {"contexts": 3000, "sample": 100},
    "serve": {"seconds": 6.0},
}
"""Options of `bench all`, by benchmark."""
BENCHES: dict[str, tuple[str, Work]] = {}
"""Title and function of each benchmark, by name."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]
Rounds = Annotated[int, typer.Option(min=1, help="Runs; the median counts.")]


@bench.callback()
def _group() -> None:
    pass


def _benchmark(title: str) -> Callable[[Work], Work]:
    """Register a benchmark as a subcommand with its own options and `--json`."""

    def register(work: Work) -> Work:
        name = work.__name__
        BENCHES[name] = (title, work)

        def command(as_json: bool, **options: Any) -> None:
            _run([name], as_json, {name: options})

        # Typer reads options from the signature: the benchmark's own, without the progress callback, and --json.
        own = [parameter for parameter in inspect.signature(work).parameters.values() if parameter.name != "notify"]
        json_option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
        command.__signature__ = inspect.Signature([*own, json_option])  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, json_option)}
        bench.command(name, help=work.__doc__)(command)
        return work

    return register


def _run(names: list[str], as_json: bool, options: dict[str, dict[str, Any]]) -> None:
    from polyreply.cli.display import print_json, print_table
    from polyreply.progress import progress_bar

    figures: Figures = {}
    start = time.perf_counter()
    for name in names:
        with progress_bar() as notify:
            figures |= BENCHES[name][1](notify, **options.get(name, {}))
    if len(names) > 1:
        figures["all.minutes"] = (time.perf_counter() - start) / 60
    spreads = {name: (value.low, value.high) for name, value in figures.items() if hasattr(value, "low")}
    if as_json:
        print_json(figures | {f"{name}.spread": spread for name, spread in spreads.items()})
        return
    rows = [[name, f"{value:.4g}", _range(spreads.get(name))] for name, value in figures.items()]
    print_table(BENCHES[names[0]][0] if len(names) == 1 else "Benchmarks", ("figure", "value", "spread"), rows)


def _range(spread: tuple[float, float] | None) -> str:
    return f"{spread[0]:.3g} to {spread[1]:.3g}" if spread else ""


@bench.command(name="all")
def bench_all(as_json: AsJson = False) -> None:
    """Every benchmark that needs no model of yours, in less than half an hour: some measure less than by default.

    \b
    Examples:
      polyreply bench all
      polyreply bench all --json > figures.json
    """
    _run([name for name in sorted(BENCHES) if name not in _OF_A_TRAINED_MODEL], as_json, _SHORTER)


@_benchmark("Balanced assignment")
def assign(notify: Notify, rounds: Rounds = 7) -> Figures:
    """The balanced assignment against SciPy and POT, on random, saturated and constant posteriors (K=10).

    \b
    Examples:
      polyreply bench assign
      polyreply bench assign --rounds 3 --json
    """
    from polyreply.bench.assign import bench_assign

    return bench_assign(notify, rounds=rounds)


@_benchmark("polyreply prepare")
def data(
    notify: Notify,
    rows: Annotated[int, typer.Option(min=1000, help="Rows of train at the larger of the two sizes.")] = 1_000_000,
) -> Figures:
    """Cost of `prepare` at two sizes ten times apart, and the share of planted duplicates it finds.

    \b
    Examples:
      polyreply bench data
      polyreply bench data --rows 100000 --json
    """
    from polyreply.bench.data import bench_data

    return bench_data(rows, notify)


@_benchmark("Two processes")
def distributed(
    notify: Notify,
    n: Annotated[int, typer.Option("--n", min=10, help="Samples of an EM step, a multiple of 10.")] = 320,
    rounds: Rounds = 3,
    shard: Annotated[
        str, typer.Option(metavar="BACKBONE", help="Compare this backbone whole on each process and sharded instead.")
    ] = "",
) -> Figures:
    """EM training with two processes of one thread each against one (a small T5, K=10).

    \b
    Examples:
      polyreply bench distributed
      polyreply bench distributed --n 80 --rounds 1 --json
      polyreply bench distributed --shard smollm2-135m-pip --n 20
    """
    from polyreply.bench.distributed import bench_distributed, bench_sharded

    if shard:
        return bench_sharded(notify, shard, samples=n)
    return bench_distributed(notify, samples=n, rounds=rounds)


@_benchmark("EM training")
def em(
    notify: Notify,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder made by `polyreply prepare`, to compare variants of the E-step on."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Processor time of each variant's training.")] = 90,
    seed: Annotated[int, typer.Option(help="Decides what a variant's training draws.")] = 0,
) -> Figures:
    """EM training beside a busy process and, with --data, what cheaper E-steps have learnt after the same time.

    \b
    Examples:
      polyreply bench em
      polyreply bench em --data data/circa --json
    """
    from polyreply.bench.em import bench_em

    return bench_em(notify, data=data, seconds=seconds, seed=seed)


@_benchmark("Metrics")
def metrics(
    notify: Notify,
    contexts: Annotated[int, typer.Option(min=10, help="Contexts to score.")] = 12_000,
    sample: Annotated[int, typer.Option(min=1, help="Contexts on which NLTK is measured.")] = 300,
) -> Figures:
    """The paper's nine numbers against calls of NLTK (10 responses, 5 references).

    \b
    Examples:
      polyreply bench metrics
      polyreply bench metrics --contexts 1200 --sample 50 --json
    """
    from polyreply.bench.metrics import bench_metrics

    return bench_metrics(contexts, sample, notify)


@_benchmark("Precision")
def precision(
    notify: Notify,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A trained K-decoder model.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A folder made by `polyreply prepare`.")],
    draws: Annotated[int, typer.Option(min=0, help="E-steps whose assignments are compared.")] = 10,
    n: Annotated[int, typer.Option("--n", min=1, help="Most samples of an E-step.")] = 60,
    contexts: Annotated[int, typer.Option(min=0, help="Held-out contexts whose replies are compared.")] = 1000,
) -> Figures:
    """What bfloat16 and eight bits change: assignments, replies and their scores against float32's.

    \b
    Examples:
      polyreply bench precision smollm2-10 data/circa
      polyreply bench precision smollm2-10 data/circa --draws 3 --contexts 50 --json
    """
    from polyreply.bench.precision import bench_precision

    return bench_precision(model, data, notify, draws=draws, draw_size=n, contexts=contexts)


@_benchmark("E-step on prefixes")
def prefix(
    notify: Notify,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A trained K-decoder model.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A folder made by `polyreply prepare`.")],
    n: Annotated[int, typer.Option("--n", min=1, help="Samples of the E-step.")] = 640,
) -> Figures:
    """An E-step that reads only the first tokens of each response: agreement with the full one, and time saved.

    \b
    Examples:
      polyreply bench prefix runs/eqhard-em/model data/chitchat
      polyreply bench prefix runs/eqhard-em/model data/chitchat --n 200 --json
    """
    from polyreply.bench.prefix import bench_prefix

    return bench_prefix(model, data, n, notify)


@_benchmark("Replies")
def reply(notify: Notify, repeats: Rounds = 3) -> Figures:
    """Ten replies in one pass against K calls of generate, beam search and sampling (T5-small and smollm2-10, K=10).

    \b
    Examples:
      polyreply bench reply
      polyreply bench reply --repeats 1 --json
    """
    from polyreply.bench.reply import bench_reply

    return bench_reply(repeats, notify)


@_benchmark("Roofline")
def roofline(notify: Notify, repeats: Rounds = 3) -> Figures:
    """The share of the processor's arithmetic and memory speed that scoring and decoding reach (T5-small, K=10).

    \b
    Examples:
      polyreply bench roofline
      polyreply bench roofline --repeats 5 --json
    """
    from polyreply.bench.roofline import bench_roofline

    return bench_roofline(notify, repeats=repeats)


@_benchmark("Scoring")
def score(
    notify: Notify,
    n: Annotated[int, typer.Option("--n", min=1, help="Samples to score.")] = 32,
    repeats: Rounds = 3,
) -> Figures:
    """Scoring all K decoders in one pass against a loop over decoders and the paper's authors' way (T5-small, K=10).

    \b
    Examples:
      polyreply bench score
      polyreply bench score --n 64 --repeats 1 --json
    """
    from polyreply.bench.score import bench_score

    return bench_score(n, repeats, min(n, 32), notify)


@_benchmark("Serving")
def serve(
    notify: Notify,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long clients ask, for each number of clients.")] = 15.0,
) -> Figures:
    """A server at 1, 8 and 64 clients, with and without batching, against beam search behind a plain handler.

    \b
    Examples:
      polyreply bench serve
      polyreply bench serve --seconds 5 --json
    """
    from polyreply.bench.serve import bench_serve

    return bench_serve(seconds, notify)
