"""`polyreply train`."""

import os
from pathlib import Path
from typing import Annotated

import typer


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
    from polyreply.config import load_recipe
    from polyreply.errors import RecipeError
    from polyreply.training.recipe import TrainRecipe

    path, overrides = _split(arguments or [], resume)
    if resume is not None:
        if not (resume / "recipe.yaml").is_file():
            raise RecipeError(f"{resume}: expected a run folder with its recipe.yaml, found none; check the path")
        path, overrides = resume / "recipe.yaml", [f"out={resume}", *overrides]
    recipe = load_recipe(TrainRecipe, path, overrides)
    if dry_run:
        import yaml

        from polyreply.config import to_tree

        typer.echo(yaml.safe_dump(to_tree(recipe), sort_keys=False, allow_unicode=True), nl=False)
        return
    from polyreply.cli.display import print_json
    from polyreply.train import train as run
    from polyreply.training.view import TrainingView

    if os.environ.get("RANK", "0") != "0":  # of several processes only the first one speaks
        run(recipe, resume=resume is not None, allow_changes=allow_changes)
        return
    title = f"{recipe.method} on {Path(recipe.data).name}"
    with TrainingView(recipe.steps, 0 if recipe.method == "mle" else recipe.num_decoders, title) as view:
        model = run(recipe, resume=resume is not None, allow_changes=allow_changes, view=view)
    if as_json:
        print_json({"model": str(model), "log": str(model.parent / "log.jsonl")})
        return
    typer.echo(f"model: {model}\nlog:   {model.parent / 'log.jsonl'}")
    if recipe.method != "mle":
        typer.echo(f"usage: {model.parent / 'usage.json'}")
    typer.echo(f'try:   polyreply reply "How was your day?" --model {model}')


def _split(arguments: list[str], resume: Path | None) -> tuple[Path | None, list[str]]:
    """The recipe's path, which is the one argument that sets nothing, and the settings."""
    from polyreply.errors import RecipeError

    paths = [argument for argument in arguments if "=" not in argument]
    if len(paths) > 1 or (paths and resume is not None):
        raise RecipeError(f"expected one recipe and key=value settings, found {', '.join(paths)}; name one recipe")
    return (Path(paths[0]) if paths else None), [argument for argument in arguments if "=" in argument]
