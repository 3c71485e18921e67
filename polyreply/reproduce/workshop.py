"""Stages whose results are kept: prepared data, trained models, responses, scores.

The result of a stage lies in a folder named by a digest of everything it is made from. It is made once; an interrupted
stage goes on where it stopped, as training and replying do by themselves.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from polyreply.config import load_recipe, to_tree
from polyreply.data.prepare import PrepareConfig, prepare
from polyreply.metrics.scores import write_atomically
from polyreply.progress import Notify, silent
from polyreply.train import train
from polyreply.training.endings import TrainingError
from polyreply.training.recipe import TrainRecipe
from polyreply.training.view import View

_DONE = "done.json"
_DIGEST = 12


@dataclass(frozen=True)
class Work:
    """How much there is to do, in a unit whose pace can be measured."""

    unit: str = ""
    """Empty for what takes no time worth telling."""
    amount: float = 0.0


@dataclass(frozen=True)
class Stage:
    """A step of an experiment: the folder of its result, what that is made from, and how."""

    path: Path
    made_from: Mapping[str, Any]
    make: Callable[[Path], None]
    needs: tuple["Stage", ...] = ()
    """What has to be there before it can be made."""
    work: Work = Work()
    leftover: str = ""
    """A folder inside that only an unfinished stage needs."""

    @property
    def name(self) -> str:
        """Its kind and the digest of what it is made from."""
        return self.path.name

    @property
    def kind(self) -> str:
        """Its name without the digest."""
        return self.name.rpartition("-")[0]

    @property
    def is_made(self) -> bool:
        """Whether its result is there, whole."""
        return (self.path / _DONE).is_file()

    def seconds(self) -> float:
        """What making it took; of an interrupted one, the last part."""
        return float(json.loads((self.path / _DONE).read_text(encoding="utf-8"))["seconds"])


class Workshop:
    """A folder of stages."""

    def __init__(
        self,
        folder: Path,
        notify: Notify = silent,
        show: Callable[[TrainRecipe], AbstractContextManager[View]] | None = None,
    ) -> None:
        """`show` gives a view that is told of a training while it goes on."""
        self.folder, self.notify, self._show = folder, notify, show

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
        """The folder of a stage; whatever it needs is made before it, unless it is there itself."""
        if stage.is_made:
            return stage.path
        for need in stage.needs:
            self.make(need)
        self.notify(stage.kind, 0.0)
        begin, was_begun = time.perf_counter(), stage.path.exists()
        stage.make(stage.path)
        done = {
            "schema_version": 1,
            "made_from": stage.made_from,
            "seconds": round(time.perf_counter() - begin, 1),
            "work": {"unit": stage.work.unit, "amount": stage.work.amount},
            "resumed": was_begun,
        }
        write_atomically(stage.path / _DONE, json.dumps(done, indent=2, default=str).encode(), overwrite=True)
        if stage.leftover:
            shutil.rmtree(stage.path / stage.leftover, ignore_errors=True)
        return stage.path

    def paces(self) -> dict[str, float]:
        """Seconds per unit of work, as measured by the stages that were made here in one go."""
        total: dict[str, tuple[float, float]] = {}
        for path in sorted(self.folder.glob(f"*/{_DONE}")):
            done = json.loads(path.read_text(encoding="utf-8"))
            work = done.get("work", {})
            if work.get("amount") and not done.get("resumed"):
                seconds, amount = total.get(work["unit"], (0.0, 0.0))
                total[work["unit"]] = seconds + done["seconds"], amount + work["amount"]
        return {unit: seconds / amount for unit, (seconds, amount) in total.items()}

    def preparing(self, source: str, config: PrepareConfig | None = None) -> Stage:
        """The data folder of a corpus, as a stage."""
        config = config or PrepareConfig()
        kind = f"data-{Path(source).name}"
        made_from = {"source": source, "recipe": to_tree(config)}
        return self.planned(kind, made_from, lambda path: _prepare(source, path, config, self.notify))

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
        recipe = _recipe(tuple(f"{key}={_yaml(value)}" for key, value in given.items()))
        tree = to_tree(recipe)
        made_from = {**tree, "data": data.name, "out": "", "backbone": str(backbone).removeprefix(f"{self.folder}/")}
        del made_from["model"]["backbone"]
        make = partial(self._train, recipe)
        return self.planned(name, made_from, make, needs, work, leftover="checkpoints")

    def _train(self, recipe: TrainRecipe, path: Path) -> None:
        placed = replace(recipe, out=str(path))
        try:
            with self._show(placed) if self._show else nullcontext() as view:
                train(placed, resume=(path / "recipe.yaml").is_file(), view=view)
        except TrainingError as error:
            raise TrainingError(
                f"{error}; what is made is kept, and the command that began this goes on there"
            ) from error


@cache
def _recipe(settings: tuple[str, ...]) -> TrainRecipe:
    """Checking a recipe takes a moment, and a plan asks for the same ones again and again."""
    return load_recipe(TrainRecipe, None, settings)


def _prepare(source: str, path: Path, config: PrepareConfig, notify: Notify) -> None:
    prepare([source], path, config, overwrite=True, notify=notify)


def _yaml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list | tuple | bool) or value is None else str(value)
