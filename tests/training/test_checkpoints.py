"""What lies in a run folder is trusted only if it is this run's and whole; what is not is put aside, never removed."""

import errno
import hashlib
import json
import shutil

import pytest
import yaml
from runs import recipe, train
from safetensors.torch import load_file, save_file

from polyreply.config import load_recipe
from polyreply.em.em_step import em_step
from polyreply.errors import PolyReplyError
from polyreply.training import run_log
from polyreply.training.callbacks import Callback
from polyreply.training.loop import Run
from polyreply.training.recipe import TrainRecipe


@pytest.fixture(scope="module")
def base(corpus, stage1, tmp_path_factory):
    """The folder of a finished run of four steps, with checkpoints of steps 2 and 4."""
    return train(recipe(corpus, tmp_path_factory.mktemp("base") / "run", f"model.backbone={stage1}")).parent


@pytest.fixture(scope="module")
def other(corpus, stage1, tmp_path_factory):
    """One of the same model, data and seed that learns in another way, for six steps."""
    settings = [f"model.backbone={stage1}", "method=hard-em", "steps=6"]
    return train(recipe(corpus, tmp_path_factory.mktemp("other") / "run", *settings)).parent


@pytest.fixture
def run(base, tmp_path):
    """A copy of the run, to be damaged."""
    return shutil.copytree(base, tmp_path / "run")


class Told(Callback):
    def __init__(self):
        self.lines = []

    def on_message(self, text):
        self.lines.append(text)


def go_on(run, *settings, **how):
    """Resumes; what was said on the way."""
    view = Told()
    train(
        load_recipe(TrainRecipe, run / "recipe.yaml", [f"out={run}", *settings]), resume=True, callbacks=[view], **how
    )
    return "\n".join(view.lines)


def resumed_at(run, *settings):
    made = load_recipe(TrainRecipe, run / "recipe.yaml", [f"out={run}", *settings])
    with Run(made, resume=True) as resumed:
        return resumed.step


def names(run):
    return {path.name for path in (run / "checkpoints").iterdir()}


def steps_of(run):
    return [line["step"] for line in run_log.read(run / "log.jsonl") if line["kind"] == "step"]


def cut(path):
    path.write_bytes(path.read_bytes()[:50])


def test_a_torn_checkpoint_between_the_steps_does_not_stop_the_next_save(run):
    newest = (run / "checkpoints" / "step-00000004").rename(run / "checkpoints" / "step-00000005")
    cut(newest / "state.json")
    assert "step-00000005 cannot be used (state.json has changed" in go_on(run, "steps=8")
    assert {"unusable-step-00000005", "step-00000006", "step-00000008"} <= names(run)
    assert steps_of(run) == list(range(1, 9))


def test_a_newer_checkpoint_that_cannot_be_used_costs_no_good_one(run):
    strange = shutil.copytree(run / "checkpoints" / "step-00000004", run / "checkpoints" / "step-00009999")
    (strange / "digest.json").write_text("{}")
    assert "('weights.safetensors' is missing)" in go_on(run, "steps=8", "checkpoint.keep=1")
    assert "step-00000008" in names(run) and "unusable-step-00009999" in names(run)
    assert go_on(run, "steps=10", "checkpoint.keep=1") and steps_of(run) == list(range(1, 11))


def test_one_that_appears_while_the_run_goes_on_costs_none_either(run):
    made = load_recipe(TrainRecipe, run / "recipe.yaml", [f"out={run}", "steps=6", "checkpoint.keep=1"])
    with Run(made, resume=True) as resumed:
        (run / "checkpoints" / "step-00009999").mkdir()
        (run / "checkpoints" / "step-notes").mkdir()
        resumed.loop()
    assert {"step-00000006", "step-00009999", "step-notes"} <= names(run) and "step-00000004" not in names(run)


def test_a_checkpoint_of_another_run_is_passed_over(run, other):
    shutil.copytree(other / "checkpoints" / "step-00000006", run / "checkpoints" / "step-00000006")
    (run / "checkpoints" / "step-00000007").symlink_to("nowhere")
    told = go_on(run, "steps=8")
    assert "step-00000006 cannot be used (it belongs to another run: expected the id" in told
    assert "unusable-step-00000007" in told and steps_of(run) == list(range(1, 9))


def test_a_checkpoint_whose_sizes_do_not_fit_is_passed_over(run):
    path = run / "checkpoints" / "step-00000004"
    known = json.loads((path / "state.json").read_text())
    known["state"]["em"]["stream"]["seed"] = 5
    _rewrite(path, known)
    assert resumed_at(run) == 2


def _rewrite(path, known):
    """As if it had been written that way."""
    (path / "state.json").write_text(json.dumps(known))
    digest = json.loads((path / "digest.json").read_text())
    digest["state.json"] = hashlib.blake2b((path / "state.json").read_bytes()).hexdigest()
    (path / "digest.json").write_text(json.dumps(digest))


