"""The systems that are compared: presets, what names their tasks, and how learning rates are chosen."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import runs

from polyreply.data.prepare import PrepareRecipe, SplitSettings
from polyreply.errors import DivergedError, RecipeError
from polyreply.experiments import table_ablation, table_draws, table_efficiency, table_settings, table_starvation
from polyreply.experiments.cache import Cache
from polyreply.experiments.catalogue import TITLES, experiment
from polyreply.experiments.plan import plan_tasks, with_needs
from polyreply.experiments.presets import PRESETS, load_preset
from polyreply.experiments.run import Request, open_systems, plan_for
from polyreply.experiments.score_table import score_table
from polyreply.experiments.splits import prepare_task
from polyreply.experiments.systems import Systems, training_task
from polyreply.experiments.table_architecture import ADAPTER, DECODER
from polyreply.experiments.variants import BEAM, EM, EQHARD, EQSOFT, HARD, HARD_AUTHORS, annealing

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("talk"), rows=30)


def planned(data, preset="smoke", *overrides):
    return open_systems(Request(str(data), preset, data / "out", overrides), is_plan=True)


@pytest.mark.parametrize(
    "name, overrides, message",
    [
        ("huge", (), "expected one of mini, smoke, flan, paper, found 'huge'"),
        ("mini", ("em.cots=nll",), "did you mean em.cost?"),
        ("mini", ("em.e_step_size=161",), "161 cannot be split equally over 10"),
        ("mini", ("seeds=[]", "rates.adapters=[]"), "2 problems"),
        ("mini", ("seeds=[0,0]",), "seeds is [0, 0]; name each once"),
        ("mini", ("smalltalk.seeds=[1,1]",), "seeds is [1, 1]; name each once"),
        ("mini", ("scaling=[]",), "scaling is empty"),
        ("mini", ("min_new_tokens=40",), "min_new_tokens 40 is above max_new_tokens 32"),
        ("mini", ("no_repeat_ngram_size=-1",), "no_repeat_ngram_size is -1; use 0 or more"),
    ],
)
def test_mistakes_in_a_preset_are_one_clear_line(name, overrides, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        load_preset(name, overrides)


def test_presets_have_the_settings_of_the_authors_code_and_two_rates_to_choose_from():
    preset = load_preset("paper")
    assert preset.model.backbone == "google-t5/t5-small" and preset.model.num_decoders == 10
    assert (preset.em.e_step_size, preset.em.likelihood, preset.em.cost) == (640, "mean", "nll")
    assert preset.em.e_step_dropout and preset.rates.adapters == (1e-3,) and preset.model.adapter_init == "linear"
    rates = load_preset("mini").rates
    assert rates.adapters == (1e-3, 3e-3) and rates.select == "mixture_nll" and len(rates.decoders) == 1


@pytest.mark.parametrize("preset", PRESETS)
def test_every_experiment_of_every_preset_can_be_planned_without_computing_anything(
    preset, data, tmp_path, monkeypatch
):
    monkeypatch.setattr(Cache, "get", None)
    systems = open_systems(Request(str(data), preset, tmp_path / "out"), is_plan=True)
    assert not plan_for(systems, ["table-human"]).missing  # it is based on people's answers
    for name in set(TITLES) - {"table-human"}:
        plan = plan_for(systems, [name])
        assert plan.missing and plan.seconds > 0 and "roughly" in [*plan.lines()][-1]
    assert not (tmp_path / "out").exists()


def test_the_table_of_the_documentation_can_be_planned(data):
    [example] = [block for block in DOCUMENTATION.split("```python\n") if "EXPERIMENT" in block]
    names: dict = {}
    exec(example.partition("```")[0], names)
    tasks = names["EXPERIMENT"].tasks(planned(data))
    assert tasks[0].label == "scores-mle-beam" and callable(names["EXPERIMENT"].report)


def test_data_and_trainings_are_tasks(tmp_path, monkeypatch):
    source = str(runs.write_corpus(tmp_path) / "train.jsonl")
    cache = Cache(tmp_path / "out")
    prepared = prepare_task(cache, source, PrepareRecipe(split=SplitSettings(most=50)))
    settings = {**dict(part.split("=", 1) for part in runs.SMALL), "steps": 2}
    first = training_task(cache, "stage1", prepared.path, "mini", {**settings, "method": "mle"}, needs=[prepared])
    backbone = first.path / "model"
    second = training_task(cache, "soft-em", prepared.path, backbone, {**settings, "method": "soft-em"}, needs=[first])
    assert (cache.get(second) / "model" / "config.json").is_file() and first.is_done and prepared.is_done
    assert not (second.path / "checkpoints").exists()
    monkeypatch.setattr("polyreply.experiments.systems.train", None)
    assert cache.get(second) == second.path


def test_other_weights_of_a_backbone_make_another_training(data, tmp_path, monkeypatch):
    cache = Cache(tmp_path / "out")
    backbone = tmp_path / "t5-mini-10"
    backbone.mkdir()

    def task(of=backbone):
        return training_task(cache, "stage1", data, of, {"method": "mle"})

    (backbone / "model.safetensors").write_bytes(b"some")
    name = task().name
    (backbone / "model.safetensors").write_bytes(b"other")
    assert task().name != name
    (backbone / "config.json").touch()
    monkeypatch.setattr("polyreply.models.shipped.SHIPPED_FOLDER", tmp_path)
    assert task("shipped").inputs["weights"] and not task("mini").inputs["weights"]


def test_equal_systems_share_their_tasks_and_unequal_ones_do_not(data):
    systems = planned(data)
    assert systems.scores(ADAPTER).name == systems.scores(EQHARD).name != systems.scores(DECODER).name
    assert systems.responses(BEAM).name != planned(data, "smoke", "reply_batch=3").responses(BEAM).name
    assert systems.on_selection().scores(BEAM).name != systems.scores(BEAM).name
    assert "tok:wordpunct" in systems.scores(BEAM).inputs["signature"]
    variants = [BEAM, HARD, HARD_AUTHORS, EQHARD]
    assert planned(data, "paper").distinct(variants) == [BEAM, HARD, EQHARD]
    assert planned(data, "mini").distinct(variants) == variants


def test_a_task_does_not_depend_on_settings_that_it_does_not_use(data):
    def first(*overrides):
        return planned(data, "smoke", *overrides).stage_1().name

    assert first() == first("em.e_step_size=30", "contexts=3", "seeds=[5]", "rates.adapters=[1]", "stage_2.steps=9")
    assert first() != first("stage_1.steps=9") and first() != first("selection_share=0.3")
    costs = [planned(data, "smoke", f"em.cost={cost}") for cost in ("posterior", "nll")]
    shared = {one.name: len({systems.training(one).name for systems in costs}) == 1 for one in EM}
    assert shared == {one.name: one not in (EQHARD, EQSOFT) for one in EM}


def test_the_preset_limits_the_length_of_replies_whatever_the_backbone_says(data):
    systems = planned(data, "smoke", "min_new_tokens=2", "no_repeat_ngram_size=3")
    inputs = systems.responses(EQHARD).inputs
    assert (inputs["min_new_tokens"], inputs["max_new_tokens"], inputs["no_repeat_ngram_size"]) == (2, 8, 3)
    assert planned(data).responses(BEAM).inputs["min_new_tokens"] == 0
    longer = replace(EQHARD, options={"min_new_tokens": 5})
    assert systems.responses(longer).inputs["min_new_tokens"] == 5
    assert systems.training(longer).name == systems.training(EQHARD).name


def test_a_learning_rate_is_taken_from_another_variant_or_chosen_by_short_trainings(data):
    systems = planned(data, "smoke", "rates.adapters=[1e-2,1e-3]", "rates.select=mixture_nll", "rates.trial_steps=3")
    own = replace(EQHARD, settings={"em.cost": "nll"})
    taken = replace(own, rate_of=EQHARD)
    assert [one.name for one in systems.trials(taken)] == [one.name for one in systems.trials(EQHARD)]
    assert {one.name for one in systems.trials(own)}.isdisjoint(one.name for one in systems.trials(EQHARD))
    assert systems.training(taken).inputs["em"]["cost"] == "nll"
    trials, trained = systems.trials(EQSOFT), systems.training(EQSOFT)
    assert [(task.inputs["steps"], task.inputs["em"]["anneal_steps"]) for task in trials] == [(3, 3), (3, 3)]
    assert trained.inputs["steps"] == 4 and [task.name for task in trained.trials] == [one.name for one in trials]


def test_the_learning_rate_is_chosen_by_validation_alone_and_a_diverged_one_never(data, tmp_path):
    chosen = ("rates.adapters=[1e30, 5.0, 1e-4]", "stage_1.steps=20", "rates.select=mixture_nll", "seeds=[0, 1]")
    request = Request(str(data), "smoke", tmp_path, chosen)
    plan, systems = open_systems(request, is_plan=True), open_systems(request)
    assert plan.learning_rate(EQHARD) == 1e30
    trials = {task.name for task in plan.trials(EQHARD)}
    for name in set(TITLES) - {"mode-recovery", "table-human"}:
        missing = {task.name for task in plan_for(plan, [name]).missing}
        assert trials <= missing, f"the plan of {name} lacks other rates"
    assert systems.learning_rate(EQHARD) == 1e-4 == plan.learning_rate(EQHARD)
    assert systems.training(EQHARD, 0).is_done and not systems.training(EQHARD, 1).is_done
    assert not systems.data.final.is_done, "a choice has looked at the final contexts"
    _check_diverged(request, systems)


def _check_diverged(request, systems):
    """A training that diverged is kept: it is not tried again, and tables have a row for it."""
    lost, *_ = systems.trials(EQHARD)
    assert lost.is_done and "diverged" in lost.diverged and not (lost.path / "model").exists()
    systems.cache.notify = None
    with pytest.raises(DivergedError, match="use a lower learning rate"):
        systems.cache.get(lost)
    hot = replace(EQHARD, name="EqHard-EM, hot", settings={"optimizer.learning_rate": 1e30})
    request = replace(request, overrides=(*request.overrides, "rates.select=first", "contexts=4", "seeds=[0]"))
    systems = open_systems(request)
    scored = score_table(systems, "Two", [BEAM, hot], baseline=hot.name)
    assert list(scored.table.rows[1].cells[:2]) == [hot.name, "diverged"] and list(scored.numbers) == [BEAM.name]
    assert any(note.startswith("Diverged: EqHard-EM, hot, seed 0: training-eqhard-em-") for note in scored.table.notes)
    assert not plan_tasks(systems.all_scores([BEAM, hot]), systems.cache).missing


def test_every_task_that_takes_time_has_a_unit_of_work(data):
    systems = planned(data)
    tasks = with_needs(task for name in TITLES for task in experiment(name).tasks(systems))
    without = {task.label.partition("-")[0] for task in tasks if not task.work.unit}
    assert without == {"splits", "final", "selection", "data"}
    unit = {task.work.unit: replace(task, needs=()) for task in tasks}
    assert {"EM, mini 16x1", "EM, mini 16x1 full decoders", "EM, smalltalk"} <= unit.keys()
    large = planned(data, "paper", "smalltalk.em_steps=2", "smalltalk.e_step_size=20")
    on_smalltalk = experiment("mode-recovery").tasks(large)
    assert {task.work.model_size for task in on_smalltalk} == {unit["EM, smalltalk"].work.model_size}
    assert large.stage_1().work.model_size > 10 > unit["EM, mini 16x1"].work.model_size
    slow, fast = (plan_tasks([unit[name]], systems.cache).seconds for name in ("EM, smalltalk", "scores"))
    assert slow > fast


def test_eqsoft_em_is_annealed_over_the_presets_steps_in_units_of_its_cost(data):
    mini, paper = (annealing(preset.em, preset.stage_2.steps) for preset in map(load_preset, ("mini", "paper")))
    assert mini == {"em.temperature": 0.4, "em.final_temperature": 0.01, "em.anneal_steps": 100}
    assert paper["em.anneal_steps"] == 10_000 and paper["em.temperature"] == pytest.approx(4 / 12)
    by_nll = planned(data, "smoke", "em.cost=nll").training(EQSOFT).inputs["em"]
    assert by_nll["cost"] == "nll" and by_nll["temperature"] == 4.0 and by_nll["anneal_steps"] == 4
    assert annealing(load_preset("mini", ["em.temperature=2"]).em, 100) == {"em.anneal_steps": 100}


def test_settings_are_changed_one_at_a_time_on_the_selection_half(data):
    systems = planned(data, "smoke", "stage_2.steps=10")
    rows = {one.name: systems.training(one).inputs for one in table_settings.rows(systems)[1:]}
    changes = {
        name: {dotted for dotted, value in _flat(recipe).items() if value != _flat(rows[base])[dotted]}
        for name, recipe in rows.items()
        for base in [name.partition(",")[0]]
    }
    assert [name for name, changed in changes.items() if not changed] == ["EqHard-EM", "EqSoft-EM"]
    assert all(len(changed) <= 1 for changed in changes.values()) and len(rows) == 15
    assert rows["EqHard-EM, twice the EM steps"]["steps"] == 20
    assert rows["EqHard-EM, half of N"]["em"]["e_step_size"] == 12
    assert rows["EqSoft-EM, a quarter of the first temperature"]["em"]["temperature"] == 0.1
    systems.cache.get(systems.data.selection)
    origin = table_settings.EXPERIMENT.origin(systems)["final_numbers_from"]
    assert origin.startswith("the half of valid by which choices are made, ")


def test_starvation_is_measured_with_the_same_initialisations_for_both_methods(data):
    systems = planned(data, "smoke", "stage_2.steps=10")
    rows = {one.name: systems.training(one).inputs for one in table_starvation.rows(systems)}
    for name in ("", ", authors' initialisation", ", large initialisation", ", no skip connection"):
        one, two = (_flat(rows[method + name]) for method in ("Hard-EM", "EqHard-EM"))
        assert {dotted for dotted in one if one[dotted] != two[dotted]} == {"method"}
    assert systems.training(table_starvation.longer(systems)).inputs["steps"] == 40
    assert rows["Hard-EM, no skip connection"]["model"]["adapter_skip"] is False
    assert rows["Hard-EM"]["model"]["adapter_skip"] is True


def test_draws_of_contexts_are_compared_with_the_rate_of_draws_of_pairs(data):
    systems = planned(data, "mini")
    for pairs, contexts in zip(table_draws.ROWS[::2], table_draws.ROWS[1::2], strict=True):
        one, two = (_flat(systems.training(variant).inputs) for variant in (pairs, contexts))
        assert {dotted for dotted in one if one[dotted] != two[dotted]} == {"em.draw_by"}
        assert [trial.inputs["em"]["draw_by"] for trial in systems.trials(contexts)] == ["pairs", "pairs"]
    both = [
        planned(data, "mini", f"em.draw_by={draws}").training(table_draws.EQ_PAIRS) for draws in ("pairs", "contexts")
    ]
    assert [one.name for one in both] == [systems.training(EQHARD).name] * 2


def test_how_many_decoders_share_the_responses_to_a_context_and_by_chance():
    best_N, context_N = np.array([0, 0, 1, 1, 1, 0]), np.array([0, 1, 0, 1, 1, 0])
    decoders, by_chance = table_draws.spread(best_N, context_N, 3)  # decoders 0, 1, 0 and 0, 1, 1; each has a half
    assert decoders == 2 and by_chance == pytest.approx(2 * (1 - 1 / 8))


def _flat(tree, prefix=""):
    pairs = (
        _flat(value, f"{prefix}{name}.").items() if isinstance(value, dict) else [(prefix + name, value)]
        for name, value in tree.items()
    )
    return {name: value for found in pairs for name, value in found}


def test_tables_state_what_their_rows_and_names_leave_out(data, monkeypatch):
    ours, theirs = (table_ablation.conditions(load_preset(preset)) for preset in ("smoke", "paper"))
    assert "E-step, off" in ours[0] and "E-step, on" in theirs[0] and len(ours) == 2 and len(theirs) == 1
    systems = planned(data)
    [speed] = table_efficiency.EXPERIMENT.tasks(systems)
    assert {need.name for need in speed.needs} >= {systems.stage_1().name, systems.training(EQHARD).name}
    real, own = experiment("figure-bound").tasks(planned(data, "smoke", "em.likelihood=mean"))
    assert real.inputs["likelihood"] == "mean" and "likelihood" not in own.inputs
    monkeypatch.setattr(Cache, "get", None)
    origin = experiment("mode-recovery").origin(planned(data, "mini"))
    assert origin["data"] == "smalltalk" and origin["seeds"] == [0, 1, 2] and "final_split" not in origin
    monkeypatch.setattr(Systems, "origin", lambda systems, seeds: {"final_numbers_from": "valid", "seeds": list(seeds)})
    assert experiment("figure-bound").origin(planned(data, "mini"))["data"].endswith("and smalltalk (seed 0)")
