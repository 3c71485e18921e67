"""A model folder: round trips to the last bit, also in a new process, and errors that say what was expected."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pair import pair, shaken, t5, tokenizer
from safetensors.torch import load_file, save_file
from tiny import VARIANTS, samples
from tiny import model as tiny_model
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, GenerationConfig

from polyreply import PolyReply, PolyReplyConfig, PolyReplyModel
from polyreply.decoding.all_decoders import decode
from polyreply.decoding.settings import Decoding
from polyreply.errors import ModelFolderError, PolyReplyError
from polyreply.models.backbones import load_backbone
from polyreply.models.score import nll_NK


def outputs(model):
    """Likelihoods, greedy responses and priors to the last bit, as text."""
    found = []
    for seed in range(2):
        batch = samples(seed)
        config = GenerationConfig(max_new_tokens=9, eos_token_id=1)
        request = Decoding.of(config, model.num_decoders)
        replies = decode(model, batch.context_NS, batch.context_mask_NS, request)
        with torch.no_grad():
            prior = model.log_prior(model.encode(batch.context_NS, batch.context_mask_NS))
        found += [nll_NK(model, batch).tolist(), prior.tolist()]
        found += [[(one.tokens, one.logprob.hex()) for one in row] for row in replies]
    return json.dumps(found)


def in_new_process(*folders):
    script = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[1] + '/..']\n"
        "from transformers import AutoModel\n"
        "from test_pretrained import outputs\n"
        "for path in sys.argv[2:]: print(outputs(AutoModel.from_pretrained(path)))"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(Path(__file__).parent), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def untied_folder(path):
    """A T5 with an output layer of its own and no scaling of what goes into it, as Flan-T5 is saved."""
    t5().save_pretrained(path)
    weights = load_file(path / "model.safetensors")
    head = torch.randn(len(tokenizer()), 12, generator=torch.Generator().manual_seed(1))
    save_file({**weights, "lm_head.weight": head}, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    del config["scale_decoder_outputs"]
    (path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("folder") / "model"
    pair().save_pretrained(path)
    return path


# --- an ordinary Transformers model


@pytest.mark.parametrize("name, settings", VARIANTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_saved_model_computes_the_same_to_the_last_bit(tmp_path, name, settings, dtype):
    model = tiny_model(name, dtype=dtype, **settings)
    model.save_pretrained(tmp_path)
    loaded = PolyReplyModel.from_pretrained(tmp_path)
    assert loaded.dtype == dtype and not loaded.training
    assert outputs(loaded) == outputs(model)


def test_a_saved_model_computes_the_same_in_a_new_process(tmp_path):
    backbone, _ = load_backbone(untied_folder(tmp_path / "backbone"))
    models = [
        tiny_model("llama", dtype=torch.float64, prior="learned"),
        tiny_model("bart", dtype=torch.float64, architecture="multi-decoder"),
        shaken(PolyReplyModel.from_backbone(backbone, num_decoders=2)),
    ]
    for number, model in enumerate(models):
        model.save_pretrained(tmp_path / str(number))
    assert in_new_process(*(tmp_path / str(number) for number in range(3))) == [outputs(model) for model in models]


def test_files_have_the_permissions_of_new_files(folder, tmp_path):
    (tmp_path / "new").touch()
    assert {path.stat().st_mode for path in folder.iterdir()} == {(tmp_path / "new").stat().st_mode}


def test_weights_load_as_any_type_and_on_a_device(folder):
    loaded = PolyReplyModel.from_pretrained(folder, dtype=torch.bfloat16, device_map="cpu")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert PolyReply.from_pretrained(folder, dtype="float64", device="cpu").model.dtype == torch.float64
    assert PolyReply.from_pretrained(folder).to("meta").device.type == "meta"
    with pytest.raises(
        PolyReplyError, match="expected a dtype such as float32, bfloat16, fastest or int8, found 'float7'"
    ):
        PolyReply.from_pretrained(folder, dtype="float7")


def test_auto_classes_load_it(folder):
    assert isinstance(AutoConfig.from_pretrained(folder), PolyReplyConfig)
    model, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert isinstance(model, PolyReplyModel) and not info["missing_keys"]


def test_the_learned_prior_is_saved_with_the_model(tmp_path):
    model = tiny_model(prior="learned")
    model.save_pretrained(tmp_path)
    batch = samples()
    log_prior = [
        made.log_prior(made.encode(batch.context_NS, batch.context_mask_NS))
        for made in (model, PolyReplyModel.from_pretrained(tmp_path))
    ]
    assert torch.equal(*log_prior) and log_prior[0].std() > 0.1


def test_the_generation_config_is_saved_with_the_model(folder):
    loaded = PolyReplyModel.from_pretrained(folder)
    assert loaded.generation_config.max_new_tokens == 8
    assert loaded.generation_config is loaded.backbone.generation_config
    loaded.generation_config = GenerationConfig(max_new_tokens=2)
    assert loaded.backbone.generation_config.max_new_tokens == 2


@pytest.mark.parametrize("settings", [{}, {"architecture": "multi-decoder"}], ids=str)
@pytest.mark.parametrize("loader", [load_backbone, lambda path: (AutoModelForSeq2SeqLM.from_pretrained(path), None)])
def test_a_separate_output_layer_survives(tmp_path, settings, loader):
    backbone, _ = loader(untied_folder(tmp_path / "backbone"))
    assert backbone.lm_head.weight is not backbone.shared.weight and not backbone.config.scale_decoder_outputs
    model = shaken(PolyReplyModel.from_backbone(backbone, num_decoders=2, **settings))
    before = outputs(model)
    for generation in ("first", "second"):
        model.save_pretrained(tmp_path / generation)
        model = PolyReplyModel.from_pretrained(tmp_path / generation)
        model.tie_weights()
        assert outputs(model) == before


def test_an_output_layer_of_its_own_survives_both_stages(tmp_path):
    backbone, _ = load_backbone(untied_folder(tmp_path / "backbone"))
    head = backbone.lm_head.weight.clone()
    single = {"architecture": "multi-decoder", "num_decoders": 1}
    PolyReplyModel.from_backbone(backbone, **single).save_pretrained(tmp_path / "stage1")
    loaded = PolyReplyModel.from_pretrained(tmp_path / "stage1").backbone
    assert torch.equal(PolyReplyModel.from_backbone(loaded, num_decoders=2).backbone.lm_head.weight, head)


# --- what cannot be loaded


def copied(folder, tmp_path, **changes):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    return tmp_path


def refused(path, kind=PolyReplyModel):
    with pytest.raises(ModelFolderError) as caught:
        kind.from_pretrained(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plain_backbone_is_refused(tmp_path):
    t5().save_pretrained(tmp_path)
    assert "expected a K-decoder model" in refused(tmp_path)
    assert "found a plain t5 model; build a K-decoder model on it with PolyReplyModel.from_backbone" in refused(
        tmp_path
    )


@pytest.mark.parametrize("architecture", ["multi-adapter", "multi-decoder"])
@pytest.mark.parametrize("claimed", [1, 2, 5])
def test_weights_of_another_k_are_refused(tmp_path, architecture, claimed):
    pair(architecture=architecture).save_pretrained(tmp_path / "a")
    (tmp_path / "b").mkdir()
    message = refused(copied(tmp_path / "a", tmp_path / "b", num_decoders=claimed))
    assert f"expected the weights of {claimed} decoders" in message and "found those of 3" in message


def test_a_later_schema_is_refused(folder, tmp_path):
    message = refused(copied(folder, tmp_path, schema_version=2))
    assert "has schema version 2, and this polyreply reads up to 1; upgrade polyreply" in message


@pytest.mark.parametrize(
    "content",
    [lambda data: data[: len(data) // 2], lambda data: data[:-1], lambda data: b"", lambda data: b"a text file\n" * 9],
    ids=["half", "one byte short", "empty", "text"],
)
def test_a_damaged_file_is_refused(folder, tmp_path, content):
    path = copied(folder, tmp_path) / "model.safetensors"
    path.write_bytes(content(path.read_bytes()))
    assert "expected a folder with a config.json and a complete model.safetensors" in refused(tmp_path)


def test_other_tensors_are_refused(folder, tmp_path):
    save_file({"something.else": torch.zeros(3)}, copied(folder, tmp_path) / "model.safetensors", {"format": "pt"})
    message = refused(tmp_path)
    assert "to hold the weights of its config.json (multi-adapter, 3 decoders, t5)" in message
    assert "missing (such as adapters.0.b1_KD), 1 unknown (such as something.else)" in message


@pytest.mark.parametrize(
    "name, message",
    [
        ("config.json", "with a config.json, found none"),
        ("model.safetensors", "as model.safetensors in"),
        ("tokenizer.json", "expected a tokenizer (tokenizer.json)"),
    ],
)
def test_a_missing_file_is_named(folder, tmp_path, name, message):
    copied(folder, tmp_path)
    (tmp_path / name).unlink()
    if name == "tokenizer.json":
        (tmp_path / "tokenizer_config.json").unlink()
    assert message in refused(tmp_path, PolyReply)


def test_pickles_are_not_read(folder, tmp_path):
    copied(folder, tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert "found pytorch_model.bin" in refused(tmp_path)


def test_a_missing_folder_or_model_is_one_line(tmp_path):
    assert "no model at" in refused(tmp_path / "nothing")
    assert "found the file" in refused(Path(__file__))
    assert "cannot load a K-decoder model from 'no-one/no-model'" in refused("no-one/no-model")
