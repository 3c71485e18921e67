"""The run folder: who may write to it, and what a finished run leaves behind."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from polyreply.config import load_recipe, save_recipe, to_tree
from polyreply.data.dialogue import Dialogue
from polyreply.errors import PolyReplyError
from polyreply.model.card import CardFacts
from polyreply.training import plots
from polyreply.training.recipe import TrainRecipe
from polyreply.training.record import StepRecord
from polyreply.training.setup import Setup
from polyreply.training.usage import UsageStatistics, write_usage

_HARMLESS = ("out", "trackers", "device", "checkpoint", "validation", "alarms")
"""What may differ when a run goes on, or all inside it: where it is written, what is measured, told and kept."""
_ADJUSTABLE = ("optimizer", "em", "steps", "precision")
"""What may differ if the user insists: the model stays what it is, but learns in another way."""
_EXAMPLES = 3
_LOCK = ".lock"


def claim(folder: Path, recipe: TrainRecipe, *, resume: bool, allow_changes: bool = False) -> BinaryIO | None:
    """Raises unless this run may write here: a new place, or the folder of the same run that nobody else works on.

    What it returns keeps others away for as long as it is open; a killed process lets go of it.
    """
    if not resume and folder.exists() and (not folder.is_dir() or any(_visible(folder))):
        raise PolyReplyError(f"{folder}: the run folder is not empty; name another with out=…, or --resume it")
    if resume:
        _check_recipe(folder, recipe, allow_changes)
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    save_recipe(recipe, folder / "recipe.yaml")  # also when going on, perhaps with more steps
    return lock


def give_up(folder: Path) -> None:
    """Leaves no trace of a run that could not begin."""
    for name in ("recipe.yaml", _LOCK):
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _visible(folder: Path) -> Iterator[Path]:
    """Without what a run leaves that was killed before it began."""
    return (path for path in folder.iterdir() if path.name not in (_LOCK, "recipe.yaml.tmp"))


def _check_recipe(folder: Path, recipe: TrainRecipe, allow_changes: bool) -> None:
    before, now = (flat(to_tree(one)) for one in (load_recipe(TrainRecipe, folder / "recipe.yaml"), recipe))
    harmless = (*_HARMLESS, *(["steps"] if recipe.optimizer.schedule == "constant" else []))
    changed = [name for name in now if now[name] != before.get(name) and not _is_in(name, harmless)]
    refused = [name for name in changed if not (allow_changes and _is_in(name, _ADJUSTABLE))]
    if refused:
        was = ", ".join(f"{name} was {before.get(name)!r} and is {now[name]!r}" for name in refused)
        fix = "leave these out, or start a new run"
        if all(_is_in(name, _ADJUSTABLE) for name in refused):
            fix = "leave these out, or say --allow-changes and get a model that neither recipe alone gives"
        raise PolyReplyError(f"cannot resume {folder} with another recipe: {was}; {fix}")


def _is_in(name: str, places: Sequence[str]) -> bool:
    """Whether a dotted name is one of the places, or inside one."""
    return any(name == place or name.startswith(f"{place}.") for place in places)


def _lock(folder: Path) -> BinaryIO | None:
    """Keeps a second run out of a folder; None on systems without such locks."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover
        return None
    lock = (folder / _LOCK).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise PolyReplyError(f"{folder}: another process is training there; wait until it ends, or stop it") from None
    return lock


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


def write(
    folder: Path,
    recipe: TrainRecipe,
    setup: Setup,
    usage: UsageStatistics,
    scores: dict[str, float],
    examples: Sequence[Dialogue],
) -> None:
    """The model folder with its card, and what the decoders were trained on as numbers and pictures."""
    facts = CardFacts(data=Path(recipe.data).name, recipe=to_tree(recipe), scores=scores)
    shown = [] if recipe.method == "mle" else [dialogue.context for dialogue in examples[:_EXAMPLES]]
    setup.poly.save_pretrained(folder / "model", card=facts, examples=shown, overwrite=True)
    if recipe.method == "mle":
        return
    summary = usage.summary(recipe.method)
    write_usage(folder / "usage.json", summary)
    if plots.can_plot():
        plots.plot_usage(summary, folder / "usage.png")
        plots.plot_assignment({recipe.method: summary}, folder / "assignment.png")
