"""`polyreply export` and `polyreply import-peft`."""

import json

import pytest
from test_peft_folders import CONTEXTS, backbone_of, poly, words
from tiny import EVERYTHING, LORA

from polyreply import PolyReply


@pytest.fixture
def saved(tmp_path):
    """A model with LoRAs on everything, and its backbone."""
    made = poly("llama", **EVERYTHING)
    made.save_pretrained(tmp_path / "model")
    backbone_of(made).save_pretrained(tmp_path / "backbone")
    words().save_pretrained(tmp_path / "backbone")
    return made


def test_there_and_back(saved, polyreply_here, tmp_path):
    done = polyreply_here("export", tmp_path / "model", "--out", tmp_path / "out")
    assert done.returncode == 0 and "3 LoRAs" in done.stdout and "vllm serve" in done.stdout
    folders = [tmp_path / "out" / f"decoder-{k}" for k in range(3)]
    named = polyreply_here("export", tmp_path / "model", "--out", tmp_path / "named", "--backbone", "my org/llama")
    assert "vllm serve 'my org/llama' --enable-lora" in named.stdout
    written = json.loads((tmp_path / "named" / "decoder-1" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == "my org/llama"
    backbone = ("--backbone", tmp_path / "backbone")
    for place in ((), ("--reference",)):
        out = tmp_path / f"again{len(place)}"
        done = polyreply_here("import-peft", *folders, *backbone, *place, "--out", out)
        assert done.returncode == 0, done.stderr
        loaded = PolyReply.from_pretrained(out)
        assert loaded.num_decoders == 3
        assert loaded.reply(list(CONTEXTS), max_new_tokens=6) == saved.reply(list(CONTEXTS), max_new_tokens=6)


def test_one_decoder_merged(saved, polyreply_here, tmp_path):
    done = polyreply_here("export", tmp_path / "model", "--format", "merged", "-k", 2, "--out", tmp_path / "out")
    assert done.returncode == 0 and (tmp_path / "out" / "model.safetensors").is_file()
    again = polyreply_here("export", tmp_path / "model", "--format", "merged", "-k", 2, "--out", tmp_path / "out")
    assert again.returncode == 2 and "not empty" in again.stderr


def test_mistakes_are_one_line(saved, polyreply_here, tmp_path):
    poly("llama", **LORA).save_pretrained(tmp_path / "response")
    for arguments, expected in (
        (("model", "--format", "merged"), "-k 3"),
        (("model", "-k", 1), "no decoder"),
        (("model", "--format", "merged", "-k", 3), "0 to 2"),
        (("response", "--format", "merged", "-k", 1), "everything"),
        (("nowhere",), "nowhere"),
    ):
        done = polyreply_here("export", tmp_path / arguments[0], *arguments[1:], "--out", tmp_path / "out")
        assert done.returncode == 2 and expected in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert not (tmp_path / "out").exists()
    done = polyreply_here("import-peft", tmp_path / "model", "--out", tmp_path / "out")
    assert done.returncode == 2 and "adapter_config.json" in done.stderr and not (tmp_path / "out").exists()
