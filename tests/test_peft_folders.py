"""Exported decoders against the real `peft`, and LoRAs of `peft` as decoders."""

import copy
import json
import re

import peft
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from polyreply import PolyReply
from polyreply.data.context_format import encode_contexts
from polyreply.decoding.all_decoders import decode
from polyreply.errors import PolyReplyError
from polyreply.peft_folders import export_merged, export_peft, import_peft, vllm_command

CHAT = (
    "{% for m in messages %}{{ '<user> ' if m.role == 'user' else '<bot> ' }}{{ m.content }}{{ ' </s> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<bot> ' }}{% endif %}"
)
CONTEXTS = [("w9 w12 w30", "w7 w8", "w22"), ("w41",)]
RESPONSE = torch.tensor([[13, 27, 5, 44, 1]])
SETTINGS = {"response": tiny.LORA, "everything": tiny.EVERYTHING}


def words(chat=True):
    """A tokenizer of whole words with the vocabulary of the tiny models, and `<bot>` for the assistant's header."""
    names = ["<pad>", "</s>", "<bos>", "<user>", "<bot>", *(f"w{i}" for i in range(5, tiny.VOCABULARY))]
    backend = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="w5"))
    backend.pre_tokenizer = WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<bos>", "unk_token": "w5"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        extra_special_tokens=["<user>", "<bot>"],
        clean_up_tokenization_spaces=False,
        **special,
    )
    tokenizer.chat_template = CHAT if chat else None
    return tokenizer


def poly(name, chat=True, **settings):
    tokenizer = words(chat)
    plain = PolyReply.from_backbone(copy.deepcopy(tiny.backbone(name)), tokenizer, num_decoders=3, **settings)
    made = tiny.model(name, invocation_tokens=plain.model.config.invocation_tokens, **settings)
    return PolyReply(made, tokenizer)


def backbone_of(made):
    return made.model.plain_backbone().double().eval()


@pytest.mark.parametrize("name", [*tiny.BACKBONES, "flan-t5", *tiny.FURTHER])
@pytest.mark.parametrize("adapt", SETTINGS)
def test_an_exported_decoder_computes_the_same_in_peft(name, adapt, tmp_path):
    made = poly(name, **SETTINGS[adapt])
    folders = export_peft(made, tmp_path / "exported")
    assert [folder.name for folder in folders] == ["decoder-0", "decoder-1", "decoder-2"]
    format, config = made.model.config.format(), copy.deepcopy(made.model.generation_config)
    config.max_new_tokens = 8
    replies = [made.reply(context, generation_config=config) for context in CONTEXTS]
    assert len({reply.text for row in replies for reply in row}) > 2
    for k, folder in enumerate(folders):
        loaded = peft.PeftModel.from_pretrained(backbone_of(made), folder).eval()
        for context, row in zip(CONTEXTS, replies, strict=True):
            ids = torch.from_numpy(encode_contexts(made.tokenizer, [context], format)[0][0]).long()[None]
            ours = made.model(ids, None, torch.tensor([k]), RESPONSE)
            with torch.no_grad():
                if made.model.family.encoder:
                    theirs = loaded(input_ids=ids, labels=RESPONSE).logits
                else:
                    theirs = loaded(input_ids=torch.cat([ids, RESPONSE], 1)).logits[:, ids.shape[1] - 1 : -1]
                tokens = loaded.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
            torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)
            new = tokens[0, 1 if made.model.family.encoder else ids.shape[1] :]
            assert made.tokenizer.decode(new, skip_special_tokens=True).strip() == row[k].text
            request = tiny.request(config, made.num_decoders)
            assert decode(made.model, ids, torch.ones_like(ids), request)[0][k].tokens == new.tolist()


@pytest.mark.parametrize("name, adapt", [("llama", "everything"), ("gpt2", "response"), ("t5", "response")])
def test_exported_decoders_come_back_as_a_model(name, adapt, tmp_path):
    made = poly(name, **SETTINGS[adapt])
    backbone_of(made).save_pretrained(tmp_path / "backbone")
    made.tokenizer.save_pretrained(tmp_path / "backbone")
    again = import_peft(export_peft(made, tmp_path / "exported"), tmp_path / "backbone")
    assert again.model.config.adapt == adapt and again.num_decoders == 3
    assert again.model.config.invocation_tokens == made.model.config.invocation_tokens
    assert [again.reply(context, max_new_tokens=8) for context in CONTEXTS] == [
        made.reply(context, max_new_tokens=8) for context in CONTEXTS
    ]


