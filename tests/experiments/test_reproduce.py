"""`polyreply reproduce`: from raw data to the rendered result, in stages that are kept."""

import json
import re
from dataclasses import replace
from html import escape
from typing import get_args

import pytest
import runs

from polyreply.data.detokenize import is_tokenized
from polyreply.data.dialogue import Dialogue
from polyreply.errors import DataError, PolyReplyError, RecipeError
from polyreply.experiments.cache import Diverged, Workshop
from polyreply.experiments.catalogue import TITLES, experiment
from polyreply.experiments.claims import Outcome
from polyreply.experiments.corpus import find_corpus, sample, split_by_context
from polyreply.experiments.plan import duration, plan
from polyreply.experiments.presets import PRESETS, load_preset
from polyreply.experiments.result import load_result
from polyreply.experiments.run import Order, open_lab, plan_for, reproduce
from polyreply.experiments.score_table import score_table
from polyreply.experiments.stage import Work
from polyreply.experiments.table_ours import PROTOTYPES, RECIPES, choose
from polyreply.experiments.variants import BEAM, EQHARD, HARD, HARD_AUTHORS, without_twins
from polyreply.metrics.registry import PAPER_NUMBERS

ONCE = ("seeds=[0]", "second_seeds=[1]", "stage_1.steps=40")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("talk"), rows=120)


def test_table_em_end_to_end_goes_on_after_an_interrupt_and_is_made_once(data, tmp_path):
    order = Order(str(data), "smoke", tmp_path, ONCE)
    began = []

    def interrupting(stage, share):
        began.append(stage)
        if stage.startswith("replying") and "responses-soft-em-decoders" in began:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("table-em", order, open_lab(order, notify=interrupting))
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.glob("stages/*/done.json")}
    assert any("stage1" in str(path) for path in finished)
    plan = plan_for(open_lab(order, is_plan=True), ["table-em"])
    assert plan.missing and not any("stage1" in stage.name for stage in plan.missing)

    result, files = reproduce("table-em", order, open_lab(order))
    assert all(path.stat().st_mtime_ns == time for path, time in finished.items())
    assert not plan_for(open_lab(order, is_plan=True), ["table-em"]).missing
    heard = []
    again, _ = reproduce("table-em", order, open_lab(order, notify=lambda stage, share: heard.append(stage)))
    assert again.findings == result.findings
    assert not [stage for stage in heard if not stage.startswith("resampling")]
    _check_result(again, files)
    _check_others(order)


def _check_others(order):
    """What stands on the same stages, and takes no time."""
    names = ["figure-assignment", "table-cases", "figure-decoders"]
    assert len(plan_for(open_lab(order, is_plan=True), names).missing) == 2, (
        "more than Hard-EM's large initialisation and learned prior"
    )
    assignment, cases, decoders = (reproduce(name, order, open_lab(order))[0].findings for name in names)
    assert [len(numbers["share"]) for numbers in assignment.numbers.values()] == [3] * 6
    assert len(cases.tables) == 3 and [len(table.rows) for table in cases.tables] == [3] * 3
    assert [row.cells[0] for row in decoders.tables[0].rows] == ["0", "1", "2"]
    assert "logged while training" in load_result(order.results / names[0] / "result.json").origin["final_numbers_from"]
    assert all(
        "Seed of stage 2: 0." in table.notes for found in (assignment, cases, decoders) for table in found.tables
    )
    _check_joint_report(order, cases)
    _check_ours(reproduce("table-ours", order, open_lab(order))[0].findings)


