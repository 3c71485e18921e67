"""Checkpoints: safetensors and JSON, complete or absent, and the latest whole one is found again.

A checkpoint is a folder `step-00000100` with `weights.safetensors` (what is trained), `optimizer.safetensors`,
`state.json` (counters, batch stream, prices, alarms) and a digest of all of them. Weights that are frozen never change
and lie once in `frozen.safetensors` beside the checkpoints.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from polyreply.errors import PolyReplyError
from polyreply.folders import building

SCHEMA_VERSION = 1
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
    state: dict[str, Any]
    """Everything else, ready for JSON."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes a checkpoint, has it on disk, then removes all but the latest `keep`."""
    target = folder / f"step-{checkpoint.step:08d}"
    try:
        with building(target, overwrite=target.exists()) as scratch:
            made = scratch / "out"
            made.mkdir()
            _write(made, checkpoint)
        _sync(folder)
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint {target}: {error.strerror or error}; the checkpoints before it are intact, "
            "make room and go on with --resume"
        ) from error
    for old in _found(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def latest_checkpoint(folder: Path) -> tuple[Checkpoint, list[str]]:
    """The newest whole checkpoint, and a line for each newer one that is damaged."""
    damaged: list[str] = []
    for path in reversed(_found(folder)):
        try:
            return _read(path), damaged
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            damaged.append(f"{path} is damaged ({error}); using the one before it")
    raise CheckpointError(
        f"expected a whole checkpoint in {folder}, found none{'; ' + damaged[0] if damaged else ''}; start the run anew"
    )


def save_frozen(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Writes the weights that the run does not change, once."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{_FROZEN}.tmp"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
    _sync(temporary)
    temporary.replace(folder / _FROZEN)


def load_frozen(folder: Path) -> dict[str, Tensor]:
    """Those weights again."""
    try:
        return load_file(folder / _FROZEN)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"expected {folder / _FROZEN} to be whole, found {error}; start the run anew") from None


def _write(made: Path, checkpoint: Checkpoint) -> None:
    for name, tensors in zip(_FILES, (checkpoint.weights, checkpoint.optimizer, checkpoint.extra), strict=False):
        save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, made / name)
    state = {"schema_version": SCHEMA_VERSION, "step": checkpoint.step, **checkpoint.state}
    (made / "state.json").write_text(json.dumps(state), encoding="utf-8")
    digest = {name: _digest(made / name) for name in _FILES}
    (made / "digest.json").write_text(json.dumps(digest), encoding="utf-8")
    for path in made.iterdir():
        _sync(path)
    _sync(made)


def _read(path: Path) -> Checkpoint:
    digest = json.loads((path / "digest.json").read_text(encoding="utf-8"))
    for name in _FILES:
        if _digest(path / name) != digest[name]:
            raise ValueError(f"{name} is not what was written")
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if state["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema version {state['schema_version']}, expected {SCHEMA_VERSION}")
    weights, optimizer, extra = (load_file(path / name) for name in _FILES[:3])
    return Checkpoint(state["step"], weights, optimizer, extra, state)


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


def take_over(model: torch.nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copies weights into a model in place, so that everything that shares their memory sees them."""
    own = dict(model.named_parameters(remove_duplicate=True))
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
