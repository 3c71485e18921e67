"""Results from known judgements, scripted annotators, exports and plots; simulated ones are marked everywhere."""

import csv
import io
import json
import math
from collections import Counter

import pytest
from studies import make_study

from polyreply.errors import PolyReplyError
from polyreply.study.answers import Event
from polyreply.study.folder import load_study, open_answers
from polyreply.study.results import read_judgements, study_results
from polyreply.study.simulate import Script, simulate
from polyreply.study.statistics import binomial_tests


def answer_all(folder, study, decide):
    """Let every annotator answer everything; `decide` returns win, tie or loss of the comparison's first system."""
    events = []
    for person in study.annotators:
        for turn, item in enumerate(person.items):
            wanted = decide(person, item, study.comparisons[item.comparison])
            [choice] = [choice for choice in ("1", "2", "tie") if item.outcome(choice) == wanted]
            events.append((person.name, turn, Event(item.id, choice, 2.0, "2026-01-01T00:00:00+00:00")))
    answers = open_answers(folder, study)
    answers.record_all(events)
    answers.close()


def results_of(folder, **options):
    study = load_study(folder)
    return study_results(study, read_judgements(study, open_answers(folder, study)), **options)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulated")
    names = ("ours", "beam", "nucleus")
    _, study = make_study(folder, names=names, contexts=40, people=4, repeats=5, gold=4)
    script = Script((0.95, 0.9, 0.9, 0.5), (0, 0, 0, 0.5), 0.1, {"ours": 1.0, "nucleus": -1.0})
    simulate(study, script, folder / "filled")
    return folder


def test_wins_are_counted_for_systems_not_for_sides(tmp_path):
    """The first system wins contexts 0 to 5, ties 6 and 7, loses the others; annotator-3 always says the opposite."""
    folder, study = make_study(tmp_path, repeats=2, gold=2)
    opposite = {"win": "loss", "loss": "win", "tie": "tie"}

    def decide(person, item, comparison):
        number = int(comparison.context[0].split()[-1])
        outcome = "win" if comparison.is_gold or number < 6 else "tie" if number < 8 else "loss"
        return opposite[outcome] if person.name == "annotator-3" else outcome

    answer_all(folder, study, decide)
    found = results_of(folder)
    for pair in found.pairs:
        assert (pair.wins, pair.ties, pair.losses) == (6 * 2 + 4, 2 * 3, 4 * 2 + 6) and pair.judgements == 36
        assert (pair.one_sided, pair.two_sided) == binomial_tests(16, 14)
        assert pair.net == pytest.approx(100 * 2 / 36) and pair.net_interval[0] < pair.net < pair.net_interval[1]
    for one in found.annotators:
        assert (one.answered, one.items, one.repeats, one.same, one.gold) == (32, 32, 4, 4, 4)
        assert one.right == (0 if one.annotator == "annotator-3" else 4)
        assert one.agreed == (8 if one.annotator == "annotator-3" else 24 + 4) and one.shared == 48
        assert one.side_1 + one.side_2 + one.ties == 32 and one.median_seconds == 2.0
    without = results_of(folder, without=["annotator-3"])
    assert [(pair.wins, pair.losses) for pair in without.pairs] == [(12, 8)] * 2
    assert [one.fleiss_kappa for one in without.agreement] == [1.0, 1.0]
    assert all(one.krippendorff_alpha < 0.2 for one in found.agreement) and not found.rankings
    with pytest.raises(PolyReplyError, match="nobody"):
        results_of(folder, without=["nobody"])


def test_a_study_without_answers_has_empty_results(tmp_path):
    folder, _ = make_study(tmp_path)
    found = results_of(folder)
    assert found.judgements == 0 and all(pair.net is None for pair in found.pairs)
    assert all(one.fleiss_kappa is None and one.krippendorff_alpha is None for one in found.agreement)
    assert all("–" in str(table) for table in found.tables()[:1])


def test_the_table_is_like_the_papers(tmp_path):
    """500 judgements with the paper's counts give the paper's row."""
    folder, study = make_study(tmp_path, contexts=100, people=5, questions=("quality",))
    outcomes = iter(["win"] * 241 + ["tie"] * 95 + ["loss"] * 164)
    answer_all(folder, study, lambda *_: next(outcomes))
    first, second = results_of(folder).table().rows
    assert [cell.value for cell in first.cells[2:5]] == pytest.approx([48.2, 19.0, 32.8])
    assert [cell.value for cell in second.cells[2:5]] == pytest.approx([32.8, 19.0, 48.2])
    assert [cell.bold for cell in first.cells[2:5]] == [True, False, True] and first.cells[6] == "<0.0001"


