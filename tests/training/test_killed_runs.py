"""Killed at any moment, a run goes on to the very bytes of one that was not."""

import json
import random
from functools import cache

import killed
import pytest
from runs import SMALL

from polyreply.training import run_log

RUNS = {
    "prices, learned prior, early stopping": [
        "method=eqhard-em",
        "model.prior=learned",
        "steps=30",
        "validation.patience=1",
        "optimizer.learning_rate=10",
    ],
    "annealing": ["method=eqsoft-em", "em.final_temperature=0.1", "em.anneal_steps=4"],
    "stage 1": ["method=mle", "model.backbone=mini"],
    "an E-step over the corpus, full decoders": [
        "method=eqsoft-em",
        "em.e_step_scope=corpus",
        "model.architecture=multi-decoder",
    ],
    "shared weights": ["method=hard-em", "em.freeze_shared=false"],
}
SETTINGS = [
    *SMALL,
    "out=run",
    "steps=5",
    "optimizer.learning_rate=0.05",
    "validation.every=2",
    "checkpoint.every=3",
]
FILES = ("files.py", "fsync", "rename", "replace")
PLACES = {  # where a run is killed: in calls of which files
    "a checkpoint": (*FILES, "training/checkpoint.py", "training/state.py"),
    "a validation": ("training/validation.py", "metrics/", "decoding/"),
    "an epoch": ("em/", "models/score.py", "data/batches.py"),
    "anywhere": ("",),
    "a step or a checkpoint": (*FILES, "training/", "em/"),
}
FIRST, SECOND, *REST = RUNS
CASES = [(run, place) for run in (FIRST, SECOND) for place in list(PLACES)[:4]]
CASES += [(run, "a step or a checkpoint") for run in REST]
QUICK = [(FIRST, "a checkpoint"), (REST[0], "a step or a checkpoint")]
"""The others are slow tests."""


@pytest.fixture(scope="module")
def token_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(scope="module")
def whole(corpus, stage1, token_cache, tmp_path_factory):
    """The settings of a run, the moments at which it can be killed, and its folder when it is not."""

    @cache
    def of(name):
        warm, folder = tmp_path_factory.mktemp("warm"), tmp_path_factory.mktemp("whole")
        settings = [*SETTINGS, f"data={corpus}", f"model.backbone={stage1}", *RUNS[name]]
        assert killed.run(warm, [*settings, "steps=1"], token_cache)  # from now on the tokens are in the cache
        assert killed.run(folder, settings, token_cache, moments=str(folder / "moments.json"))
        assert len(run_log.read(folder / "run" / "log.jsonl")) < 20  # also the one that may take 30 steps
        return settings, json.loads((folder / "moments.json").read_text()), folder / "run"

    return of


@pytest.mark.parametrize("name, place", QUICK)
def test_a_run_killed_in_the_middle_of(name, place, whole, token_cache, tmp_path):
    _kill_and_compare(name, place, 1, whole, token_cache, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name, place", CASES)
def test_a_run_killed_many_times_in_the_middle_of(name, place, whole, token_cache, tmp_path):
    _kill_and_compare(name, place, 8, whole, token_cache, tmp_path)


def _kill_and_compare(name, place, times, whole, token_cache, tmp_path):
    settings, moments, expected = whole(name)
    matching = [number for number, name in enumerate(moments) if name.startswith(PLACES[place])]
    draw = random.Random(place)
    for number, moment in enumerate(draw.sample(matching, times)):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert not killed.run(folder, settings, token_cache, kill_at=moment)
        if number == 0:  # and once more, after it was resumed
            _resume(folder, settings, token_cache, kill_at=draw.randrange(len(moments) // 2))
        assert _resume(folder, settings, token_cache)
        assert _files(folder / "run") == _files(expected), f"killed at {moment}, in {moments[moment]}"


def _resume(folder, settings, token_cache, **how):
    """As a user would: --resume if there is a run, else the same command again."""
    return killed.run(folder, settings, token_cache, resume=(folder / "run" / "recipe.yaml").exists(), **how)


def _files(run):
    """What must not differ: the model, what its decoders were trained on, and the log."""
    names = sorted(path.name for path in (run / "model").iterdir())
    assert {"model.safetensors", "config.json", "README.md"} <= set(names)
    assert not list(run.glob("**/*.tmp"))
    steps = [
        json.loads(line)["step"] for line in (run / "log.jsonl").read_text().splitlines() if '"kind":"step"' in line
    ]
    assert steps == list(range(1, len(steps) + 1))
    paths = [*(run / "model" / name for name in names), run / "usage.json", run / "log.jsonl"]
    return {path.name: path.read_bytes() for path in paths if path.exists()}
