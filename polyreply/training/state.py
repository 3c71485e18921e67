"""Where a run stands: all that changes from step to step, into a checkpoint and out of it again."""

import math
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from polyreply.em.em_step import EMSteps
from polyreply.training.alarms import Alarms
from polyreply.training.checkpoint import Checkpoint, Origin, load_tensors, read_checkpoint, take_over
from polyreply.training.checkpoint_folder import FROZEN, best_name
from polyreply.training.usage import UsageStatistics


class Standing:
    """The steps so far, what is known about them, and the best validation."""

    def __init__(self, origin: Origin, steps: EMSteps, alarms: Alarms, measured: str) -> None:
        """`measured` says what validations measure: likelihoods of other samples cannot be compared."""
        self.origin, self.steps, self.alarms, self.measured = origin, steps, alarms, measured
        self.usage = UsageStatistics(steps.recipe.num_decoders)
        self.frozen: dict[str, str] = {}
        """The file of the weights that never change and its digest, once the main process has written it."""
        self.best: dict[str, str] = {}
        """The same of the best validation's weights."""
        self.best_nll, self.validations_since_best = math.inf, 0

    def is_best(self, nll: float) -> bool:
        """Counts a validation; whether none before it was as good."""
        if nll < self.best_nll:
            self.best_nll, self.validations_since_best = nll, 0
            return True
        self.validations_since_best += 1
        return False

    def keep_best(self, digest: str) -> None:
        """From now on the best weights are those of this step, in a file of that digest."""
        self.best = {best_name(self.steps.done): digest}

    def load_best(self, folder: Path) -> None:
        """Gives the model the weights of the best validation, if there was one."""
        for name, digest in self.best.items():
            take_over(self.steps.model, load_tensors(folder / name, digest), trained=True)

    def checkpoint(self) -> Checkpoint:
        """All of it, to be written."""
        state: dict[str, Any] = {
            "steps": self.steps.state_dict(),
            "best_nll": self.best_nll if math.isfinite(self.best_nll) else None,
            "best": self.best,
            "validations_since_best": self.validations_since_best,
            "measured": self.measured,
            "usage": self.usage.state_dict(),
            "alarms": self.alarms.state_dict(),
        }
        beside = {**self.frozen, **self.best}
        return Checkpoint(self.steps.done, **self.steps.tensors(), origin=self.origin, beside=beside, state=state)

    def take_over(self, path: Path) -> None:
        """Goes on from a checkpoint; raises if it is torn, of another run, or does not fit."""
        found = read_checkpoint(path, self.origin)
        state = found.state
        self.frozen = {FROZEN: found.beside[FROZEN]}
        take_over(self.steps.model, load_file(path.parent / FROZEN), trained=False)
        take_over(self.steps.model, found.weights, trained=True)
        self.steps.load_state_dict(found.step, found.optimizer, found.extra, state["steps"])
        self.usage.load_state_dict(state["usage"])
        self.alarms.load_state_dict(state["alarms"])
        self.best, self.best_nll, self.validations_since_best = state["best"], math.inf, 0
        if state["measured"] == self.measured and state["best_nll"] is not None:
            self.best_nll, self.validations_since_best = state["best_nll"], state["validations_since_best"]
