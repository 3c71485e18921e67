"""`polyreply demo`."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyreply.demo import Demo
    from polyreply.training.recipe import TrainRecipe
    from polyreply.training.view import View


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for everything the demo writes.")] = Path(
        "runs/demo"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print replies and scores as JSON.")] = False,
) -> None:
    """The main job, end to end, in under ten minutes on two cores.

    Starts from the backbone of the shipped model, trains ten fresh decoders on real conversations by EqHard-EM, lets
    them reply to five messages beside beam search from the same backbone, and measures quality and diversity on
    held-out contexts. Started again, it goes on where it was interrupted.

    \b
    Examples:
      polyreply demo
      polyreply demo --out runs/first
    """
    from polyreply.cli.display import print_json, progress_bar
    from polyreply.demo import run_demo

    with progress_bar() as notify:
        done = run_demo(out, notify, _view)
    if as_json:
        scores = {system.name: system.seeds[0].numbers for system in done.comparison.systems}
        print_json({"replies": done.replies, "scores": scores, "out": str(out)})
        return
    print_demo(done)


def _view(recipe: "TrainRecipe") -> "AbstractContextManager[View]":
    from polyreply.training.view import TrainingView

    title = f"training {recipe.num_decoders} fresh decoders by EqHard-EM on chitchat"
    return TrainingView(recipe.steps, recipe.num_decoders, title)


def print_demo(done: "Demo") -> None:
    """The replies, the metrics, and what to try next."""
    from polyreply.cli.display import print_table
    from polyreply.demo import SYSTEMS
    from polyreply.metrics.table import print_terminal

    ours, beam = list(SYSTEMS)[:2]
    for number, answers in enumerate(done.replies):
        rows = [[k, *pair] for k, pair in enumerate(zip(answers[ours], answers[beam], strict=True))]
        headings = ("", "a reply of each decoder", "beam search from the same backbone")
        print_table(f"\n{number + 1}. {answers['message']}", headings, rows)
    print_terminal(done.comparison)
    picture = done.out / "quality-diversity.png"
    typer.echo(f"\nThe model is in {done.out / 'model'}, everything else beside it in {done.out}.")
    if picture.is_file():
        typer.echo(f"Quality against diversity: {picture}")
    typer.echo("What to try next:")
    typer.echo('  polyreply reply "How was your day?"                  (the shipped model, trained for longer)')
    typer.echo(f'  polyreply reply "How was your day?" --model {done.out / "model"}')
    typer.echo("  polyreply prepare your_dialogues.jsonl --out data/yours")
    typer.echo("  polyreply train recipes/eqhard-em.yaml data=data/yours model.backbone=shipped out=runs/yours")
