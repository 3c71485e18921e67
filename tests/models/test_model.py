"""The architectures: sizes, initialisation, priors, and one forward for any mixture of decoders."""

import copy

import pytest
import tiny
import torch
from transformers import T5Config

from polyreply.errors import PolyReplyError
from polyreply.models.backbones import load_backbone
from polyreply.models.config import PolyReplyConfig
from polyreply.models.model import PolyReplyModel
from polyreply.models.rows import Rows

T5_SMALL = {"vocab_size": 32128, "d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8}


@pytest.mark.parametrize(
    "settings, parameters",
    [
        ({}, 107_830_784),
        ({"adapter_sites": "layer"}, 76_281_344),
        ({"architecture": "multi-decoder"}, 287_088_896),
        ({"architecture": "multi-decoder", "copy_embeddings": True}, 451_584_256),
    ],
)
def test_parameter_counts_of_t5_small_with_ten_decoders(settings, parameters):
    with torch.device("meta"):
        config = PolyReplyConfig(backbone=T5Config(decoder_start_token_id=0, **T5_SMALL).to_dict(), **settings)
        model = PolyReplyModel(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def start(name, **settings):
    torch.manual_seed(3)
    return PolyReplyModel.from_backbone(copy.deepcopy(tiny.backbone(name)), num_decoders=3, **settings).double()


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_decoders_start_near_each_other_but_not_equal(name):
    samples = tiny.samples()
    near, far, farther = (start(name, adapter_init=init) for init in ("near-identity", "linear", "large"))

    def logits(model, k):
        ids = torch.full((len(samples),), k)
        return model(samples.context_NS, samples.context_mask_NS, ids, samples.response_NT).detach()

    spread = (logits(near, 0) - logits(near, 1)).abs().max()
    assert 0 < spread < 0.05
    assert (logits(far, 0) - logits(far, 1)).abs().max() > 5 * spread
    widths = [model.adapters[0].w1_KHD.abs().max().item() for model in (near, far, farther)]
    assert widths[1] / widths[0] == pytest.approx(100, rel=0.05) and widths[2] / widths[1] == pytest.approx(3, rel=0.05)


def test_an_adapter_without_a_skip_connection_discards_its_input():
    model, samples = start("t5", adapter_init="linear", adapter_skip=False), tiny.samples()
    for stack in model.adapters:
        for weight in (stack.w1_KHD, stack.b1_KD):
            torch.nn.init.zeros_(weight)
    rows = samples.context_NS, samples.context_mask_NS, torch.zeros(len(samples), dtype=torch.long)
    said = model(*rows, samples.response_NT)
    others = model(samples.context_NS.flip(1), *rows[1:], samples.response_NT)
    assert torch.equal(said, others), "what cross-attention says of the context is lost"
    for stack in model.adapters:
        stack.skip = True
    assert not torch.equal(model(*rows, samples.response_NT), said)


@pytest.mark.parametrize("name, settings", tiny.VARIANTS)
def test_rows_of_any_decoder_in_any_order(name, settings):
    model, samples = tiny.model(name, **settings), tiny.samples()
    ids = torch.tensor([2, 0, 1, 2, 0])
    mixed = model(samples.context_NS, samples.context_mask_NS, ids, samples.response_NT)
    for row, k in enumerate(ids.tolist()):
        everyone = model(samples.context_NS, samples.context_mask_NS, torch.full((5,), k), samples.response_NT)
        real = samples.response_mask_NT[row]
        torch.testing.assert_close(mixed[row][real], everyone[row][real])


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_priors(name):
    samples = tiny.samples()
    uniform, learned = tiny.model(name), tiny.model(name, prior="learned")
    memory = uniform.encode(samples.context_NS, samples.context_mask_NS)
    torch.testing.assert_close(uniform.log_prior(memory).exp(), torch.full((5, 3), 1 / 3))
    log_prior = learned.log_prior(learned.encode(samples.context_NS, samples.context_mask_NS))
    torch.testing.assert_close(log_prior.exp().sum(1), torch.ones(5))
    assert log_prior.std(0).max() > 1e-4, "the prior does not depend on the context"


def test_what_stage_two_trains_and_what_it_freezes():
    for name, settings in tiny.VARIANTS:
        model = tiny.model(name, prior="learned", **settings)
        own = {id(parameter) for parameter in model.decoder_parameters()}
        shared = {id(parameter) for parameter in model.shared_parameters()}
        assert not own & shared
        assert own | shared == {id(parameter) for parameter in model.parameters()}
        assert {id(parameter) for parameter in model.prior.parameters()} <= own


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(PolyReplyError, match="multi-decoder needs an encoder-decoder backbone"):
        tiny.model("gpt2", architecture="multi-decoder")
    with pytest.raises(PolyReplyError, match="num_decoders must be 1 or more, found 0"):
        tiny.model("t5", num_decoders=0)
    with pytest.raises(PolyReplyError, match="expected a backbone of one of the architectures"):
        PolyReplyConfig(backbone={"model_type": "bert"})
    with pytest.raises(PolyReplyError, match="expected labels and decoder_ids"):
        tiny.model("t5")(torch.tensor([[3]]))


def test_from_grid_inverts_to_grid():
    grid = Rows.grid(3, [0, 2])
    values = torch.arange(6.0)[:, None]
    torch.testing.assert_close(grid.from_grid(grid.to_grid(values)), values)
    kept = grid.keep(torch.tensor([True, False, True, False, True, True]))
    assert kept.context_R.tolist() == [0, 2, 1, 2] and kept.segments == ((0, 0, 2), (2, 2, 4))
    assert kept.num_slots == 2
    torch.testing.assert_close(kept.from_grid(kept.to_grid(values[:4])), values[:4])


def test_copied_embeddings_leave_a_separate_output_layer_in_use(tmp_path):
    """Flan-T5 has one; a decoder's own input embedding is no substitute for it."""
    untied = copy.deepcopy(tiny.backbone("t5"))
    untied.lm_head = torch.nn.Linear(12, tiny.VOCABULARY, bias=False)
    untied.config.tie_word_embeddings = False
    untied.save_pretrained(tmp_path)
    stock, _ = load_backbone(tmp_path)
    assert not torch.equal(stock.lm_head.weight, stock.shared.weight)
    made = PolyReplyModel.from_backbone(
        copy.deepcopy(stock), num_decoders=2, architecture="multi-decoder", copy_embeddings=True
    )
    samples = tiny.samples()
    labels = samples.response_NT.masked_fill(~samples.response_mask_NT, -100)
    with torch.no_grad():
        expected = stock(samples.context_NS, attention_mask=samples.context_mask_NS.long(), labels=labels).logits
        decoder_ids = torch.tensor([0, 1, 0, 1, 1])
        found = made(samples.context_NS, samples.context_mask_NS, decoder_ids, labels)
    torch.testing.assert_close(
        found[samples.response_mask_NT], expected[samples.response_mask_NT], rtol=1e-4, atol=1e-4
    )
