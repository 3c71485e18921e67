"""`polyreply reproduce`: from raw data to the rendered result, through the cache."""

import json
import re
from html import escape
from itertools import pairwise
from typing import get_args

import pytest
import runs
from studies import make_study
from typer.testing import CliRunner

from polyreply.cli.main import app
from polyreply.errors import PolyReplyError
from polyreply.experiments.catalogue import TITLES, experiment
from polyreply.experiments.claims import Outcome
from polyreply.experiments.result import load_result
from polyreply.experiments.run import Request, open_systems, plan_for, reproduce
from polyreply.experiments.table_ours import PROTOTYPES, RECIPES, choose
from polyreply.experiments.variants import HARD, HARD_AUTHORS
from polyreply.metrics import PAPER_NUMBERS
from polyreply.study.folder import open_answers
from polyreply.study.simulate import Script, simulate

ONCE = ("seeds=[0]", "second_seeds=[1]", "stage_1.steps=40")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("talk"), rows=120)


def test_table_em_end_to_end_continues_after_an_interrupt_and_is_computed_once(data, tmp_path):
    request = Request(str(data), "smoke", tmp_path, ONCE)
    lines = []

    def interrupt(line, share):
        lines.append(line)
        if line.startswith("replying") and "responses-soft-em-decoders" in lines:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("table-em", request, open_systems(request, notify=interrupt))
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cache/*/done.json")}
    assert any("stage1" in str(path) for path in finished)
    plan = plan_for(open_systems(request, is_plan=True), ["table-em"])
    assert plan.missing and not any("stage1" in task.name for task in plan.missing)

    result, files = reproduce("table-em", request, open_systems(request))
    assert all(path.stat().st_mtime_ns == time for path, time in finished.items())
    assert not plan_for(open_systems(request, is_plan=True), ["table-em"]).missing
    lines.clear()
    again, _ = reproduce("table-em", request, open_systems(request, notify=lambda line, share: lines.append(line)))
    assert again.findings == result.findings
    assert not [line for line in lines if not line.startswith("resampling")]
    _check_result(again, files)
    _check_others(request)
    _check_main(request)
    _check_draws(request)


def _check_result(result, files):
    assert {path.suffix for path in files} == {".json", ".md", ".tex", ".html", ".png"} and all(map(_is_full, files))
    assert load_result(files[0]) == result
    first, second = result.findings.tables
    names = [row.cells[0] for row in first.rows if not row.muted]
    methods = "Soft-EM Hard-EM EqRandom-Dynamic EqRandom-Fixed EqHard-EM EqSoft-EM".split()
    assert names == ["Beam search", *methods, HARD_AUTHORS.name]
    assert "on" in second.title and len([row for row in second.rows if not row.muted]) == 5
    ours = result.findings.numbers["E-step dropout off"]["means"]["EqHard-EM"]
    assert set(PAPER_NUMBERS) <= set(ours) and ours["starved"] == 0
    _check_verdicts(result.findings)
    origin = result.origin
    assert origin["final_split"] == "valid" and origin["seeds"] == [0] and origin["recipe"]["em"]["cost"] == "posterior"
    assert origin["second_block_seeds"] == [1] and not origin["may_be_published"]
    assert origin["machines"] and origin["seconds"] > 0 and "k:3" in origin["signatures"][0]
    _check_page(files[3].read_text(encoding="utf-8"))


def _check_verdicts(findings):
    """Both blocks are judged; the paper's Hard-EM is below the row with the authors' initialisation."""
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


def _check_page(page):
    """One page that needs nothing else, with the paper's numbers."""
    assert "<script" not in page and "http" not in page and "<link" not in page
    assert re.findall(r'src="([^"]{0,22})', page) == ["data:image/png;base64,"]
    assert "17.86" in page and "50.41" in page and 'class="muted"' in page
    assert "does not hold" in page and "by which nothing was chosen" in page


def _check_others(request):
    """Experiments that use the same trainings and take no time."""
    names = ["figure-assignment", "table-cases", "figure-decoders"]
    assert len(plan_for(open_systems(request, is_plan=True), names).missing) == 2, (
        "more than Hard-EM without skip connection and with a learned prior"
    )
    assignment, cases, decoders = (reproduce(name, request, open_systems(request))[0].findings for name in names)
    assert [len(numbers["share"]) for numbers in assignment.numbers.values()] == [3] * 6
    assert len(cases.tables) == 3 and [len(table.rows) for table in cases.tables] == [3] * 3
    assert [row.cells[0] for row in decoders.tables[0].rows] == ["0", "1", "2"]
    origin = load_result(request.results / names[0] / "result.json").origin
    assert "logged during training" in origin["final_numbers_from"]
    tables = [table for findings in (assignment, cases, decoders) for table in findings.tables]
    assert all("Seed of stage 2: 0." in table.notes for table in tables)
    _check_joint_report(request, cases)
    _check_ours(reproduce("table-ours", request, open_systems(request))[0].findings)


def _check_main(request):
    """The paper's five systems with its numbers below ours, what is used today, and the minutes of training."""
    result, files = reproduce("table-main", request, open_systems(request))
    rows = [row.cells[0] for row in result.findings.tables[0].rows]
    [chosen] = [name for name in rows if name.startswith("Nucleus sampling, p = ")]
    others = ["Min-p sampling", "Diverse beam search", "MBR", "Relaxed-WTA", "Annealed-WTA"]
    published = [name for name, below in pairwise(rows) if below == "paper, OpenSubtitles"]
    assert published == ["Beam search", "Nucleus sampling", "AdaLabel", "DialogBERT", "EqHard-EM"]
    assert {*rows} == {*published, *others, chosen, "paper, OpenSubtitles"} and chosen[-3:] in ("0.5", "0.9")
    assert set(result.findings.numbers["training_minutes"]) == {*published, *others, chosen}
    assert result.findings.numbers["learning_rates"]["DialogBERT"] == 0.01
    assert any(one.text.startswith("AdaLabel performs poorly") and one.paper for one in result.findings.verdicts)
    assert not plan_for(open_systems(request, is_plan=True), ["table-main"]).missing and all(map(_is_full, files))


def _check_draws(request):
    """Draws of pairs are the trainings of table-em; scores, claims with their tries, and what could explain them."""
    missing = plan_for(open_systems(request, is_plan=True), ["table-draws"]).missing
    trainings = [task for task in missing if task.label.startswith("training")]
    assert sorted(task.label for task in trainings) == ["training-eqhard-em", "training-hard-em"]
    assert {task.inputs["em"]["draw_by"] for task in trainings} == {"contexts"}
    result, files = reproduce("table-draws", request, open_systems(request))
    names = ["Hard-EM", "Hard-EM, draws of contexts", "EqHard-EM", "EqHard-EM, draws of contexts"]
    scores, posteriors = ([row.cells for row in table.rows] for table in result.findings.tables)
    assert [row[0] for row in scores] == [row[0] for row in posteriors] == names
    found = {name: runs[0] for name, runs in result.findings.numbers["posteriors"].items()}
    assert found["EqHard-EM"]["pairs"] == 24 >= found["EqHard-EM, draws of contexts"]["pairs"]
    assert all(1 <= own["decoders"] <= 3 and 1 / 3 <= own["max_posterior"] <= 1 for own in found.values())
    assert len(result.findings.verdicts) == 5 and "multiplied by 5: 3 comparisons" in result.findings.remarks[-1]
    assert not plan_for(open_systems(request, is_plan=True), ["table-draws"]).missing and all(map(_is_full, files))


def _check_joint_report(request, cases):
    """The joint report leaves out the texts of a folder, which are only in the folder of their own result."""
    page = (request.results / "report.html").read_text(encoding="utf-8")
    assert all(TITLES[name].partition(":")[0] in page for name in ("table-em", "figure-assignment", "figure-decoders"))
    [context] = cases.numbers["0"]["context"]
    own = (request.results / "table-cases" / "report.html").read_text(encoding="utf-8")
    assert escape(context) in own and "licence" in own
    assert escape(context) not in page and TITLES["table-cases"] not in page and "table-cases holds texts" in page


def _check_ours(findings):
    """One of our recipes is chosen on one half and reported on the other."""
    final, tried = findings.tables
    *_, winner = [row.cells[0] for row in final.rows]
    left_out = ("at least 10", "at least 12", "posterior as cost")  # longer than replies may be; EqHard-EM itself
    possible = [one.name for one in RECIPES if not any(part in one.name for part in left_out)]
    assert [row.cells[0] for row in tried.rows] == ["EqHard-EM", *possible] and len(possible) == len(RECIPES) - 5
    remark = findings.remarks[-1]
    assert winner == choose(findings.numbers["tried"]["means"])[0] and winner in remark
    assert f"{len(possible)} recipes" in remark and f"{PROTOTYPES} prototypes" in remark
    assert f"multiplied by {len(possible) + PROTOTYPES}," in remark
    assert winner in findings.verdicts[0].text and len(findings.verdicts) == len(final.rows) + 1


def test_table_human_shows_people_beside_the_paper_and_never_scripted_annotators(data, tmp_path):
    folder, study = make_study(tmp_path / "s", names=("EqHard-EM", "beam"), contexts=10, people=2)
    simulate(study, Script(), tmp_path / "simulated")

    def rows(name):
        request = Request(str(data), "smoke", tmp_path / "out", (f"study={name}",) if name else ())
        result, files = reproduce("table-human", request, open_systems(request))
        assert all(map(_is_full, files)) and load_result(files[0]).findings.tables == result.findings.tables
        ours = [[*row.cells] for row in result.findings.tables[0].rows if not row.muted]
        theirs = [[*row.cells] for row in result.findings.tables[0].rows if row.muted]
        assert theirs[0] == ["quality", "paper, EqHard-EM", 48.2, 19.0, 32.8, 500, "<0.0001"] and len(theirs) == 4
        return ours, " ".join(result.findings.remarks), files[1].read_text(encoding="utf-8")

    for name, reason in (("", "No study"), (folder, "Nobody has answered"), (tmp_path / "simulated", "scripted")):
        ours, remarks, _ = rows(name)
        assert ours == [] and reason in remarks and "polyreply study new" in remarks and "table-main" in remarks
    answers = open_answers(folder, study)
    for person in study.annotators:
        ids = [item.id for item in person.items]
        for turn, item in enumerate(person.items):
            answers.record(person.name, turn, item.id, "2" if item.swapped else "1", ids)
    ours, remarks, page = rows(folder)
    assert ours[0] == ["quality", "EqHard-EM", 100.0, 0.0, 0.0, 20, "<0.0001"] and len(ours) == 4
    assert "40 judgements of people" in remarks and "48.2" in page and "simulated" not in page.lower()


def _is_full(path):
    return path.stat().st_size > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", TITLES)
def test_every_experiment_runs(name, data, tmp_path_factory):
    out = tmp_path_factory.getbasetemp() / "all"
    request = Request(str(data), "smoke", out, ("seeds=[0]", "second_seeds=[]"))
    result, files = reproduce(name, request, open_systems(request))
    assert result.findings.tables and all(map(_is_full, files))
    assert load_result(files[0]).findings.tables == result.findings.tables


def test_every_name_has_its_module_and_a_wrong_one_a_hint():
    assert all(experiment(name) for name in TITLES)
    with pytest.raises(PolyReplyError, match=r"did you mean table-em\?"):
        experiment("table-emm")


def test_results_of_other_data_or_settings_are_in_other_folders(tmp_path):
    (tmp_path / "a" / "x").mkdir(parents=True)
    (tmp_path / "b" / "x").mkdir(parents=True)

    def folder(data="chitchat", *overrides):
        return Request(str(data), "mini", tmp_path, overrides).results.name

    assert folder() == "chitchat-mini" == folder("chitchat", "rates.select=mixture_nll")
    others = [folder("chitchat", "contexts=7"), folder(tmp_path / "a" / "x"), folder(tmp_path / "b" / "x")]
    others += [folder(tmp_path / "a" / "x", "contexts=7"), folder("hf:one/x"), folder("hf:two/x")]
    assert len({*others, folder()}) == 7 and others[1].startswith("x-mini-")
    assert folder("chitchat", "contexts=7", "seeds=[1]") == folder("chitchat", "seeds=[1]", "contexts=7")


def test_the_command_line_lists_plans_and_refuses(data, tmp_path, polyreply):
    def run(*arguments):
        return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])

    assert [line.split()[0] for line in run("--list").output.splitlines()] == list(TITLES)
    options = ("--data", data, "--preset", "smoke", "--out", tmp_path / "out", "--dry-run", "--json")
    done = run("table-cases", *options, "second_seeds=[]")
    assert done.exit_code == 0, done.output
    assert {"missing", "done", "seconds"} == set(json.loads(done.stdout)) and not (tmp_path / "out").exists()
    refused = polyreply("reproduce", "table-emm", *options)
    assert refused.returncode == 2 and refused.stderr.strip().endswith("did you mean table-em?")
