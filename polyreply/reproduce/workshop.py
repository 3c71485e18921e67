"""Stages whose results are kept: prepared data, trained models, responses, scores.

The result of a stage lies in a folder named by a digest of everything it is made from. It is made once; an interrupted
stage goes on where it stopped, as training and replying do by themselves.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyreply.config import load_recipe, to_tree
from polyreply.data.prepare import PrepareConfig, prepare
from polyreply.metrics.scores import write_atomically
from polyreply.progress import Notify, silent
from polyreply.train import train
from polyreply.training.recipe import TrainRecipe
from polyreply.training.view import View

_DONE = "done.json"
_DIGEST = 12


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

    def stage(self, kind: str, ingredients: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
        """The folder of a stage, made by `make` unless it is there; names of earlier stages are ingredients enough."""
        path = self.path(kind, ingredients)
        if not (path / _DONE).is_file():
            self.notify(kind, 0.0)
            begin = time.perf_counter()
            make(path)
            done = {"schema_version": 1, "made_from": ingredients, "seconds": round(time.perf_counter() - begin, 1)}
            write_atomically(path / _DONE, json.dumps(done, indent=2, default=str).encode(), overwrite=True)
        return path

    def path(self, kind: str, ingredients: Mapping[str, Any]) -> Path:
        """Where a stage's result is, or would be."""
        text = json.dumps(ingredients, sort_keys=True, default=str)
        return self.folder / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]}"

    def prepared(self, source: str, config: PrepareConfig | None = None) -> Path:
        """The data folder of a corpus."""
        config = config or PrepareConfig()
        kind = f"data-{Path(source).name}"
        made_from = {"source": source, "recipe": to_tree(config)}
        return self.stage(kind, made_from, lambda path: _prepare(source, path, config, self.notify))

    def trained(self, name: str, data: Path, backbone: str | Path, settings: Mapping[str, Any]) -> Path:
        """The run folder of a training."""
        given = {"data": data, "out": "run", "model.backbone": backbone, **settings}
        recipe = load_recipe(TrainRecipe, None, [f"{key}={_yaml(value)}" for key, value in given.items()])
        tree = to_tree(recipe)
        made_from = {**tree, "data": data.name, "out": "", "backbone": str(backbone).removeprefix(f"{self.folder}/")}
        del made_from["model"]["backbone"]
        return self.stage(name, made_from, lambda path: self._train(recipe, path))

    def _train(self, recipe: TrainRecipe, path: Path) -> None:
        placed = replace(recipe, out=str(path))
        with self._show(placed) if self._show else nullcontext() as view:
            train(placed, resume=(path / "recipe.yaml").is_file(), view=view)


def _prepare(source: str, path: Path, config: PrepareConfig, notify: Notify) -> None:
    prepare([source], path, config, overwrite=True, notify=notify)


def _yaml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list | tuple | bool) or value is None else str(value)
