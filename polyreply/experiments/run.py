"""Runs experiments: from the name of a table or figure to the files of its result.

OUT/cache holds what all experiments share. OUT/DATA-PRESET/NAME holds a result with its own report, and
OUT/DATA-PRESET/report.html shows all of them. DATA-PRESET ends in a digest where the data is not an embedded corpus, or
settings differ from the preset's, so that no result overwrites another.
"""

import datetime
import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyreply import __version__
from polyreply.config import to_tree
from polyreply.errors import PolyReplyError
from polyreply.experiments.cache import Cache
from polyreply.experiments.catalogue import TITLES, experiment
from polyreply.experiments.plan import TaskPlan, plan_tasks, with_needs
from polyreply.experiments.presets import load_preset
from polyreply.experiments.report import html_report, latex, markdown
from polyreply.experiments.result import FILE, Result, load_result
from polyreply.experiments.splits import find_data, is_embedded
from polyreply.experiments.systems import Systems
from polyreply.files import write_file
from polyreply.progress import Notify, silent
from polyreply.training.callbacks import Callback

REPORT = "report.html"
_DIGEST = 6
_SMOKE = "Preset smoke: nothing is learnt in so few steps. It shows that everything runs; its numbers mean nothing."


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    data: str
    preset: str
    out: Path
    overrides: tuple[str, ...] = ()

    @property
    def results(self) -> Path:
        """The folder of the results: one for each data, preset and changed settings."""
        settings, defaults = (to_tree(load_preset(self.preset, overrides)) for overrides in (self.overrides, ()))
        changed = {key: value for key, value in settings.items() if value != defaults[key]}
        name = f"{Path(self.data).name}-{self.preset}"
        if is_embedded(self.data) and not changed:
            return self.out / name
        place = str(Path(self.data).resolve()) if Path(self.data).exists() else self.data
        return self.out / f"{name}-{hashlib.sha256(json.dumps([place, changed]).encode()).hexdigest()[:_DIGEST]}"

    def command(self, name: str) -> str:
        """The command that gives a result."""
        options = ("--data", self.data, "--preset", self.preset, "--out", str(self.out))
        return shlex.join(["polyreply", "reproduce", name, *options, *self.overrides])


def open_systems(
    request: Request,
    *,
    is_plan: bool = False,
    notify: Notify = silent,
    callbacks: Sequence[Callback] = (),
) -> Systems:
    """The systems of a request; raises if its preset or its data cannot be used."""
    preset = load_preset(request.preset, request.overrides)
    cache = Cache(request.out / "cache", notify, callbacks)
    data = find_data(cache, request.data, preset)
    preset = load_preset(request.preset, request.overrides, data.language)
    return Systems(cache, preset, data, is_plan=is_plan)


def plan_for(systems: Systems, names: Sequence[str]) -> TaskPlan:
    """What is missing for some experiments; computes nothing."""
    chosen = [experiment(name) for name in names]
    tasks = [task for one in chosen for task in one.tasks(one.with_its_seeds(systems))]
    return plan_tasks(tasks, systems.cache)


def reproduce(name: str, request: Request, systems: Systems) -> tuple[Result, list[Path]]:
    """Compute what is missing, then write the result in all its forms; the result and its files."""
    folder = request.results / name
    folder.mkdir(parents=True, exist_ok=True)
    chosen = experiment(name)
    systems = chosen.with_its_seeds(systems)
    findings = chosen.report(systems, folder)
    if request.preset == "smoke":
        findings = replace(findings, remarks=[_SMOKE, *findings.remarks])
    origin = {**_origin(name, request, systems), "signatures": findings.signatures}
    result = Result(name, TITLES[name], findings, origin)
    files = [result.save(folder)]
    texts = {"result.md": markdown(result), "result.tex": latex(result), REPORT: html_report([(result, folder)])}
    for file, text in texts.items():
        write_file(folder / file, text, overwrite=True)
        files.append(folder / file)
    files += [folder / picture.file for picture in findings.pictures]
    return result, [*files, write_joint_report(request.results)]


def write_joint_report(results: Path) -> Path:
    """Write one page with all results of a folder that may be published, in the catalogue's order."""
    shown, left_out = [], []
    for name in TITLES:
        folder = results / name
        if not (folder / FILE).is_file():
            continue
        try:
            result = load_result(folder / FILE)
        except PolyReplyError as error:
            left_out.append(str(error))
            continue
        if experiment(name).shows_texts and not result.origin.get("may_be_published"):
            left_out.append(f"{name} holds texts of the data; it is only in its own folder")
        elif not all((folder / picture.file).is_file() for picture in result.findings.pictures):
            left_out.append(f"{name} has lost its pictures; run it again")
        else:
            shown.append((result, folder))
    write_file(results / REPORT, html_report(shown, left_out), overwrite=True)
    return results / REPORT


def _origin(name: str, request: Request, systems: Systems) -> dict[str, Any]:
    """All that is needed to judge and repeat a result, as plain JSON."""
    chosen = experiment(name)
    used = with_needs(chosen.tasks(systems))
    machines = {json.dumps(machine): machine for task in used if (machine := task.record().get("machine"))}
    origin = {
        **chosen.origin(systems),
        "may_be_published": systems.data.may_be_published,
        "preset": " ".join([request.preset, *request.overrides]),
        "recipe": to_tree(systems.preset),
        "command": request.command(name),
        "tasks": [task.name for task in used],
        "machines": list(machines.values()),
        "seconds": round(sum(task.seconds for task in used if task.is_done), 1),
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "version": __version__,
    }
    plain: dict[str, Any] = json.loads(json.dumps(origin))
    return plain