def test_the_interval_resamples_whole_contexts(tmp_path):
    """Annotators who copy each other add no information: the interval is as wide as with one of them."""
    intervals = []
    for people in (1, 5):
        folder, study = make_study(tmp_path / str(people), contexts=100, people=people, questions=("quality",))
        answer_all(folder, study, lambda _, item, comparison: "win" if comparison.row % 3 else "loss")
        low, high = results_of(folder).pairs[0].net_interval
        intervals.append(high - low)
    assert intervals[0] == pytest.approx(intervals[1], rel=0.1)
    assert intervals[0] == pytest.approx(2 * 1.96 * 100 * math.sqrt(1 - (1 / 3) ** 2) / math.sqrt(100), rel=0.15)


def test_scripted_annotators_have_the_accuracy_and_bias_of_their_script(simulated):
    found = results_of(simulated / "filled")
    *honest, biased = found.annotators
    assert sum(one.right for one in honest) / sum(one.gold for one in honest) > 0.75
    for one in honest:
        assert 0.4 < one.side_1 / (one.side_1 + one.side_2) < 0.6
    assert 0.65 < biased.side_1 / (biased.side_1 + biased.side_2) < 0.9
    assert biased.agreed / biased.shared < min(one.agreed / one.shared for one in honest)
    for ranked in found.rankings.values():
        assert [one.system for one in ranked] == ["ours", "beam", "nucleus"]
        assert all(one.interval[0] < one.strength < one.interval[1] for one in ranked)


def test_perfect_scripted_annotators_agree_perfectly(tmp_path):
    _, study = make_study(tmp_path, contexts=60)
    simulate(study, Script(accuracy=(1.0,), ties=0.3, strengths={"ours": 2.0}), tmp_path / "filled")
    found = results_of(tmp_path / "filled")
    assert all(one.fleiss_kappa == one.krippendorff_alpha == pytest.approx(1) for one in found.agreement)
    assert sum(pair.ties for pair in found.pairs) / found.judgements == pytest.approx(0.3, abs=0.12)
    assert all(pair.one_sided < 0.001 for pair in found.pairs)


def test_simulating_leaves_the_study_untouched_and_marks_the_copy(simulated, polyreply_here):
    assert open_answers(simulated / "study", load_study(simulated / "study")).count() == 0
    assert load_study(simulated / "filled").simulated["accuracy"] == [0.95, 0.9, 0.9, 0.5]
    command = ("study", "results", simulated / "filled", "--samples", 20)
    text = polyreply_here(*command).stdout
    titles = [line for line in text.splitlines() if line.startswith(("Human", "Bradley", "Agreement", "Annotators"))]
    assert len(titles) == 5 and all("SIMULATED" in title for title in titles)
    for form in ("markdown", "latex", "html", "json"):
        rendered = polyreply_here(*command, "--format", form).stdout
        assert rendered.count("SIMULATED") == 5
    lines = polyreply_here(*command, "--format", "csv").stdout.split("\n\n")[0].splitlines()
    assert len(lines) > 10 and all(line.endswith((",annotators", ",simulated")) for line in lines)
    assert json.loads(polyreply_here(*command, "--json").stdout)["simulated"]
    assert "SIMULATED" not in polyreply_here("study", "results", simulated / "study").stdout


def test_simulated_answers_are_never_mixed_with_peoples(simulated, tmp_path, polyreply_here):
    """Neither into a study of people, nor a second time, nor by exchanging the files of answers."""
    filled, study = simulated / "filled", simulated / "study"
    assert polyreply_here("study", "simulate", study, "--out", study).returncode == 2
    again = polyreply_here("study", "simulate", filled, "--out", tmp_path / "again")
    assert again.returncode == 2 and "simulated already" in again.stderr
    with pytest.raises(PolyReplyError, match="another's"):
        open_answers(filled, load_study(study))


@pytest.mark.parametrize(
    "options",
    [["--accuracy", "1.2"], ["--accuracy", "0.9,0.8"], ["--bias", "x"], ["--ties", 2], ["--strength", "them=1"]],
)
def test_a_wrong_script_is_one_clear_line(simulated, tmp_path, polyreply_here, options):
    done = polyreply_here("study", "simulate", simulated / "study", "--out", tmp_path / "x", *options)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and not (tmp_path / "x").exists()


# --- exports


@pytest.fixture(scope="module")
def export(simulated, tmp_path_factory):
    from typer.testing import CliRunner

    from polyreply.cli.main import app

    out = tmp_path_factory.mktemp("export") / "out"
    plot = out.parent / "plot.svg"
    done = CliRunner().invoke(
        app, ["study", "results", str(simulated / "filled"), "--export", str(out), "--plot", str(plot)]
    )
    assert done.exit_code == 0, done.output
    return out


