"""Runs experiments: from a name to the files of its result.

OUT/stages holds what is kept and shared; OUT/DATA-PRESET/NAME the results, each with its own report, and beside them
`report.html` with all of them. Where the data is a file or folder, or a setting is changed, DATA-PRESET has a digest.
"""

import datetime
import hashlib
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyreply import __version__
from polyreply.config import to_tree
from polyreply.errors import PolyReplyError
from polyreply.experiments.cache import Workshop
from polyreply.experiments.catalogue import TITLES, experiment
from polyreply.experiments.corpus import find_corpus, is_embedded
from polyreply.experiments.plan import Plan, plan, with_needs
from polyreply.experiments.presets import load_preset
from polyreply.experiments.render import latex, markdown
from polyreply.experiments.report import html_report
from polyreply.experiments.result import FILE, Result, load_result
from polyreply.experiments.systems import Lab
from polyreply.files import write_file
from polyreply.progress import Notify, silent
from polyreply.training.callbacks import Callback

REPORT = "report.html"
_DIGEST = 6
_SMOKE = "Preset smoke: nothing is learnt in so few steps. All of it runs; its numbers and verdicts say nothing."


@dataclass(frozen=True)
class Order:
    """What a user has asked for."""

    data: str
    preset: str
    out: Path
    overrides: tuple[str, ...] = ()

    @property
    def results(self) -> Path:
        """The folder of its results: one for each data, preset and overrides."""
        own, usual = (to_tree(load_preset(self.preset, given)) for given in (self.overrides, ()))
        changed = {key: value for key, value in own.items() if value != usual[key]}
        place = str(Path(self.data).resolve()) if Path(self.data).exists() else self.data
        name = f"{Path(self.data).name}-{self.preset}"
        if is_embedded(self.data) and not changed:
            return self.out / name
        return self.out / f"{name}-{hashlib.sha256(json.dumps([place, changed]).encode()).hexdigest()[:_DIGEST]}"

    def command(self, name: str) -> str:
        """The command that gives a result."""
        options = ("--data", self.data, "--preset", self.preset, "--out", str(self.out))
        return shlex.join(["polyreply", "reproduce", name, *options, *self.overrides])


def open_lab(
    order: Order,
    *,
    is_plan: bool = False,
    notify: Notify = silent,
    callbacks: Sequence[Callback] = (),
) -> Lab:
    """The lab of an order; raises when its preset or its data cannot be used."""
    preset = load_preset(order.preset, order.overrides)
    workshop = Workshop(order.out / "stages", notify, callbacks)
    corpus = find_corpus(workshop, order.data, preset)
    return Lab(workshop, load_preset(order.preset, order.overrides, corpus.language), corpus, is_plan=is_plan)


def plan_for(lab: Lab, names: Sequence[str]) -> Plan:
    """What is missing for some experiments; makes nothing."""
    chosen = [experiment(name) for name in names]
    stages = [stage for one in chosen for stage in one.needs(one.lab(lab))]
    return plan(stages, lab.workshop, lab.preset)


def reproduce(name: str, order: Order, lab: Lab) -> tuple[Result, list[Path]]:
    """Makes what is missing, then the result in all its forms; the result and its files."""
    folder = order.results / name
    folder.mkdir(parents=True, exist_ok=True)
    chosen = experiment(name)
    lab = chosen.lab(lab)
    findings = chosen.report(lab, folder)
    if order.preset == "smoke":
        findings = replace(findings, remarks=[_SMOKE, *findings.remarks])
    origin = {**_origin(name, order, lab), "signatures": findings.signatures}
    result = Result(name, TITLES[name], findings, origin)
    texts = {
        "result.md": markdown(result),
        "result.tex": latex(result),
        REPORT: html_report([(result, folder)]),
    }
    files = [result.save(folder)]
    for file, text in texts.items():
        write_file(folder / file, text.encode(), overwrite=True)
        files.append(folder / file)
    return result, [*files, *(folder / one.file for one in findings.pictures), _joint_report(order.results)]


def _joint_report(results: Path) -> Path:
    """One page with all results of the folder that may be shown, in the catalogue's order."""
    found, left_out = [], []
    for name in TITLES:
        folder = results / name
        if not (folder / FILE).is_file():
            continue
        try:
            result = load_result(folder / FILE)
        except PolyReplyError as error:
            left_out.append(str(error))
            continue
        if experiment(name).shows_texts and not result.origin.get("may_be_shown"):
            left_out.append(f"{name} holds texts of the data; it is in its own folder alone")
        elif not all((folder / picture.file).is_file() for picture in result.findings.pictures):
            left_out.append(f"{name} has lost its pictures; make it again")
        else:
            found.append((result, folder))
    write_file(results / REPORT, html_report(found, left_out).encode(), overwrite=True)
    return results / REPORT


def _origin(name: str, order: Order, lab: Lab) -> dict[str, Any]:
    chosen = experiment(name)
    used = with_needs(chosen.needs(lab))
    told = {
        **chosen.origin(lab),
        "may_be_shown": lab.corpus.may_be_shown,
        "preset": " ".join([order.preset, *order.overrides]),
        "recipe": to_tree(lab.preset),
        "command": order.command(name),
        "stages": [stage.name for stage in used],
        "machines": _distinct(stage.done().get("machine", {}) for stage in used),
        "seconds": round(sum(stage.seconds() for stage in used if stage.is_made), 1),
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "version": __version__,
    }
    plain: dict[str, Any] = json.loads(json.dumps(told))
    return plain


def _distinct(machines: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """The machines that made something, each once."""
    found: list[dict[str, str]] = []
    for machine in machines:
        if machine and machine not in found:
            found.append(machine)
    return found