def _check_ours(findings):
    """One of ours is chosen on one half and told on the other."""
    final, tried = findings.tables
    *_, winner = [row.cells[0] for row in final.rows]
    left_out = ("at least 10", "at least 12", "posterior as cost")  # longer than replies may be; as EqHard-EM itself
    possible = [one.name for one in RECIPES if not any(part in one.name for part in left_out)]
    assert [row.cells[0] for row in tried.rows] == ["EqHard-EM", *possible] and len(possible) == len(RECIPES) - 5
    assert winner == choose(findings.numbers["tried"]["means"])[0] and winner in findings.remarks[-1]
    told = f"{len(possible)} recipes were tried there, and {PROTOTYPES} prototypes before them"
    assert told in findings.remarks[-1] and f"multiplied by {len(possible) + PROTOTYPES}," in findings.remarks[-1]
    assert winner in findings.verdicts[0].text and len(findings.verdicts) == len(final.rows) + 1


def _check_joint_report(order, cases):
    """It holds what may be shown: not the texts of a folder, which stay where their user asked for them."""
    page = (order.results / "report.html").read_text(encoding="utf-8")
    assert all(TITLES[name].partition(":")[0] in page for name in ("table-em", "figure-assignment", "figure-decoders"))
    [context] = cases.numbers["0"]["context"]
    own = (order.results / "table-cases" / "report.html").read_text(encoding="utf-8")
    assert escape(context) in own and "not for publication unless their licence allows it" in own
    assert escape(context) not in page and TITLES["table-cases"] not in page and "table-cases holds texts" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", TITLES)
def test_every_experiment_runs(name, data, tmp_path_factory):
    out = tmp_path_factory.getbasetemp() / "all"
    order = Order(str(data), "smoke", out, ("seeds=[0]", "second_seeds=[]"))
    result, files = reproduce(name, order, open_lab(order))
    assert result.findings.tables and all(map(_is_full, files))


def _check_result(result, files):
    assert {path.suffix for path in files} == {".json", ".md", ".tex", ".html", ".png"} and all(map(_is_full, files))
    assert load_result(files[0]) == result
    first, second = result.findings.tables
    names = [row.cells[0] for row in first.rows if not row.is_paper]
    assert names == [
        "Beam search",
        *"Soft-EM Hard-EM EqRandom-Dynamic EqRandom-Fixed EqHard-EM EqSoft-EM".split(),
        HARD_AUTHORS.name,
    ]
    assert "on" in second.title and len([row for row in second.rows if not row.is_paper]) == 5
    ours = result.findings.numbers["E-step dropout off"]["means"]["EqHard-EM"]
    assert set(PAPER_NUMBERS) <= set(ours) and ours["starved"] == 0
    _check_verdicts(result.findings)
    origin = result.origin
    assert origin["final_split"] == "valid" and origin["seeds"] == [0] and origin["recipe"]["em"]["cost"] == "posterior"
    assert origin["second_block_seeds"] == [1] and not origin["may_be_shown"]
    assert origin["machines"] and origin["seconds"] > 0 and "k:3" in origin["signatures"][0]
    assert json.loads(files[0].read_text())["schema_version"] == 1
    _check_page(files[3].read_text(encoding="utf-8"))


def _check_verdicts(findings):
    """Both blocks are judged; the paper's Hard-EM stands under the one that began as theirs did."""
    assert {one.outcome for one in findings.verdicts} <= set(get_args(Outcome))
    second = [one for one in findings.verdicts if one.text.startswith("E-step dropout on: ")]
    assert second and all(one.ours for one in second)
    assert any(line.startswith("E-step dropout on: Against Beam search") for line in findings.remarks)
    for table, seed in zip(findings.tables, "01", strict=True):
        assert f"Seed of stage 2: {seed}." in table.notes
        assert any(note.startswith("Learning rates of stage 2, the same for all: Soft-EM 0.01") for note in table.notes)
        names = [row.cells[0] for row in table.rows]
        assert names[names.index(HARD_AUTHORS.name) + 1] == "paper, OpenSubtitles"
        assert names[names.index(HARD.name) + 1] != "paper, OpenSubtitles"
    assert findings.numbers["E-step dropout off"]["learning_rates"]["EqSoft-EM"] == 0.01


def _is_full(path):
    return path.stat().st_size > 100


