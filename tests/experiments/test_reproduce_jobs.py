"""Several stages at once: the same results as one after the other."""

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
from polyreply.errors import PolyReplyError
from polyreply.experiments.cache import Diverged, Workshop
from polyreply.experiments.jobs import make_at_once, ready_stages
from polyreply.experiments.run import Order, open_lab, plan_for, reproduce
from polyreply.experiments.variants import EQHARD, NUCLEUS
from polyreply.progress import silent

SMALL = ("seeds=[0,1]", "stage_1.steps=10", "rates.adapters=[1e-2,3e-2]", "rates.select=mixture_nll", "contexts=4")
NAMES = ["table-main", "table-efficiency"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("talk"), rows=40)


def test_two_jobs_give_what_one_gives(data, tmp_path):
    alone, together = (Order(str(data), "smoke", tmp_path / name, SMALL) for name in ("alone", "together"))
    heard = []
    make_at_once(NAMES, together, 2, lambda stage, share: heard.append(stage))
    left = [stage.kind for stage in plan_for(open_lab(together, is_plan=True), NAMES).missing]
    assert left == ["speed"], "what is timed waits until nothing else runs"
    made = [path for path in sorted((together.out / "stages").iterdir()) if path.is_dir()]
    begun = [line for line in heard if " begins" in line]
    assert len(begun) == len(made) == len([line for line in heard if " is made" in line])

    found = [reproduce("table-main", order, open_lab(order))[0].findings for order in (alone, together)]
    assert found[0] == found[1]
    for path in made:
        other = alone.out / "stages" / path.name
        for file in ("scores.json", "responses.jsonl", "log.jsonl", "model/model.safetensors"):
            if (path / file).exists():
                assert (path / file).read_bytes() == (other / file).read_bytes(), f"{path.name}/{file}"


def test_what_fails_is_told_and_does_not_stop_the_rest(data, tmp_path):
    order = Order(str(data), "smoke", tmp_path, SMALL)
    lab = open_lab(order, is_plan=True)
    lab.corpus.splits.path.parent.mkdir(parents=True)
    lab.corpus.splits.path.write_text("a file where a folder is to be")
    heard = []
    with pytest.raises(PolyReplyError, match="splits-"):
        make_at_once(["table-main"], order, 2, lambda stage, share: heard.append(stage))
    assert lab.corpus.asked.is_made, "the final contexts need no splits"
    assert [line for line in heard if line.startswith("splits-") and " failed; the rest goes on" in line]


def test_a_stage_is_ready_when_needs_and_choices_are_there(tmp_path):
    workshop = Workshop(tmp_path)
    first, second = (workshop.planned(kind, {}, lambda path: path.mkdir()) for kind in ("first", "second"))
    third = replace(workshop.planned("third", {}, lambda path: path.mkdir(), [first]), choices=(second,))
    timed = replace(workshop.planned("timed", {}, lambda path: path.mkdir(), [first]), is_timed=True)
    assert ready_stages([first, second, third, timed]) == [first, second]
    workshop.make(first)
    assert ready_stages([second, third, timed]) == [second]
    workshop.make(second)
    assert ready_stages([third, timed]) == [third]


def test_nothing_is_begun_on_a_training_that_diverged_after_the_plan_was_made(tmp_path):
    def diverge(path):
        path.mkdir()
        raise Diverged("too hot")

    workshop = Workshop(tmp_path)
    first = workshop.planned("first", {}, diverge)
    second = workshop.planned("second", {}, lambda path: path.mkdir(), [first])
    with pytest.raises(Diverged):
        workshop.make(first)
    assert first.is_made and not ready_stages([second])


def test_what_waits_for_a_choice_of_learning_rates_is_not_begun(data, tmp_path):
    """Even where the training with the first rate is there: the other may be chosen."""
    chosen = Order(str(data), "smoke", tmp_path, SMALL)
    first = open_lab(Order(str(data), "smoke", tmp_path, (*SMALL, "rates.select=first")))
    first.workshop.make(first.training(EQHARD))
    lab = open_lab(chosen, is_plan=True)
    said = lab.responses(EQHARD)
    assert said.needs[0].is_made and said.needs[0].is_provisional and not ready_stages([said])
    assert [stage.kind for stage in ready_stages(plan_for(lab, ["table-main"]).missing)].count("eqhard-em") == 1
    for stage in lab.tried(EQHARD):
        lab.workshop.make(stage)
    assert not lab.training(EQHARD).is_provisional


def test_a_diverged_training_is_a_result_and_the_rest_goes_on(data, tmp_path):
    order = Order(str(data), "smoke", tmp_path, (*SMALL, "rates.select=first", "rates.adapters=[1e30]"))
    heard = []
    make_at_once(["table-main", "table-ours"], order, 2, lambda stage, share: heard.append(stage))
    assert [line for line in heard if "eqhard-em" in line and line.endswith("diverged")]
    assert not ready_stages(plan_for(open_lab(order, is_plan=True), ["table-main", "table-ours"]).missing)
    assert open_lab(order).scores(NUCLEUS, 1).is_made


def test_a_command_that_is_told_to_end_ends_its_processes(data, tmp_path):
    given = ["--data", str(data), "--preset", "smoke", "--out", str(tmp_path), "--jobs", "2", "stage_1.steps=100000"]
    command = [sys.executable, "-m", "polyreply", "reproduce", "table-main", *given]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    log = open_lab(Order(str(data), "smoke", tmp_path, ("stage_1.steps=100000",)), is_plan=True).stage_1().path
    while not (log / "log.jsonl").exists() or not (log / "log.jsonl").stat().st_size:
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.1)
    running.terminate()
    assert running.wait(60) != 0
    with (log / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while a process still trains there


def test_a_process_that_is_killed_is_told_and_what_is_made_is_kept(data, tmp_path):
    order, killed = Order(str(data), "smoke", tmp_path, SMALL), []

    def kill(stage, share):
        if stage.startswith("stage1") and "begins" in stage:
            for process in multiprocessing.active_children():
                process.kill()
                killed.append(process.pid)

    with pytest.raises(PolyReplyError, match=r"a process died while it made one of .*stage1-.* --jobs"):
        make_at_once(["table-main"], order, 2, kill)
    lab = open_lab(order, is_plan=True)
    assert killed and lab.corpus.splits.is_made and not lab.stage_1().is_made
    make_at_once(["table-main"], order, 2, silent)
    assert open_lab(order).stage_1().is_made


def test_the_estimate_is_for_so_many_jobs(data, tmp_path):
    def told(*more):
        given = ["reproduce", "table-em", "--data", str(data), "--preset", "mini", "--out", str(tmp_path), "--dry-run"]
        return CliRunner().invoke(app, [*given, *more]).output

    assert "2 stages at once" in told("--jobs", "2") and "at once" not in told()
    assert "Invalid value" in told("--jobs", "0")
