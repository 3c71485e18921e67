"""The cache: what names a result, when it is still valid, and how an interrupted task continues."""

import json
import shutil
import time

import pytest

from polyreply.experiments import cache as cache_module
from polyreply.experiments.cache import Cache, Work
from polyreply.experiments.plan import duration, plan_tasks


class Chain:
    """Three tasks, each computed from the one before; every computation is recorded."""

    def __init__(self, folder):
        self.cache, self.computed = Cache(folder), []
        self.first = self.task("first")
        self.second = self.task("second", self.first)
        self.third = self.task("third", self.second)

    def task(self, detail, *needs):
        def compute(path):
            self.computed.append(detail)
            path.mkdir(exist_ok=True)
            assert not list(path.iterdir()), "something stale was left"
            (path / "result").write_text(detail)

        return self.cache.task("data", detail, {"needs": [need.name for need in needs]}, compute, needs)


def test_everything_computed_from_a_removed_result_is_computed_again(tmp_path):
    chain = Chain(tmp_path)
    chain.cache.get(chain.third)
    assert chain.computed == ["first", "second", "third"] and chain.third.is_done
    shutil.rmtree(chain.first.path)
    assert not chain.third.is_done and len(plan_tasks([chain.third], chain.cache).missing) == 3
    chain.cache.get(chain.first)
    assert not chain.second.is_done, "it was computed from another result"
    chain.cache.get(chain.third)
    assert chain.computed == [*["first", "second", "third"] * 2] and chain.third.is_done
    assert len({(one.path / "done.json").read_text() for one in (chain.first, chain.second, chain.third)}) == 3


def test_a_task_is_computed_once_and_an_interrupted_one_continues(tmp_path):
    cache, calls = Cache(tmp_path), []

    def compute(path):
        calls.append(path)
        path.mkdir(exist_ok=True)
        time.sleep(0.2)
        if len(calls) == 1:
            raise KeyboardInterrupt

    task = cache.task("data", "x", {"seed": 1}, compute)
    with pytest.raises(KeyboardInterrupt):
        cache.get(task)
    path = cache.get(task)
    assert cache.get(cache.task("data", "x", {"seed": 1}, compute)) == path and calls == [path, path]
    assert cache.get(cache.task("data", "x", {"seed": 2}, compute)) != path
    record = json.loads((path / "done.json").read_text())
    assert record["inputs"]["seed"] == 1 and task.seconds >= 0.4 and record["resumed"] and record["version"]
    assert {"processor", "cores", "torch"} <= record["machine"].keys()


def test_an_unfinished_task_continues_only_with_the_results_it_began_with(tmp_path):
    cache, continued = Cache(tmp_path), []
    need = cache.task("data", "need", {}, lambda path: path.mkdir())

    def compute(path):
        continued.append(path.exists())
        path.mkdir(exist_ok=True)
        if len(continued) < 3:
            raise KeyboardInterrupt

    task = cache.task("splits", "x", {}, compute, [need])
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            cache.get(task)
    shutil.rmtree(need.path)
    cache.get(task)
    assert continued == [False, True, False] and {path.name for path in tmp_path.iterdir()} == {task.name, need.name}


def test_a_raised_revision_makes_other_tasks_of_that_kind_alone(tmp_path, monkeypatch):
    cache = Cache(tmp_path)

    def names():
        return [cache.task(kind, "x", {}, lambda path: None).name for kind in ("scores", "training")]

    scores, training = names()
    monkeypatch.setitem(cache_module.REVISIONS, "training", 1)
    assert names()[0] == scores and names()[1] != training


def test_the_estimate_uses_the_time_that_tasks_took(tmp_path):
    cache = Cache(tmp_path)

    def task(number, amount):
        return cache.task("data", "x", {"n": number}, lambda path: path.mkdir(), work=Work("EM, mini 16x1", amount))

    cache.get(task(1, 10.0))
    done = tmp_path / task(1, 10.0).name / "done.json"
    done.write_text(json.dumps({**json.loads(done.read_text()), "seconds": 20.0}))
    assert cache.paces() == {"EM, mini 16x1": 2.0}
    plan = plan_tasks([task(1, 10.0), task(2, 30.0)], cache)
    assert plan.seconds == pytest.approx(60.5) and plan.done == 1 and "took" in plan.basis
    assert [duration(seconds) for seconds in (3, 600, 9000, 9e5)] == ["3 seconds", "10 minutes", "2.5 hours", "10 days"]
