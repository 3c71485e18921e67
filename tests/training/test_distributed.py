"""Two processes train what one would: the same assignments and, in float64 without dropout, the same weights."""

import json
import shutil
from datetime import timedelta

import numpy as np
import pytest
import team
import torch
from accelerate import Accelerator
from runs import METHODS, SMALL, K, recipe, train, write_corpus
from safetensors.torch import load_file

from polyreply.distributed import MainFailedError
from polyreply.training import run_log
from polyreply.training.loop import Run

EXACT = ["precision=float64", "steps=3", "optimizer.learning_rate=0.02", "validation.contexts=0"]
VARIANTS = {
    "mle": ["method=mle", "model.backbone=mini", "model.mini.dropout=0.0"],
    **{f"{method}, adapters": [f"method={method}"] for method in METHODS},
    "eqhard-em, decoders": ["method=eqhard-em", "model.architecture=multi-decoder"],
    "soft-em, decoders": ["method=soft-em", "model.architecture=multi-decoder"],
    "hard-em with starved decoders": ["method=hard-em", "model.adapter_init=linear", "model.num_decoders=6"],
    "hard-em with starved full decoders": [
        "method=hard-em",
        "model.architecture=multi-decoder",
        "model.num_decoders=6",
        "optimizer.learning_rate=0.2",
    ],
    "a last batch that does not divide": ["method=eqhard-em", "em.e_step_size=87", "validation.contexts=3"],
    "a last batch that leaves a process empty": ["method=soft-em", "em.e_step_size=90", "model.prior=learned"],
    "learned prior, shared weights": ["method=soft-em", "model.prior=learned", "em.freeze_shared=false"],
    "an E-step over the corpus": ["method=eqhard-em", "em.e_step_scope=corpus"],
    "clipped": ["method=eqsoft-em", "optimizer.clip_norm=0.01"],
    "two passes in parts": ["method=eqhard-em", "em.m_step_parts=2", "em.m_step_passes=2", "steps=2"],
}
DROPOUT = ["method=eqhard-em", "steps=3"]


@pytest.fixture(scope="module")
def calm(corpus, tmp_path_factory):
    """A stage 1 without dropout."""
    settings = ["method=mle", "model.backbone=mini", "model.mini.dropout=0.0", "optimizer.learning_rate=0.02"]
    return train(recipe(corpus, tmp_path_factory.mktemp("calm") / "stage1", *settings))


def settings_of(corpus, out, backbone, *more):
    given = [] if "model.backbone=mini" in more else [f"model.backbone={backbone}"]
    return [*SMALL, f"data={corpus}", f"out={out}", *given, *more]


@pytest.fixture(scope="module")
def pairs(corpus, stage1, calm, tmp_path_factory):
    """For each variant the run folder of two processes and that of one."""
    folder = tmp_path_factory.mktemp("pairs")
    odd = write_corpus(tmp_path_factory.mktemp("odd"), rows=91)
    exact = {name: [*EXACT, *more] for name, more in VARIANTS.items()}
    exact["a last batch that leaves a process empty"].append(f"data={odd}")
    two = {name: settings_of(corpus, folder / f"two-{i}", calm, *more) for i, (name, more) in enumerate(exact.items())}
    twice = {n: settings_of(corpus, folder / f"dropout-{n}", stage1, *DROPOUT) for n in (1, 2)}
    jobs = [{"settings": settings} for settings in (*two.values(), *twice.values())]
    done = team.launch(jobs, folder)
    assert done.returncode == 0, done.stderr[-2000:]
    one = {n: settings_of(corpus, folder / f"one-{i}", calm, *more) for i, (n, more) in enumerate(exact.items())}
    found = {name: (folder / f"two-{i}", team.run(one[name])) for i, name in enumerate(exact)}
    return {**found, "dropout": tuple(folder / f"dropout-{n}" for n in (1, 2))}


@pytest.mark.parametrize("name", VARIANTS)
def test_two_processes_train_what_one_would(name, pairs):
    two, one = pairs[name]
    seen = [np.load(team.assignments_file(*place)) for place in ((two, 0), (two, 1), (one, 0))]
    assert len({tuple(found.files) for found in seen}) == 1
    for step in seen[0].files:
        np.testing.assert_array_equal(seen[0][step], seen[1][step])
        np.testing.assert_allclose(seen[0][step], seen[2][step], rtol=0, atol=1e-9)
    ours, expected = (load_file(folder / "model" / "model.safetensors") for folder in (two, one))
    assert ours.keys() == expected.keys()
    for weight in expected:
        torch.testing.assert_close(ours[weight], expected[weight], rtol=1e-5, atol=1e-7)
    lines = [run_log.read(folder / "log.jsonl") for folder in (two, one)]
    assert [line["step"] for line in lines[0]] == [line["step"] for line in lines[1]]
    np.testing.assert_allclose(*([line.get("loss", 0) for line in log] for log in lines), rtol=1e-5)


