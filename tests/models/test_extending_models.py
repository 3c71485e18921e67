"""The examples of docs/model.md, run from outside the package, and an adapter that reads the input of linear layers."""

import copy
import re
from pathlib import Path

import pytest
import tiny
import torch
from test_score import gradients, loop_nll_NK
from torch import nn

from polyreply.config import load_recipe
from polyreply.decoding.all_decoders import decode
from polyreply.decoding.generate import WAYS, check_request
from polyreply.decoding.settings import Decoding
from polyreply.decoding.t5_step import fits
from polyreply.errors import PolyReplyError, RecipeError
from polyreply.models.adapters import ADAPTERS, Adapter
from polyreply.models.config import PolyReplyConfig
from polyreply.models.families import FAMILIES, part
from polyreply.models.model import PolyReplyModel
from polyreply.models.score import backward_nll, nll_NK
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


def shaken(model, size=0.4):
    """In float64, with decoders that differ."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for parameter in model.decoder_parameters():
            parameter.add_(torch.randn_like(parameter) * size)
    return model.eval()


def check_scores(model):
    """Likelihoods and gradients of the decoders, against a loop through the stock model."""
    samples = tiny.samples()
    for parameter in model.shared_parameters():
        parameter.requires_grad_(False)
    expected_nll = loop_nll_NK(model, samples)
    assert (expected_nll[:, 0] - expected_nll[:, 1]).abs().min() > 1e-3
    torch.testing.assert_close(nll_NK(model, samples), expected_nll.detach())
    weights = torch.rand(expected_nll.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (expected_nll * weights).sum().backward()
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    backward_nll(model, samples, weights)
    assert expected.keys() == gradients(model).keys() and expected
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=1e-8, msg=name)


def check_replies(model):
    """Greedy tokens against `generate`, once per decoder."""
    samples, config = tiny.samples(), copy.deepcopy(model.generation_config)
    config.max_new_tokens = 8
    replies = decode(model, samples.context_NS, samples.context_mask_NS, Decoding.of(config, model.num_decoders))
    for row, responses in enumerate(replies):
        context = samples.context_NS[row][samples.context_mask_NS[row]][None]
        for k, response in enumerate(responses):
            with model.as_decoder(k) as backbone, torch.no_grad():
                tokens = backbone.generate(context, attention_mask=torch.ones_like(context), generation_config=config)
            start = 1 if model.family.encoder else context.shape[1]
            assert tokens[0, start:].tolist()[: len(response.tokens)] == response.tokens
    assert len({tuple(response.tokens) for row in replies for response in row}) > len(samples)


def test_a_family_from_the_docs():
    with pytest.raises(PolyReplyError, match=r"llama.*found 'phi'.*FAMILIES"):
        PolyReplyConfig(backbone={"model_type": "phi"})
    model = shaken(example("Add a backbone family")["model"])
    assert model.num_decoders == 3 and len(model.adapters) == 4
    check_scores(model)
    check_replies(model)


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_an_adapter_type_from_the_docs(name, tmp_path):
    with pytest.raises(PolyReplyError, match=r"bottleneck, found 'scale'.*ADAPTERS"):
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


# An adapter next to linear layers: W·x + B·A·x.


class LowRank(Adapter):
    reads = "input"

    def __init__(self, num_decoders, linear, rank=2):
        super().__init__()
        self.down_KDH = nn.Parameter(torch.empty(num_decoders, linear.in_features, rank))
        self.up_KHD = nn.Parameter(torch.empty(num_decoders, rank, linear.out_features))

    @classmethod
    def build(cls, backbone, family, config):
        names = ("q", "v", "wi", "q_proj", "v_proj", "up_proj")
        for layer in part(backbone, f"{family.decoder}.{family.layers}"):
            for path, module in layer.named_modules():
                crosses = "EncDecAttention" in path or "encoder_attn" in path
                if path.split(".")[-1] in names and not (crosses and path.endswith(("v", "v_proj"))):
                    yield module, cls(config.num_decoders, module)

    def branch(self, decoders):
        down_ADH, up_AHD = self.down_KDH[decoders], self.up_KHD[decoders]
        return lambda x_AXD: x_AXD @ down_ADH @ up_AHD

    def reset_parameters(self):
        nn.init.normal_(self.down_KDH, std=0.1)
        nn.init.zeros_(self.up_KHD)


@pytest.mark.parametrize("name", ["t5", "bart", "llama"])
def test_an_adapter_on_the_input_of_linear_layers(name):
    ADAPTERS["low-rank"] = LowRank
    model = shaken(tiny.model(name, adapter="low-rank"))
    assert not fits(model)
    check_scores(model)
    check_replies(model)


def test_low_rank_adapters_are_the_sum_of_two_matrices():
    """Decoder k equals the stock model whose weights are W + A·B of decoder k."""
    ADAPTERS["low-rank"] = LowRank
    model, samples = shaken(tiny.model("t5", adapter="low-rank")), tiny.samples()
    found = nll_NK(model, samples)
    for k in range(model.num_decoders):
        merged = copy.deepcopy(model)
        with torch.no_grad():
            for site, adapter in zip(merged.sites, merged.adapters, strict=True):
                site.weight += (adapter.down_KDH[k] @ adapter.up_KHD[k]).T
                adapter.up_KHD.zero_()
        torch.testing.assert_close(nll_NK(merged, samples)[:, k], found[:, k])


def test_a_site_that_is_computed_once_per_context_is_refused():
    class Everywhere(LowRank):
        @classmethod
        def build(cls, backbone, family, config):
            site = backbone.decoder.block[0].layer[1].EncDecAttention.k
            yield site, cls(config.num_decoders, site)

    ADAPTERS["everywhere"] = Everywhere
    with pytest.raises(PolyReplyError, match="for each of 15 rows, found 5"):
        nll_NK(tiny.model("t5", adapter="everywhere"), tiny.samples())
