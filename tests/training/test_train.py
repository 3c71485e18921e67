"""Every method trains, is saved, loads and replies; a run that is stopped goes on as if it had not been."""

import json
import os
import signal

import pytest
import torch
from runs import METHODS, K, recipe, train
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from polyreply import PolyReply
from polyreply.bench.prefix import LENGTHS, bench_prefix
from polyreply.cli.train import train as train_command
from polyreply.config import load_recipe, save_recipe
from polyreply.em.em_step import em_step
from polyreply.errors import DataError, DivergedError, PolyReplyError, RecipeError
from polyreply.progress import silent
from polyreply.training import run_log
from polyreply.training.callbacks import Callback
from polyreply.training.interrupts import TrainingError, resume_command
from polyreply.training.loop import Run
from polyreply.training.recipe import TrainRecipe
from polyreply.training.state import RunState
from polyreply.training.validation import Validation, ValidationRecord


def steps_of(folder):
    return [line for line in run_log.read(folder / "log.jsonl") if line["kind"] == "step"]


def weights(model):
    return load_file(model / "model.safetensors")


def test_stage_1_lowers_the_loss_and_is_an_ordinary_single_decoder_model(stage1):
    found = steps_of(stage1.parent)
    assert [line["step"] for line in found] == [1, 2, 3, 4] and found[-1]["loss"] < found[0]["loss"]
    loaded = PolyReply.from_pretrained(stage1)
    assert loaded.num_decoders == 1 and len(loaded.reply("Hello!", max_new_tokens=4)) == 1
    assert len(loaded.reply("Hello!", decode="beam", k=3, max_new_tokens=4)) == 3


@pytest.mark.parametrize("method", [*METHODS, "relaxed-wta", "annealed-wta"])
def test_each_method_trains_saves_loads_and_replies(method, corpus, stage1, tmp_path):
    out = tmp_path / "run"
    draws = method == "eqhard-em"
    model = train(recipe(corpus, out, f"method={method}", f"model.backbone={stage1}", f"plots={draws}"))
    loaded = PolyReply.from_pretrained(model)
    assert len(loaded.reply("Hello!", max_new_tokens=5)) == K
    usage = json.loads((out / "usage.json").read_text())
    assert usage["method"] == method and sum(usage["share"]) == pytest.approx(1, abs=1e-4)
    if method.startswith(("eqhard", "eqrandom-dynamic", "eqsoft")):
        assert usage["share"] == pytest.approx([1 / K] * K, abs=1e-5)
    assert [(out / name).is_file() for name in ("usage.png", "assignment.png")] == [draws] * 2
    assert not draws or min((out / name).stat().st_size for name in ("usage.png", "assignment.png")) > 1000
    before, after = weights(stage1), weights(model)
    shared = [name for name in before if name in after]
    assert shared and all(torch.equal(before[name], after[name]) for name in shared), "stage 2 changed shared weights"
    assert method in (model / "README.md").read_text()


@pytest.mark.parametrize(
    "settings",
    [
        ["em.e_step_scope=corpus", "em.draw_by=contexts"],
        ["em.freeze_shared=false"],
        ["model.prior=learned", "em.cost=nll", "em.likelihood=mean"],
        ["model.architecture=multi-decoder", "method=hard-em"],
        ["em.e_step_max_tokens=3", "em.e_step_dropout=true", "optimizer.clip_norm=0.5", "optimizer.schedule=linear"],
        ["model.adapter_init=linear", "model.adapter_sites=layer"],
        ["precision=bfloat16"],
        ["model.architecture=multi-decoder", "model.copy_embeddings=true", "method=soft-em"],
    ],
    ids=lambda settings: settings[0],
)
def test_options_train_too(settings, corpus, stage1, tmp_path):
    model = train(recipe(corpus, tmp_path / "run", "method=eqhard-em", f"model.backbone={stage1}", *settings))
    assert len(PolyReply.from_pretrained(model).reply("Hello!", max_new_tokens=3)) == K


