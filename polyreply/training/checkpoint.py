"""Checkpoints: safetensors and JSON, complete on disk or absent, and used only if nothing in them has changed.

A checkpoint is a folder `step-00000100` in the run's `checkpoints/`, with `weights.safetensors` (what is trained),
`optimizer.safetensors`, `extra.safetensors` (the assignment of a whole epoch), `state.json` (counters, batch stream,
prices, alarms) and a digest of each. Files that several checkpoints need are stored next to them, and each checkpoint
records their digests: `frozen.safetensors`, the weights that never change, and `best-00000080.safetensors`, the trained
weights of the best validation. `state.json` also identifies the run.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from polyreply.errors import PolyReplyError
from polyreply.files import check_schema_version, digest, give_default_permissions, new_folder, sync
from polyreply.models.sharded import copy_whole

SCHEMA_VERSION = 4
FROZEN = "frozen.safetensors"
_FILES = ("weights.safetensors", "optimizer.safetensors", "extra.safetensors", "state.json")
_STEP = re.compile(r"step-\d{8}")


class CheckpointError(PolyReplyError):
    """No checkpoint can be resumed from, or one cannot be written."""


@dataclass(frozen=True)
class Origin:
    """What a checkpoint belongs to."""

    run: str
    """The id of the run."""
    identity: str
    """A digest of the model's configuration and the training data."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    extra: dict[str, Tensor]
    """Further tensors, such as the assignment of a whole epoch."""
    origin: Origin
    needed: dict[str, str]
    """Names and digests of the files outside its folder that it needs."""
    state: dict[str, Any]
    """Everything else, as JSON values."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> None:
    """Write a checkpoint durably, then remove all but the latest `keep`, and best weights that none of them needs."""
    target = folder / f"step-{checkpoint.step:08d}"
    with _clear_write_errors(target):
        with new_folder(target, overwrite=target.exists()) as scratch:
            _fill(scratch / "out", checkpoint)
        sync(folder)
    for old in [path for path in list_checkpoints(folder) if path.name <= target.name][:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    needed = set().union(*map(_needed_files, list_checkpoints(folder)))
    for best in folder.glob("best-*.safetensors"):
        if best.name not in needed:
            best.unlink(missing_ok=True)


def _fill(folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir()
    for name, tensors in zip(_FILES, (checkpoint.weights, checkpoint.optimizer, checkpoint.extra), strict=False):
        save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, folder / name)
    known = {name: getattr(checkpoint, name) for name in ("step", "needed", "state")}
    known |= {"schema_version": SCHEMA_VERSION, "origin": vars(checkpoint.origin)}
    (folder / "state.json").write_text(json.dumps(known), encoding="utf-8")
    digests = {name: digest(folder / name) for name in _FILES}
    (folder / "digest.json").write_text(json.dumps(digests), encoding="utf-8")
    for path in folder.iterdir():
        give_default_permissions(path)
        sync(path)
    sync(folder)


def read_checkpoint(path: Path, origin: Origin) -> Checkpoint:
    """Read a checkpoint; raises ValueError, KeyError or OSError if it is damaged or belongs to another run."""
    digests = json.loads((path / "digest.json").read_text(encoding="utf-8"))
    for name in _FILES:
        _check_digest(path / name, digests[name])
    known = json.loads((path / "state.json").read_text(encoding="utf-8"))
    check_schema_version(path.name, known.pop("schema_version"), SCHEMA_VERSION)
    found = Origin(**known.pop("origin"))
    if found.identity != origin.identity:
        raise ValueError("it belongs to another run: the model or the training data differ")
    if found.run != origin.run:
        raise ValueError(f"it belongs to another run: expected the id {origin.run}, found {found.run}")
    for name, expected in known["needed"].items():
        _check_digest(path.parent / name, expected)
    weights, optimizer, extra = (load_file(path / name) for name in _FILES[:3])
    return Checkpoint(weights=weights, optimizer=optimizer, extra=extra, origin=found, **known)


def resume_from(folder: Path, restore: Callable[[Path], object]) -> tuple[Path | None, list[str]]:
    """Restore the newest usable checkpoint and rename the unusable ones after it; it, and a message for each of those.

    `restore` raises if a checkpoint is damaged or belongs to another run. The path is None if no checkpoint was ever
    saved: the run was killed before its first.
    """
    unusable: dict[Path, str] = {}
    for path in reversed(list_checkpoints(folder)):
        try:
            restore(path)
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            unusable[path] = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        else:
            return path, [_set_aside(bad, reason) for bad, reason in unusable.items()]
    if unusable:
        path, reason = next(iter(unusable.items()))
        raise CheckpointError(
            f"expected a usable checkpoint of this run in {folder}, found none: {path.name} cannot be used ({reason}); "
            "restore what was changed, or start a new run"
        )
    return None, []


def _set_aside(path: Path, reason: str) -> str:
    """Rename a checkpoint so that it is neither used nor in the way; nothing is removed."""
    target, number = path.with_name(f"unusable-{path.name}"), 1
    while target.exists():
        number += 1
        target = path.with_name(f"unusable-{path.name}-{number}")
    path.rename(target)
    return f"{path} cannot be used ({reason}); renamed to {target.name}, resuming from an earlier checkpoint"


def list_checkpoints(folder: Path) -> Sequence[Path]:
    """The folders that are named as checkpoints are, oldest first."""
    return sorted(path for path in folder.glob("step-*") if _STEP.fullmatch(path.name))


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of a killed run; only for the process that holds the lock on the run folder."""
    for path in (*folder.glob(".*.tmp"), *folder.glob(".*.old")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def best_name(step: int) -> str:
    """The file name of the trained weights of a validation that was the best so far."""
    return f"best-{step:08d}.safetensors"


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write one file of tensors, durably and atomically; its digest."""
    temporary = path.with_name(f".{path.name}.tmp")
    with _clear_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
        give_default_permissions(temporary)
        sync(temporary)
        written = digest(temporary)
        temporary.replace(path)
        sync(path.parent)
    return written


def load_tensors(path: Path, expected: str) -> dict[str, Tensor]:
    """Read what `save_tensors` wrote; raises CheckpointError if its digest is no longer the expected one."""
    try:
        _check_digest(path, expected)
        return load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is damaged: {error}; restore it, or run again with --resume to use the checkpoint before it"
        ) from None


def load_weights(model: torch.nn.Module, tensors: Mapping[str, Tensor], *, trained: bool) -> None:
    """Copy all trained weights, or all frozen ones, into a model, in place: views of their memory see them too."""
    own = {name: p for name, p in model.named_parameters(remove_duplicate=True) if p.requires_grad == trained}
    odd = sorted(own.keys() ^ tensors.keys())
    odd += [name for name in own.keys() & tensors.keys() if own[name].shape != tensors[name].shape]
    if odd:
        raise ValueError(f"its weights do not fit this model, for example {odd[0]}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            copy_whole(own[name], tensor)


def _needed_files(path: Path) -> set[str]:
    """The names of the files that a checkpoint needs next to it; empty if it cannot be read."""
    try:
        return set(json.loads((path / "state.json").read_bytes())["needed"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _check_digest(path: Path, expected: str) -> None:
    if digest(path) != expected:
        raise ValueError(f"{path.name} has changed since it was written")


@contextmanager
def _clear_write_errors(target: Path) -> Iterator[None]:
    """Turn a full disk or a folder without write permission into one clear line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise CheckpointError(
            f"cannot write {target}: {reason}; earlier checkpoints are intact: free disk space or fix the permissions, "
            "then run again with --resume"
        ) from error
