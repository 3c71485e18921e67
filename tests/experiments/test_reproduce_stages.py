"""The stages behind `polyreply reproduce`: when one is still good, what names it, and what data it is made from."""

import json
import shutil
import time
from dataclasses import replace

import pytest
import runs

from polyreply.data.chitchat import SCREENED
from polyreply.data.dialogue import Dialogue
from polyreply.data.read import read_dialogues
from polyreply.experiments import stage as stages
from polyreply.experiments import table_ablation, table_efficiency, table_settings, table_starvation
from polyreply.experiments.cache import Workshop
from polyreply.experiments.catalogue import TITLES, experiment
from polyreply.experiments.cooling import cooling
from polyreply.experiments.corpus import find_corpus, merge_contexts
from polyreply.experiments.figure_bound import one_each
from polyreply.experiments.plan import plan, with_needs
from polyreply.experiments.presets import load_preset
from polyreply.experiments.result import Findings, Picture, Result, Table
from polyreply.experiments.run import Order, _joint_report, open_lab
from polyreply.experiments.stage import revision
from polyreply.experiments.systems import Lab
from polyreply.experiments.table_architecture import ADAPTER, DECODER
from polyreply.experiments.variants import BEAM, EM, EQHARD, EQSOFT


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("talk"), rows=30)


def planned_lab(data, preset="smoke", *overrides):
    return open_lab(Order(str(data), preset, data / "out", overrides), is_plan=True)


class Chain:
    """Three stages, each made from the one before; every making is noted."""

    def __init__(self, folder):
        self.workshop, self.made = Workshop(folder), []
        self.first = self.stage("first")
        self.second = self.stage("second", self.first)
        self.third = self.stage("third", self.second)

    def stage(self, kind, *needs):
        def make(path):
            self.made.append(kind)
            path.mkdir(exist_ok=True)
            assert not list(path.iterdir()), "something stale was left"
            (path / "result").write_text(kind)

        return self.workshop.planned(kind, {"needs": [need.name for need in needs]}, make, needs)


def test_what_stands_on_a_removed_stage_is_made_anew(tmp_path):
    chain = Chain(tmp_path)
    chain.workshop.make(chain.third)
    assert chain.made == ["first", "second", "third"] and chain.third.is_made
    shutil.rmtree(chain.first.path)
    assert not chain.third.is_made and len(plan([chain.third], chain.workshop, load_preset("smoke")).missing) == 3
    chain.workshop.make(chain.first)
    assert not chain.second.is_made, "it was made from another result"
    chain.workshop.make(chain.third)
    assert chain.made == [*["first", "second", "third"] * 2] and chain.third.is_made
    assert len({(one.path / "done.json").read_text() for one in (chain.first, chain.second, chain.third)}) == 3


def test_an_unfinished_stage_goes_on_only_with_the_results_it_began_with(tmp_path):
    workshop, went_on = Workshop(tmp_path), []
    need = workshop.planned("need", {}, lambda path: path.mkdir())

    def make(path):
        went_on.append(path.exists())
        path.mkdir(exist_ok=True)
        if len(went_on) < 3:
            raise KeyboardInterrupt

    stage = workshop.planned("stage", {}, make, [need])
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            workshop.make(stage)
    shutil.rmtree(need.path)
    workshop.make(stage)
    assert went_on == [False, True, False] and {path.name for path in tmp_path.iterdir()} == {stage.name, need.name}


def test_stages_of_before_there_were_ids_are_good_as_long_as_nothing_is_made_anew(tmp_path):
    chain = Chain(tmp_path)
    chain.workshop.make(chain.third)
    for one in (chain.first, chain.second, chain.third):
        done = json.loads((one.path / "done.json").read_text())
        old = {name: done[name] for name in ("schema_version", "made_from", "seconds", "work", "resumed")}
        (one.path / "done.json").write_text(json.dumps(old))
    assert chain.third.is_made
    shutil.rmtree(chain.first.path)
    chain.workshop.make(chain.first)
    assert not chain.second.is_made and not chain.third.is_made


