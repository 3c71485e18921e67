"""A sharded backbone computes what a whole one does, however unequal the processes' work is."""

import os
import time

import pytest
import tiny
import torch
from forks import context, places
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from polyreply.bench.timing import memory_mb, restart_peak
from polyreply.decoding import all_decoders, single_decoder
from polyreply.distributed import connected
from polyreply.models.backbones import load_backbone
from polyreply.models.model import PolyReplyModel
from polyreply.models.score import Limits, backward_nll, nll_NK
from polyreply.models.sharded import ShardedLayers

SOME, NONE = ([0, 1, 3, 4], [2]), ([], [0, 1, 2, 3, 4])
"""The samples of each of two processes."""
VARIANTS = {
    "t5": ("t5", {}, SOME),
    "t5, LoRA": ("t5", tiny.LORA, NONE),
    "t5, LoRA on everything": ("t5", tiny.EVERYTHING, SOME),
    "gpt2": ("gpt2", {}, NONE),
    "gpt2, LoRA": ("gpt2", tiny.LORA, SOME),
    "llama": ("llama", {}, SOME),
    "llama, after layers": ("llama", {"adapter_sites": "layer"}, NONE),
    "llama, LoRA": ("llama", tiny.LORA, NONE),
    "llama, LoRA on everything": ("llama", tiny.EVERYTHING, SOME),
}
SMALL = Limits(max_tokens=20, max_logits=3 * tiny.VOCABULARY)
WAYS = {"decoders": all_decoders.decode, "beam": single_decoder.beam}
REPLY = GenerationConfig(max_new_tokens=5, eos_token_id=tiny.EOS, pad_token_id=tiny.PAD)


def measure(model, own, exchange):
    """NLL, gradients and replies for a share of the samples, as tensors by name."""
    samples = tiny.samples()
    for parameter in model.shared_parameters():
        parameter.requires_grad_(False)
    weights_NK = torch.rand(len(samples), 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights_NK[0, 1] = weights_NK[3, :2] = 0
    found = {"nll": torch.zeros_like(weights_NK)}
    if own:
        part = samples.select(torch.tensor(own))
        # Training continues after decoding.
        all_decoders.decode(model, part.context_NS, part.context_mask_NS, tiny.request(REPLY))
        found["nll"][own] = nll_NK(model, part, limits=SMALL)
        backward_nll(model, part, weights_NK[own], limits=SMALL)
    for number, parameter in enumerate(model.decoder_parameters()):
        found[f"gradient.{number}"] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    exchange(found.values())
    for name, way in WAYS.items() if own else ():
        replies = way(model, part.context_NS, part.context_mask_NS, tiny.request(REPLY))
        for place, responses in zip(own, replies, strict=True):
            for number, response in enumerate(responses):
                found[f"{name}.{place}.{number}"] = torch.tensor(response.tokens)
    return found


def work(environment, folder):
    os.environ.update(environment)
    torch.set_num_threads(1)
    with connected("") as processes:
        for variant, (name, settings, shares) in VARIANTS.items():
            model = tiny.model(name, **settings)
            model.sharded = ShardedLayers(model, processes)
            processes.before_exchange = model.sharded.help_others
            found = measure(model, shares[processes.rank], processes.sum_)
            whole = model.sharded.whole() if processes.is_main else {}
            processes.any(False)
            found |= {f"whole.{name}": weight for name, weight in whole.items()}
            held = [p.to_local() if isinstance(p, DTensor) else p for p in model.backbone.parameters()]
            found["held"] = torch.tensor(sum(map(torch.numel, held)))
            save_file(found, folder / f"{variant}.{processes.rank}")


def take_turns(environment, file):
    os.environ.update(environment)

    def load():
        for what in ("begins", "ends"):
            with file.open("a") as stream:
                stream.write(f"{environment['RANK']} {what}\n")
            time.sleep(0.2)

    with connected("") as processes:
        processes.main_first(load, one_by_one=True)


def read_twice(model, processes):
    model.sharded = ShardedLayers(model, processes)
    processes.before_exchange = model.sharded.help_others
    restart_peak()
    for _ in range(2):
        model.encode(torch.ones(1, 3, dtype=torch.long), torch.ones(1, 3))
    processes.any(False)


def hold(environment, folder):
    """Loads a saved backbone, reads contexts with it, and writes down the megabytes that this has added."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    with connected("") as processes:
        read_twice(tiny.model("llama"), processes)  # what is imported and connected first is not counted
        processes.before_exchange, before = lambda: None, memory_mb("VmRSS")
        stock, _ = load_backbone(folder)
        read_twice(PolyReplyModel.from_backbone(stock, num_decoders=2, adapter_size=1), processes)
        (folder / f"{processes.rank}.held").write_text(str(memory_mb("VmHWM") - before))


def launch(target, number, argument):
    team = [context.Process(target=target, args=(place, argument)) for place in places(number)]
    for process in team:
        process.start()
    for process in team:
        process.join(600)
        assert process.exitcode == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    launch(work, 2, folder)
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_nll_gradients_replies_and_weights_equal_those_of_a_whole_backbone(variant, folder):
    name, settings, _ = VARIANTS[variant]
    model = tiny.model(name, **settings)
    expected = measure(model, [0, 1, 2, 3, 4], lambda tensors: None)
    first, second = (load_file(folder / f"{variant}.{rank}") for rank in range(2))
    held = int(first.pop("held") + second.pop("held"))
    whole = {name.removeprefix("whole."): first.pop(name) for name in [*first] if name.startswith("whole.")}
    assert {**first, **second}.keys() == expected.keys()
    for name, value in expected.items():
        for found in (first, second):
            if name in found:
                torch.testing.assert_close(found[name], value)
    parameters = dict(model.named_parameters())
    assert all(torch.equal(parameters[name], weight) for name, weight in whole.items())
    number, sharded = model.backbone.num_parameters(), sum(weight.numel() for weight in whole.values())
    assert sharded > number / 2 and held == 2 * number - sharded


def test_a_process_never_holds_more_than_its_share_and_two_layers(tmp_path):
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 4, "vocab_size": 64}
    with torch.device("meta"):
        stock = LlamaForCausalLM(LlamaConfig(num_hidden_layers=16, tie_word_embeddings=False, **sizes))
    for weight in (stock := stock.to_empty(device="cpu")).parameters():
        torch.nn.init.zeros_(weight)
    stock.save_pretrained(tmp_path)
    whole = stock.num_parameters() * 4 / 2**20
    launch(hold, 2, tmp_path)
    held = [float((tmp_path / f"{rank}.held").read_text()) for rank in range(2)]
    assert max(held) < whole * (1 / 2 + 2 / 16) + 20


def test_processes_of_a_machine_load_one_after_the_other(tmp_path):
    launch(take_turns, 3, tmp_path / "turns")
    turns = [f"{rank} {what}" for rank in range(3) for what in ("begins", "ends")]
    assert (tmp_path / "turns").read_text().splitlines() == turns
