"""Two processes with half a backbone each train what one process with a whole one would, and leave the same files."""

import pytest
import team
import torch
from runs import SMALL, recipe, write_corpus
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from polyreply.data.folder import split_files
from polyreply.data.tokenizer import texts_of, train_tokenizer
from polyreply.errors import RecipeError
from polyreply.training import run_log

EXACT = ["precision=float64", "steps=3", "em.e_step_size=12", "optimizer.learning_rate=0.02", "checkpoint.every=1"]
LORA = ["model.adapter=lora", "model.lora={rank: 2}"]
VARIANTS = {
    "t5": [
        *("model.backbone=mini", "model.mini.dropout=0.0", "method=soft-em", "model.prior=learned"),
        "model.mini.d_ff=25",  # cannot be halved
        "em.e_step_size=30",  # its last draw has one sample, so one process has none
    ],
    "gpt2, LoRA": ["model.backbone=gpt2", *LORA, "model.adapt=everything", "em.e_step_scope=corpus"],
    "llama, LoRA": ["model.backbone=llama", *LORA, "model.save=reference"],
}


@pytest.fixture(scope="module")
def backbones(tmp_path_factory):
    """A data folder of an odd number of rows, beside folders with an untrained GPT-2 and an untrained Llama."""
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "data").mkdir()
    write_corpus(folder / "data", rows=31)
    tokenizer = train_tokenizer(texts_of(split_files(folder / "data")["train"]), vocab_size=400)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    torch.manual_seed(0)
    gpt2 = GPT2Config(vocab_size=len(tokenizer), n_embd=12, n_layer=2, n_head=3, n_positions=512, **none, **ids)
    sizes = {"hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2}
    llama = LlamaConfig(vocab_size=len(tokenizer), num_hidden_layers=2, **sizes, **ids)
    for name, model in (("gpt2", GPT2LMHeadModel(gpt2)), ("llama", LlamaForCausalLM(llama))):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def settings_of(variant, out, backbones, *more):
    chosen = [
        setting.replace("=gpt2", f"={backbones / 'gpt2'}").replace("=llama", f"={backbones / 'llama'}")
        for setting in VARIANTS[variant]
    ]
    return [*SMALL, *EXACT, f"data={backbones / 'data'}", f"out={out}", *chosen, *more]


def launch(jobs, folder):
    done = team.launch(jobs, folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def whole(backbones):
    """The run folder of one process for each variant."""
    return {name: team.run(settings_of(name, backbones / f"one-{name}", backbones)) for name in VARIANTS}


@pytest.fixture(scope="module")
def sharded(backbones):
    """The run folders of two processes, and what they said."""
    made = {name: backbones / f"two-{name}" for name in VARIANTS}
    jobs = [{"settings": settings_of(name, out, backbones, "model.shard=true")} for name, out in made.items()]
    started = settings_of("gpt2, LoRA", backbones / "started", backbones, "model.shard=true", "steps=2")
    return made, launch([*jobs, {"settings": started}], backbones)


def check_same(found, expected):
    """Checkpoints and model have the same tensors: frozen ones to the last bit, trained ones up to rounding."""
    for name in ("checkpoints/step-00000003/weights.safetensors", "model/model.safetensors"):
        ours, theirs = (load_file(folder / name) for folder in (found, expected))
        assert ours.keys() == theirs.keys()
        for weight in theirs:
            torch.testing.assert_close(ours[weight], theirs[weight], rtol=1e-5, atol=1e-7)
    names = ["checkpoints/frozen.safetensors", "model/config.json"]
    assert all((found / name).read_bytes() == (expected / name).read_bytes() for name in names)


@pytest.mark.parametrize("variant", VARIANTS)
def test_half_a_backbone_each_gives_the_same_run(variant, sharded, whole):
    ours, expected = sharded[0][variant], whole[variant]
    check_same(ours, expected)
    logs = [run_log.read(folder / "log.jsonl") for folder in (ours, expected)]
    assert [line["kind"] for line in logs[0]] == [line["kind"] for line in logs[1]]
    for found, wanted in zip(*logs, strict=True):
        for name in {"loss", "gradient_norm", "nll", "metrics", "replies"} & wanted.keys():
            assert found[name] == (wanted[name] if name == "replies" else pytest.approx(wanted[name], rel=1e-4))
    assert any(line["kind"] == "validation" and line["replies"] for line in logs[1])
    if variant == "t5":
        assert 1 in [line.get("samples") for line in logs[0]]


def test_peak_memory_of_each_process_is_reported(sharded):
    made, done = sharded
    assert done.stdout == "" and len(made) == 3
    for folder in made.values():
        [line] = [line for line in run_log.read(folder / "timings.jsonl") if line["kind"] == "memory"]
        assert len(line["peak_bytes"]) == 2 and min(line["peak_bytes"]) > 1e7


def test_a_killed_run_is_resumed_sharded_and_a_whole_one_continues_sharded(backbones, whole, tmp_path):
    llama = settings_of("llama, LoRA", tmp_path / "killed", backbones, "model.shard=true")
    died = team.launch([{"settings": llama, "die": [1, 2]}], tmp_path)
    assert died.returncode != 0 and "process 0 lost the connection" in died.stderr and "--resume" in died.stderr
    team.run(settings_of("t5", tmp_path / "whole", backbones, "steps=2"))
    t5 = settings_of("t5", tmp_path / "whole", backbones, "model.shard=true")
    launch([{"settings": settings, "resume": True} for settings in (llama, t5)], tmp_path)
    check_same(tmp_path / "killed", whole["llama, LoRA"])
    check_same(tmp_path / "whole", whole["t5"])


def test_a_sharded_run_continues_on_one_process(backbones, whole, sharded):
    team.run(settings_of("gpt2, LoRA", backbones / "started", backbones), resume=True)
    check_same(backbones / "started", whole["gpt2, LoRA"])


@pytest.mark.parametrize(
    "setting", ["method=mle", "em.freeze_shared=false", "model.architecture=multi-decoder"], ids=lambda given: given
)
def test_a_backbone_that_is_trained_is_not_sharded(setting):
    with pytest.raises(RecipeError, match=r"model\.shard is true, which needs a backbone that stays as it is") as error:
        recipe("data", "run", setting, "model.shard=true")
    assert "\n" not in str(error.value)
