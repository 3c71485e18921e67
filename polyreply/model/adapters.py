"""K adapters for each site of a decoder, stacked in one parameter; the rows of a batch choose theirs.

Legend: R rows (sorted by decoder), T tokens, D model size, H inner size, K decoders.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from polyreply.model.rows import OneDecoder, Rows

AdapterInit = Literal["near-identity", "linear"]


class Router:
    """What every adapter of a model looks at to know the rows of the current batch; None switches adapters off."""

    rows: Rows | OneDecoder | None = None


class AdapterStack(nn.Module):
    """AdapterLayer(x) = x + W1·φ(W2·x) (paper, Eq. 1), with biases, for each of K decoders."""

    def __init__(
        self, num_decoders: int, model_size: int, inner_size: int, activation: str, init: AdapterInit, router: Router
    ) -> None:
        super().__init__()
        self.w2_KDH = nn.Parameter(torch.empty(num_decoders, model_size, inner_size))
        self.b2_KH = nn.Parameter(torch.empty(num_decoders, inner_size))
        self.w1_KHD = nn.Parameter(torch.empty(num_decoders, inner_size, model_size))
        self.b1_KD = nn.Parameter(torch.empty(num_decoders, model_size))
        self.activation = ACT2FN[activation]
        self.init, self.router = init, router

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Near the identity and not equal, so that decoders start alike but can part; or `nn.Linear`'s default."""
        for weight, bias in ((self.w2_KDH, self.b2_KH), (self.w1_KHD, self.b1_KD)):
            bound = 1 / math.sqrt(weight.shape[1])
            weight.uniform_(-bound, bound)
            bias.uniform_(-bound, bound)
        if self.init == "near-identity":
            self.w1_KHD.mul_(0.01)
            self.b1_KD.zero_()
            self.b2_KH.zero_()

    def forward(self, x_RTD: Tensor) -> Tensor:
        """Adds to each row what its decoder's adapter makes of it."""
        rows = self.router.rows
        if rows is None:
            return x_RTD
        if isinstance(rows, OneDecoder):
            before, here = x_RTD.split([x_RTD.shape[1] - 1, 1], 1) if rows.last_token_only else (x_RTD[:, :0], x_RTD)
            return torch.cat([before, here + self._one(here, rows.k)], 1)
        if rows.is_grid and len(rows.segments) == len(self.b1_KD):
            return x_RTD + self._together(x_RTD)
        return x_RTD + torch.cat([self._one(x_RTD[begin:end], k) for k, begin, end in rows.segments])

    def _together(self, x_RTD: Tensor) -> Tensor:
        """All K decoders on equally many rows: two batched matrix products."""
        x_KXD = x_RTD.reshape(len(self.b1_KD), -1, x_RTD.shape[-1])
        inner_KXH = self.activation(torch.baddbmm(self.b2_KH[:, None], x_KXD, self.w2_KDH))
        return torch.baddbmm(self.b1_KD[:, None], inner_KXH, self.w1_KHD).view_as(x_RTD)

    def _one(self, x_XTD: Tensor, k: int) -> Tensor:
        x_XD = x_XTD.reshape(-1, x_XTD.shape[-1])
        inner_XH = self.activation(torch.addmm(self.b2_KH[k], x_XD, self.w2_KDH[k]))
        return torch.addmm(self.b1_KD[k], inner_XH, self.w1_KHD[k]).view_as(x_XTD)

    def hook(self, module: nn.Module, arguments: Any, output: Any) -> Any:
        """A forward hook that puts this stack behind a stock module, which returns a tensor or a tuple."""
        if self.router.rows is None:
            return output
        if isinstance(output, tuple):
            return (self(output[0]), *output[1:])
        return self(output)
