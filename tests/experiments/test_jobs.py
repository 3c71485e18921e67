"""Several tasks at once: the same results as one after the other, whatever fails, diverges or is killed."""

import fcntl
import multiprocessing
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import runs
from typer.testing import CliRunner

from polyreply.cli.main import app
from polyreply.errors import DivergedError, PolyReplyError
from polyreply.experiments.cache import Cache
from polyreply.experiments.jobs import ready_tasks, run_jobs
from polyreply.experiments.run import Request, open_systems, plan_for, reproduce
from polyreply.experiments.variants import BEAM, EQHARD, NUCLEUS

SMALL = ("seeds=[0]", "stage_1.steps=10", "rates.adapters=[1e-2,3e-2]", "rates.select=mixture_nll", "contexts=4")
NAMES = ["table-main", "table-efficiency"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("talk"), rows=40)


def timeless(findings):
    """Without how long trainings took."""
    numbers = {name: value for name, value in findings.numbers.items() if name != "training_minutes"}
    return replace(
        findings, numbers=numbers, remarks=[line for line in findings.remarks if not line.startswith("Minutes")]
    )


def test_two_jobs_give_what_one_gives_even_after_one_was_killed(data, tmp_path):
    alone, together = (Request(str(data), "smoke", tmp_path / name, SMALL) for name in ("alone", "together"))
    killed, lines = [], []

    def kill(line, share):
        if line.startswith("training-stage1") and "starts" in line:
            for process in multiprocessing.active_children():
                process.kill()
                killed.append(process.pid)

    with pytest.raises(PolyReplyError, match=r"training-stage1-.* --jobs"):
        run_jobs(NAMES, together, 2, kill)
    systems = open_systems(together, is_plan=True)
    assert killed and systems.data.splits.is_done and not systems.stage_1().is_done

    run_jobs(NAMES, together, 2, lambda line, share: lines.append(line))
    left = [task.label for task in plan_for(systems, NAMES).missing]
    assert left == ["speed"], "what measures time waits until nothing else runs"
    done = [path for path in sorted((together.out / "cache").iterdir()) if path.is_dir()]
    started = [line.split()[0] for line in lines if " starts" in line]
    assert sorted(started) == sorted(line.split()[0] for line in lines if " is done" in line)
    assert set(started) <= {path.name for path in done}

    found = [reproduce("table-main", request, open_systems(request))[0].findings for request in (alone, together)]
    assert timeless(found[0]) == timeless(found[1])
    for path in done:
        other = alone.out / "cache" / path.name
        for file in ("scores.json", "responses.jsonl", "log.jsonl", "model/model.safetensors"):
            if (path / file).exists():
                assert (path / file).read_bytes() == (other / file).read_bytes(), f"{path.name}/{file}"


def test_a_failure_and_a_diverged_training_do_not_stop_the_rest(data, tmp_path):
    request = Request(str(data), "smoke", tmp_path, (*SMALL, "rates.select=first", "rates.adapters=[1e30]"))
    systems, lines = open_systems(request, is_plan=True), []
    blocked = systems.scores(BEAM)
    blocked.path.parent.mkdir(parents=True)
    blocked.path.write_text("a file where a folder should be")
    names = ["table-main", "table-ours"]
    with pytest.raises(PolyReplyError, match="scores-mle-beam-"):
        run_jobs(names, request, 2, lambda line, share: lines.append(line))
    assert [line for line in lines if line.startswith("scores-mle-beam-") and " failed" in line]
    assert [line for line in lines if "eqhard-em" in line and line.endswith("diverged")]
    assert [task.name for task in ready_tasks(plan_for(systems, names).missing)] == [blocked.name]
    assert systems.scores(NUCLEUS).is_done


def test_a_task_is_ready_when_its_needs_and_trials_are_done_and_none_has_diverged(tmp_path):
    def diverge(path):
        path.mkdir()
        raise DivergedError("too hot")

    cache = Cache(tmp_path)
    first, second = (cache.task("data", name, {}, lambda path: path.mkdir()) for name in ("first", "second"))
    third = replace(cache.task("data", "third", {}, lambda path: path.mkdir(), [first]), trials=(second,))
    timed = replace(cache.task("data", "timed", {}, lambda path: path.mkdir(), [first]), runs_alone=True)
    assert ready_tasks([first, second, third, timed]) == [first, second]
    cache.get(first)
    assert ready_tasks([second, third, timed]) == [second]
    cache.get(second)
    assert ready_tasks([third, timed]) == [third]

    hot = cache.task("training", "hot", {}, diverge)
    after = cache.task("scores", "after", {}, lambda path: path.mkdir(), [hot])
    with pytest.raises(DivergedError):
        cache.get(hot)
    assert hot.is_done and not ready_tasks([after]), "it diverged after the plan was made"


def test_nothing_is_built_on_a_learning_rate_that_is_not_chosen_yet(data, tmp_path):
    """Even where the training with the first rate is done: the other may be chosen."""
    first = open_systems(Request(str(data), "smoke", tmp_path, (*SMALL, "rates.select=first")))
    first.cache.get(first.training(EQHARD))
    systems = open_systems(Request(str(data), "smoke", tmp_path, SMALL), is_plan=True)
    responses = systems.responses(EQHARD)
    assert responses.needs[0].is_done and responses.needs[0].is_provisional and not ready_tasks([responses])
    ready = [task.label for task in ready_tasks(plan_for(systems, ["table-main"]).missing)]
    assert ready.count("training-eqhard-em") == 1
    for task in systems.trials(EQHARD):
        systems.cache.get(task)
    assert not systems.training(EQHARD).is_provisional


@pytest.mark.slow
def test_a_command_that_is_terminated_ends_its_processes(data, tmp_path):
    options = ["--data", str(data), "--preset", "smoke", "--out", str(tmp_path), "--jobs", "2", "stage_1.steps=100000"]
    command = [sys.executable, "-m", "polyreply", "reproduce", "table-main", *options]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    request = Request(str(data), "smoke", tmp_path, ("stage_1.steps=100000",))
    run = open_systems(request, is_plan=True).stage_1().path
    while not (run / "log.jsonl").exists() or not (run / "log.jsonl").stat().st_size:
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.1)
    running.terminate()
    assert running.wait(60) != 0
    with (run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while a process still trains there


def test_the_estimate_is_for_the_number_of_jobs(data, tmp_path):
    def output(*more):
        options = ["reproduce", "table-em", "--data", str(data), "--preset", "mini", "--out", str(tmp_path)]
        return CliRunner().invoke(app, [*options, "--dry-run", *more]).output

    assert "2 tasks at once" in output("--jobs", "2") and "at once" not in output()
    assert "Invalid value" in output("--jobs", "0")
