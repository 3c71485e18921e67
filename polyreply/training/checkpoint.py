"""One checkpoint: safetensors and JSON, whole and on disk or not there, and read back only if nothing has changed.

It is a folder `step-00000100` with `weights.safetensors` (what is trained), `optimizer.safetensors`,
`extra.safetensors`, `state.json` (counters, batch stream, prices, alarms) and a digest of all of them. `state.json`
also says which run it is of, and the digests of the files beside it that it needs.
"""

import json
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
from polyreply.files import digest, give_default_permissions, new_folder, sync

SCHEMA_VERSION = 3
_FILES = ("weights.safetensors", "optimizer.safetensors", "extra.safetensors", "state.json")


class CheckpointError(PolyReplyError):
    """No checkpoint can be gone on from, or one cannot be written."""


@dataclass(frozen=True)
class Origin:
    """What a checkpoint is of."""

    run: str
    """The id of the run."""
    identity: str
    """The model's make and the training data."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    extra: dict[str, Tensor]
    """Further tensors, such as the assignment of a whole epoch."""
    origin: Origin
    beside: dict[str, str]
    """The digests of the files outside its folder that it needs, by their names."""
    state: dict[str, Any]
    """Everything else, ready for JSON."""


def write_checkpoint(target: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint and has it on disk; whoever looks finds all of it or nothing."""
    with _writing(target):
        with new_folder(target, overwrite=target.exists()) as scratch:
            made = scratch / "out"
            made.mkdir()
            _write(made, checkpoint)
        sync(target.parent)


def read_checkpoint(path: Path, origin: Origin) -> Checkpoint:
    """Reads a checkpoint; raises a ValueError, a KeyError or an OSError if it is torn or of something else."""
    digest = json.loads((path / "digest.json").read_text(encoding="utf-8"))
    for name in _FILES:
        _check_digest(path / name, digest[name])
    known = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if known.pop("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"it is of another version of polyreply, expected schema version {SCHEMA_VERSION}")
    found = Origin(**known.pop("origin"))
    if found.identity != origin.identity:
        raise ValueError("it belongs to another run: its model or its training data are not these")
    if found.run != origin.run:
        raise ValueError(f"it belongs to another run: expected the id {origin.run}, found {found.run}")
    for name, expected in known["beside"].items():
        _check_digest(path.parent / name, expected)
    weights, optimizer, extra = (load_file(path / name) for name in _FILES[:3])
    return Checkpoint(weights=weights, optimizer=optimizer, extra=extra, origin=found, **known)


def needed_beside(path: Path) -> set[str]:
    """The names of the files that a checkpoint needs beside it; none if it cannot be read."""
    try:
        return set(json.loads((path / "state.json").read_bytes())["beside"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Writes one file of tensors, whole and on disk or not there; its digest."""
    temporary = path.with_name(f".{path.name}.tmp")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
        give_default_permissions(temporary)
        sync(temporary)
        found = digest(temporary)
        temporary.replace(path)
        sync(path.parent)
    return found


def load_tensors(path: Path, digest: str) -> dict[str, Tensor]:
    """What `save_tensors` wrote; one clear line if it is no longer that."""
    try:
        _check_digest(path, digest)
        return load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"expected {path} to be whole, found: {error}; put it back, or go on with --resume from the checkpoint "
            "before it"
        ) from None


def take_over(model: torch.nn.Module, tensors: Mapping[str, Tensor], *, trained: bool) -> None:
    """Copies all trained weights, or all others, into a model in place: what shares their memory sees them."""
    own = {name: p for name, p in model.named_parameters(remove_duplicate=True) if p.requires_grad == trained}
    odd = sorted(own.keys() ^ tensors.keys())
    odd += [name for name in own.keys() & tensors.keys() if own[name].shape != tensors[name].shape]
    if odd:
        raise ValueError(f"its weights are not those of this model, such as {odd[0]}")
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
    known = {name: getattr(checkpoint, name) for name in ("step", "beside", "state")}
    known |= {"schema_version": SCHEMA_VERSION, "origin": vars(checkpoint.origin)}
    (made / "state.json").write_text(json.dumps(known), encoding="utf-8")
    digests = {name: digest(made / name) for name in _FILES}
    (made / "digest.json").write_text(json.dumps(digests), encoding="utf-8")
    for path in made.iterdir():
        give_default_permissions(path)
        sync(path)
    sync(made)


def _check_digest(path: Path, expected: str) -> None:
    if digest(path) != expected:
        raise ValueError(f"{path.name} is not what was written")
