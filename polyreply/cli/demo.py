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
    """Show the shipped model's replies, then train and evaluate ten decoders, within minutes on a CPU.

    The second part prepares real conversations, trains ten new decoders on a small backbone by EqHard-EM, replies to
    five messages with them and with beam search, and measures quality and diversity on held-out contexts. Run again,
    it resumes where it was interrupted.

    \b
    Examples:
      polyreply demo
      polyreply demo --out runs/first
    """
    from polyreply.cli.display import print_json
    from polyreply.demo import first_look, run_demo
    from polyreply.progress import progress_bar
    from polyreply.training.view import TrainingView

    with progress_bar() as notify:
        first = first_look(notify)
    if not as_json:
        _print_replies(first)
        typer.echo("\nNext: prepare data, train ten decoders on the small T5 of t5-mini-10, reply, evaluate.\n")
    with progress_bar() as notify:
        view = TrainingView("training 10 new decoders by EqHard-EM on chitchat")
        results = run_demo(out, notify, [view])
    if as_json:
        scores = {system.name: system.seeds[0].numbers for system in results.comparison.systems}
        print_json({"shipped": first, "replies": results.replies, "scores": scores, "out": str(out)})
    else:
        _print(results)


def _print(results: "Demo") -> None:
    """Print the replies, the scores, and what to try next."""
    from polyreply.demo import SYSTEMS

    ours, beam = list(SYSTEMS)[:2]
    headings = {ours: "ten decoders", beam: "beam search, same backbone"}
    _print_replies({m: {headings[name]: by[name] for name in headings} for m, by in results.replies.items()})
    results.comparison.table().print()
    model, plot = results.out / "model", results.out / "quality-diversity.png"
    typer.echo(f"\nmodel: {model}\nfiles: {results.out}")
    if plot.is_file():
        typer.echo(f"plot:  {plot}")
    typer.echo("\nTry next:")
    typer.echo(f'  polyreply reply "How was your day?" --model {model}')
    typer.echo('  polyreply reply "How was your day?"       # the shipped model')
    typer.echo("  polyreply prepare your_dialogues.jsonl --out data/yours")
    typer.echo("  polyreply train eqhard-em data=data/yours model.backbone=shipped out=runs/yours")


def _print_replies(replies: dict[str, dict[str, list[str]]]) -> None:
    """Print a table for each message, with a column for each system."""
    from polyreply.cli.display import print_table

    for number, (message, by_system) in enumerate(replies.items(), 1):
        rows = [[k, *texts] for k, texts in enumerate(zip(*by_system.values(), strict=True))]
        print_table(f"\n{number}. {message}", ("", *by_system), rows)