def test_seconds_of_all_parts_count_and_the_machine_is_the_one_that_made_it(tmp_path):
    workshop, parts = Workshop(tmp_path), []

    def make(path):
        path.mkdir(exist_ok=True)
        parts.append(time.sleep(0.2))
        if len(parts) == 1:
            raise KeyboardInterrupt

    stage = workshop.planned("stage", {}, make)
    with pytest.raises(KeyboardInterrupt):
        workshop.make(stage)
    done = json.loads((workshop.make(stage) / "done.json").read_text())
    assert stage.seconds() >= 0.4 and done["resumed"] and done["version"]
    assert {"processor", "cores", "torch"} <= done["machine"].keys()


def test_a_raised_revision_and_other_weights_make_another_stage(data, tmp_path, monkeypatch):
    workshop = Workshop(tmp_path / "out")
    backbone = tmp_path / "model"
    backbone.mkdir()

    def name(of=backbone):
        return workshop.training("stage1", data, of, {"method": "mle"}).name

    (backbone / "model.safetensors").write_bytes(b"some")
    names = [name()]
    (backbone / "model.safetensors").write_bytes(b"other")
    names.append(name())
    monkeypatch.setitem(stages.REVISION, "training", 1)
    names.append(name())
    assert len(set(names)) == 3 and revision("scores") == {} and revision("training") == {"revision": 1}
    (backbone / "config.json").touch()
    monkeypatch.setattr("polyreply.models.shipped.FOLDER", backbone)
    shipped, mini = (
        workshop.training("stage1", data, name, {"method": "mle"}).made_from for name in ("shipped", "mini")
    )
    assert shipped["weights"] and "weights" not in mini


def test_equal_systems_share_their_stages_and_unequal_ones_do_not(data):
    lab = planned_lab(data)
    assert lab.scores(ADAPTER).name == lab.scores(EQHARD).name != lab.scores(DECODER).name
    assert lab.responses(BEAM).name != planned_lab(data, "smoke", "reply_batch=3").responses(BEAM).name
    assert "tok:wordpunct" in lab.scores(BEAM).made_from["signature"]


def test_what_a_method_does_not_look_at_is_no_reason_to_train_it_anew(data):
    labs = [planned_lab(data, "smoke", f"em.cost={cost}") for cost in ("posterior", "nll")]
    shared = {one.name: len({lab.training(one).name for lab in labs}) == 1 for one in EM}
    assert shared == {one.name: one not in (EQHARD, EQSOFT) for one in EM}


def test_how_long_replies_are_is_the_presets_affair_and_not_the_backbones(data):
    lab = planned_lab(data, "smoke", "min_new_tokens=2", "no_repeat_ngram_size=3")
    said = lab.responses(EQHARD).made_from
    assert (said["min_new_tokens"], said["max_new_tokens"], said["no_repeat_ngram_size"]) == (2, 8, 3)
    assert planned_lab(data).responses(BEAM).made_from["min_new_tokens"] == 0
    longer = replace(EQHARD, options={"min_new_tokens": 5})
    assert lab.responses(longer).made_from["min_new_tokens"] == 5
    assert lab.training(longer).name == lab.training(EQHARD).name


def test_a_variant_can_take_the_learning_rate_of_another(data):
    lab = planned_lab(data, "smoke", "rates.adapters=[1e-2,1e-3]", "rates.select=mixture_nll")
    own = replace(EQHARD, settings={"em.cost": "nll"})
    taken = replace(own, rate_of=EQHARD)
    assert [one.name for one in lab.tried(taken)] == [one.name for one in lab.tried(EQHARD)]
    assert {one.name for one in lab.tried(own)}.isdisjoint(one.name for one in lab.tried(EQHARD))
    assert lab.training(taken).made_from["em"]["cost"] == "nll"


def test_choices_and_final_numbers_come_from_different_contexts(data):
    lab = planned_lab(data)
    chosen, final = (
        {row.context for row in read_dialogues(lab.workshop.make(one.corpus.asked) / "final.jsonl")}
        for one in (lab.on_choices(), lab)
    )
    splits = lab.workshop.make(lab.corpus.splits)
    assert chosen and final and not chosen & final
    assert chosen <= {row.context for row in read_dialogues(splits / "valid.jsonl")}
    assert lab.on_choices().scores(BEAM).name != lab.scores(BEAM).name


