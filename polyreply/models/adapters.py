"""K adapters for each site of a decoder, stacked in one parameter; the rows of a batch choose theirs.

Legend: R rows (sorted by decoder), T tokens, D model size, H inner size, K decoders.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from polyreply.models.rows import OneDecoder, Rows, Run

AdapterInit = Literal["near-identity", "linear", "large"]

_LARGE = 3.0
"""How much wider than PyTorch's default `large` is."""


class Router:
    """What every adapter of a model looks at to know the rows of the current batch; None switches adapters off."""

    rows: Rows | OneDecoder | None = None


class AdapterStack(nn.Module):
    """AdapterLayer(x) = x + W1·φ(W2·x) (paper, Eq. 1), with biases, for each of K decoders.

    Without `skip` it is W1·φ(W2·x): an untrained adapter then keeps nothing of what its sublayer says.
    """

    def __init__(
        self,
        num_decoders: int,
        model_size: int,
        inner_size: int,
        router: Router,
        *,
        activation: str,
        init: AdapterInit,
        skip: bool,
    ) -> None:
        super().__init__()
        self.w2_KDH = nn.Parameter(torch.empty(num_decoders, model_size, inner_size))
        self.b2_KH = nn.Parameter(torch.empty(num_decoders, inner_size))
        self.w1_KHD = nn.Parameter(torch.empty(num_decoders, inner_size, model_size))
        self.b1_KD = nn.Parameter(torch.empty(num_decoders, model_size))
        self.activation = ACT2FN[activation]
        self.init, self.skip, self.router = init, skip, router

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Near the identity and not equal, so that decoders start alike but can part; or as `nn.Linear`, or wider."""
        width = _LARGE if self.init == "large" else 1.0
        for weight, bias in ((self.w2_KDH, self.b2_KH), (self.w1_KHD, self.b1_KD)):
            bound = 1 / math.sqrt(weight.shape[1])
            weight.uniform_(-width * bound, width * bound)
            bias.uniform_(-bound, bound)
        if self.init == "near-identity":
            self.w1_KHD.mul_(0.01)
            self.b1_KD.zero_()
            self.b2_KH.zero_()

    def forward(self, x_RTD: Tensor) -> Tensor:
        """Joins each row with what its decoder's adapter makes of it."""
        rows = self.router.rows
        if rows is None:
            return x_RTD
        if isinstance(rows, OneDecoder):
            before, here = x_RTD.split([x_RTD.shape[1] - 1, 1], 1) if rows.last_token_only else (x_RTD[:, :0], x_RTD)
            return torch.cat([before, self.joined(here, _Piece(self, slice(rows.k, rows.k + 1))(here))], 1)
        return RoutedAdapters(self, rows)(x_RTD)

    def joined(self, x: Tensor, made: Tensor) -> Tensor:
        """What leaves an adapter: what it made of x, and x itself."""
        return x + made if self.skip else made

    def hook(self, module: nn.Module, arguments: Any, output: Any) -> Any:
        """A forward hook that puts this stack behind a stock module, which returns a tensor or a tuple."""
        if self.router.rows is None:
            return output
        if isinstance(output, tuple):
            return (self(output[0]), *output[1:])
        return self(output)


class RoutedAdapters:
    """The adapters of one stack for given rows: the slices of its weights, cut once for as long as the rows stay."""

    def __init__(self, stack: AdapterStack, rows: Rows) -> None:
        self.stack = stack
        self.runs = [(run, _Piece(stack, run.decoders)) for run in rows.runs]

    def __call__(self, x: Tensor) -> Tensor:
        """Joins each row with what its adapter makes of it; x is (R, T, D), or (R, D) for one token each."""
        if len(self.runs) == 1:
            return self.stack.joined(x, self._run(x, *self.runs[0]))
        made = torch.cat([self._run(x[run.begin : run.end], run, piece) for run, piece in self.runs])
        return self.stack.joined(x, made)

    def _run(self, x: Tensor, run: Run, piece: "_Piece") -> Tensor:
        if run.is_even:
            return piece(x)
        if run.may_pad and (x.dim() == 2 or x.shape[1] == 1):
            return piece(x[run.padded_index])[run.place_X]
        parts = [_Piece(self.stack, slice(k, k + 1))(x[begin:end]) for k, begin, end in run.segments]
        return torch.cat(parts)


class _Piece:
    """The adapters of A neighbouring decoders, on equally many rows each: two batched products."""

    def __init__(self, stack: AdapterStack, decoders: slice) -> None:
        self.w2_ADH, self.w1_AHD = stack.w2_KDH[decoders], stack.w1_KHD[decoders]
        self.b2_A1H, self.b1_A1D = stack.b2_KH[decoders, None], stack.b1_KD[decoders, None]
        self.activation = stack.activation

    def __call__(self, x: Tensor) -> Tensor:
        x_AXD = x.reshape(len(self.b1_A1D), -1, x.shape[-1])
        inner_AXH = self.activation(torch.baddbmm(self.b2_A1H, x_AXD, self.w2_ADH))
        return torch.baddbmm(self.b1_A1D, inner_AXH, self.w1_AHD).view_as(x)