def _check_page(page):
    """One page that needs nothing else, with the paper's numbers."""
    assert "<script" not in page and "http" not in page and "<link" not in page
    assert re.findall(r'src="([^"]{0,22})', page) == ["data:image/png;base64,"]
    assert "17.86" in page and "50.41" in page and 'class="paper"' in page
    assert "does not hold" in page and "nothing was chosen by" in page


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_planned_for_every_experiment_without_making_anything(preset, data, tmp_path, monkeypatch):
    monkeypatch.setattr(Workshop, "make", None)
    lab = open_lab(Order(str(data), preset, tmp_path / "out"), is_plan=True)
    for name in TITLES:
        plan = plan_for(lab, [name])
        assert plan.missing and plan.seconds > 0 and "roughly" in [*plan.lines()][-1]
    assert not (tmp_path / "out").exists()


def test_the_papers_preset_is_the_authors_code():
    preset = load_preset("paper")
    assert preset.model.backbone == "google-t5/t5-small" and preset.model.num_decoders == 10
    assert (preset.em.e_step_size, preset.em.likelihood, preset.em.cost) == (640, "mean", "nll")
    assert preset.em.e_step_dropout and preset.rates.adapters == (1e-3,) and preset.model.adapter_init == "linear"


def test_variants_that_a_preset_makes_equal_are_one(data, tmp_path):
    variants = (BEAM, HARD, HARD_AUTHORS, EQHARD)

    def kept(preset):
        return without_twins(open_lab(Order(str(data), preset, tmp_path), is_plan=True), variants)

    assert kept("paper") == [BEAM, HARD, EQHARD] and kept("mini") == list(variants)


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


def test_stage_1_does_not_depend_on_what_only_stage_2_uses(data, tmp_path):
    def first(*overrides):
        return open_lab(Order(str(data), "smoke", tmp_path, overrides)).stage_1().name

    assert first() == first("em.e_step_size=30", "contexts=3", "seeds=[5]", "rates.adapters=[1]", "stage_2.steps=9")
    assert first() != first("stage_1.steps=9") and first() != first("selection_share=0.3")


def test_the_learning_rate_is_chosen_by_validation_alone(data, tmp_path):
    chosen = ("rates.adapters=[1e30, 5.0, 1e-4]", "stage_1.steps=20", "rates.select=mixture_nll", "seeds=[0, 1]")
    order = Order(str(data), "smoke", tmp_path, chosen)
    planned, lab = open_lab(order, is_plan=True), open_lab(order)
    assert planned.learning_rate(EQHARD) == 1e30
    for name in (
        "figure-assignment",
        "table-cases",
        "figure-decoders",
        "table-efficiency",
        "figure-bound",
        "table-main",
    ):
        missing = {stage.name for stage in plan_for(planned, [name]).missing}
        assert {stage.name for stage in planned.tried(EQHARD)} <= missing, f"the plan of {name} lacks other rates"
    assert lab.learning_rate(EQHARD) == 1e-4 == planned.learning_rate(EQHARD)
    assert lab.training(EQHARD, 0).is_made and not lab.training(EQHARD, 1).is_made
    assert not lab.corpus.asked.is_made, "a choice has looked at the final contexts"
    _check_diverged(order, lab)


def _check_diverged(order, lab):
    """That a training diverged is kept: it is not tried again, it is the worst, and tables say so."""
    lost, *_ = lab.tried(EQHARD)
    assert lost.is_made and "diverged" in lost.diverged and not (lost.path / "model").exists()
    lab.workshop.notify = None
    with pytest.raises(Diverged, match="use a lower learning rate"):
        lab.workshop.make(lost)
    hot = replace(EQHARD, name="EqHard-EM, hot", settings={"optimizer.learning_rate": 1e30})
    order = replace(order, overrides=(*order.overrides, "rates.select=first", "contexts=4", "seeds=[0]"))
    lab = open_lab(order)
    scored = score_table(lab, "Two", [BEAM, hot], baseline=hot.name)
    assert [row.cells[:2] for row in scored.table.rows][1] == [hot.name, "diverged"] and list(scored.numbers) == [
        BEAM.name
    ]
    assert any(note.startswith("Diverged: EqHard-EM, hot, seed 0: eqhard-em-") for note in scored.table.notes)
    assert not plan(lab.all_scores([BEAM, hot]), lab.workshop, lab.preset).missing