def test_the_ablation_says_how_its_rows_differ_from_the_papers(data):
    ours, theirs = (table_ablation._conditions(planned_lab(data, preset)) for preset in ("smoke", "paper"))
    assert "E-step, off" in ours[0] and "E-step, on" in theirs[0] and len(ours) == 2 and len(theirs) == 1


def test_beam_search_is_timed_on_the_model_of_stage_1(data):
    lab = planned_lab(data)
    [speed] = table_efficiency.EXPERIMENT.needs(lab)
    assert {need.name for need in speed.needs} >= {lab.stage_1().name, lab.training(EQHARD).name}


def test_every_stage_that_takes_time_has_a_unit_of_work(data):
    lab = planned_lab(data)
    found = with_needs(stage for name in TITLES for stage in experiment(name).needs(lab))
    without = {stage.kind.partition("-")[0] for stage in found if not stage.work.unit}
    assert without == {"splits", "final", "choices", "data"}
    units = {stage.work.unit for stage in found}
    assert {"EM, mini 16x1", "EM, mini 16x1 full decoders", "EM, smalltalk"} <= units
    kind = {stage.work.unit: stage for stage in found}
    [slow, fast] = (
        plan([replace(kind[unit], needs=())], lab.workshop, lab.preset) for unit in ("EM, smalltalk", "scores")
    )
    large = load_preset("paper")
    assert plan([replace(kind["EM, smalltalk"], needs=())], lab.workshop, large).seconds == slow.seconds > fast.seconds


def test_eqsoft_em_is_cooled_over_the_presets_steps_in_units_of_its_cost(data):
    mini, paper = (cooling(preset.em, preset.stage_2.steps) for preset in map(load_preset, ("mini", "paper")))
    assert mini == {"em.temperature": 0.4, "em.final_temperature": 0.01, "em.anneal_steps": 100}
    assert paper["em.anneal_steps"] == 10_000 and paper["em.temperature"] == pytest.approx(4 / 12)
    by_nll = planned_lab(data, "smoke", "em.cost=nll").training(EQSOFT).made_from["em"]
    assert by_nll["cost"] == "nll" and by_nll["temperature"] == 4.0 and by_nll["anneal_steps"] == 4
    assert cooling(load_preset("mini", ["em.temperature=2"]).em, 100) == {"em.anneal_steps": 100}


def test_settings_are_changed_one_at_a_time_on_contexts_for_choices(data):
    lab = planned_lab(data, "smoke", "stage_2.steps=10")
    rows = {one.name: lab.training(one).made_from for one in table_settings.rows(lab)[1:]}
    changes = {
        name: {dotted for dotted, value in _flat(recipe).items() if value != _flat(rows[base])[dotted]}
        for name, recipe in rows.items()
        for base in [name.partition(",")[0]]
    }
    assert [name for name, changed in changes.items() if not changed] == ["EqHard-EM", "EqSoft-EM"]
    assert all(len(changed) <= 1 for changed in changes.values()) and len(rows) == 15
    assert (
        rows["EqHard-EM, twice the EM steps"]["steps"] == 20 and rows["EqHard-EM, half of N"]["em"]["e_step_size"] == 12
    )
    assert rows["EqSoft-EM, a quarter as warm at first"]["em"]["temperature"] == 0.1
    lab.workshop.make(lab.corpus.for_choices)
    told = table_settings.EXPERIMENT.origin(lab)["final_numbers_from"]
    assert told.startswith("the half of valid that choices are made by, ")


def test_starvation_is_looked_for_from_the_same_beginnings_with_both_methods(data):
    lab = planned_lab(data, "smoke", "stage_2.steps=10")
    rows = {one.name: lab.training(one).made_from for one in table_starvation.rows(lab)}
    for name in ("", ", authors' initialisation", ", large initialisation", ", no skip connection"):
        one, two = (_flat(rows[method + name]) for method in ("Hard-EM", "EqHard-EM"))
        assert {dotted for dotted in one if one[dotted] != two[dotted]} == {"method"}
    assert lab.training(table_starvation.longer(lab)).made_from["steps"] == 40
    assert rows["Hard-EM, no skip connection"]["model"]["adapter_skip"] is False
    assert "adapter_skip" not in rows["Hard-EM"]["model"], "trainings from before there was such a thing still count"
    assert lab.preset.model.adapter_skip