@pytest.mark.parametrize(
    "settings",
    [
        ["method=mle", "model.backbone=mini"],
        ["method=adalabel", "model.backbone=mini"],
        ["method=dialogbert", "model.backbone=mini", "optimizer.weight_decay=0.1"],
        ["method=eqhard-em", "em.draw_by=contexts"],
        ["method=soft-em", "model.prior=learned", "em.e_step_dropout=true"],
        ["method=eqsoft-em", "em.e_step_scope=corpus", "em.anneal_steps=5"],
        ["method=hard-em", "model.architecture=multi-decoder", "validation.patience=3"],
    ],
    ids=lambda settings: settings[0].removeprefix("method="),
)
def test_a_stopped_run_resumes_to_the_same_result(settings, corpus, stage1, tmp_path, monkeypatch):
    settings = settings if "model.backbone=mini" in settings else [*settings, f"model.backbone={stage1}"]
    whole = train(recipe(corpus, tmp_path / "whole", "steps=6", *settings))
    stopped = recipe(corpus, tmp_path / "stopped", "steps=6", *settings)
    with Run(stopped) as run, pytest.raises(_PulledPlug):
        monkeypatch.setattr("polyreply.training.loop.em_step", lambda em: _fail_at(em, 5))  # after step 4's checkpoint
        run.loop()
    monkeypatch.undo()
    model = train(stopped, resume=True)
    ours, expected = weights(model), weights(whole)
    assert ours.keys() == expected.keys() and all(torch.equal(ours[name], expected[name]) for name in ours)
    assert [line["step"] for line in steps_of(model.parent)] == [1, 2, 3, 4, 5, 6]
    assert (model.parent / "log.jsonl").read_bytes() == (whole.parent / "log.jsonl").read_bytes()
    if "model.backbone=mini" not in settings:
        assert (model.parent / "usage.json").read_bytes() == (whole.parent / "usage.json").read_bytes()


class _PulledPlug(Exception):
    pass


def _fail_at(em, step):
    if em.step + 1 == step:
        raise _PulledPlug
    return em_step(em)


def test_a_torn_checkpoint_is_passed_over(corpus, stage1, tmp_path):
    made = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}")
    train(made)
    newest = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    whole = (newest / "weights.safetensors").read_bytes()
    (newest / "weights.safetensors").write_bytes(whole[: len(whole) // 2])
    told = []
    view = Callback()
    view.on_message = told.append
    with Run(made, callbacks=[view], resume=True) as run:
        assert run.step == 2
    assert any("weights.safetensors" in line and "unusable-step-" in line for line in told)


def test_resuming_with_another_recipe_is_refused(corpus, stage1, tmp_path):
    train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}"))
    with pytest.raises(PolyReplyError, match=r"em\.likelihood was 'sum' and is 'mean'"):
        train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "em.likelihood=mean"), resume=True)
    with pytest.raises(PolyReplyError, match=r"optimizer\.learning_rate was 0\.001 and is 0\.5;.*--allow-changes"):
        train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "optimizer.learning_rate=0.5"), resume=True)
    with pytest.raises(PolyReplyError, match=r"seed was 0 and is 1"):
        changed = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "seed=1")
        train(changed, resume=True, allow_changes=True)
    longer = train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "steps=5"), resume=True)
    assert [line["step"] for line in steps_of(longer.parent)] == [1, 2, 3, 4, 5]


def test_a_folder_in_use_is_not_written_to(corpus, stage1, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    with pytest.raises(PolyReplyError, match="not empty"):
        train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}"))


def test_two_runs_do_not_share_a_folder(corpus, stage1, tmp_path):
    made = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}")
    with Run(made), pytest.raises(PolyReplyError, match=rf"process {os.getpid()} on "):
        train(made, resume=True)
    train(made, resume=True)  # nothing had been saved yet, so it begins at the beginning


