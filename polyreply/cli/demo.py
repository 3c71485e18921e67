"""`polyreply demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyreply.demo import Demo


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for everything the demo writes.")] = Path(
        "runs/demo"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print replies and scores as JSON.")] = False,
) -> None:
    """Train ten decoders and compare their replies with beam search, in under ten minutes on two cores.

    Prepares real conversations, trains ten new decoders on the backbone of the shipped model by EqHard-EM, replies to
    five messages with them and with beam search, and measures quality and diversity on held-out contexts. Run again,
    it resumes where it was interrupted.

    \b
    Examples:
      polyreply demo
      polyreply demo --out runs/first
    """
    from polyreply.cli.display import print_json
    from polyreply.demo import run_demo
    from polyreply.progress import progress_bar
    from polyreply.training.view import TrainingView

    with progress_bar() as notify:
        view = TrainingView("training 10 new decoders by EqHard-EM on chitchat")
        results = run_demo(out, notify, [view])
    if as_json:
        scores = {system.name: system.seeds[0].numbers for system in results.comparison.systems}
        print_json({"replies": results.replies, "scores": scores, "out": str(out)})
    else:
        _print(results)


def _print(results: "Demo") -> None:
    """Print the replies, the scores, and what to try next."""
    from polyreply.cli.display import print_table
    from polyreply.demo import SYSTEMS

    ours, beam = list(SYSTEMS)[:2]
    for number, (message, replies) in enumerate(results.replies.items(), 1):
        rows = [[k, *pair] for k, pair in enumerate(zip(replies[ours], replies[beam], strict=True))]
        headings = ("", "ten decoders", "beam search, same backbone")
        print_table(f"\n{number}. {message}", headings, rows)
    results.comparison.table().print()
    model, plot = results.out / "model", results.out / "quality-diversity.png"
    typer.echo(f"\nmodel: {model}\nfiles: {results.out}")
    if plot.is_file():
        typer.echo(f"plot:  {plot}")
    typer.echo("\nTry next:")
    typer.echo(f'  polyreply reply "How was your day?" --model {model}')
    typer.echo('  polyreply reply "How was your day?"       # the shipped model, which was trained for longer')
    typer.echo("  polyreply prepare your_dialogues.jsonl --out data/yours")
    typer.echo("  polyreply train eqhard-em data=data/yours model.backbone=shipped out=runs/yours")