def _flat(tree, prefix=""):
    pairs = (
        _flat(value, f"{prefix}{name}.").items() if isinstance(value, dict) else [(prefix + name, value)]
        for name, value in tree.items()
    )
    return {name: value for found in pairs for name, value in found}


def test_mini_offers_every_method_two_learning_rates_and_lets_validation_choose():
    rates = load_preset("mini").rates
    assert rates.adapters == (1e-3, 3e-3) and rates.select == "mixture_nll" and len(rates.decoders) == 1


def test_a_learning_rate_can_be_chosen_by_short_trainings(data):
    lab = planned_lab(data, "smoke", "rates.adapters=[1e-2,1e-3]", "rates.select=mixture_nll", "rates.trial_steps=3")
    tried, trained = lab.tried(EQSOFT), lab.training(EQSOFT)
    assert [(stage.made_from["steps"], stage.made_from["em"]["anneal_steps"]) for stage in tried] == [(3, 3), (3, 3)]
    assert trained.made_from["steps"] == 4 and [stage.name for stage in trained.choices] == [one.name for one in tried]


def test_only_embedded_corpora_given_by_name_may_be_shown(tmp_path, monkeypatch):
    workshop, preset = Workshop(tmp_path / "out"), load_preset("smoke")
    for name in ("chitchat", "smalltalk-explicit", "smalltalk-implicit"):
        assert find_corpus(workshop, name, preset).may_be_shown
        folder = tmp_path / name
        folder.mkdir()
        assert not find_corpus(workshop, str(runs.write_corpus(folder, rows=3)), preset).may_be_shown
    monkeypatch.chdir(tmp_path)
    assert not find_corpus(workshop, "chitchat", preset).may_be_shown, "a folder of that name is here"


def test_chitchat_is_screened_and_says_so(tmp_path):
    chitchat, smalltalk = (
        find_corpus(Workshop(tmp_path), name, load_preset("smoke")) for name in ("chitchat", "smalltalk-explicit")
    )
    [prepared] = chitchat.splits.needs
    clean = prepared.made_from["recipe"]["clean"]
    assert clean["max_words"] == SCREENED.max_words and clean["personal"] and "utah" in clean["words"]
    assert chitchat.preparation.startswith("screened: 2 to 25 words") and not smalltalk.preparation


def test_a_single_file_is_known_by_its_content_and_its_language_is_recognised(tmp_path, write_rows):
    workshop, preset, file = Workshop(tmp_path / "out"), load_preset("smoke"), tmp_path / "all.jsonl"

    def corpus(text):
        write_rows(file, [{"context": f"{text}{n}", "response": text} for n in range(9)])
        return find_corpus(workshop, str(file), preset)

    english, chinese = corpus("hello"), corpus("很高兴")
    assert english.splits.name != chinese.splits.name and english.asked.name != corpus("bye").asked.name
    assert (english.language, chinese.language) == ("en", "zh") and english.splits.name == corpus("hello").splits.name


def test_the_link_to_the_training_data_is_repaired(tmp_path):
    workshop, preset = Workshop(tmp_path / "out"), load_preset("smoke")

    def corpus(place):
        return find_corpus(workshop, str(tmp_path / place / "talk"), preset)

    (tmp_path / "old" / "talk").mkdir(parents=True)
    runs.write_corpus(tmp_path / "old" / "talk", rows=3)
    link = workshop.make(corpus("old").splits) / "train.jsonl"
    (tmp_path / "old").rename(tmp_path / "new")
    assert not link.exists() and corpus("new").splits.path == link.parent and corpus("new").splits.is_made
    workshop.make(workshop.planned("after", {}, lambda path: path.mkdir(), [corpus("new").splits]))
    assert link.read_text() == (tmp_path / "new" / "talk" / "train.jsonl").read_text()