def test_a_loss_that_is_no_number_is_an_error_and_the_last_checkpoint_stays(corpus, stage1, tmp_path):
    made = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "method=eqrandom-dynamic")
    with Run(made) as run, pytest.raises(PolyReplyError, match=r"NaN|nan|finite"):
        run.save()
        with torch.no_grad():
            next(run.em.model.decoder_parameters()).fill_(torch.nan)
        run.loop()
    with Run(made, resume=True) as resumed:
        assert resumed.step == 0 and all(p.isfinite().all() for p in resumed.em.model.parameters())


def test_a_gradient_that_is_no_number_changes_nothing(corpus, stage1, tmp_path):
    made = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}")
    with Run(made) as run:
        model = run.em.model
        before = [p.clone() for p in model.parameters()]
        handle = next(model.decoder_parameters()).register_hook(lambda gradient: gradient * torch.inf)
        with pytest.raises(DivergedError, match=r"(nan|inf) at step 1"):
            run.loop()
        handle.remove()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    calmer = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "optimizer.clip_norm=1.0")
    assert [line["step"] for line in steps_of(train(calmer, resume=True, allow_changes=True).parent)] == [1, 2, 3, 4]


def test_a_run_that_was_made_longer_stays_longer(corpus, stage1, tmp_path):
    train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "steps=2"))
    train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "steps=3"), resume=True)
    assert load_recipe(TrainRecipe, tmp_path / "run" / "recipe.yaml").steps == 3


def test_an_e_step_over_the_corpus_is_logged_like_any_other(corpus, stage1, tmp_path):
    model = train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "em.e_step_scope=corpus"))
    steps = steps_of(model.parent)
    times = [line for line in run_log.read(model.parent / "timings.jsonl") if line["kind"] == "step"]
    assert times[0]["e_seconds"] > 0 and times[0]["assign_seconds"] > 0 and times[1]["e_seconds"] == 0
    assert all(line["max_posterior"] and line["hoeffding"] and len(line["weight_std_K"]) == K for line in steps)


def test_a_tracker_that_is_not_there_is_one_clear_line(corpus, stage1, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PolyReplyError, match="tensorboard"):
        train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "trackers=[tensorboard]"))
    assert not (tmp_path / "run").exists()


def test_a_run_stops_when_validation_no_longer_improves_and_keeps_its_best(corpus, stage1, tmp_path, monkeypatch):
    nlls = iter([3.0, 2.0, 2.5, 2.1, 1.0, 0.5, 0.4])
    monkeypatch.setattr(Validation, "measure", lambda self: ValidationRecord(self.em.step, next(nlls), {}, [], 0.0))
    settings = ["validation.patience=2", "validation.every=1", "checkpoint.keep=5", "checkpoint.every=1", "steps=50"]
    model = train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", *settings))
    assert [line["step"] for line in steps_of(model.parent)] == [1, 2, 3, 4]
    assert (model.parent / "checkpoints" / "step-00000004").is_dir()
    best = load_file(model.parent / "checkpoints" / "step-00000002" / "weights.safetensors")
    assert best and all(torch.equal(weights(model)[name], best[name]) for name in best)


def test_ctrl_c_saves_and_says_how_to_go_on(corpus, stage1, tmp_path):
    made = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "checkpoint.every=100")

    class Interrupting(Callback):
        def on_step(self, record):
            if record.step == 3:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(TrainingError, match=r"after step 3.*polyreply train --resume"):
        train(made, callbacks=[Interrupting()])
    with Run(made, resume=True) as run:
        assert run.step == 3
    assert [line["step"] for line in steps_of(train(made, resume=True).parent)] == [1, 2, 3, 4]


def test_ctrl_c_while_the_model_is_made_says_how_to_go_on(corpus, stage1, tmp_path, monkeypatch):
    made = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}")
    original = RunState.load_best

    def interrupted(self, folder):
        signal.raise_signal(signal.SIGINT)
        return original(self, folder)

    monkeypatch.setattr(RunState, "load_best", interrupted)
    with pytest.raises(TrainingError, match=r"after step 4.*polyreply train --resume"):
        train(made)
    monkeypatch.undo()
    assert not (tmp_path / "run" / "model").exists() and train(made, resume=True).is_dir()


