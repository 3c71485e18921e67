"""table-human: people's judgements from `polyreply study`, beside the paper's.

Nothing is trained for it. The study is named with study=FOLDER; without people's judgements the result holds the
paper's rows alone, and how to run a study. Scripted annotators never appear in it.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyreply.experiments import paper
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.result import Findings
from polyreply.experiments.systems import RESPONSES, Systems
from polyreply.experiments.variants import BEAM, EQHARD
from polyreply.study.folder import load_study, open_answers
from polyreply.study.results import Results, p_value, read_judgements, study_results
from polyreply.tables import Column, Row, Table

_HEADINGS = ("wins %", "ties %", "losses %")
_PAPER_P = "<0.0001"
_FOLDER = "study"


def _tasks(systems: Systems) -> Sequence[Task]:
    return []


def _report(systems: Systems, folder: Path) -> Findings:
    results, remark = _people(systems.preset.study)
    notes = [
        f"The paper's numbers are from its {paper.HUMAN.source}: five annotators, 100 contexts of "
        f"{paper.HUMAN.dataset}; one-sided binomial test without ties."
    ]
    columns: list[str | Column] = [
        "question",
        "system",
        *(Column(heading, digits=1) for heading in _HEADINGS),
        "judgements",
        "p one-sided",
    ]
    table = Table("Human evaluation", columns, [*_our_rows(results), *_paper_rows()], notes)
    numbers: dict[str, Any] = {"paper": paper.HUMAN.numbers}
    if results is None:
        return Findings([table], remarks=[remark, *_how_to(systems)], numbers=numbers)
    return Findings([table, *results.tables()[1:]], remarks=[remark], numbers={**numbers, "ours": results.tree()})


def _people(name: str) -> tuple[Results | None, str]:
    """The results of a study that people have answered; otherwise None and why."""
    if not name:
        return None, "No study was named: only the paper's rows are shown."
    study = load_study(Path(name))
    if study.simulated is not None:
        return None, f"{name} was filled by scripted annotators, which this table never shows."
    results = study_results(study, read_judgements(study, open_answers(Path(name), study)))
    if not results.judgements:
        return None, f"Nobody has answered {name} yet: only the paper's rows are shown."
    return results, f"Ours: {results.judgements} judgements of people, in {name}."


def _our_rows(results: Results | None) -> list[Row]:
    rows = []
    for pair in (pair for pair in (results.pairs if results else ()) if pair.judgements):
        shares = [100 * count / pair.judgements for count in (pair.wins, pair.ties, pair.losses)]
        first, second = pair.systems
        rows.append(Row([pair.question, first, *shares, pair.judgements, p_value(pair.one_sided)]))
        rows.append(Row(["", second, *shares[::-1], None, None]))
    return rows


def _paper_rows() -> list[Row]:
    rows = []
    for name, own in paper.HUMAN.numbers.items():
        question, _, system = name.partition(", ")
        shares = [own[number] for number in ("wins", "ties", "losses")]
        rows.append(Row([question, f"paper, {system}", *shares, 500, _PAPER_P], muted=True))
    return rows


def _how_to(systems: Systems) -> list[str]:
    """The commands that lead to a study of EqHard-EM against beam search."""
    planned = Systems(systems.cache, systems.preset, systems.data, is_plan=True)
    tasks = {one.name: planned.responses(one, planned.seeds(one)[0]) for one in (EQHARD, BEAM)}
    make = shlex.join(["polyreply", "study", "new", *_files(tasks), "--out", _FOLDER])
    first = [] if all(task.is_done for task in tasks.values()) else ["polyreply reproduce table-main (makes responses)"]
    run = [make, f"polyreply study serve {_FOLDER}", f"polyreply reproduce table-human study={_FOLDER}"]
    return [f"To run a study: {'; '.join([*first, *run])}."]


def _files(tasks: Mapping[str, Task]) -> list[str]:
    """The response files of systems by name; a name that says what it stands for where there is none yet."""
    return [f"{name}={task.path / RESPONSES if task.is_done else 'RESPONSES.jsonl'}" for name, task in tasks.items()]


def _origin(systems: Systems) -> dict[str, Any]:
    return {"data": systems.preset.study or "the paper", "final_numbers_from": "people's judgements"}


EXPERIMENT = Experiment(_tasks, _report, origin=_origin)
