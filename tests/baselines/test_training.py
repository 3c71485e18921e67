"""The methods that the paper compares with, through the commands: train, reply, evaluate, and what follows stage 1."""

import json

import pytest
import runs
import torch
from safetensors.torch import load_file

from polyreply.errors import PolyReplyError
from polyreply.reply import PolyReply
from polyreply.training import run_log

SIZES = "model.mini={d_model: 16, d_ff: 24, num_layers: 1, num_decoder_layers: 1, num_heads: 2, d_kv: 8}"


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    """Conversations of up to five turns, made of unrelated messages."""
    folder = runs.write_corpus(tmp_path_factory.mktemp("talk"), rows=60)
    for split in ("train", "valid"):
        file = folder / f"{split}.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for number, row in enumerate(rows):
            earlier = [turn for other in rows[number - number % 5 : number] for turn in other["context"]]
            row["context"] = [*earlier, *row["context"]]
        file.write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.parametrize("method, decode", [("adalabel", "beam"), ("dialogbert", "top-k")])
def test_a_method_trains_replies_and_is_evaluated_by_the_commands(
    method, decode, talk, tmp_path, polyreply, polyreply_here
):
    settings = [SIZES, *runs.SMALL[1:], "validation={every: 6, samples: 12, contexts: 3, max_new_tokens: 6}", "steps=6"]
    rates = ["optimizer.learning_rate=0.01", "optimizer.warmup_steps=0"]
    trained = polyreply_here("train", method, *settings, *rates, f"data={talk}", f"out={tmp_path / 'run'}")
    assert trained.returncode == 0, trained.stderr
    lines = list(run_log.read(tmp_path / "run" / "log.jsonl"))
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.1
    parts = {"adalabel": {"kl", "auxiliary", "epsilon"}, "dialogbert": {"regression", "order", "masked", "shuffled"}}
    assert all(set(line["losses"]) == parts[method] for line in lines if line["kind"] == "step")

    responses, scores = tmp_path / "responses.jsonl", tmp_path / "scores.json"
    files = ("--input", talk / "valid.jsonl", "--output", responses, "--context-turns", "5")
    options = ("--model", tmp_path / "run" / "model", "--decode", decode, "-k", "4", "--max-new-tokens", "6")
    reply = polyreply if method == "dialogbert" else polyreply_here  # a process that has not built the network
    replied = reply("reply", *files, *options)
    assert replied.returncode == 0, replied.stderr
    rows = [json.loads(line) for line in responses.read_text().splitlines()]
    assert len(rows) == 20 and {len(row["responses"]) for row in rows} == {4}
    evaluated = polyreply_here("evaluate", responses, "--references", talk / "valid.jsonl", "--json", "-o", scores)
    assert evaluated.returncode == 0, evaluated.stderr
    assert 0 <= json.loads(scores.read_text())["bleu1_f"] <= 100
    assert not any("objective" in name for name in load_file(tmp_path / "run" / "model" / "model.safetensors"))


def test_adalabel_is_a_stage_1_and_its_weights_are_those_of_mle_but_for_the_loss(corpus, stage1, tmp_path):
    made = runs.recipe(corpus, tmp_path / "ada", "method=adalabel", f"model.backbone={stage1}", "steps=2")
    model = runs.train(made)
    before, after = (load_file(folder / "model.safetensors") for folder in (stage1, model))
    assert before.keys() == after.keys() and any(not torch.equal(before[name], after[name]) for name in before)
    second = runs.recipe(corpus, tmp_path / "em", "method=eqhard-em", f"model.backbone={model}", "steps=2")
    replies = PolyReply.from_pretrained(runs.train(second)).reply("Hello!", max_new_tokens=3)
    assert len(replies) == runs.K


def test_dialogbert_is_trained_further_and_gets_k_decoders(talk, tmp_path):
    first = runs.train(runs.recipe(talk, tmp_path / "a", "method=dialogbert", "model.backbone=mini", "steps=2"))
    again = runs.train(runs.recipe(talk, tmp_path / "b", "method=dialogbert", f"model.backbone={first}", "steps=2"))
    before, after = (load_file(folder / "model.safetensors") for folder in (first, again))
    assert before.keys() == after.keys() and any(not torch.equal(before[name], after[name]) for name in before)
    decoders = runs.train(runs.recipe(talk, tmp_path / "c", "method=eqhard-em", f"model.backbone={again}", "steps=2"))
    assert len(PolyReply.from_pretrained(decoders).reply(("Hello!", "Hi."), max_new_tokens=3)) == runs.K


def test_dialogbert_on_another_model_is_one_clear_line(talk, stage1, tmp_path):
    with pytest.raises(PolyReplyError, match=r"dialogbert expected its own model in .*, found one on t5; "):
        runs.train(runs.recipe(talk, tmp_path / "run", "method=dialogbert", f"model.backbone={stage1}"))
    assert not (tmp_path / "run").exists()
