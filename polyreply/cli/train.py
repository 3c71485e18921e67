"""`polyreply train`."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyreply.training.recipe import TrainRecipe


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [key=value …]",
            help="A method, a shipped recipe or a YAML file; and settings that take precedence over it.",
        ),
    ] = None,
    list_recipes: Annotated[bool, typer.Option("--list", help="List the methods and recipes, and leave.")] = False,
    resume: Annotated[Path | None, typer.Option(help="Resume this run folder.")] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="With --resume: although settings of the learning have changed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the recipe, print all of it, and leave.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths of the results as JSON.")] = False,
) -> None:
    """Train stage 1 (mle) or stage 2 (eqhard-em and the other EM methods).

    RECIPE is a method's name, the name of a shipped recipe (see --list), or a YAML file.

    \b
    Examples:
      polyreply train stage1-mini data=data/chitchat out=runs/stage1
      polyreply train eqhard-em data=data/chitchat model.backbone=runs/stage1/model out=runs/eqhard-em
      polyreply train eqhard-em data=my.csv model.backbone=smollm2-135m-pip out=runs/mine
      polyreply train --resume runs/eqhard-em
    """
    from polyreply.cli.display import one_voice

    if list_recipes:
        _print_recipes()
        return
    with one_voice(_is_common):
        recipe = _recipe(arguments or [], resume)
        if dry_run:
            from polyreply.config import to_yaml

            typer.echo(to_yaml(recipe), nl=False)
            return
        with _resume_hint(recipe.out):
            _run(recipe, resume=resume is not None, allow_changes=allow_changes)
    _print_paths(recipe, as_json)


def _recipe(arguments: list[str], resume: Path | None) -> "TrainRecipe":
    from polyreply.errors import RecipeError
    from polyreply.training.recipe import load_train_recipe

    names = [argument for argument in arguments if "=" not in argument]
    overrides = [argument for argument in arguments if "=" in argument]
    if len(names) > 1 or (names and resume is not None):
        raise RecipeError(f"expected one recipe and key=value settings, found {', '.join(names)}; name one recipe")
    if resume is None:
        return load_train_recipe(names[0] if names else None, overrides)
    if not (resume / "recipe.yaml").is_file():
        raise RecipeError(f"{resume}: expected a run folder with its recipe.yaml, found none; check the path")
    return load_train_recipe(resume / "recipe.yaml", [f"out={resume}", *overrides])


def _run(recipe: "TrainRecipe", *, resume: bool, allow_changes: bool) -> None:
    from polyreply.training.loop import train as run
    from polyreply.training.view import TrainingView

    run(recipe, resume=resume, allow_changes=allow_changes, callbacks=[TrainingView()])


def _print_paths(recipe: "TrainRecipe", as_json: bool) -> None:
    from polyreply.cli.display import print_json
    from polyreply.distributed import rank

    if rank() != 0:
        return
    out = Path(recipe.out)
    paths = {"model": out / "model", "log": out / "log.jsonl"}
    if not recipe.has_one_decoder:
        paths["usage"] = out / "usage.json"
    if as_json:
        print_json({name: str(path) for name, path in paths.items()})
        return
    for name, path in paths.items():
        typer.echo(f"{name + ':':<7}{path}")
    typer.echo(f'try:   polyreply reply "How was your day?" --model {paths["model"]}')


def _print_recipes() -> None:
    from polyreply.cli.display import print_table
    from polyreply.config import shipped_recipes
    from polyreply.em.assign import METHODS

    methods = [(name, (function.__doc__ or "").splitlines()[0]) for name, function in METHODS.items()]
    print_table("Methods of stage 2", ("name", "assigns"), methods)
    recipes = [(name, text) for name, text in shipped_recipes().items() if not name.startswith("prepare-")]
    print_table("Recipes", ("name", "trains"), recipes)


def _is_common(error: Exception) -> bool:
    """Whether every process of a run raises this error, or the main one reports its cause."""
    from polyreply.distributed import MainFailedError, NotSharedError
    from polyreply.errors import DivergedError, MissingExtraError, RecipeError
    from polyreply.training.alarms import CollapseError
    from polyreply.training.interrupts import TrainingError

    common = (RecipeError, MissingExtraError, TrainingError, DivergedError, CollapseError)
    return isinstance(error, (*common, NotSharedError, MainFailedError))


@contextmanager
def _resume_hint(out: str) -> Iterator[None]:
    """On Ctrl-C or SIGTERM outside of the steps (while loading, or while the model is written), say how to resume."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        from polyreply.distributed import rank
        from polyreply.training.interrupts import resume_command

        if rank() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            started = Path(out, "recipe.yaml").is_file()
            rest = f"resume with: {resume_command(out)}" if started else "nothing was saved: start the command again"
            typer.echo(f"the run is not finished; {rest}", err=True)
        raise