def test_halves_of_valid_share_no_context_and_final_numbers_come_from_test_if_there_is_one(data, tmp_path, write_rows):
    rows = [Dialogue((f"context {n % 7}",), (f"reply {n}",)) for n in range(20)]
    chosen, held_out = split_by_context(rows, 0.5)
    assert {one.context for one in chosen}.isdisjoint(one.context for one in held_out)
    assert sorted(one.responses for one in chosen + held_out) == sorted(one.responses for one in rows)
    assert len({one.context for one in chosen}) in (3, 4)
    assert sample(rows, 5) == sample(rows, 5) and len(sample(rows, 5)) == 5
    with pytest.raises(DataError, match="two contexts or more"):
        split_by_context(rows[:1], 0.5)

    workshop, preset = Workshop(tmp_path / "out"), load_preset("smoke")
    for split, text in (("train", "a"), ("valid", "b"), ("test", "c")):
        write_rows(tmp_path / "x" / f"{split}.jsonl", [{"context": f"{text}{n}", "response": text} for n in range(30)])
    corpus = find_corpus(workshop, str(tmp_path / "x"), preset)
    workshop.make(corpus.splits)
    assert {path.name for path in corpus.splits.path.iterdir()} == {"train.jsonl", "valid.jsonl", "done.json"}
    workshop.make(corpus.asked)
    assert corpus.about()["final_split"] == "test" and '"c' in corpus.final.read_text()
    (tmp_path / "x" / "test.jsonl").unlink()
    without = find_corpus(workshop, str(tmp_path / "x"), preset)
    workshop.make(without.asked)
    assert without.about()["final_split"] == "valid"
    seen = {json.loads(line)["context"] for line in (corpus.splits.path / "valid.jsonl").read_text().splitlines()}
    final = {json.loads(line)["context"] for line in without.final.read_text().splitlines()}
    assert final and seen.isdisjoint(final) and without.splits.name == corpus.splits.name


def test_chinese_is_recognised(tmp_path, write_rows):
    for split in ("train", "valid"):
        write_rows(
            tmp_path / "zh" / f"{split}.jsonl", [{"context": f"你好{n}", "response": "很高兴"} for n in range(9)]
        )
    workshop, preset = Workshop(tmp_path), load_preset("smoke")
    corpus = find_corpus(workshop, str(tmp_path / "zh"), preset)
    assert corpus.language == "zh" and corpus.tokenizer == "characters"
    assert find_corpus(workshop, str(tmp_path / "zh"), load_preset("smoke", ["language=en"])).tokenizer == "wordpunct"
    for preset, overrides, model in (
        ("mini", (), ("mini", 8000)),
        ("smoke", (), ("mini", 8000)),
        ("smoke", ("model.vocab_size=5000",), ("mini", 5000)),
        ("smoke", ("language=en",), ("mini", 400)),
        ("mini", ("language=en",), ("shipped", 8000)),
    ):
        found = open_lab(Order(str(tmp_path / "zh"), preset, tmp_path, overrides)).preset.model
        assert (found.backbone, found.vocab_size) == model


