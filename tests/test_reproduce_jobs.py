"""Several stages at once: the same results as one after the other."""

import pytest
import runs
from typer.testing import CliRunner

from polyreply.cli.main import app
from polyreply.errors import PolyReplyError
from polyreply.progress import silent
from polyreply.reproduce.jobs import make_at_once, ready_stages
from polyreply.reproduce.run import Order, open_lab, plan_for, reproduce
from polyreply.reproduce.workshop import Workshop

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
    assert len(heard) == len(made) == len(set(heard))

    found = [reproduce("table-main", order, open_lab(order))[0].findings for order in (alone, together)]
    assert found[0] == found[1]
    for path in made:
        other = alone.out / "stages" / path.name
        for file in ("scores.json", "responses.jsonl", "log.jsonl", "model/model.safetensors"):
            if (path / file).exists():
                assert (path / file).read_bytes() == (other / file).read_bytes(), f"{path.name}/{file}"


def test_what_fails_is_told_and_does_not_stop_the_rest(data, tmp_path):
    order = Order(str(data), "smoke", tmp_path, (*SMALL, "rates.select=bleu2_f", "stage_2.validation.contexts=0"))
    lab = open_lab(order, is_plan=True)
    (lab.corpus.splits.path.parent).mkdir(parents=True)
    lab.corpus.splits.path.write_text("a file where a folder is to be")
    with pytest.raises(PolyReplyError, match="splits-"):
        make_at_once(["table-main"], order, 2, silent)
    assert lab.corpus.asked.is_made, "the final contexts need no splits"


def test_a_stage_is_ready_when_needs_and_choices_are_there(tmp_path):
    from dataclasses import replace

    workshop = Workshop(tmp_path)
    first, second = (workshop.planned(kind, {}, lambda path: path.mkdir()) for kind in ("first", "second"))
    third = replace(workshop.planned("third", {}, lambda path: path.mkdir(), [first]), choices=(second,))
    timed = replace(workshop.planned("timed", {}, lambda path: path.mkdir(), [first]), is_timed=True)
    stages = [first, second, third, timed]
    assert ready_stages(stages) == [first, second]
    workshop.make(first)
    assert ready_stages([second, third, timed]) == [second]
    workshop.make(second)
    assert ready_stages([third, timed]) == [third]


def test_the_estimate_is_for_so_many_jobs(data, tmp_path):
    def told(*more):
        given = ["reproduce", "table-em", "--data", str(data), "--preset", "mini", "--out", str(tmp_path), "--dry-run"]
        return CliRunner().invoke(app, [*given, *more]).output

    assert "2 stages at once" in told("--jobs", "2") and "at once" not in told()
    assert "Invalid value" in told("--jobs", "0")
