"""The run folder: which process may write to it, with which recipe, and the id that its checkpoints carry."""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from polyreply.config import load_recipe, save_recipe, to_tree
from polyreply.errors import PolyReplyError
from polyreply.files import LockedError, lock, write_file
from polyreply.training.checkpoint import list_checkpoints
from polyreply.training.recipe import TrainRecipe

_HARMLESS = (
    *("out", "data", "model.backbone", "model.shard", "trackers", "device", "plots"),
    *("checkpoint", "validation", "alarms"),
)
"""Settings (and everything inside them) that may differ in a resumed run: paths (checkpoints hold all weights and a
digest of the data), where weights are held, and what is measured, reported and kept."""
_ADJUSTABLE = ("optimizer", "em", "steps", "precision")
"""Settings that may differ with --allow-changes: the model stays the same but learns in another way."""
_FIXED = ("em.e_step_size", "em.draw_by", "em.freeze_shared", "optimizer.batch_rows")
"""Settings that may not differ even then: a checkpoint's weights and its place in the data depend on them."""
_RECIPE, _ID, _LOCK = "recipe.yaml", "run.json", ".lock"


def claim(folder: Path, recipe: TrainRecipe, *, resume: bool, allow_changes: bool = False) -> FileIO:
    """Lock a run folder for this process: a new one, or that of the same run if no other process works on it.

    The lock lasts until the returned handle is closed or the process ends.
    """
    if not resume and folder.exists() and (not folder.is_dir() or any(_foreign(folder))):
        raise PolyReplyError(f"{folder}: the run folder is not empty; name another with out=…, or --resume it")
    if resume:
        _check_recipe(folder, recipe, allow_changes)
    folder.mkdir(parents=True, exist_ok=True)
    handle = _lock(folder)
    if not resume:
        (folder / _ID).unlink(missing_ok=True)
        save_recipe(recipe, folder / _RECIPE)  # first of all: from now on the run can be resumed
    if not (folder / _ID).exists() and not list_checkpoints(folder / "checkpoints"):
        write_file(folder / _ID, json.dumps({"id": uuid.uuid4().hex}) + "\n", durable=True)
    return handle


def update_recipe(folder: Path, recipe: TrainRecipe) -> None:
    """Save the recipe of a resumed run, once its checkpoint is restored."""
    save_recipe(recipe, folder / _RECIPE)


def run_id(folder: Path) -> str:
    """The id of the run in a folder."""
    path = folder / _ID
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "something else"
        raise PolyReplyError(f"{path}: expected the id of the run, found: {reason}; restore the file") from None


def abandon(folder: Path) -> None:
    """Remove all traces of a run that could not start."""
    for name in (_RECIPE, _ID, _LOCK):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "data", ignore_errors=True)  # dialogues that `train` was given as rows or a file
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A recipe as dotted names and plain values."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, str | int | float) else str(value)
    return flat


def _foreign(folder: Path) -> Iterator[Path]:
    """What is in a folder, except what a run leaves that was killed before it started."""
    return (path for path in folder.iterdir() if path.name not in (_LOCK, _ID) and not path.name.endswith(".tmp"))


def _check_recipe(folder: Path, recipe: TrainRecipe, allow_changes: bool) -> None:
    before, now = (flatten(to_tree(one)) for one in (load_recipe(TrainRecipe, folder / _RECIPE), recipe))
    harmless = (*_HARMLESS, *(["steps"] if recipe.optimizer.schedule == "constant" else []))
    changed = [name for name in now if now[name] != before.get(name) and not _is_in(name, harmless)]
    refused = [name for name in changed if not (allow_changes and _is_adjustable(name))]
    if refused:
        was = ", ".join(f"{name} was {before.get(name)!r} and is {now[name]!r}" for name in refused)
        fix = "leave these out, or start a new run"
        if all(map(_is_adjustable, refused)):
            fix = "leave these out, or pass --allow-changes and get a model that neither recipe alone gives"
        raise PolyReplyError(f"cannot resume {folder} with another recipe: {was}; {fix}")


def _is_adjustable(name: str) -> bool:
    return _is_in(name, _ADJUSTABLE) and not _is_in(name, _FIXED)


def _is_in(name: str, sections: Sequence[str]) -> bool:
    """Whether a dotted name is one of the sections, or inside one."""
    return any(name == section or name.startswith(f"{section}.") for section in sections)


def _lock(folder: Path) -> FileIO:
    """Keep a second run out of the folder, and leave a note that says which process is in it."""
    try:
        handle = lock(folder / _LOCK)
    except LockedError as error:
        raise PolyReplyError(f"{folder} is in use: {error}; wait until that run ends, or stop it") from None
    with contextlib.suppress(OSError):  # a full disk locks as well
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {os.uname().nodename}\n".encode())
    return handle