def test_texts_that_a_tokenizer_took_apart_are_put_together_in_all_splits_alike(tmp_path, write_rows):
    says = {
        "train": ("i don ’ t know {} .", "that ' s fine ."),
        "valid": ("i don't know {}.", "that's fine."),
        "test": ("i do n't know {} .", "that 's fine ."),
    }
    for split, (text, response) in says.items():
        write_rows(
            tmp_path / "apart" / f"{split}.jsonl",
            [{"context": text.format(n), "responses": [response]} for n in range(30)],
        )
    workshop = Workshop(tmp_path / "out")

    def texts(*overrides):
        corpus = find_corpus(workshop, str(tmp_path / "apart"), load_preset("smoke", overrides))
        files = [workshop.make(corpus.splits) / "train.jsonl", corpus.splits.path / "valid.jsonl"]
        workshop.make(corpus.asked)
        rows = [json.loads(line) for path in (*files, corpus.final) for line in path.read_text().splitlines()]
        return {(re.sub(r"\d+", "N", row["context"]), *row["responses"]) for row in rows}, corpus

    found, corpus = texts()
    assert found == {("i don't know N.", "that's fine.")} and "put together" in corpus.preparation
    kept, as_it_is = texts("put_together=never")
    assert kept == {(text.format("N"), response) for text, response in says.values()} and not as_it_is.preparation
    assert as_it_is.splits.name != corpus.splits.name
    halves = [path.splits.path / "valid.jsonl" for path in (corpus, as_it_is)]
    assert len({tuple(re.findall(r"\d+", half.read_text())) for half in halves}) == 1, "the same half is for choices"


@pytest.mark.parametrize(
    "text, expected",
    [("yes , i am .", True), ("Yes, I am.", False), ("no signs", False), ("好 的 。", True), ("好的。", False)],
)
def test_text_that_was_taken_apart_is_recognised(tmp_path, write_rows, text, expected):
    file = tmp_path / "valid.jsonl"
    write_rows(file, [{"context": text, "response": text}])
    assert is_tokenized(file) is expected


def test_a_folder_without_valid_is_one_clear_line(tmp_path, write_rows):
    write_rows(tmp_path / "d" / "train.jsonl", [{"context": "a", "response": "b"}])
    with pytest.raises(DataError, match="expected train and valid, found no valid"):
        find_corpus(Workshop(tmp_path), str(tmp_path / "d"), load_preset("smoke"))


def test_the_estimate_uses_what_stages_took(tmp_path):
    workshop = Workshop(tmp_path)

    def stage(number, amount):
        return workshop.planned("run", {"n": number}, lambda path: path.mkdir(), work=Work("EM, mini 16x1", amount))

    workshop.make(stage(1, 10.0))
    done = tmp_path / stage(1, 10.0).name / "done.json"
    done.write_text(json.dumps({**json.loads(done.read_text()), "seconds": 20.0}))
    assert workshop.paces() == {"EM, mini 16x1": 2.0}
    found = plan([stage(1, 10.0), stage(2, 30.0)], workshop, load_preset("smoke"))
    assert found.seconds == pytest.approx(60.5) and found.made == 1 and "took" in found.basis
    assert [duration(seconds) for seconds in (3, 600, 9000, 9e5)] == ["3 seconds", "10 minutes", "2.5 hours", "10 days"]


def test_every_name_has_its_module_and_a_wrong_one_a_hint():
    assert all(experiment(name) for name in TITLES)
    with pytest.raises(PolyReplyError, match=r"did you mean table-em\?"):
        experiment("table-emm")


def test_the_command_line_lists_plans_and_refuses(data, tmp_path, polyreply):
    assert [line.split()[0] for line in polyreply("reproduce", "--list").stdout.splitlines()] == list(TITLES)
    arguments = ("--data", data, "--preset", "smoke", "--out", tmp_path / "out", "--dry-run", "--json")
    done = polyreply("reproduce", "table-cases", *arguments, "second_seeds=[]")
    assert done.returncode == 0, done.stderr
    assert {"missing", "made", "seconds"} == set(json.loads(done.stdout)) and not (tmp_path / "out").exists()
    done = polyreply("reproduce", "table-emm", *arguments)
    assert done.returncode == 2 and done.stderr.strip().endswith("did you mean table-em?")