def test_the_raw_judgements_are_all_there(simulated, export):
    study = load_study(simulated / "filled")
    rows = json.loads((export / "judgements.json").read_text(encoding="utf-8"))
    assert len(rows) == sum(len(person.items) for person in study.annotators)
    assert {row["annotators"] for row in rows} == {"simulated"}
    kinds = Counter(row["kind"] for row in rows)
    assert kinds == {"judgement": 40 * 3 * 2 * 4, "repeat": 5 * 2 * 4, "gold": 4 * 2 * 4}
    wins = Counter((row["question"], row["winner"]) for row in rows if row["kind"] == "judgement")
    found = results_of(simulated / "filled")
    for question in study.questions:
        for name in ("ours", "beam", "nucleus"):
            counted = sum(
                pair.wins if pair.systems[0] == name else pair.losses
                for pair in found.pairs
                if pair.question == question and name in pair.systems
            )
            assert wins[question, name] == counted
    for row in rows:  # every text is on the side of its system
        if row["kind"] != "gold":
            for side in "12":
                assert all(text.split()[-1][0] == row[f"system_{side}"][0] for text in row[f"side_{side}"])
    with (export / "judgements.csv").open(encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [row["item"] for row in table] == [row["item"] for row in rows]
    assert [row["side_1"].split("\n") for row in table] == [row["side_1"] for row in rows]


def test_label_studio_accepts_the_export(export):
    from label_studio_sdk.label_interface import LabelInterface
    from label_studio_sdk.label_interface.objects import TaskValue

    interface = LabelInterface((export / "label-studio" / "config.xml").read_text(encoding="utf-8"))
    interface.validate()
    tasks = json.loads((export / "label-studio" / "tasks.json").read_text(encoding="utf-8"))
    for task in tasks:
        [annotation] = task["annotations"]
        assert interface.validate_task({"data": task["data"]}) and interface.validate_annotation(annotation)
        assert task["meta"]["annotators"] == "simulated"
        TaskValue.model_validate({**task, "annotations": [{**annotation, "completed_by": 1}]})  # who imports
    wrong = {"result": [{**tasks[0]["annotations"][0]["result"][0], "value": {"choices": ["3"]}}]}
    assert not interface.validate_annotation(wrong)


def test_argilla_accepts_the_export(export, monkeypatch):
    """Read back through Argilla's own objects; its client talks to nobody."""
    import argilla
    import httpx
    from argilla._models import DatasetModel

    user = {"id": "00000000-0000-0000-0000-000000000000", "username": "someone", "role": "owner"}
    nobody = httpx.MockTransport(lambda request: httpx.Response(200, json=user))
    client = argilla.Argilla("http://argilla.invalid", "key", mounts={"all://": nobody})
    monkeypatch.setattr(argilla.Argilla, "_default_client", client)
    folder = export / "argilla"
    settings = argilla.Settings.from_json(folder / ".argilla" / "settings.json")
    settings.validate()
    model = DatasetModel(**json.loads((folder / ".argilla" / "dataset.json").read_text(encoding="utf-8")))
    dataset = argilla.Dataset(name=model.name, settings=settings, client=client)
    records = json.loads((folder / "records.json").read_text(encoding="utf-8"))
    labels = {option["value"] for option in settings.questions["choice"]._model.settings.model_dump()["options"]}
    assert labels == {"1", "2", "tie"}
    for row in records:
        record = argilla.Record.from_dict(row, dataset=dataset)
        assert set(record.fields) == {field.name for field in settings.fields}
        [response] = record.responses["choice"]
        assert response.value in labels and record.metadata["annotators"] == "simulated"
        assert record.to_dict()["fields"] == row["fields"] and record.to_dict()["responses"] == row["responses"]
        assert record.api_model().external_id == row["id"]
    assert len({row["responses"]["choice"][0]["user_id"] for row in records}) == 4


def test_tables_and_plot_are_exported_and_marked(export):
    for name in ("results.md", "results.tex", "results.json"):
        assert "imulated" in (export / name).read_text(encoding="utf-8").replace("SIMULATED", "simulated")
    assert (export / "results.png").stat().st_size > 10_000
    assert (export.parent / "plot.svg").read_bytes().startswith(b"<?xml")


def test_the_plot_of_people_and_of_scripts(simulated, tmp_path):
    from polyreply.study.plot import draw_results

    figure = draw_results(results_of(simulated / "filled"))
    [axes] = figure.axes
    assert "SIMULATED" in axes.get_title("left") and len(axes.patches) == 3 * 6
    folder, study = make_study(tmp_path, questions=("quality",))
    with pytest.raises(PolyReplyError, match="study serve"):
        draw_results(results_of(folder))
    answer_all(folder, study, lambda _, item, comparison: "win" if comparison.row % 2 else "tie")
    [axes] = draw_results(results_of(folder)).axes
    assert "SIMULATED" not in axes.get_title("left") and [round(bar.get_width()) for bar in axes.patches] == [50, 50, 0]


def test_an_export_is_not_replaced_unasked(tmp_path, polyreply_here):
    folder, _ = make_study(tmp_path, contexts=2)
    command = ("study", "results", folder, "--export", tmp_path / "out")
    assert polyreply_here(*command).returncode == 0
    again = polyreply_here(*command)
    assert again.returncode == 2 and "--overwrite" in again.stderr
    assert polyreply_here(*command, "--overwrite").returncode == 0


def test_a_csv_without_judgements_is_empty():
    from polyreply.study.exports import to_csv

    assert list(csv.reader(io.StringIO(to_csv([])))) == []