def test_a_torn_best_leads_to_the_checkpoint_before_it(run):
    best = json.loads((run / "checkpoints" / "step-00000004" / "state.json").read_text())["state"]["best"]
    [name] = best
    assert name == "best-00000004.safetensors", "the last validation is the best one of this run"
    cut(run / "checkpoints" / name)
    assert f"step-00000004 cannot be used ({name} has changed" in go_on(run)
    assert steps_of(run) == [1, 2, 3, 4]


def test_frozen_weights_of_another_run_are_a_clear_line(run):
    path = run / "checkpoints" / "frozen.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(path).items()}, path)
    before = names(run)
    with pytest.raises(PolyReplyError, match=r"step-00000004 cannot be used \(frozen.safetensors"):
        go_on(run, "steps=6")
    assert names(run) == before, "all can still be mended"


def test_a_run_that_has_lost_its_id_is_a_clear_line(run):
    assert set(json.loads((run / "run.json").read_text())) == {"id"}
    (run / "run.json").unlink()
    with pytest.raises(PolyReplyError, match=r"run.json: expected the id of the run"):
        go_on(run)


def test_no_file_that_has_to_repeat_holds_the_id(run):
    given = json.loads((run / "run.json").read_text())["id"]
    found = [path for path in run.rglob("*") if path.is_file() and given.encode() in path.read_bytes()]
    assert {path.name for path in found} == {"run.json", "state.json"}


@pytest.mark.parametrize("change", ["em.freeze_shared=false", "em.e_step_size=15", "optimizer.batch_rows=10"])
def test_what_a_checkpoint_depends_on_cannot_be_changed(change, run):
    before = (run / "recipe.yaml").read_bytes()
    with pytest.raises(PolyReplyError, match=r"was .* and is .*start a new run"):
        go_on(run, change, allow_changes=True)
    assert (run / "recipe.yaml").read_bytes() == before


def test_the_recipe_of_a_run_that_cannot_go_on_stays(run):
    before = (run / "recipe.yaml").read_bytes()
    for path in (run / "checkpoints").glob("step-*"):
        cut(path / "state.json")
    with pytest.raises(PolyReplyError, match="cannot be used"):
        go_on(run, "steps=6", "optimizer.learning_rate=0.1", allow_changes=True)
    assert (run / "recipe.yaml").read_bytes() == before


def test_an_e_step_over_draws_forgets_that_over_the_corpus(corpus, stage1, tmp_path):
    made = ["em.e_step_scope=corpus", f"model.backbone={stage1}"]
    train(recipe(corpus, tmp_path / "run", *made))
    changed = recipe(corpus, tmp_path / "run", *made, "em.e_step_scope=draw", "steps=8")
    with Run(changed, resume=True, allow_changes=True) as resumed:
        assert all(em_step(resumed.em).e_seconds > 0 for _ in range(4))


@pytest.mark.parametrize("kept, found", [(None, "none"), (4, "2")])
def test_a_log_that_is_behind_the_checkpoint_is_a_clear_line(kept, found, run):
    log = run / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.unlink() if kept is None else log.write_bytes(b"".join(lines[:kept]))
    with pytest.raises(PolyReplyError, match=rf"log.jsonl: expected all 4 steps of the checkpoint, found {found};"):
        go_on(run, "steps=6")


@pytest.mark.parametrize("left", ["log.jsonl", "model"])
def test_a_run_that_has_lost_its_checkpoints_does_not_begin_anew(left, run):
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree(run / "model") if left == "log.jsonl" else (run / "log.jsonl").unlink()
    with pytest.raises(PolyReplyError, match=r"expected checkpoints in .*checkpoints"):
        go_on(run)
    assert (run / left).exists()


def test_fewer_steps_than_are_done_are_refused(run):
    with pytest.raises(PolyReplyError, match=r"expected steps=4 or more, because .* found steps=2"):
        go_on(run, "steps=2")
    assert yaml.safe_load((run / "recipe.yaml").read_text())["steps"] == 4


def test_data_and_backbone_may_have_moved_but_not_changed(run, corpus, stage1, tmp_path):
    data, backbone = shutil.copytree(corpus, tmp_path / "moved"), shutil.copytree(stage1, tmp_path / "there")
    assert resumed_at(run, f"data={data}", f"model.backbone={backbone}") == 4
    lines = (data / "train.jsonl").read_text().splitlines()
    (data / "train.jsonl").write_text("\n".join(lines[:-5]))
    with pytest.raises(PolyReplyError, match=r"another run.*training data"):
        resumed_at(run)


def test_likelihoods_of_other_samples_are_not_compared(run):
    made = load_recipe(
        TrainRecipe, run / "recipe.yaml", [f"out={run}", "validation.samples=3", "validation.patience=1"]
    )
    with Run(made, resume=True) as resumed:
        assert resumed.state.best_nll == float("inf") and resumed.state.best and not resumed.is_over()
    assert go_on(run, "validation.samples=3", "steps=6")


def test_a_disk_without_locks_is_used_without_one(corpus, stage1, tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    assert train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "steps=1")).is_dir()


def test_a_run_killed_before_it_had_an_id_goes_on(corpus, stage1, tmp_path):
    made = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "steps=1")
    with Run(made):
        pass
    (tmp_path / "run" / "run.json").unlink()
    assert train(made, resume=True).is_dir()
