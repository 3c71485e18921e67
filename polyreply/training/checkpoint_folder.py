"""The folder of a run's checkpoints: which are kept, which one can be gone on from, and what lies beside them.

Beside the checkpoints lie `frozen.safetensors`, the weights that never change, and `best-00000080.safetensors`, those
of the best validation.
"""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from polyreply.training.checkpoint import Checkpoint, CheckpointError, needed_beside, save_tensors, write_checkpoint

FROZEN = "frozen.safetensors"
_STEP = re.compile(r"step-\d{8}")


def step_name(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"step-{step:08d}"


def best_name(step: int) -> str:
    """The name of the weights of a validation that was the best."""
    return f"best-{step:08d}.safetensors"


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes a checkpoint, then removes all but the latest `keep` up to it and the best weights that they name."""
    target = folder / step_name(checkpoint.step)
    write_checkpoint(target, checkpoint)
    for old in [path for path in found_in(folder) if path.name <= target.name][:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    wanted = set().union(*map(needed_beside, found_in(folder)))
    for best in folder.glob("best-*.safetensors"):
        if best.name not in wanted:
            best.unlink(missing_ok=True)
    return target


def save_frozen(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Writes the weights that the run does not change, once; their file and its digest."""
    return {FROZEN: save_tensors(folder / FROZEN, tensors)}


def save_best(folder: Path, weights: Mapping[str, Tensor], step: int) -> str:
    """Keeps the weights of the best validation so far; the ones before it stay until a checkpoint names these."""
    return save_tensors(folder / best_name(step), weights)


def go_on_from(folder: Path, take: Callable[[Path], object]) -> tuple[Path | None, list[str]]:
    """Has the newest checkpoint taken that can be, puts newer ones aside, and says so in a line for each.

    `take` raises if one is torn or of another run. None if nothing was ever saved: the run was killed before its first
    checkpoint.
    """
    unusable: dict[Path, str] = {}
    for path in reversed(found_in(folder)):
        try:
            take(path)
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            unusable[path] = _reason(error)
        else:
            return path, [_put_aside(bad, reason) for bad, reason in unusable.items()]
    if unusable:
        path, reason = next(iter(unusable.items()))
        raise CheckpointError(
            f"expected a whole checkpoint of this run in {folder}, found none: {path} cannot be used ({reason}); put "
            "back what was changed, or start a new run"
        )
    return None, []


def remove_leftovers(folder: Path) -> None:
    """Removes what a killed run was writing; for the one process that has the run folder."""
    for path in folder.glob(".*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def found_in(folder: Path) -> Sequence[Path]:
    """What is named as checkpoints are, oldest first."""
    return sorted(path for path in folder.glob("step-*") if _STEP.fullmatch(path.name))


def _put_aside(path: Path, reason: str) -> str:
    """Renames a checkpoint so that it is neither counted nor in the way; nothing is removed."""
    target, number = path.with_name(f"unusable-{path.name}"), 1
    while target.exists():
        number += 1
        target = path.with_name(f"unusable-{path.name}-{number}")
    path.rename(target)
    return f"{path} cannot be used ({reason}); it is now {target.name}, and the run goes on from the one before it"


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return " ".join(str(error).split())
