"""Packed weights give what the layers give; those of eight bits come close, and only decoding uses them."""

import copy

import pytest
import tiny
import torch
from torch import nn

from polyreply.models.adapters import LowRanks
from polyreply.models.packed import packed, packed_linear, packed_outer
from polyreply.models.score import nll_NK


@pytest.fixture
def model():
    return copy.deepcopy(tiny.model("llama", dtype=torch.float32))


def layers_of(model):
    attention = model.backbone.model.layers[0].self_attn
    return [attention.q_proj, attention.k_proj]


@torch.no_grad()
def test_eight_bits_are_close_to_the_layers(model):
    layers, x = layers_of(model), torch.randn(7, model.model_size)
    exact = torch.cat([layer(x) for layer in layers], -1)
    torch.testing.assert_close(packed_linear(model, layers)(x), exact, rtol=1e-5, atol=1e-6)
    model.decodes_in_int8 = True
    found = packed_linear(model, layers)(x)
    assert not torch.equal(found, exact)
    assert (found - exact).norm() / exact.norm() < 0.05


@torch.no_grad()
def test_eight_bits_follow_the_weights(model):
    model.decodes_in_int8 = True
    layers, x = layers_of(model), torch.randn(7, model.model_size)
    before = packed_linear(model, layers)(x)
    layers[0].weight.mul_(2)
    after = packed_linear(model, layers)(x)
    size = layers[0].out_features
    torch.testing.assert_close(after[:, :size], 2 * before[:, :size], rtol=0.02, atol=1e-3)
    assert torch.equal(after[:, size:], before[:, size:])


@torch.no_grad()
def test_what_loras_add_follows_their_weights():
    model = copy.deepcopy(tiny.model("llama", adapter="lora", lora={"rank": 2}, dtype=torch.float32))
    layers = layers_of(model)
    loras = [
        adapter for site, adapter in zip(model.sites, model.adapters, strict=True) if any(site is x for x in layers)
    ]
    ranks = LowRanks(loras, [layer.out_features for layer in layers], model.num_decoders)
    own_RC, outputs = torch.randn(4, ranks.num_columns), torch.randn(4, sum(ranks.sizes) + 3)[:, 3:]
    for factor in (1.0, -2.0):
        for lora in loras:
            lora.b_KrO.mul_(factor)
        found = packed_outer(model, ranks)(own_RC, outputs)
        torch.testing.assert_close(found, outputs + own_RC @ ranks.outer_CO, rtol=1e-5, atol=1e-6)


def test_scoring_is_exact_all_the_same(model):
    expected = nll_NK(model, tiny.samples())
    model.decodes_in_int8 = True
    assert torch.equal(nll_NK(model, tiny.samples()), expected)


@torch.no_grad()
def test_layers_are_as_before_after_the_block(model):
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    expected = layer(x)
    with packed(model, [layer]):
        torch.testing.assert_close(layer(x), expected)
        assert "forward" in vars(layer)
    assert "forward" not in vars(layer)


@torch.no_grad()
def test_a_block_within_a_block_changes_nothing(model):
    layer, x = model.vocabulary, torch.randn(3, model.model_size)
    expected = layer(x)
    with packed(model, [layer]):
        with packed(model, [layer]):
            torch.testing.assert_close(layer(x), expected)
        assert "forward" in vars(layer)
        torch.testing.assert_close(layer(x), expected)
    assert "forward" not in vars(layer)
