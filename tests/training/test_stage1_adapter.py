"""Stage 1 as an adapter, stage 2 as K copies of it, and models without their backbone's weights."""

import json

import pytest
import torch
from runs import K, recipe, train
from safetensors.torch import load_file

from polyreply import PolyReply
from polyreply.errors import PolyReplyError

LORA = ("model.adapter=lora", "model.lora.rank=3")


@pytest.fixture(scope="module")
def adapted(corpus, stage1, tmp_path_factory):
    """A stage 1 that trains one LoRA on the weights of another stage 1."""
    out = tmp_path_factory.mktemp("runs") / "adapter"
    settings = ("method=mle", "model.stage1=adapter", f"model.backbone={stage1}", "optimizer.learning_rate=0.01")
    return train(recipe(corpus, out, *settings, *LORA))


def test_stage_1_trains_the_adapter_and_nothing_else(stage1, adapted):
    model = PolyReply.from_pretrained(adapted).model
    assert model.num_decoders == 1 and model.config.single_adapter == 0
    assert all(adapter.b_KrO.abs().max() > 0.01 for adapter in model.adapters), "the adapters have learned something"
    before, after = load_file(stage1 / "model.safetensors"), load_file(adapted / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_stage_2_begins_with_copies_and_keeps_the_adapter_of_stage_1(corpus, adapted, tmp_path):
    one = PolyReply.from_pretrained(adapted)
    settings = (f"model.backbone={adapted}", "optimizer.learning_rate=1e-9", "model.adapter=bottleneck")
    poly = PolyReply.from_pretrained(train(recipe(corpus, tmp_path / "run", *settings)))
    config = poly.model.config
    assert (config.num_decoders, config.adapter, config.lora["rank"], config.single_adapter) == (K, "lora", 3, K)
    for adapter, trained in zip(poly.model.adapters, one.model.adapters, strict=True):
        for own, found in zip(adapter.parameters(), trained.parameters(), strict=True):
            assert torch.equal(own[K], found[0])
            noise = (own[:K] - found).square().mean().sqrt() / found.square().mean().sqrt()
            assert 0.05 < noise < 0.2 and not torch.equal(own[0], own[1])
    for options in ({"decode": "beam", "k": 3}, {"decode": "diverse-beam", "k": 2}, {"decode": "nucleus", "k": 2}):
        expected = one.reply("Hello!", max_new_tokens=5, **options)
        assert poly.reply("Hello!", max_new_tokens=5, **options) == expected
    assert (
        one.reply("Hello!", max_new_tokens=5)[0].text
        == one.reply("Hello!", decode="beam", k=1, max_new_tokens=5)[0].text
    )


def test_a_run_can_leave_the_backbone_out(corpus, stage1, tmp_path):
    backbone = tmp_path / "backbone"
    whole = PolyReply.from_pretrained(stage1)
    whole.model.plain_backbone().save_pretrained(backbone)
    whole.tokenizer.save_pretrained(backbone)
    models = [
        train(recipe(corpus, tmp_path / save, f"model.backbone={backbone}", *LORA, f"model.save={save}"))
        for save in ("whole", "reference")
    ]
    assert {name.split(".")[0] for name in load_file(models[1] / "model.safetensors")} == {"adapters"}
    found = [PolyReply.from_pretrained(model).reply("Hello!", max_new_tokens=6) for model in models]
    assert found[0] == found[1]
    reference = json.loads((models[1] / "config.json").read_text())["backbone_reference"]
    assert reference["name"] == str(backbone) and len(reference["digest"]) == 64
    again = train(recipe(corpus, tmp_path / "again", f"model.backbone={backbone}", *LORA, "model.save=reference"))
    assert (again / "model.safetensors").read_bytes() == (models[1] / "model.safetensors").read_bytes()


def test_a_model_of_full_decoders_cannot_leave_the_backbone_out(corpus, stage1, tmp_path):
    poly = PolyReply.from_pretrained(stage1)
    with pytest.raises(PolyReplyError, match=r"multi-decoder.*whole"):
        poly.save_pretrained(tmp_path / "model", backbone="reference")
    assert not any(tmp_path.iterdir())


def test_a_k_decoder_model_is_trained_further(corpus, stage1, tmp_path):
    first = train(recipe(corpus, tmp_path / "first", f"model.backbone={stage1}", *LORA))
    still = (f"model.backbone={first}", "optimizer.learning_rate=1e-9", "model.adapter=bottleneck")
    second = train(recipe(corpus, tmp_path / "second", *still))
    before, after = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    third = train(recipe(corpus, tmp_path / "third", f"model.backbone={first}", "optimizer.learning_rate=0.01"))
    after = load_file(third / "model.safetensors")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all(name.startswith("adapters.") for name in moved)
    for settings, expected in (
        ((f"model.num_decoders={2 * K}",), rf"model.num_decoders={K}.*found {2 * K}"),
        (("method=mle",), f"stage 2 with {K} decoders"),
    ):
        with pytest.raises(PolyReplyError, match=expected):
            train(recipe(corpus, tmp_path / "refused", f"model.backbone={first}", *settings))


@pytest.mark.parametrize(
    "settings",
    [
        ("method=mle", "model.backbone=gpt2"),
        ("em.freeze_shared=false", "model.backbone=gpt2"),
        ("model.architecture=multi-decoder", "model.backbone=gpt2"),
        ("model.backbone=shipped",),
    ],
)
def test_a_reference_to_a_backbone_that_changes_is_refused_before_training(corpus, tmp_path, settings):
    with pytest.raises(PolyReplyError, match="save is reference"):
        recipe(corpus, tmp_path / "run", *settings, "model.save=reference")


def test_a_reference_to_what_is_no_backbone_is_refused_before_training(corpus, stage1, tmp_path):
    made = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "model.save=reference")
    with pytest.raises(PolyReplyError, match=r"loaded by its name.*save=whole"):
        train(made)
    assert not (tmp_path / "run" / "log.jsonl").exists()
