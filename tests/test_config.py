"""Recipes: strict YAML, overrides, every problem at once."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from polyreply.config import load_recipe, save_recipe
from polyreply.data.prepare import PrepareRecipe
from polyreply.errors import RecipeError


@dataclass(frozen=True)
class Oven:
    degrees: Annotated[int, Field(ge=0, le=300)] = 180
    fan: bool = False

    def problems(self):
        if self.fan and self.degrees > 200:
            yield f"degrees {self.degrees} is too hot with the fan; use 200 or less"


@dataclass(frozen=True)
class Cake:
    name: str = "plain"
    sugar: float = 0.1
    oven: Oven = field(default_factory=Oven)


@pytest.fixture
def recipe(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "cake.yaml"
        path.write_text(text)
        return path

    return write


def test_the_file_holds_only_differences(recipe):
    cake = load_recipe(Cake, recipe("oven:\n  degrees: 200\n"))
    assert cake == Cake(oven=Oven(degrees=200))


def test_an_override_wins_over_the_file_and_the_last_wins_among_overrides(recipe):
    path = recipe("name: nut\nsugar: 0.3\noven: {degrees: 100}\n")
    cake = load_recipe(Cake, path, ["sugar=1e-3", "oven.degrees=150", "oven.degrees=160", "oven.fan=true"])
    assert cake == Cake("nut", 0.001, Oven(160, True))


def test_all_problems_are_reported_at_once(recipe):
    path = recipe("nam: nut\nsugar: much\noven:\n  degrees: 900\n  fann: true\n")
    with pytest.raises(RecipeError) as raised:
        load_recipe(Cake, path, ["oven.heat=1", "nonsense"])
    message = str(raised.value)
    for part in (
        "6 problems",
        "unknown key nam; did you mean name?",
        "unknown key oven.fann; did you mean oven.fan?",
        "unknown key oven.heat",
        "sugar: input should be a valid number",
        "oven.degrees: input should be less than or equal to 300, found 900",
        "expected key=value",
    ):
        assert part in message, message


def test_a_contradiction_is_reported_beside_a_wrong_type(recipe):
    with pytest.raises(RecipeError, match=r"2 problems(.|\n)*sugar(.|\n)*too hot with the fan"):
        load_recipe(Cake, recipe("sugar: much\noven: {fan: true, degrees: 250}\n"))


def test_an_empty_section_means_its_defaults(recipe):
    assert load_recipe(Cake, recipe("oven:\n")) == Cake()
    with pytest.raises(RecipeError, match="oven: expected a section of settings, found 3"):
        load_recipe(Cake, recipe("oven: 3\n"))


def test_values_that_contradict_each_other(recipe):
    with pytest.raises(RecipeError, match=r"oven\.degrees 250 is too hot with the fan; use 200 or less"):
        load_recipe(Cake, None, ["oven.fan=true", "oven.degrees=250"])


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: [1", "not valid YAML"),
        ("name: x\nname: y\n", "the key 'name' is given twice"),
        ("? [a]\n: b\n", "expected a name"),
        ("- a\n- b\n", "expected keys and values, found a list"),
        ("!!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_bad_yaml(recipe, text, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(Cake, recipe(text))


def test_a_missing_recipe(tmp_path):
    with pytest.raises(RecipeError, match="there is no such recipe"):
        load_recipe(Cake, tmp_path / "none.yaml")


def test_the_resolved_recipe_loads_back_to_itself(tmp_path):
    config = load_recipe(PrepareRecipe, None, ["clean.max_words=7", "overlap.mode=resplit", "language=zh"])
    save_recipe(config, tmp_path / "recipe.yaml")
    assert load_recipe(PrepareRecipe, tmp_path / "recipe.yaml") == config
    assert list(tmp_path.iterdir()) == [tmp_path / "recipe.yaml"]


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parent.parent.glob("polyreply/recipes/prepare-*.yaml")), ids=lambda path: path.name
)
def test_every_shipped_recipe_loads(path):
    load_recipe(PrepareRecipe, path)