@pytest.mark.parametrize("begun, said", [(False, "start the command again"), (True, "polyreply train --resume")])
def test_ctrl_c_before_the_first_step_says_how_to_go_on(begun, said, corpus, stage1, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    if begun:
        train(recipe(corpus, out, f"model.backbone={stage1}", "steps=1"))

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("polyreply.training.loop.prepare_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        if begun:
            train_command([], resume=out)
        else:
            train_command([f"data={corpus}", f"out={out}", f"model.backbone={stage1}"])
    assert said in capsys.readouterr().err and out.exists() == begun


def test_a_run_that_an_alarm_has_stopped_has_done_all_of_its_step(corpus, stage1, tmp_path):
    alarms = "alarms={grace: 0, patience: 2, synchronous_below: 0.99, window: 2}"
    settings = [f"model.backbone={stage1}", "method=soft-em", alarms]
    whole = train(recipe(corpus, tmp_path / "whole", *settings)).parent
    with pytest.raises(PolyReplyError, match="stopped: synchronous training at step 2"):
        train(recipe(corpus, tmp_path / "run", *settings, "alarms.stop=true"))
    train(recipe(corpus, tmp_path / "run", *settings), resume=True)
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == (whole / "log.jsonl").read_bytes()


def test_how_to_go_on_names_the_launcher_if_there_was_one(monkeypatch):
    assert resume_command("runs/x") == "polyreply train --resume runs/x"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert resume_command("runs/x") == "torchrun … -m polyreply train --resume runs/x"


def test_a_launch_with_fsdp_is_told_the_setting_that_shards(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(TrainingError, match=r"found ACCELERATE_USE_FSDP=true; .*model\.shard=true"):
        train(recipe(corpus, tmp_path / "run", "model.backbone=mini"))
    assert not (tmp_path / "run").exists()


def test_bench_prefix_says_what_looking_at_beginnings_changes(corpus, stage1, tmp_path):
    model = train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "optimizer.learning_rate=0.05"))
    figures = bench_prefix(str(model), corpus, 60, silent)
    agreement = [figures[f"prefix.t{length}_agreement"] for length in LENGTHS]
    assert agreement[0] < 1 and agreement[-1] > agreement[0] and figures["prefix.t2_time_saved"] < 1


def test_contradictions_are_one_clear_line(corpus, tmp_path, polyreply_here):
    with pytest.raises(RecipeError, match=r"e_step_size 640 .* 7 .*637"):
        load_recipe(TrainRecipe, None, ["data=x", "out=y", "model.num_decoders=7"])
    with pytest.raises(RecipeError, match=r"adapter_skip.*linear"):
        load_recipe(TrainRecipe, None, ["data=x", "out=y", "model.adapter_skip=false"])
    missing = polyreply_here("train", f"data={tmp_path / 'nowhere'}", f"out={tmp_path / 'run'}")
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1 and "nowhere" in missing.stderr
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_cannot_read_the_data_is_one_clear_line(corpus, tmp_path):
    words = Tokenizer(WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2, "you": 3}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(tmp_path / "words")
    with pytest.raises(DataError, match=r"train.jsonl: expected text that .* can read, found [89]\d% unknown tokens"):
        train(
            recipe(corpus, tmp_path / "run", "method=mle", "model.backbone=mini", f"model.tokenizer={tmp_path}/words")
        )


def test_the_resolved_recipe_reads_back(corpus, tmp_path):
    made = recipe(corpus, tmp_path, "trackers=[tensorboard]", "em.e_step_max_tokens=4")
    save_recipe(made, tmp_path / "recipe.yaml")
    assert load_recipe(TrainRecipe, tmp_path / "recipe.yaml") == made
