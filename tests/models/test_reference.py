"""A model saved without its backbone: the backbone is found again, and only the right one is accepted."""

import json
import shutil

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from test_peft_folders import CONTEXTS, words

from polyreply import PolyReply
from polyreply.errors import PolyReplyError
from polyreply.models.reference import digest


@pytest.fixture
def saved(tmp_path):
    """A model with LoRAs on a backbone in a folder, saved without the backbone; also the model itself."""
    tiny.backbone("llama").save_pretrained(tmp_path / "backbone")
    words().save_pretrained(tmp_path / "backbone")
    torch.manual_seed(1)
    poly = PolyReply.from_backbone(tmp_path / "backbone", num_decoders=3, **tiny.LORA)
    with torch.no_grad():
        for parameter in poly.model.decoder_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.6)
    poly.save_pretrained(tmp_path / "model", backbone="reference")
    return tmp_path / "model", poly


def replies(poly):
    return [poly.reply(context, max_new_tokens=8) for context in CONTEXTS]


def test_it_loads_and_computes_the_same(saved, tmp_path):
    folder, poly = saved
    loaded = PolyReply.from_pretrained(folder)
    assert replies(loaded) == replies(poly)
    whole = sum(parameter.numel() for parameter in poly.model.parameters())
    assert sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values()) < whole / 2
    loaded.save_pretrained(tmp_path / "again", backbone="reference")
    assert (tmp_path / "again/config.json").read_bytes() == (folder / "config.json").read_bytes()
    loaded.save_pretrained(tmp_path / "whole")
    shutil.rmtree(tmp_path / "backbone")
    assert replies(PolyReply.from_pretrained(tmp_path / "whole")) == replies(poly)
    assert PolyReply.from_pretrained(tmp_path / "whole", dtype="bfloat16").model.dtype == torch.bfloat16


def test_the_backbones_own_tokenizer_is_left_out_and_checked(saved, tmp_path):
    folder, poly = saved
    assert not list(folder.glob("tokenizer*"))
    other = words()
    other.chat_template = "{{ messages }}"
    other.save_pretrained(tmp_path / "backbone")
    with pytest.raises(PolyReplyError, match=r"expected in .*backbone the tokenizer .* found others"):
        PolyReply.from_pretrained(folder)
    poly.save_pretrained(tmp_path / "with tokenizer", backbone="reference")
    assert (tmp_path / "with tokenizer/tokenizer.json").is_file()
    assert replies(PolyReply.from_pretrained(tmp_path / "with tokenizer")) == replies(poly)


def test_adapters_may_be_stored_in_half_precision(saved):
    folder, poly = saved
    tensors = load_file(folder / "model.safetensors")
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    loaded = PolyReply.from_pretrained(folder)
    assert loaded.model.dtype == torch.float32 and loaded.model.adapters[0].a_KIr.dtype == torch.float32
    assert digest(loaded.model.backbone) == digest(poly.model.backbone)


def test_the_backbone_may_have_moved(saved, tmp_path):
    folder, poly = saved
    (tmp_path / "backbone").rename(tmp_path / "moved")
    with pytest.raises(PolyReplyError, match=r"no model at .*backbone=…"):
        PolyReply.from_pretrained(folder)
    assert replies(PolyReply.from_pretrained(folder, backbone=tmp_path / "moved")) == replies(poly)


def test_a_backbone_with_other_weights_is_refused(saved, tmp_path):
    folder, _ = saved
    file = tmp_path / "backbone/model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][3] += 1e-3
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(PolyReplyError, match=r"digest [0-9a-f]{12}.*differ") as error:
        PolyReply.from_pretrained(folder)
    assert "\n" not in str(error.value)


def test_other_mistakes_are_one_line(saved, tmp_path):
    folder, poly = saved
    with pytest.raises(PolyReplyError, match="without its backbone"):
        poly.save_pretrained(tmp_path / "whole")
        PolyReply.from_pretrained(tmp_path / "whole", backbone=tmp_path / "backbone")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_decoders": 4}))
    with pytest.raises(PolyReplyError, match=r"4 decoders.*those of 3"):
        PolyReply.from_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(PolyReplyError, match="a complete model"):
        PolyReply.from_pretrained(folder)
    changed = PolyReply(tiny.model("llama", **tiny.LORA, shared_weights_changed=True), words())
    with pytest.raises(PolyReplyError, match="training changed"):
        changed.save_pretrained(tmp_path / "no", backbone="reference")
    nameless = PolyReply(tiny.model("llama", **tiny.LORA), words())
    with pytest.raises(PolyReplyError, match="no name"):
        nameless.save_pretrained(tmp_path / "no", backbone="reference")
    assert not (tmp_path / "no").exists()


def test_a_model_loaded_in_16_bits_refers_to_the_weights_as_they_are_stored(saved, tmp_path):
    PolyReply.from_pretrained(saved[0], dtype="bfloat16").save_pretrained(tmp_path / "half", backbone="reference")
    configs = [json.loads((folder / "config.json").read_text()) for folder in (saved[0], tmp_path / "half")]
    assert configs[0]["backbone_reference"] == configs[1]["backbone_reference"]
    assert PolyReply.from_pretrained(tmp_path / "half").num_decoders == 3
