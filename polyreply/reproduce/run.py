"""Runs experiments: from a name to the files of its result.

OUT/stages holds what is kept and shared; OUT/DATA-PRESET/NAME the results, each with its own report, and beside them
`report.html` with all of them.
"""

import datetime
import json
import os
import platform
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyreply import __version__
from polyreply.config import to_tree
from polyreply.metrics.scores import write_atomically
from polyreply.progress import Notify, silent
from polyreply.reproduce.catalogue import TITLES, experiment
from polyreply.reproduce.corpus import find_corpus
from polyreply.reproduce.lab import Lab
from polyreply.reproduce.plan import Plan, plan
from polyreply.reproduce.presets import load_preset
from polyreply.reproduce.render import latex, markdown
from polyreply.reproduce.report import html_report
from polyreply.reproduce.result import FILE, Result, load_result
from polyreply.reproduce.workshop import Stage, Workshop
from polyreply.training.recipe import TrainRecipe
from polyreply.training.view import View

REPORT = "report.html"
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
        """The folder of its results."""
        return self.out / f"{Path(self.data).name}-{self.preset}"

    def command(self, name: str) -> str:
        """The command that gives a result."""
        options = ("--data", self.data, "--preset", self.preset, "--out", str(self.out))
        return shlex.join(["polyreply", "reproduce", name, *options, *self.overrides])


def open_lab(
    order: Order,
    *,
    is_plan: bool = False,
    notify: Notify = silent,
    show: Callable[[TrainRecipe], AbstractContextManager[View]] | None = None,
) -> Lab:
    """The lab of an order; raises when its preset or its data cannot be used."""
    preset = load_preset(order.preset, order.overrides)
    workshop = Workshop(order.out / "stages", notify, show)
    return Lab(workshop, preset, find_corpus(workshop, order.data, preset), is_plan=is_plan)


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
    origin = _origin(name, order, lab, chosen.needs(lab))
    origin["signatures"] = findings.signatures
    result = Result(name, TITLES[name], findings, origin)
    texts = {
        "result.md": markdown(result),
        "result.tex": latex(result),
        REPORT: html_report([(result, folder)]),
    }
    files = [result.save(folder)]
    for file, text in texts.items():
        write_atomically(folder / file, text.encode(), overwrite=True)
        files.append(folder / file)
    return result, [*files, *(folder / one.file for one in findings.pictures), _joint_report(order.results)]


def _joint_report(results: Path) -> Path:
    """One page with all results of the folder, in the catalogue's order."""
    folders = [results / name for name in TITLES if (results / name / FILE).is_file()]
    page = html_report([(load_result(folder / FILE), folder) for folder in folders])
    write_atomically(results / REPORT, page.encode(), overwrite=True)
    return results / REPORT


def _origin(name: str, order: Order, lab: Lab, stages: Sequence[Stage]) -> dict[str, Any]:
    lab.workshop.make(lab.corpus.asked)
    about, used = lab.corpus.about(), _with_needs(stages)
    split = "test" if about["final_split"] == "test" else "the half of valid that nothing was chosen by"
    told = {
        "data": lab.corpus.name,
        "final_split": about["final_split"],
        "final_numbers_from": f"{split}, {about['contexts']} contexts, {about['references']:.1f} references each",
        "preset": " ".join([order.preset, *order.overrides]),
        "recipe": to_tree(lab.preset),
        "seeds": list(lab.preset.seeds),
        "command": order.command(name),
        "stages": [stage.name for stage in used],
        "machine": _machine(),
        "seconds": round(sum(stage.seconds() for stage in used if stage.is_made), 1),
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "version": __version__,
    }
    plain: dict[str, Any] = json.loads(json.dumps(told))
    return plain


def _with_needs(stages: Sequence[Stage]) -> list[Stage]:
    """Stages and all they stand on, each once."""
    found: dict[str, Stage] = {}
    waiting = list(stages)
    while waiting:
        stage = waiting.pop()
        if stage.name not in found:
            found[stage.name] = stage
            waiting += stage.needs
    return sorted(found.values(), key=lambda stage: stage.name)


def _machine() -> dict[str, str]:
    import torch

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    return {
        "processor": _processor(),
        "cores": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "device": device,
        "system": platform.platform(terse=True),
        "python": f"Python {platform.python_version()}",
        "torch": f"torch {torch.__version__}",
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
