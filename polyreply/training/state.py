"""The state of a run: everything that changes from step to step, saved to checkpoints and restored from them."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from polyreply.em.em_step import EM
from polyreply.training.alarms import Alarms
from polyreply.training.checkpoint import (
    FROZEN,
    Checkpoint,
    Origin,
    best_name,
    load_tensors,
    load_weights,
    read_checkpoint,
    save_checkpoint,
    save_tensors,
)
from polyreply.training.usage import UsageStatistics
from polyreply.training.validation import ValidationRecord


@dataclass
class RunState:
    """Weights, optimizer and data stream (`em`), usage and alarms so far, and the best validation."""

    origin: Origin
    em: EM
    alarms: Alarms
    measured: str
    """Identifies the validation samples: likelihoods of other samples cannot be compared."""
    usage: UsageStatistics = field(init=False)
    frozen: dict[str, str] = field(default_factory=dict)
    """File and digest of the weights that never change, once the main process has written them."""
    best: dict[str, str] = field(default_factory=dict)
    """File and digest of the trained weights of the best validation."""
    best_nll: float = math.inf
    validations_since_best: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """The metrics of the `best` and of the `last` validation."""

    def __post_init__(self) -> None:
        self.usage = UsageStatistics(self.em.model.num_decoders)

    def add_validation(self, record: ValidationRecord) -> bool:
        """Count a validation; whether it is the best so far."""
        self.metrics["last"] = record.metrics
        if record.nll < self.best_nll:
            self.best_nll, self.validations_since_best = record.nll, 0
            self.metrics["best"] = record.metrics
            return True
        self.validations_since_best += 1
        return False

    def save(self, folder: Path, keep: int) -> None:
        """Write a checkpoint, and before the first one the frozen weights."""
        if not self.frozen:
            self.frozen = {FROZEN: save_tensors(folder / FROZEN, self.em.weights(trained=False))}
        state: dict[str, Any] = {
            "em": self.em.state_dict(),
            "best": self.best,
            "best_nll": self.best_nll if math.isfinite(self.best_nll) else None,
            "validations_since_best": self.validations_since_best,
            "metrics": self.metrics,
            "measured": self.measured,
            "usage": self.usage.state_dict(),
            "alarms": self.alarms.state_dict(),
        }
        checkpoint = Checkpoint(
            self.em.step,
            weights=self.em.weights(),
            optimizer=self.em.optimizer.state_dict(),
            extra=self.em.epoch,
            origin=self.origin,
            needed={**self.frozen, **self.best},
            state=state,
        )
        save_checkpoint(folder, checkpoint, keep)

    def save_best(self, folder: Path) -> str:
        """Write the trained weights of the best validation; earlier ones stay until a checkpoint names these."""
        return save_tensors(folder / best_name(self.em.step), self.em.weights())

    def restore(self, path: Path) -> None:
        """Restore a checkpoint; raises if it is damaged, belongs to another run, or does not fit."""
        checkpoint = read_checkpoint(path, self.origin)
        state = checkpoint.state
        self.frozen = {FROZEN: checkpoint.needed[FROZEN]}
        load_weights(self.em.model, load_file(path.parent / FROZEN), trained=False)
        load_weights(self.em.model, checkpoint.weights, trained=True)
        self.em.load_state_dict(checkpoint.step, checkpoint.optimizer, checkpoint.extra, state["em"])
        self.usage.load_state_dict(state["usage"])
        self.alarms.load_state_dict(state["alarms"])
        self.best, self.best_nll, self.validations_since_best, self.metrics = state["best"], math.inf, 0, {}
        if state["measured"] == self.measured and state["best_nll"] is not None:
            self.best_nll, self.validations_since_best = state["best_nll"], state["validations_since_best"]
            self.metrics = state["metrics"]

    def load_best(self, folder: Path) -> None:
        """Give the model the weights of the best validation, if there was one."""
        for name, digest in self.best.items():
            load_weights(self.em.model, load_tensors(folder / name, digest), trained=True)