def lora_folder(folder, name="llama", seed=0, **settings):
    """A LoRA as `peft` itself makes and saves it."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(**{"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **settings})
    model = peft.get_peft_model(copy.deepcopy(tiny.backbone(name)), config)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.normal_(std=0.5)
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture
def llama_folder(tmp_path):
    tiny.backbone("llama").save_pretrained(tmp_path / "llama")
    words().save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_loras_of_different_ranks_and_scales_become_decoders(tmp_path, llama_folder):
    kinds = [{"r": 2}, {"r": 3, "lora_alpha": 5}, {"r": 2, "use_rslora": True}]
    folders = [lora_folder(tmp_path / f"lora-{i}", seed=i, **kind) for i, kind in enumerate(kinds)]
    made = import_peft(folders, llama_folder)
    ids = torch.tensor([[3, 9, 12, 1, 4]])
    for k, folder in enumerate(folders):
        theirs = peft.PeftModel.from_pretrained(copy.deepcopy(tiny.backbone("llama")), folder).eval()
        expected = theirs(input_ids=torch.cat([ids, RESPONSE], 1)).logits[:, ids.shape[1] - 1 : -1]
        torch.testing.assert_close(made.model(ids, None, torch.tensor([k]), RESPONSE), expected, rtol=0, atol=1e-5)


def test_a_merged_decoder_is_an_ordinary_model(tmp_path):
    for name in ("llama", "gpt2"):
        made = poly(name, **tiny.EVERYTHING)
        export_merged(made, 1, tmp_path / name)
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float64)
        ids = torch.tensor([[3, 9, 12, 1, 4]])
        found = plain(torch.cat([ids, RESPONSE], 1)).logits[:, ids.shape[1] - 1 : -1]
        torch.testing.assert_close(found, made.model(ids, None, torch.tensor([1]), RESPONSE), rtol=0, atol=1e-5)
        assert AutoTokenizer.from_pretrained(tmp_path / name).chat_template == CHAT
        export_merged(made, 0, tmp_path / name, overwrite=True)
    made.model.plain_backbone().save_pretrained(tmp_path / "own")
    with pytest.raises(PolyReplyError, match="own: the folder holds something other"):
        export_merged(made, 0, tmp_path / "own", overwrite=True)


def test_vllm_is_told_of_every_folder(tmp_path):
    made = poly("llama", **tiny.EVERYTHING)
    folders = export_peft(made, tmp_path / "out")
    command = vllm_command(made, folders)
    assert f"--max-loras 3 --max-lora-rank 8 --lora-modules decoder-0={folders[0]}" in command
    assert vllm_command(poly("llama", **tiny.LORA), folders) is None
    names = json.loads((folders[0] / "adapter_config.json").read_text())["target_modules"]
    assert sorted(names) == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


@pytest.mark.parametrize(
    "name, chat, settings, expected",
    [
        ("llama", True, {}, r"model.adapter: lora.*bottleneck"),
        ("t5", True, {"architecture": "multi-decoder"}, r"lora.*multi-decoder"),
        ("gpt2", False, tiny.LORA, r"'</s>'.*model.adapt=everything"),
        ("llama", True, {**tiny.LORA, "shared_weights_changed": True}, "freeze_shared"),
    ],
)
def test_what_peft_cannot_hold_is_refused(name, chat, settings, expected, tmp_path):
    with pytest.raises(PolyReplyError, match=expected):
        export_peft(poly(name, chat, **settings), tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_other_exports_that_are_refused(tmp_path):
    with pytest.raises(PolyReplyError, match=r"everything.*--format peft"):
        export_merged(poly("llama", **tiny.LORA), 0, tmp_path / "out")
    with pytest.raises(PolyReplyError, match="0 to 2, found 3"):
        export_merged(poly("llama", **tiny.EVERYTHING), 3, tmp_path / "out")
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(PolyReplyError, match="not empty"):
        export_peft(poly("llama", **tiny.EVERYTHING), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def _other_type(folder):
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "peft_type": "IA3"}))


def _truncated(folder):
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:200])


def _no_weights(folder):
    (folder / "adapter_model.safetensors").unlink()


def _other_rank(folder):
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "r": 5}))


def _other_size(folder):
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(
        {name: torch.cat([weight, weight]) for name, weight in weights.items()}, folder / "adapter_model.safetensors"
    )


def _no_config(folder):
    (folder / "adapter_config.json").unlink()


@pytest.mark.parametrize(
    "settings, spoil, expected",
    [
        ({}, _other_type, "LORA.*IA3"),
        ({}, _truncated, "whole PEFT folder"),
        ({}, _no_weights, "adapter_model.safetensors"),
        ({}, _no_config, "adapter_config.json"),
        ({"use_dora": True}, None, "use_dora"),
        ({"bias": "all"}, None, "bias all"),
        ({"init_lora_weights": "pissa"}, None, "init_lora_weights pissa"),
        ({}, _other_rank, "rank 5.*found 2 and 2"),
        ({}, _other_size, "another backbone.*--backbone"),
        ({"target_modules": ["q_proj"]}, None, "difference at .*v_proj"),
        ({"r": 2, "alora_invocation_tokens": [4]}, None, "alora_invocation_tokens"),
    ],
)
def test_a_folder_that_cannot_be_a_decoder_is_one_line(settings, spoil, expected, tmp_path, llama_folder):
    good, bad = lora_folder(tmp_path / "good"), lora_folder(tmp_path / "bad", **settings)
    if spoil:
        spoil(bad)
    with pytest.raises(PolyReplyError, match=expected) as error:
        import_peft([good, bad], llama_folder)
    assert "\n" not in str(error.value) and re.match(rf"{bad}: expected", str(error.value))


def test_a_lora_of_another_backbone_is_refused(tmp_path):
    folder = lora_folder(tmp_path / "lora")
    tiny.backbone("qwen2").save_pretrained(tmp_path / "other")
    words().save_pretrained(tmp_path / "other")
    assert import_peft([folder], tmp_path / "other").num_decoders == 1, "Qwen2 has layers of the same names and sizes"
    tiny.backbone("gpt2").save_pretrained(tmp_path / "gpt2")
    words().save_pretrained(tmp_path / "gpt2")
    with pytest.raises(PolyReplyError, match=r"another backbone.*not a layer of it.*--backbone"):
        import_peft([folder], tmp_path / "gpt2")
    with pytest.raises(PolyReplyError, match="--backbone"):
        import_peft([folder])
