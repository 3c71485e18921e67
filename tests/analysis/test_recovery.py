"""Mode recovery: its measures, the stages that are kept, and, in the slow tier, that EqHard-EM finds the acts."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import SMALL, K, recipe, train

from polyreply import PolyReply
from polyreply.analysis.recovery import measure_recovery
from polyreply.data.prepare import PrepareRecipe, SplitSettings
from polyreply.data.read import read_dialogues
from polyreply.em.posterior import captured
from polyreply.experiments.cache import Workshop
from polyreply.experiments.recovery import HEADINGS, recover, recovery_table
from polyreply.experiments.smalltalk import HELD_OUT, METHODS, Smalltalk


@pytest.mark.parametrize("num_decoders", [2, 10])
def test_captured_is_0_when_decoders_are_alike_and_1_when_one_explains_all(num_decoders):
    nll_N = np.array([3.0, 700.0])
    assert captured(np.tile(nll_N[:, None], num_decoders)) == pytest.approx(0, abs=1e-12)
    assert captured(np.where(np.eye(2, num_decoders), nll_N[:, None], nll_N[:, None] + 800)) == pytest.approx(1)


@given(st.lists(st.lists(st.floats(0, 1000), min_size=3, max_size=3), min_size=1, max_size=5))
def test_captured_is_a_share(rows):
    assert -1e-9 <= captured(np.array(rows)) <= 1 + 1e-9


def test_a_model_is_measured_on_pairs_it_has_not_seen(corpus, stage1, tmp_path):
    model = train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "optimizer.learning_rate=0.05"))
    found = measure_recovery(PolyReply.from_pretrained(model), corpus / "valid.jsonl", pairs=20, contexts=4)
    assert len(found.usage) == K and sum(found.usage) == pytest.approx(1)
    assert 0 < found.captured < 1 and 1 / K < found.max_posterior < 1 and found.best_nll <= found.mixture_nll
    assert 0 <= found.acts <= K and len(found.act_shares) == K and all(len(row) == 10 for row in found.act_shares)
    plain = measure_recovery(PolyReply.from_pretrained(stage1), corpus / "valid.jsonl", pairs=20, contexts=4)
    assert plain.usage == [1] and plain.captured == 0 and plain.best_nll == pytest.approx(plain.mixture_nll)


def test_a_stage_is_made_once_and_an_interrupted_one_goes_on(tmp_path):
    workshop, made = Workshop(tmp_path), []

    def make(path):
        made.append(path)
        path.mkdir(exist_ok=True)
        if len(made) == 1:
            raise KeyboardInterrupt

    stage = workshop.planned("data", {"seed": 1}, make)
    with pytest.raises(KeyboardInterrupt):
        workshop.make(stage)
    path = workshop.make(stage)
    assert workshop.make(workshop.planned("data", {"seed": 1}, make)) == path and made == [path, path]
    assert workshop.make(workshop.planned("data", {"seed": 2}, make)) != path
    assert json.loads((path / "done.json").read_text())["made_from"] == {"seed": 1}


def test_trainings_and_data_are_stages(tmp_path, monkeypatch):
    workshop = Workshop(tmp_path)
    data = workshop.preparing("smalltalk-implicit", PrepareRecipe(split=SplitSettings(most=50)))
    settings = {**dict(part.split("=", 1) for part in SMALL), "steps": 2}
    first = workshop.training("stage1", data.path, "mini", {**settings, "method": "mle"}, needs=[data])
    backbone = first.path / "model"
    second = workshop.training("soft-em", data.path, backbone, {**settings, "method": "soft-em"}, needs=[first])
    assert (workshop.make(second) / "model" / "config.json").is_file() and first.is_made and data.is_made
    monkeypatch.setattr("polyreply.experiments.cache.train", None)
    assert workshop.make(second) == second.path


def test_the_two_kinds_of_held_out_contexts_of_smalltalk(tmp_path):
    smalltalk = Smalltalk(Workshop(tmp_path))
    smalltalk.workshop.make(smalltalk.data)

    def words(rows):
        return {
            word for row in rows for text in (*row.context, *row.responses) for word in re.findall(r"\w+", text.lower())
        }

    train = list(read_dialogues(smalltalk.data.path / "train.jsonl"))
    valid, unseen = (list(read_dialogues(smalltalk.held_out(kind))) for kind in HELD_OUT)
    assert len(train) == 60_000 and len(valid) > 1000 and len(unseen) == 1000
    assert not {row.context for row in train} & {row.context for row in (*valid, *unseen)}
    assert not words(valid) - words(train) and len(words(unseen) - words(train)) > 100
    assert all(row.acts for row in (*valid, *unseen))


@pytest.mark.slow
def test_eqhard_em_finds_the_acts_and_random_assignment_does_not(tmp_path):
    check_recovery(Workshop(tmp_path))


def check_recovery(workshop):
    found = recover(workshop, ("EqHard-EM",), (0, 1, 2))["valid"]
    random = recover(workshop, ("EqRandom-Dynamic",))["valid"]["methods"]["EqRandom-Dynamic"][0]
    for ours in found["methods"]["EqHard-EM"]:
        assert ours["training_usage"] == pytest.approx([0.1] * 10)
        assert all(0.05 <= share <= 0.15 for share in ours["usage"]), ours["usage"]
        assert ours["captured"] >= 0.8 and ours["max_posterior"] >= 0.8
        assert ours["gain"] > found["one_adapter_gain"]
    assert np.mean([ours["acts"] for ours in found["methods"]["EqHard-EM"]]) >= 6
    assert random["captured"] <= 0.2 and random["acts"] <= 3
    [row] = recovery_table(found)
    assert row[0] == "EqHard-EM" and len(row) == len(HEADINGS) and set(METHODS) > set(found["methods"])
