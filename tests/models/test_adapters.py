"""LoRA and bottleneck adapters in every family, on the response alone and on everything."""

import pytest
import tiny
import torch
from exact import check_replies, check_scores, shaken

from polyreply.decoding import step
from polyreply.decoding.t5_step import fits
from polyreply.errors import PolyReplyError
from polyreply.models.adapters import LoraAdapter, RoutedAdapter
from polyreply.models.families import FAMILIES
from polyreply.models.rows import Rows
from polyreply.models.score import nll_NK

LONG = tiny.samples(lengths=((9, 5), (4, 7), (5, 1), (3, 4)))
"""Contexts that are longer than the sliding windows, and than the invocation tokens."""


def test_every_family_is_tested():
    ours = {tiny.backbone(name).config.model_type for name in (*tiny.BACKBONES, *tiny.FURTHER)}
    assert ours == FAMILIES.keys() - {"mt5", "dialogbert"}, "mt5 is t5 by another name; dialogbert has no adapters"


@pytest.mark.parametrize("name", tiny.FURTHER)
@pytest.mark.parametrize("settings", [{}, tiny.LORA, tiny.EVERYTHING], ids=["bottleneck", "lora", "everything"])
def test_a_family_scores_learns_and_replies(name, settings):
    model = shaken(tiny.model(name, **settings), size=0.2)
    check_scores(model, LONG)
    check_replies(model, LONG)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3_text"])
@pytest.mark.parametrize("settings", [{}, tiny.LORA], ids=["bottleneck", "lora"])
def test_adapters_act_from_the_invocation_tokens_on(name, settings):
    model = tiny.model(name, invocation_tokens=[50, 51, 52], **settings)
    check_scores(model, LONG)
    check_replies(model, LONG)
    one = tiny.model(name, **settings)
    assert (nll_NK(model, LONG) - nll_NK(one, LONG)).abs().min() > 1e-6, "the earlier two tokens are adapted too"
    with pytest.raises(PolyReplyError, match=r"3 invocation tokens.*1 tokens"):
        nll_NK(model, tiny.samples())


@pytest.mark.parametrize(
    "name, targets, layers",
    [
        ("llama", ["all-linear"], 14),
        ("llama", ["q_proj", "v_proj"], 4),
        ("llama", ["self_attn.o_proj"], 2),
        ("gpt2", ["all-linear"], 8),
        ("t5", ["all-linear"], 20),
        ("t5", ["q", "v"], 8),
        ("t5", ["EncDecAttention.k"], 2),
        ("bart", ["encoder_attn.v_proj", "fc1"], 4),
    ],
)
def test_targets_are_matched_as_peft_does(name, targets, layers):
    model = shaken(tiny.model(name, adapter="lora", lora={"rank": 3, "alpha": 1.5, "targets": targets}))
    assert len(model.adapters) == layers and not fits(model)
    assert model.adapters[0].scale == 0.5 and model.adapters[0].a_KIr.shape[2] == 3
    check_scores(model, LONG)
    check_replies(model, LONG)


def test_a_lora_is_a_sum_of_matrices():
    """Decoder k equals the stock model whose weights are W + scale·(A·B)ᵀ of decoder k."""
    model, samples = tiny.model("t5", **tiny.EVERYTHING), tiny.samples()
    found = nll_NK(model, samples)
    for k in range(model.num_decoders):
        merged = tiny.model("t5", **tiny.EVERYTHING)
        with torch.no_grad():
            for site, adapter in zip(merged.sites, merged.adapters, strict=True):
                site.weight += adapter.scale * (adapter.a_KIr[k] @ adapter.b_KrO[k]).T
                adapter.b_KrO.zero_()
        torch.testing.assert_close(nll_NK(merged, samples)[:, k], found[:, k])


def test_dropout_is_of_the_adapters_input_and_off_in_eval_mode():
    model, samples = tiny.model("llama", adapter="lora", lora={"rank": 2, "dropout": 0.5}), tiny.samples()
    expected = nll_NK(model, samples)
    assert torch.equal(nll_NK(model, samples), expected)
    model.train()
    assert not torch.allclose(nll_NK(model, samples), expected)
    adapter = model.adapters[0]
    x = torch.ones(1, 4, adapter.a_KIr.shape[1], dtype=torch.float64)
    dropped = torch.stack([adapter.branch(slice(0, 1))(x) for _ in range(4000)]).mean(0)
    adapter.train(False)
    torch.testing.assert_close(dropped, adapter.branch(slice(0, 1))(x), rtol=0.2, atol=0.2)


@pytest.mark.parametrize(
    "lora, expected",
    [
        ({"rank": 0}, "rank is 0"),
        ({"alpha": -1.0}, "alpha is -1"),
        ({"dropout": 1.0}, "dropout is 1"),
        ({"targets": []}, "targets is empty"),
        ({"targets": ["q_proj", "query"]}, r"q_proj.*found 'query'.*all-linear"),
    ],
)
def test_settings_that_make_no_lora_are_one_line(lora, expected):
    with pytest.raises(PolyReplyError, match=expected) as error:
        tiny.model("llama", adapter="lora", lora=lora)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("rank", [2, 100], ids=["side by side", "one after the other"])
def test_uneven_rows_of_loras_go_through_their_own_decoders(rank):
    """Values and gradients are those of one decoder at a time, whichever way the products are cut."""
    torch.manual_seed(0)
    config = tiny.model("llama", adapter="lora", lora={"rank": rank}).config
    adapter = LoraAdapter(config, 12, 9).double()
    adapter.reset_parameters()
    rows = Rows.pairs(torch.arange(6), torch.tensor([0, 0, 0, 1, 2, 2]), 6)
    source, output = torch.randn(6, 4, 12).double(), torch.randn(6, 4, 9).double()
    assert (adapter.side_by_side(rows.runs[0]) is None) == (rank == 100)

    def gradients(result):
        return torch.autograd.grad(result.square().sum(), list(adapter.parameters()))

    found = RoutedAdapter(adapter, rows)(output, source)
    a_RIr, b_RrO = adapter.a_KIr[rows.decoder_R], adapter.b_KrO[rows.decoder_R]
    expected = output + adapter.scale * source @ a_RIr @ b_RrO
    torch.testing.assert_close(found, expected)
    for one, other in zip(gradients(found), gradients(expected), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("most_columns", [0, 512], ids=["one by one", "at once"])
def test_decoding_with_loras_is_exact_and_follows_their_weights(most_columns, monkeypatch):
    monkeypatch.setattr(step, "_MOST_COLUMNS", most_columns)
    model = shaken(tiny.model("gpt2", adapter="lora", lora={"rank": 2}))  # its layers have biases, LoRAs have none
    check_replies(model, LONG)
    assert bool(model.low_ranks) and any(ranks._made for ranks in model.low_ranks.values()) == (most_columns > 0)
    with torch.no_grad():
        for adapter in model.adapters:
            adapter.b_KrO.mul_(-2)
    check_replies(model, LONG)
