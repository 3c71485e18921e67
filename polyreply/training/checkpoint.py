"""Checkpoints: safetensors and JSON, complete or absent, and the latest whole one is found again.

A checkpoint is a folder `step-00000100` with `weights.safetensors` (what is trained), `optimizer.safetensors`,
`extra.safetensors`, `state.json` (counters, batch stream, prices, alarms) and a digest of all of them. Beside the
checkpoints lie `frozen.safetensors`, the weights that never change, and `best-00000080.safetensors`, those of the best
validation.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from polyreply.errors import PolyReplyError
from polyreply.folders import building

SCHEMA_VERSION = 2
_FILES = ("weights.safetensors", "optimizer.safetensors", "extra.safetensors", "state.json")
_FROZEN = "frozen.safetensors"


class CheckpointError(PolyReplyError):
    """No checkpoint can be gone on from, or one cannot be written."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    extra: dict[str, Tensor]
    """Further tensors, such as the assignment of a whole epoch."""
    identity: str
    """Of the run it belongs to."""
    best_step: int
    """Of the best validation so far, or -1."""
    state: dict[str, Any]
    """Everything else, ready for JSON."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes a checkpoint, has it on disk, then removes all but the latest `keep` and the best weights they name."""
    target = folder / f"step-{checkpoint.step:08d}"
    with _writing(target):
        with building(target, overwrite=target.exists()) as scratch:
            made = scratch / "out"
            made.mkdir()
            _write(made, checkpoint)
        _sync(folder)
    for old in _found(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    wanted = {_best(folder, json.loads((path / "state.json").read_bytes())["best_step"]) for path in _found(folder)}
    for old in set(folder.glob(_best(folder, 0).name.replace("00000000", "*"))) - wanted:
        old.unlink(missing_ok=True)
    return target


def latest_checkpoint(folder: Path, identity: str) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of a run, and a line for each newer one that is damaged or another run's.

    None if nothing was ever saved: the run was killed before its first checkpoint and has nothing to lose.
    """
    unusable: list[str] = []
    for path in reversed(_found(folder)):
        try:
            return _read(path, identity), unusable
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            unusable.append(f"{path} cannot be used ({error}); looking for the one before it")
    if unusable:
        raise CheckpointError(f"expected a whole checkpoint in {folder}, found none: {unusable[0]}; start the run anew")
    return None, []


def save_frozen(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes the weights that the run does not change, once."""
    _save_file(folder / _FROZEN, tensors)


def load_frozen(folder: Path) -> dict[str, Tensor]:
    """Those weights again."""
    return _load_file(folder / _FROZEN)


def save_best(folder: Path, weights: Mapping[str, Tensor], step: int) -> None:
    """Keeps the weights of the best validation so far; the ones before it stay until a checkpoint names these."""
    _save_file(_best(folder, step), weights)


def load_best(folder: Path, step: int) -> dict[str, Tensor]:
    """Those weights again."""
    return _load_file(_best(folder, step))


def remove_leftovers(folder: Path) -> None:
    """Removes what a killed run was writing; for the one process that has the run folder."""
    for path in folder.glob(".*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def take_over(model: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copies weights into a model in place, so that everything that shares their memory sees them."""
    own = dict(model.named_parameters(remove_duplicate=True))
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """A full disk or a folder that cannot be written becomes one clear line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise CheckpointError(
            f"cannot write {target}: {reason}; the checkpoints before it are intact: make room or give back the right "
            "to write, and go on with --resume"
        ) from error


def _write(made: Path, checkpoint: Checkpoint) -> None:
    for name, tensors in zip(_FILES, (checkpoint.weights, checkpoint.optimizer, checkpoint.extra), strict=False):
        save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, made / name)
    known = {name: getattr(checkpoint, name) for name in ("step", "identity", "best_step", "state")}
    (made / "state.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION, **known}), encoding="utf-8")
    digest = {name: _digest(made / name) for name in _FILES}
    (made / "digest.json").write_text(json.dumps(digest), encoding="utf-8")
    for path in made.iterdir():
        _sync(path)
    _sync(made)


def _read(path: Path, identity: str) -> Checkpoint:
    digest = json.loads((path / "digest.json").read_text(encoding="utf-8"))
    for name in _FILES:
        if _digest(path / name) != digest[name]:
            raise ValueError(f"{name} is not what was written")
    known = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if known.pop("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"it is of another version of polyreply, expected schema version {SCHEMA_VERSION}")
    if known["identity"] != identity:
        raise ValueError("it belongs to another run: its model or its training data are not these")
    weights, optimizer, extra = (load_file(path / name) for name in _FILES[:3])
    return Checkpoint(weights=weights, optimizer=optimizer, extra=extra, **known)


def _save_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """One file of tensors, whole and on disk or not there."""
    temporary = path.with_name(f".{path.name}.tmp")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)


def _load_file(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"expected {path} to be whole, found {error}; start the run anew") from None


def _best(folder: Path, step: int) -> Path:
    return folder / f"best-{step:08d}.safetensors"


def _found(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
