"""`polyreply train`."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyreply.training.recipe import TrainRecipe

_LET_SPEAK = 1.0
"""Seconds that a process waits before it ends because of what the main one says: a launcher then stops the others."""


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE.yaml] [key=value …]", help="A recipe, and settings that win over it."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run folder.")] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="With --resume: go on although settings of the learning changed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the recipe, print it whole, and leave.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print where things are as JSON.")] = False,
) -> None:
    """Train stage 1 (method=mle) or stage 2 (method=eqhard-em and the other EM variants).

    \b
    Examples:
      polyreply train recipes/stage1-mini.yaml data=data/chitchat out=runs/stage1
      polyreply train recipes/eqhard-em.yaml data=data/chitchat model.backbone=runs/stage1/model out=runs/eqhard
      polyreply train --resume runs/eqhard steps=2000
    """
    with _one_voice():
        recipe = _recipe(arguments or [], resume)
        if dry_run:
            _print_recipe(recipe)
            return
        with _says_how_to_go_on(recipe.out):
            model = _run(recipe, resume=resume is not None, allow_changes=allow_changes)
    if _rank() == 0:
        _print_places(recipe, model, as_json)


def _recipe(arguments: list[str], resume: Path | None) -> "TrainRecipe":
    from polyreply.config import load_recipe
    from polyreply.errors import RecipeError
    from polyreply.training.recipe import TrainRecipe

    path, overrides = _split(arguments, resume)
    if resume is not None:
        if not (resume / "recipe.yaml").is_file():
            raise RecipeError(f"{resume}: expected a run folder with its recipe.yaml, found none; check the path")
        path, overrides = resume / "recipe.yaml", [f"out={resume}", *overrides]
    return load_recipe(TrainRecipe, path, overrides)


def _print_recipe(recipe: "TrainRecipe") -> None:
    import yaml

    from polyreply.config import to_tree

    typer.echo(yaml.safe_dump(to_tree(recipe), sort_keys=False, allow_unicode=True), nl=False)


def _run(recipe: "TrainRecipe", *, resume: bool, allow_changes: bool) -> Path:
    from polyreply.training.loop import train as run
    from polyreply.training.view import TrainingView

    if _rank() != 0:  # of several processes only the first one speaks
        return run(recipe, resume=resume, allow_changes=allow_changes)
    title = f"{recipe.method} on {Path(recipe.data).name}"
    with TrainingView(recipe.steps, 0 if recipe.method == "mle" else recipe.num_decoders, title) as view:
        return run(recipe, resume=resume, allow_changes=allow_changes, view=view)


def _print_places(recipe: "TrainRecipe", model: Path, as_json: bool) -> None:
    from polyreply.cli.display import print_json

    if as_json:
        print_json({"model": str(model), "log": str(model.parent / "log.jsonl")})
        return
    typer.echo(f"model: {model}\nlog:   {model.parent / 'log.jsonl'}")
    if recipe.method != "mle":
        typer.echo(f"usage: {model.parent / 'usage.json'}")
    typer.echo(f'try:   polyreply reply "How was your day?" --model {model}')


@contextmanager
def _one_voice() -> Iterator[None]:
    """What all processes find wrong, only the first one of a machine tells; what one alone finds, it tells itself."""
    from polyreply.errors import PolyReplyError

    try:
        yield
    except PolyReplyError as error:
        if _rank("WORLD_SIZE") > 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher may end us now, but what we say comes first
            if _rank("LOCAL_RANK") != 0 and _all_find(error):
                time.sleep(_LET_SPEAK)
                raise typer.Exit(2) from None
        raise


def _all_find(error: Exception) -> bool:
    """Whether every process of a run meets this, or the main one tells it."""
    from polyreply.errors import MissingExtraError, RecipeError

    if isinstance(error, RecipeError | MissingExtraError):
        return True
    from polyreply.distributed import MainFailedError, NotSharedError
    from polyreply.training.alarms import CollapseError
    from polyreply.training.interrupts import TrainingError

    return isinstance(error, TrainingError | CollapseError | NotSharedError | MainFailedError)


@contextmanager
def _says_how_to_go_on(out: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM outside of the steps: before a run has begun, or while its model is written."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if _rank() == 0:
            from polyreply.training.interrupts import resume_command

            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            begun = Path(out, "recipe.yaml").is_file()
            rest = f"go on with: {resume_command(out)}" if begun else "nothing was kept: start the same command again"
            typer.echo(f"the run is not finished; {rest}", err=True)
        raise


def _rank(name: str = "RANK") -> int:
    """What a launcher says about this process; 0 without one."""
    return int(os.environ.get(name) or 0)


def _split(arguments: list[str], resume: Path | None) -> tuple[Path | None, list[str]]:
    """The recipe's path, which is the one argument that sets nothing, and the settings."""
    from polyreply.errors import RecipeError

    paths = [argument for argument in arguments if "=" not in argument]
    if len(paths) > 1 or (paths and resume is not None):
        raise RecipeError(f"expected one recipe and key=value settings, found {', '.join(paths)}; name one recipe")
    return (Path(paths[0]) if paths else None), [argument for argument in arguments if "=" in argument]
