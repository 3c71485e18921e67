"""The run folder: who may write to it, the best weights so far, and what a finished run leaves behind."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from polyreply.config import load_recipe, to_tree
from polyreply.errors import MissingExtraError, PolyReplyError
from polyreply.model.card import CardFacts
from polyreply.training import plots
from polyreply.training.recipe import TrainRecipe
from polyreply.training.record import StepRecord
from polyreply.training.setup import Setup
from polyreply.training.usage import UsageStatistics, write_usage
from polyreply.training.validation import Validation
from polyreply.training.view import View

_BEST = "checkpoints/best.safetensors"
_HARMLESS = ("out", "trackers", "device", "optimizer.max_tokens", "optimizer.learning_rate", "optimizer.clip_norm")
_HARMLESS_SECTIONS = ("checkpoint.", "validation.", "alarms.")
"""What may differ when a run goes on: what is measured and kept, and what helps against a loss that explodes."""
_EXAMPLES = 3


def claim(folder: Path, recipe: TrainRecipe, resume: bool) -> None:
    """Raises unless a run may write here: a new place, or the folder of the same run."""
    if not resume:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise PolyReplyError(f"{folder}: the run folder is not empty; name another with out=…, or --resume it")
        return
    before = flat(to_tree(load_recipe(TrainRecipe, folder / "recipe.yaml")))
    now = flat(to_tree(recipe))
    harmless = (*_HARMLESS, *(["steps"] if recipe.optimizer.schedule == "constant" else []))
    changed = [
        name
        for name in now
        if now[name] != before.get(name) and name not in harmless and not name.startswith(_HARMLESS_SECTIONS)
    ]
    if changed:
        was = ", ".join(f"{name} was {before.get(name)!r} and is {now[name]!r}" for name in changed)
        raise PolyReplyError(f"cannot resume {folder} with another recipe: {was}; leave these out, or start a new run")


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A recipe as dotted names and plain values."""
    return dict(_flat(tree, prefix))


def _flat(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str | int | float) else str(value)


def numbers(record: StepRecord) -> dict[str, float]:
    """What a tracker is told of a step."""
    fields = dataclasses.asdict(record)
    del fields["weight_std_K"]
    usage = {f"usage/{k}": share for k, share in enumerate(fields.pop("usage_K"))}
    return {name: value for name, value in {**fields, **usage}.items() if value is not None}


def save_best(folder: Path, weights: dict[str, Tensor], step: int) -> None:
    """Keeps the weights of the best validation so far, whole or not at all."""
    path = folder / _BEST
    temporary = path.with_name(f".{path.name}.tmp")
    contiguous = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(contiguous, temporary, metadata={"step": str(step)})
    temporary.replace(path)


def load_best(folder: Path) -> dict[str, Tensor]:
    """Those weights again."""
    return load_file(folder / _BEST)


def write(
    folder: Path,
    recipe: TrainRecipe,
    setup: Setup,
    usage: UsageStatistics,
    validation: Validation | None,
    step: int,
    view: View,
) -> None:
    """The model folder with its card, and what the decoders were trained on as numbers and pictures."""
    setup.poly.model.train(False)
    scores, examples = {}, []
    if validation is not None:
        record = validation.measure(step)
        scores = record.metrics
        examples = [dialogue.context for dialogue in validation.dialogues[:_EXAMPLES]] if recipe.method != "mle" else []
    facts = CardFacts(data=Path(recipe.data).name, recipe=to_tree(recipe), scores=scores)
    setup.poly.save_pretrained(folder / "model", card=facts, examples=examples, overwrite=True)
    if recipe.method == "mle":
        return
    summary = usage.summary(recipe.method)
    write_usage(folder / "usage.json", summary)
    try:
        plots.plot_usage(summary, folder / "usage.png")
        plots.plot_assignment({recipe.method: summary}, folder / "assignment.png")
    except MissingExtraError as error:
        view.message(f"no plots: {error}")
