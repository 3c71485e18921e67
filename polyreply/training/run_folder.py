"""The run folder: who may write to it, with which recipe, and the id by which its checkpoints know it."""

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from polyreply.config import load_recipe, save_recipe, to_tree
from polyreply.errors import PolyReplyError
from polyreply.files import sync
from polyreply.training.checkpoint_folder import found_in
from polyreply.training.recipe import TrainRecipe

_HARMLESS = ("out", "data", "model.backbone", "trackers", "device", "checkpoint", "validation", "alarms")
"""What may differ when a run goes on, or all inside it: where things are (checkpoints know the content of the data, and
have all weights), what is measured, told and kept."""
_ADJUSTABLE = ("optimizer", "em", "steps", "precision")
"""What may differ if the user insists: the model stays what it is, but learns in another way."""
_SETTLED = ("em.e_step_size", "em.freeze_shared", "optimizer.batch_rows")
"""What may not even then: a checkpoint's weights and its place in the data depend on it."""
_RECIPE, _ID, _LOCK = "recipe.yaml", "run.json", ".lock"


def claim(folder: Path, recipe: TrainRecipe, *, resume: bool, allow_changes: bool = False) -> FileIO | None:
    """Raises unless this run may write here: a new place, or the folder of the same run that nobody else works on.

    What it returns keeps others away for as long as it is open; a killed process lets go of it.
    """
    if not resume and folder.exists() and (not folder.is_dir() or any(_visible(folder))):
        raise PolyReplyError(f"{folder}: the run folder is not empty; name another with out=…, or --resume it")
    if resume:
        _check_recipe(folder, recipe, allow_changes)
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    if not resume:
        (folder / _ID).unlink(missing_ok=True)
        keep_recipe(folder, recipe)  # first of all: from now on the run can be resumed
    _ensure_id(folder)
    return lock


def keep_recipe(folder: Path, recipe: TrainRecipe) -> None:
    """Has the recipe on disk; a run that goes on does so when its checkpoint fits, perhaps with more steps."""
    path = folder / _RECIPE
    temporary = path.with_name(f"{_RECIPE}.tmp")
    try:
        save_recipe(recipe, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path)
    sync(folder)


def run_id(folder: Path) -> str:
    """The id of the run that began here."""
    path = folder / _ID
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "something else"
        raise PolyReplyError(f"{path}: expected the id of the run, found: {reason}; put the file back") from None


def give_up(folder: Path) -> None:
    """Leaves no trace of a run that could not begin."""
    for name in (_RECIPE, _ID, _LOCK):
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A recipe as dotted names and plain values."""
    return dict(_flat(tree, prefix))


def _flat(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str | int | float) else str(value)


def _ensure_id(folder: Path) -> None:
    """Gives the run an id, once. One that was killed before it had its own has no checkpoints either."""
    path = folder / _ID
    if path.exists() or found_in(folder / "checkpoints"):
        return
    temporary = path.with_name(f".{_ID}.tmp")
    temporary.write_text(json.dumps({"id": uuid.uuid4().hex}) + "\n", encoding="utf-8")
    sync(temporary)
    temporary.replace(path)
    sync(folder)


def _visible(folder: Path) -> Iterator[Path]:
    """Without what a run leaves that was killed before it began."""
    ours = (_LOCK, _ID, f".{_ID}.tmp", f"{_RECIPE}.tmp")
    return (path for path in folder.iterdir() if path.name not in ours)


def _check_recipe(folder: Path, recipe: TrainRecipe, allow_changes: bool) -> None:
    before, now = (flat(to_tree(one)) for one in (load_recipe(TrainRecipe, folder / _RECIPE), recipe))
    harmless = (*_HARMLESS, *(["steps"] if recipe.optimizer.schedule == "constant" else []))
    changed = [name for name in now if now[name] != before.get(name) and not _is_in(name, harmless)]
    refused = [name for name in changed if not (allow_changes and _is_adjustable(name))]
    if refused:
        was = ", ".join(f"{name} was {before.get(name)!r} and is {now[name]!r}" for name in refused)
        fix = "leave these out, or start a new run"
        if all(map(_is_adjustable, refused)):
            fix = "leave these out, or say --allow-changes and get a model that neither recipe alone gives"
        raise PolyReplyError(f"cannot resume {folder} with another recipe: {was}; {fix}")


def _is_adjustable(name: str) -> bool:
    return _is_in(name, _ADJUSTABLE) and not _is_in(name, _SETTLED)


def _is_in(name: str, places: Sequence[str]) -> bool:
    """Whether a dotted name is one of the places, or inside one."""
    return any(name == place or name.startswith(f"{place}.") for place in places)


def _lock(folder: Path) -> FileIO | None:
    """Keeps a second run out of a folder; None on systems and disks without such locks."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover
        return None
    lock = (folder / _LOCK).open("a+b", buffering=0)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().decode(errors="replace").strip() or "another process"
        lock.close()
        raise PolyReplyError(f"{folder}: {holder} is training there; wait until it ends, or stop it") from None
    except OSError:
        lock.close()
        return None
    with contextlib.suppress(OSError):  # a full disk locks as well
        lock.truncate(0)
        lock.write(f"another process, {os.getpid()} on {os.uname().nodename},\n".encode())
    return lock
