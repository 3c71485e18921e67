"""Recipes: small dataclasses read from strict YAML, with `key=value` overrides that take precedence over the file.

A recipe is any dataclass whose fields are plain values or further dataclasses. YAML holds only what differs from
the defaults. All problems of a recipe are reported at once: unknown keys (with the nearest valid name), wrong
types, values out of range, and values that contradict each other (a `problems()` method on the dataclass).
Recipes in the package's `recipes/` folder can be named without a path or ending.
"""

import dataclasses
import difflib
import json
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from polyreply.errors import RecipeError
from polyreply.files import write_file

R = TypeVar("R")
_SHIPPED = Path(__file__).parent / "recipes"


def shipped_recipes() -> dict[str, str]:
    """The names of the recipes in the package, each with the first line of its description."""
    files = sorted(_SHIPPED.glob("*.yaml"))
    return {file.stem: file.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for file in files}


def recipe_path(name: str | Path) -> Path:
    """The file of a recipe: a path as it is, or the name of a recipe in the package."""
    shipped = _SHIPPED / f"{name}.yaml"
    if not Path(name).exists() and shipped.is_file():
        return shipped
    return Path(name)


def load_recipe(kind: type[R], source: str | Path | None = None, overrides: Sequence[str] = ()) -> R:
    """Build a recipe from a YAML file, or a shipped recipe's name, or the defaults alone, and `key=value` overrides.

    Raises a RecipeError that lists every problem found.
    """
    path = None if source is None else recipe_path(source)
    tree = _read_yaml(path) if path else {}
    problems: list[str] = []
    for override in overrides:
        _apply_override(tree, override, problems)
    _drop_unknown(kind, tree, "", problems)
    return _finish(_validate(kind, tree, problems), problems, str(path) if path else "recipe")


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Settings by dotted names, as the overrides that `load_recipe` takes."""
    return [f"{name}={_as_text(value)}" for name, value in settings.items()]


def _as_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list | tuple | bool) or value is None else str(value)


def _finish(recipe: R, problems: list[str], name: str) -> R:
    problems += _contradictions(recipe, "")
    if problems:
        raise RecipeError(_report(problems, name))
    return recipe


def check_recipe(recipe: R) -> R:
    """Check a recipe made in Python as `load_recipe` checks one from a file; the recipe with its types coerced."""
    problems: list[str] = []
    checked = _validate(type(recipe), to_tree(recipe), problems)
    return _finish(checked, problems, type(recipe).__name__)


def to_tree(recipe: Any) -> dict[str, Any]:
    """The resolved recipe as plain nested dictionaries and lists."""
    return {name: _plain(value) for name, value in dataclasses.asdict(recipe).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def save_recipe(recipe: Any, path: Path) -> None:
    """Write the resolved recipe, every field of it, as YAML that `load_recipe` reads back to an equal recipe."""
    write_file(path, to_yaml(recipe), overwrite=True, durable=True)


def to_yaml(recipe: Any) -> str:
    """The resolved recipe as YAML."""
    return str(yaml.safe_dump(to_tree(recipe), sort_keys=False, allow_unicode=True))


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a repeated key, which YAML would resolve silently to the last value."""


def _mapping_without_repeats(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, f"expected a name, found {key!r}", key_node.start_mark)
        if key in mapping:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_repeats)


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_StrictLoader)  # a SafeLoader: it builds plain values only


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = _parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(
            f"{path}: there is no such recipe file, and no shipped recipe of that name; the shipped ones are "
            f"{', '.join(shipped_recipes())}"
        ) from None
    except IsADirectoryError:
        raise RecipeError(f"{path}: expected a YAML file, found a folder") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise RecipeError(f"{path}: expected keys and values, found a {type(tree).__name__}")
    return tree


def _apply_override(tree: dict[str, Any], override: str, problems: list[str]) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        problems.append(f"override {override!r}: expected key=value, for example seed=1")
        return
    try:
        value = _parse_yaml(text)
    except yaml.YAMLError:
        value = text
    *parents, leaf = dotted.split(".")
    for parent in parents:
        below = tree.setdefault(parent, {})
        if not isinstance(below, dict):
            below = tree[parent] = {}
        tree = below
    tree[leaf] = value


def _drop_unknown(kind: type, tree: dict[str, Any], where: str, problems: list[str]) -> None:
    """Report and remove the keys that `kind` does not have, so that the rest can still be checked."""
    known = _fields(kind)
    for key in list(tree):
        if key not in known:
            problems.append(f"unknown key {where}{key}{_suggestion(str(key), where, known)}")
            del tree[key]
        elif dataclasses.is_dataclass(known[key]):
            if tree[key] is None:  # a section with nothing in it
                tree[key] = {}
            if isinstance(tree[key], dict):
                _drop_unknown(typing.cast(type, known[key]), tree[key], f"{where}{key}.", problems)
            else:
                problems.append(f"{where}{key}: expected a section of settings, found {tree[key]!r}")
                del tree[key]


def _fields(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _suggestion(key: str, where: str, known: Mapping[str, Any]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return f"; did you mean {where}{close[0]}?"
    return f"; the nearest is {where}{nearest[0]}, and the valid keys are {', '.join(known)}"


def _validate(kind: type[R], tree: dict[str, Any], problems: list[str]) -> R:
    """Build the recipe; a value of the wrong type is reported and replaced by its default, to check the rest."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(tree)
    except ValidationError as error:
        problems += _type_problems(error.errors())
        for place in {tuple(problem["loc"]) for problem in error.errors()}:
            _forget(tree, place)
        return TypeAdapter(kind).validate_python(tree)


def _forget(tree: dict[str, Any], place: Sequence[Any]) -> None:
    """Remove the deepest dictionary entry on the way to a place."""
    for index, name in enumerate(place):
        if index + 1 == len(place) or not isinstance(tree.get(name), dict):
            tree.pop(name, None)
            return
        tree = tree[name]


def _type_problems(errors: Iterable[Any]) -> Iterator[str]:
    for error in errors:
        place = ".".join(str(part) for part in error["loc"])
        message = error["msg"][0].lower() + error["msg"][1:]
        yield f"{place}: {message}, found {error['input']!r}"


def _contradictions(recipe: Any, where: str) -> Iterator[str]:
    if hasattr(recipe, "problems"):
        for problem in recipe.problems():
            yield f"{where}{problem}"
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            yield from _contradictions(value, f"{where}{field.name}.")


def _report(problems: Sequence[str], name: str) -> str:
    if len(problems) == 1:
        return f"{name}: {problems[0]}"
    return f"{name}: {len(problems)} problems:" + "".join(f"\n  - {problem}" for problem in problems)
