"""Objectives: what a method with a single decoder minimises in place of the NLL."""

from abc import ABC, abstractmethod

import numpy as np
from torch import nn

from polyreply.distributed import Processes
from polyreply.em.m_step import DecoderTotals
from polyreply.models.model import PolyReplyModel
from polyreply.models.score import Limits, Samples


class Objective(nn.Module, ABC):
    """A loss, and the weights that only its training needs.

    While a model is trained its objective is a part of it (`PolyReplyModel.objective`), so that the optimizer,
    checkpoints and devices include these weights. The finished model is without them.
    """

    @abstractmethod
    def backward(
        self,
        model: PolyReplyModel,
        samples: Samples,
        num_samples: int,
        rng: np.random.Generator,
        processes: Processes,
        limits: Limits,
    ) -> DecoderTotals:
        """Add the gradient of the loss on this process's samples, in which N = `num_samples` samples count alike.

        `rng` gives the same numbers on every process: draw for all N and take the own share. The result's `parts` are
        what the log shows besides the NLL.
        """
