"""Write docs/cli.md from the help texts and docs/recipes.md from the recipes: `python -m tools.docs docs`."""

import ast
import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

_COMMANDS = """# Command reference

Generated from the help texts by `make docs`; a test fails when it is stale.
"""

_RECIPES = """# Recipe reference

Generated from the recipes' own docstrings by `make docs`; a test fails when it is stale.

A recipe is a YAML file that holds only what differs from the defaults below; `polyreply train --list` lists those that
come with the package and can be named without a path. `KEY=VALUE` settings on the command line take precedence over the
file; a key inside a section is written with a dot, as in `clean.max_words=40`. For an unknown key the error names the
nearest valid one, all problems are reported at once, and the resolved recipe is saved with the result as `recipe.yaml`,
which can be used as a recipe again.
"""


def render_commands() -> str:
    """The reference of all commands as Markdown."""
    from polyreply.cli.main import app

    parts = [_COMMANDS]
    for path, command in _commands("polyreply", typer.main.get_command(app)):
        parts.append(_section(path, command))
    return "\n".join(parts)


def render_recipes() -> str:
    """The reference of all recipe settings as Markdown."""
    from polyreply.data.prepare import PrepareRecipe
    from polyreply.training.recipe import TrainRecipe

    lines = [_RECIPES]
    for verb, recipe in (("prepare", PrepareRecipe()), ("train", TrainRecipe())):
        lines += [f"## polyreply {verb}", "", "| key | default | meaning |", "|---|---|---|", *_recipe_rows(recipe), ""]
    return "\n".join(lines)


def _recipe_rows(recipe: Any, where: str = "") -> Iterator[str]:
    docs = _field_docs(type(recipe))
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            yield from _recipe_rows(value, f"{where}{field.name}.")
        else:
            shown = str(value).lower() if isinstance(value, bool) else value
            yield f"| `{where}{field.name}` | `{shown}` | {docs[field.name].replace('|', chr(92) + '|')} |"


def _field_docs(kind: type) -> dict[str, str]:
    """The docstring under each field of a dataclass."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    docs = {}
    for field, text in pairwise(definition.body):  # type: ignore[attr-defined]
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            docs[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return docs


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """All commands that are not groups, depth first, each with its full name."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield path, command
        return
    for name in sorted(subcommands):
        yield from _commands(f"{path} {name}", subcommands[name])


def _section(path: str, command: Any) -> str:
    lines = [
        f"## {path}",
        "",
        "```text",
        " ".join([path, *_usage(command)]),
        "```",
        "",
        _prose(command.help or ""),
        "",
    ]
    rows = [row for parameter in command.params if (row := _row(parameter))]
    if rows:
        lines += ["| argument or option | meaning | default |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _usage(command: Any) -> list[str]:
    arguments = [p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"]
    return [*arguments, "[OPTIONS]"]


def _prose(text: str) -> str:
    """Help text as Markdown; a paragraph that is printed verbatim (it starts with \\b) becomes a code block."""
    blocks = []
    for block in text.strip().split("\n\n"):
        verbatim = block.removeprefix("\b\n")
        blocks.append(f"```text\n{verbatim}\n```" if verbatim != block else " ".join(block.split()))
    return "\n\n".join(blocks)


def _row(parameter: Any) -> str | None:
    if parameter.name == "help":
        return None
    argument = parameter.param_type_name == "argument"
    name = (
        (parameter.metavar or parameter.name.upper())
        if argument
        else ", ".join([*parameter.opts, *parameter.secondary_opts])
    )
    default = "required" if parameter.required else _default(parameter.default)
    return f"| `{name}` | {(parameter.help or '').replace('|', chr(92) + '|')} | {default} |"


def _default(value: Any) -> str:
    if value is None or value is False or value == [] or "Sentinel" in type(value).__name__:
        return ""
    return f"`{value}`"


if __name__ == "__main__":
    Path(sys.argv[1], "cli.md").write_text(render_commands(), encoding="utf-8")
    Path(sys.argv[1], "recipes.md").write_text(render_recipes(), encoding="utf-8")
