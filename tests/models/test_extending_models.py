"""The examples of docs/model.md, run from outside the package."""

import re
from pathlib import Path

import pytest
import tiny
import torch
from exact import check_replies, check_scores, shaken

from polyreply.config import load_recipe
from polyreply.decoding.all_decoders import decode
from polyreply.decoding.generate import WAYS, check_request
from polyreply.decoding.t5_step import fits
from polyreply.errors import PolyReplyError, RecipeError
from polyreply.models.adapters import ADAPTERS
from polyreply.models.config import PolyReplyConfig
from polyreply.models.families import FAMILIES
from polyreply.models.model import PolyReplyModel
from polyreply.models.score import nll_NK
from polyreply.training.recipe import TrainRecipe

DOCS = Path(__file__).parents[2] / "docs/model.md"


@pytest.fixture(autouse=True)
def own_registries():
    """What a test registers is gone after it."""
    before = [(registry, dict(registry)) for registry in (ADAPTERS, FAMILIES, WAYS)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


def example(heading):
    """The names that the examples below a heading of the docs define."""
    section = DOCS.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    names = {}
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(block, names)
    return names


def test_a_family_from_the_docs():
    with pytest.raises(PolyReplyError, match=r"llama.*found 'starcoder2'.*FAMILIES"):
        PolyReplyConfig(backbone={"model_type": "starcoder2"})
    model = shaken(example("Add a backbone family")["model"])
    assert model.num_decoders == 3 and len(model.adapters) == 4
    check_scores(model)
    check_replies(model)


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_an_adapter_type_from_the_docs(name, tmp_path):
    with pytest.raises(PolyReplyError, match=r"lora, found 'scale'.*ADAPTERS"):
        tiny.model(name, adapter="scale")
    example("Add an adapter type")
    model = shaken(tiny.model(name, adapter="scale"))
    assert {parameter.shape for parameter in model.adapters.parameters()} == {(3, model.model_size)}
    assert fits(model) == (name == "t5")
    check_scores(model)
    check_replies(model)
    model.save_pretrained(tmp_path)
    loaded = PolyReplyModel.from_pretrained(tmp_path)
    assert torch.equal(nll_NK(loaded, tiny.samples()), nll_NK(model, tiny.samples()))


def test_a_recipe_names_a_registered_adapter_type():
    with pytest.raises(RecipeError, match=r"model.adapter.*scale.*bottleneck"):
        load_recipe(TrainRecipe, None, ["data=d", "out=o", "model.adapter=scale"])
    example("Add an adapter type")
    assert load_recipe(TrainRecipe, None, ["data=d", "out=o", "model.adapter=scale"]).model.adapter == "scale"


def test_a_way_to_decode_from_the_docs():
    example("Add a way to decode")
    model, samples = tiny.model(), tiny.samples()
    model.generation_config.update(max_new_tokens=9, eos_token_id=[1, *range(5, 50, 4)])
    given = model, samples.context_NS, samples.context_mask_NS
    everything = decode(*given, check_request(model))
    for few, all_three in zip(WAYS["longest"](*given, check_request(model, "longest", 2)), everything, strict=True):
        lengths = [len(response.tokens) for response in few]
        assert lengths == sorted((len(response.tokens) for response in all_three), reverse=True)[:2]