def test_decoders_did_starve_and_a_batch_did_not_divide(pairs):
    for name in ("hard-em with starved decoders", "hard-em with starved full decoders"):
        steps = [line for line in run_log.read(pairs[name][0] / "log.jsonl") if line["kind"] == "step"]
        assert any(0 in line["usage_K"] for line in steps)
    for name, least in (("a last batch that does not divide", 3), ("a last batch that leaves a process empty", 1)):
        assert least in [line.get("samples") for line in run_log.read(pairs[name][0] / "log.jsonl")]


def test_with_dropout_sizes_are_equal_and_runs_repeat(pairs):
    first, second = pairs["dropout"]
    assert (first / "log.jsonl").read_bytes() == (second / "log.jsonl").read_bytes()
    names = ("model/model.safetensors", "usage.json")
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
    assert json.loads((first / "usage.json").read_text())["share"] == pytest.approx([1 / K] * K)


@pytest.mark.parametrize("before, after", [(2, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_processes(before, after, pairs, corpus, calm, tmp_path):
    whole = pairs["eqhard-em, adapters"][1]
    settings = settings_of(corpus, tmp_path / "run", calm, *EXACT, "method=eqhard-em")
    for number, job in (
        (before, {"settings": [*settings, "steps=2"]}),
        (after, {"settings": settings, "resume": True}),
    ):
        if number == 1:
            team.run(**job)
        else:
            done = team.launch([job], tmp_path, number)
            assert done.returncode == 0, done.stderr[-2000:]
    ours, expected = (load_file(folder / "model" / "model.safetensors") for folder in (tmp_path / "run", whole))
    for weight in expected:
        torch.testing.assert_close(ours[weight], expected[weight], rtol=1e-5, atol=1e-7)


def test_processes_that_do_not_see_the_same_files_and_one_whose_disk_is_full_end_with_a_clear_line(
    corpus, stage1, tmp_path
):
    names = ("new", "resumed", "longer", "full")
    settings = {name: settings_of(corpus, name, stage1) for name in names}
    folders = [tmp_path / f"apart.{rank}" for rank in range(2)]
    for folder in folders:
        folder.mkdir()
    made = train(recipe(corpus, folders[0] / "resumed", f"model.backbone={stage1}")).parent
    shutil.copytree(made, folders[1] / "resumed")
    shutil.rmtree(folders[1] / "resumed" / "checkpoints")
    for folder in folders:
        shutil.copytree(made, folder / "longer")
    jobs = [
        {"settings": settings["new"], "apart": True},
        {"settings": settings["resumed"], "apart": True, "resume": True},
        {"settings": [*settings["longer"], "steps=6"], "apart": True, "resume": True},
        {"settings": settings["full"], "full": 3},
    ]
    done = team.launch(jobs, tmp_path, may_fail=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("training on 2 processes") == 4
    for name, found in (("new", "run.json"), ("resumed", "digest.json"), ("longer", "best-00000006.safetensors")):
        said = [(folder / f"{name}.{rank}.error").read_text() for rank, folder in enumerate(folders)]
        assert said[0] == said[1] and "`out` has to be on a disk that all processes share" in said[0]
        assert "process 1 found: " in said[0] and found in said[0] and "\n" not in said[0]
    assert not (folders[0] / "new").exists()
    said = [(tmp_path / f"full.{rank}.error").read_text() for rank in range(2)]
    assert "File too large" in said[0] and "--resume" in said[0]
    assert said[1] == str(MainFailedError())


@pytest.mark.parametrize("rank, lines", [(0, 1), (1, 0)])
def test_a_mistake_that_all_find_is_told_once(rank, lines, polyreply_here, tmp_path):
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    found = polyreply_here("train", "data=x", f"out={tmp_path / 'run'}", "stepss=3", env=place)
    assert found.returncode == 2 and found.stderr.count("\n") == lines


def test_processes_wait_for_a_main_one_that_prepares_for_hours(corpus, tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr("polyreply.training.loop.Accelerator", lambda **options: given.update(options) or Accelerator())
    with Run(recipe(corpus, tmp_path / "run", "method=mle", "model.backbone=mini")):
        assert [handler.timeout >= timedelta(hours=12) for handler in given["kwargs_handlers"]] == [True]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_ends_the_run_with_a_clear_line(rank, corpus, stage1, tmp_path):
    settings = settings_of(corpus, tmp_path / "run", stage1, "steps=400", "checkpoint.every=1")
    done = team.launch([{"settings": settings, "die": [rank, 3]}], tmp_path)
    assert done.returncode != 0
    assert f"process {1 - rank} lost the connection" in done.stderr and "--resume" in done.stderr
    with Run(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "steps=400"), resume=True) as run:
        assert run.step == 3
