"""Adam for K decoders whose weights are stacked: one step for each decoder, none for a decoder without samples.

A zero gradient would still move a decoder by its momentum and decay its moments. So each decoder's slice of a stacked
parameter is a separate parameter here, over the same memory, and one without samples has no gradient at all; unless it
is to drift (`idle`), as in the code of the paper's authors.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from polyreply.em.settings import OptimizerSettings
from polyreply.models.model import PolyReplyModel

_LEAST_SIZE = 1e-3
"""As in Adafactor, with which T5 was trained."""


class DecoderOptimizer:
    """Adam over the decoders, the prior and, where they are trained, the shared weights; with clipping of each."""

    def __init__(self, model: PolyReplyModel, settings: OptimizerSettings, *, train_shared: bool) -> None:
        """Freeze what is not trained."""
        self.settings, self.num_decoders = settings, model.num_decoders
        self._decoders = _slices(model)
        own = {id(parameter) for parameter in model.decoder_parameters()}
        self._prior = list(model.prior.parameters()) if model.prior is not None else []
        self._shared = [p for p in model.parameters() if id(p) not in own] if train_shared else []
        for parameter in model.parameters():
            parameter.requires_grad_(train_shared or id(parameter) in own)
        groups = [[piece for piece, _ in slices] for slices in self._decoders] + [self._prior, self._shared]
        if self.num_decoders == 1 and train_shared:  # one model, so one gradient to clip
            groups = [[parameter for group in groups for parameter in group]]
        self._groups = groups
        together = [{"params": group} for group in groups if group]
        if settings.relative or settings.weight_decay:  # each parameter has its own learning rate, or its own decay
            together = [{"params": [parameter]} for group in groups for parameter in group]
        self.adam = torch.optim.AdamW(together, lr=settings.learning_rate, betas=settings.betas, weight_decay=0.0)
        for options in self.adam.param_groups:
            if settings.weight_decay and options["params"][0].ndim > 1:
                options["weight_decay"] = settings.weight_decay
        self._trained = [p for p in model.parameters() if p.requires_grad]

    def gradients(self) -> Iterator[Tensor]:
        """The gradients of all trained parameters, zeros where there is none yet: what processes sum."""
        for parameter in self._trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            yield parameter.grad

    @torch.no_grad()
    def step(self, active_K: Sequence[bool], learning_rate: float) -> float:
        """Take one step with every decoder that has samples, or is to drift; the norm of all gradients before clipping.

        If the norm is not finite, it is returned without a step and the weights are unchanged.
        """
        for slices, active in zip(self._decoders, active_K, strict=True):
            for piece, (whole, k) in slices:
                gradient = whole.grad
                piece.grad = None if gradient is None or not active else gradient if k is None else gradient[k]
                if not active and self.settings.idle == "drift":
                    piece.grad = torch.zeros_like(piece)
        for parameter in self._shared:
            if parameter.grad is not None:
                parameter.grad /= max(1, sum(active_K))
        norms = [nn.utils.get_total_norm([p.grad for p in group if p.grad is not None]) for group in self._groups]
        norm = math.sqrt(sum(float(part) ** 2 for part in norms))
        if not math.isfinite(norm):
            return norm
        for group in self._groups:
            if self.settings.clip_norm is not None and group:
                nn.utils.clip_grad_norm_(group, self.settings.clip_norm)
        for options in self.adam.param_groups:
            options["lr"] = learning_rate * (_size(options["params"][0]) if self.settings.relative else 1.0)
        self.adam.step()
        for slices in self._decoders:
            for piece, (whole, _) in slices:
                piece.grad = whole.grad = None
        for parameter in (*self._prior, *self._shared):
            parameter.grad = None
        return norm

    def state_dict(self) -> dict[str, Tensor]:
        """Moments and step counts as tensors by name; nothing that needs pickling."""
        state: dict[int, dict[str, Tensor]] = self.adam.state_dict()["state"]
        return {f"{index}.{name}": value for index, values in state.items() for name, value in values.items()}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        whole = self.adam.state_dict()
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, _, field = name.partition(".")
            state.setdefault(int(index), {})[field] = value
        self.adam.load_state_dict({**whole, "state": state})


def _size(parameter: Tensor) -> float:
    """The root mean square of some weights; a floor lets those that start at zero learn."""
    return max(_LEAST_SIZE, float(parameter.square().mean().sqrt()))


def _slices(model: PolyReplyModel) -> list[list[tuple[nn.Parameter, tuple[nn.Parameter, int | None]]]]:
    """Each decoder's parameters, with the parameter (and the index in it) whose memory each one shares."""
    if model.config.architecture == "multi-adapter":
        stacked = list(model.adapters.parameters())
        return [
            [(nn.Parameter(whole.detach()[k], requires_grad=False), (whole, k)) for whole in stacked]
            for k in range(model.num_decoders)
        ]
    own = {id(parameter) for parameter in model.decoder_parameters()}
    return [
        [(parameter, (parameter, None)) for parameter in decoder.parameters() if id(parameter) in own]
        for decoder in model.decoders
    ]


def learning_rate_at(step: int, total: int, settings: OptimizerSettings) -> float:
    """The learning rate of a step, counted from 0."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.learning_rate
    share = (step - settings.warmup_steps) / max(1, total - settings.warmup_steps)
    falls = 1 - share if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * share))
    return settings.learning_rate * falls
