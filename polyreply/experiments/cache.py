"""Stages whose results are kept: prepared data, trained models, responses, scores.

The result of a stage lies in a folder named by a digest of everything it is made from. It is made once; an interrupted
stage goes on where it stopped, as training and replying do by themselves.
"""

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from polyreply import __version__
from polyreply.config import as_overrides, load_recipe, to_tree
from polyreply.data.prepare import PrepareRecipe, prepare
from polyreply.errors import DivergedError
from polyreply.experiments.machine import machine
from polyreply.experiments.stage import DONE, Stage, Work, read_json, revision
from polyreply.files import write_file
from polyreply.models.shipped import SHIPPED, shipped_folder
from polyreply.progress import Notify, silent
from polyreply.training.callbacks import Callback
from polyreply.training.interrupts import TrainingError
from polyreply.training.loop import train
from polyreply.training.recipe import MINI, TrainRecipe

_DIGEST = 12
_UNWRITTEN = (("adapter_skip", True),)
"""Settings of models that recipes once did not have, as it was before: so that trainings from then still count."""


class Diverged(TrainingError):
    """A training of stage 2 ended in numbers that are none, and would again: that is kept as its result."""


class Workshop:
    """A folder of stages."""

    def __init__(
        self,
        folder: Path,
        notify: Notify = silent,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """`callbacks` follow every training."""
        self.folder, self.notify, self._callbacks = folder, notify, callbacks

    def planned(
        self,
        kind: str,
        made_from: Mapping[str, Any],
        make: Callable[[Path], None],
        needs: Sequence[Stage] = (),
        work: Work | None = None,
        leftover: str = "",
    ) -> Stage:
        """A stage of this folder; names of earlier stages are ingredients enough."""
        text = json.dumps(made_from, sort_keys=True, default=str)
        path = self.folder / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]}"
        return Stage(path, made_from, make, tuple(needs), work or Work(), leftover)

    def make(self, stage: Stage) -> Path:
        """The folder of a stage; whatever it needs is made before it. Raises Diverged for what has no result."""
        for need in stage.needs:
            self.make(need)
        if not stage.is_made:
            self._make(stage)
        elif stage.mend:
            stage.mend(stage.path)
        if stage.diverged:
            raise Diverged(f"{stage.diverged}; use a lower learning rate, or remove {stage.path} to try it again")
        return stage.path

    def _make(self, stage: Stage) -> None:
        self.notify(stage.kind, 0.0)
        was_begun, before = self._begin(stage)
        begin, diverged = time.perf_counter(), ""
        try:
            stage.make(stage.path)
        except Diverged as error:
            diverged = str(error)
        except BaseException:
            self._write_begun(stage, before + time.perf_counter() - begin)
            raise
        done = {
            "schema_version": 1,
            "id": uuid.uuid4().hex,
            "made_from": stage.made_from,
            "needs": stage.need_ids(),
            "seconds": round(before + time.perf_counter() - begin, 1),
            "work": {"unit": stage.work.unit, "amount": stage.work.amount},
            "resumed": was_begun,
            "diverged": diverged,
            "version": __version__,
            "machine": machine(),
        }
        write_file(stage.path / DONE, json.dumps(done, indent=2, default=str).encode(), overwrite=True)
        _begun(stage).unlink(missing_ok=True)
        if stage.leftover:
            shutil.rmtree(stage.path / stage.leftover, ignore_errors=True)

    def _begin(self, stage: Stage) -> tuple[bool, float]:
        """Whether there is a part to go on with, and the seconds it took; removes one that used other results."""
        begun = read_json(_begun(stage))
        if stage.path.exists() and (stage.done() or (begun and stage.used(begun) != stage.need_ids())):
            shutil.rmtree(stage.path)
        goes_on = stage.path.exists()
        before = float(begun.get("seconds", 0.0)) if goes_on else 0.0
        self._write_begun(stage, before)
        return goes_on, before

    def _write_begun(self, stage: Stage, seconds: float) -> None:
        record = {"needs": stage.need_ids(), "seconds": seconds}
        write_file(_begun(stage), json.dumps(record).encode(), overwrite=True)

    def paces(self) -> dict[str, float]:
        """Seconds per unit of work, as measured by the stages that were made here in one go."""
        total: dict[str, tuple[float, float]] = {}
        for path in sorted(self.folder.glob(f"*/{DONE}")):
            done = read_json(path)
            work = done.get("work", {})
            if work.get("amount") and not done.get("resumed") and not done.get("diverged"):
                seconds, amount = total.get(work["unit"], (0.0, 0.0))
                total[work["unit"]] = seconds + done["seconds"], amount + work["amount"]
        return {unit: seconds / amount for unit, (seconds, amount) in total.items()}

    def preparing(self, source: str, config: PrepareRecipe | None = None) -> Stage:
        """The data folder of a corpus, as a stage."""
        config, path = config or PrepareRecipe(), Path(source)
        content = {"content": digest_of(path)} if path.is_file() else {}
        made_from = {"source": source, "recipe": to_tree(config), **content, **revision("data")}
        return self.planned(f"data-{path.name}", made_from, lambda path: _prepare(source, path, config, self.notify))

    def training(
        self,
        name: str,
        data: Path,
        backbone: str | Path,
        settings: Mapping[str, Any],
        *,
        needs: Sequence[Stage] = (),
        work: Work | None = None,
    ) -> Stage:
        """The run folder of a training, as a stage; the settings are those of a recipe, by dotted names."""
        given = {**settings, "data": data, "out": "run", "model.backbone": backbone}
        recipe = _recipe(tuple(as_overrides(given)))
        tree = to_tree(recipe)
        made_from = {**tree, "data": data.name, "out": "", "backbone": str(backbone).removeprefix(f"{self.folder}/")}
        made_from["model"] = {name: value for name, value in tree["model"].items() if (name, value) not in _UNWRITTEN}
        del made_from["model"]["backbone"]
        made_from |= {**self._weights(backbone), **revision("training")}
        make = partial(self._train, recipe)
        return self.planned(name, made_from, make, needs, work, leftover="checkpoints")

    def _weights(self, backbone: str | Path) -> dict[str, str]:
        """What a backbone on this disk holds; a stage's is known by its name."""
        folder = shipped_folder() if backbone == SHIPPED else Path(backbone)
        if backbone == MINI or folder.is_relative_to(self.folder) or not folder.is_dir():
            return {}
        files = sorted(path for path in folder.iterdir() if path.is_file())
        return {"weights": _digest_of_all(tuple((path, path.stat().st_mtime_ns) for path in files))}

    def _train(self, recipe: TrainRecipe, path: Path) -> None:
        placed = replace(recipe, out=str(path))
        try:
            train(placed, resume=(path / "recipe.yaml").is_file(), callbacks=self._callbacks)
        except (TrainingError, DivergedError) as error:
            if recipe.method != "mle" and isinstance(error, DivergedError):
                raise Diverged(f"{path.name} diverged: {str(error).partition(';')[0]}") from error
            raise TrainingError(
                f"{error}; what is made is kept, and the command that began this goes on there"
            ) from error


def _begun(stage: Stage) -> Path:
    """What is known about an unfinished stage; beside its folder, which has to be empty at the start."""
    return stage.path.with_name(f"{stage.name}.begun.json")


def digest_of(path: Path) -> str:
    """Of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


@cache
def _digest_of_all(files: tuple[tuple[Path, int], ...]) -> str:
    """Of files, each given with the time of its last change."""
    text = json.dumps([(path.name, digest_of(path)) for path, _ in files])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _recipe(settings: tuple[str, ...]) -> TrainRecipe:
    """Checking a recipe takes a moment, and a plan asks for the same ones again and again."""
    return load_recipe(TrainRecipe, None, settings)


def _prepare(source: str, path: Path, config: PrepareRecipe, notify: Notify) -> None:
    prepare([source], path, config, overwrite=True, notify=notify)