def test_rows_of_one_context_are_merged_for_the_final_references(tmp_path, write_rows):
    rows = [("a", "1"), ("b", "2"), ("a", "3"), ("a", "1")]
    merged = merge_contexts(Dialogue((context,), (response,), (f"act {response}",)) for context, response in rows)
    assert merged == [Dialogue(("a",), ("1", "3"), ("act 1", "act 3")), Dialogue(("b",), ("2",), ("act 2",))]
    for split in ("train", "valid", "test"):
        write_rows(tmp_path / f"{split}.jsonl", [{"context": f"{n % 5}", "response": f"{n}"} for n in range(20)])
    lab = planned_lab(tmp_path)
    found = lab.origin()
    assert found["final_numbers_from"].startswith("test, 5 contexts, 4.0 references each; 15 rows were merged")


def test_the_bound_takes_one_response_of_each_context():
    rows = [Dialogue(("a",), ("1", "2"), ("x", "y")), Dialogue(("b",), ("3",)), Dialogue(("a",), ("4",), ("z",))]
    one, two = one_each(rows)
    assert one.context == ("a",) and two == Dialogue(("b",), ("3",)) and len(one.responses) == len(one.acts) == 1
    assert dict(zip("124", "xyz", strict=True))[one.responses[0]] == one.acts[0]


def test_the_bound_uses_the_presets_likelihood(data):
    real, own = experiment("figure-bound").needs(planned_lab(data, "smoke", "em.likelihood=mean"))
    assert real.made_from["likelihood"] == "mean" and "likelihood" not in own.made_from


def test_what_is_on_smalltalk_says_so_and_prepares_nothing_else(data, monkeypatch):
    monkeypatch.setattr(Workshop, "make", None)
    lab = planned_lab(data, "mini")
    found = experiment("mode-recovery").origin(lab)
    assert found["data"] == "smalltalk" and found["seeds"] == [0, 1, 2] and "final_split" not in found
    monkeypatch.setattr(Lab, "origin", lambda lab, seeds: {"final_numbers_from": "valid", "seeds": list(seeds)})
    assert experiment("figure-bound").origin(lab)["data"].endswith("and smalltalk (seed 0)")


def test_results_of_other_data_or_settings_lie_in_other_folders(tmp_path):
    (tmp_path / "a" / "x").mkdir(parents=True)
    (tmp_path / "b" / "x").mkdir(parents=True)

    def folder(data="chitchat", *overrides):
        return Order(str(data), "mini", tmp_path, overrides).results.name

    assert folder() == "chitchat-mini" == folder("chitchat", "rates.select=mixture_nll")
    others = [folder("chitchat", "contexts=7"), folder(tmp_path / "a" / "x"), folder(tmp_path / "b" / "x")]
    others += [folder(tmp_path / "a" / "x", "contexts=7"), folder("hf:one/x"), folder("hf:two/x")]
    assert len({*others, folder()}) == 7 and others[1].startswith("x-mini-")
    assert folder("chitchat", "contexts=7", "seeds=[1]") == folder("chitchat", "seeds=[1]", "contexts=7")


def test_results_that_cannot_be_read_are_left_out_of_the_joint_report(tmp_path):
    whole = Result("table-main", TITLES["table-main"], Findings([Table("t", ["a"], [])]), {"data": "d"})
    whole.save(tmp_path / "table-main")
    replace(whole, name="figure-bound", findings=Findings(pictures=[Picture("gone.png", "")])).save(
        tmp_path / "figure-bound"
    )
    replace(whole, name="table-cases", title="Old cases").save(tmp_path / "table-cases")
    (tmp_path / "table-em").mkdir()
    (tmp_path / "table-em" / "result.json").write_text("{")
    page = _joint_report(tmp_path).read_text(encoding="utf-8")
    assert "Main results" in page and "Old cases" not in page
    told = [line for line in page.splitlines() if "Left out" in line]
    assert len(told) == 3 and "table-em" in told[0] and "table-cases holds texts" in told[1] and "pictures" in told[2]
    replace(whole, name="table-cases", title="New cases", origin={"may_be_shown": True}).save(tmp_path / "table-cases")
    assert "New cases" in _joint_report(tmp_path).read_text(encoding="utf-8")
