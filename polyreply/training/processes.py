"""What several processes of one run do together; with one process all of it is free.

Legend: N samples of a step over all processes, n of this one, W processes.
"""

from collections.abc import Iterable

import torch
from accelerate import Accelerator
from torch import Tensor


class Processes:
    """The processes of a run. Samples are dealt out in turn: sample i of a step belongs to process i mod W."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.rank, self.number = accelerator.process_index, accelerator.num_processes

    @property
    def is_main(self) -> bool:
        """Whether this one writes the files."""
        return bool(self.rank == 0)

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Adds tensors up over all processes, in place."""
        if self.number > 1:
            for tensor in tensors:
                torch.distributed.all_reduce(tensor)

    def gather(self, own_nK: Tensor, total: int) -> Tensor:
        """Rows of all processes in the order of the samples, (N, K), from each one's share."""
        if self.number == 1:
            return own_nK
        most = -(-total // self.number)
        padded = torch.zeros(most, *own_nK.shape[1:], dtype=own_nK.dtype, device=self._accelerator.device)
        padded[: len(own_nK)] = own_nK
        parts = [torch.empty_like(padded) for _ in range(self.number)]
        torch.distributed.all_gather(parts, padded)
        return torch.stack(parts, 1).flatten(0, 1)[:total].to(own_nK.device)

    def own(self, rows_NK: Tensor) -> Tensor:
        """The share of this process of such rows."""
        return rows_NK[self.rank :: self.number]

    def wait(self) -> None:
        """Until all have come here."""
        self._accelerator.wait_for_everyone()
