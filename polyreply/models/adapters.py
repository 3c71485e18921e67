"""Adapters: what makes the K decoders of a `multi-adapter` model differ.

An adapter type is a subclass of `Adapter`, registered in `ADAPTERS` under the name that `config.adapter` and a recipe's
`model.adapter` use. One instance is K adapters at one *site*, a module of the backbone's decoder. Its parameters are
stacked along the decoders, (K, …), so the rows of a batch, which are sorted by decoder (`rows.py`), are served by one
batched product for neighbouring decoders instead of K small ones.

A type decides three things: at which sites it is inserted (`build`), what the adapters of some decoders compute
(`branch`), and how that is combined with the site's output (`join`). Two shapes fit: an adapter on the output of a
sublayer (`reads = "output"`, as `bottleneck`), and one next to a linear layer, computed from the layer's input
(`reads = "input"`, as low-rank adaptation). The rest is common: a forward hook on the site looks up the rows of the
current batch in the model's `Router` and applies every row's own adapter. So a site has to compute one output for each
row: the keys and values of cross-attention, which exist once per context, cannot be sites.

Legend: R rows (sorted by decoder), T tokens, D model size, H inner size, K decoders, A neighbouring decoders, X rows
times tokens of each of them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from polyreply.errors import PolyReplyError
from polyreply.models.config import AdapterInit, PolyReplyConfig
from polyreply.models.families import Family, part
from polyreply.models.rows import OneDecoder, Rows, Run

Branch = Callable[[Tensor], Tensor]
"""From (A, X, size of what is read) to (A, X, size of the site's output)."""

_LARGE = 3.0
"""How much wider than PyTorch's default the initialisation `large` is."""


class Router:
    """Holds the rows of the current batch for every adapter of a model; None switches the adapters off."""

    rows: Rows | OneDecoder | None = None


class Adapter(nn.Module, ABC):
    """K adapters at one site, with parameters stacked as (K, …)."""

    reads: ClassVar[Literal["output", "input"]] = "output"
    """What the branch is computed from: the output of the site, or its (first) input."""
    router: Router
    """Set when the adapter is inserted."""

    @classmethod
    @abstractmethod
    def build(cls, backbone: Any, family: Family, config: PolyReplyConfig) -> Iterator[tuple[nn.Module, "Adapter"]]:
        """The sites in the backbone's decoder, each with its new adapter."""

    @abstractmethod
    def branch(self, decoders: slice) -> Branch:
        """What the adapters of neighbouring decoders compute, with their weights already cut out."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draw initial weights."""

    def join(self, output: Tensor, change: Tensor) -> Tensor:
        """What leaves the site, from its own output and what the branch computed."""
        return output + change

    def describe(self) -> str:
        """A few words for the model card."""
        return type(self).__name__

    def hook(self, site: nn.Module, arguments: Any, output: Any) -> Any:
        """Forward hook on the site, a stock module that returns a tensor or a tuple that begins with it."""
        rows = self.router.rows
        if rows is None:
            return output
        whole: Tensor = output[0] if isinstance(output, tuple) else output
        source: Tensor = whole if self.reads == "output" else arguments[0]
        if isinstance(rows, OneDecoder):
            adapted = self._one(rows, whole, source)
        elif len(whole) != len(rows):
            raise PolyReplyError(
                f"expected one output of {type(site).__name__} for each of {len(rows)} rows, found {len(whole)}: it is "
                "computed once per context, so an adapter cannot be there; choose another site"
            )
        else:
            adapted = RoutedAdapter(self, rows)(whole, source)
        return (adapted, *output[1:]) if isinstance(output, tuple) else adapted

    def _one(self, rows: OneDecoder, output: Tensor, source: Tensor) -> Tensor:
        """All rows by one decoder; in decoder-only models only the last token of a call."""
        before = output.shape[1] - 1 if rows.last_token_only else 0
        here, source = output[:, before:], source[:, before:]
        change = _apply(self.branch(slice(rows.k, rows.k + 1)), source, 1)
        return torch.cat([output[:, :before], self.join(here, change)], 1)


class RoutedAdapter:
    """An adapter for given rows: the slices of its weights are cut once, for as long as the rows stay the same."""

    def __init__(self, adapter: Adapter, rows: Rows) -> None:
        self.adapter = adapter
        self.runs = [(run, adapter.branch(run.decoders)) for run in rows.runs]

    def __call__(self, output: Tensor, source: Tensor) -> Tensor:
        """The adapted output of the site; both are (R, T, D), or (R, D) for one token each."""
        if len(self.runs) == 1:
            return self.adapter.join(output, self._run(source, *self.runs[0]))
        changes = [self._run(source[run.begin : run.end], run, branch) for run, branch in self.runs]
        return self.adapter.join(output, torch.cat(changes))

    def _run(self, source: Tensor, run: Run, branch: Branch) -> Tensor:
        """The rows of neighbouring decoders: one batched product if all have, or may be given, equally many rows."""
        if run.is_even:
            return _apply(branch, source, len(run.segments))
        if run.may_pad and (source.dim() == 2 or source.shape[1] == 1):
            return _apply(branch, source[run.padded_index], len(run.segments))[run.place_X]
        changes = [_apply(self.adapter.branch(slice(k, k + 1)), source[begin:end], 1) for k, begin, end in run.segments]
        return torch.cat(changes)


def _apply(branch: Branch, source: Tensor, num_decoders: int) -> Tensor:
    change_AXD = branch(source.reshape(num_decoders, -1, source.shape[-1]))
    return change_AXD.view(*source.shape[:-1], change_AXD.shape[-1])


class BottleneckAdapter(Adapter):
    """AdapterLayer(x) = x + W1·φ(W2·x) (paper, Eq. 1), with biases, on the output of a sublayer or a layer.

    Without `skip` it is W1·φ(W2·x): an untrained adapter then destroys what its sublayer computed.
    """

    def __init__(self, config: PolyReplyConfig, model_size: int) -> None:
        super().__init__()
        num_decoders, self.inner_size = config.num_decoders, config.adapter_size or model_size // 2
        self.w2_KDH = nn.Parameter(torch.empty(num_decoders, model_size, self.inner_size))
        self.b2_KH = nn.Parameter(torch.empty(num_decoders, self.inner_size))
        self.w1_KHD = nn.Parameter(torch.empty(num_decoders, self.inner_size, model_size))
        self.b1_KD = nn.Parameter(torch.empty(num_decoders, model_size))
        self.activation = ACT2FN[config.adapter_activation]
        self.init: AdapterInit = config.adapter_init
        self.skip = config.adapter_skip

    @classmethod
    def build(cls, backbone: Any, family: Family, config: PolyReplyConfig) -> Iterator[tuple[nn.Module, Adapter]]:
        """One adapter after each sublayer of the decoder, or after each layer (`config.adapter_sites`)."""
        model_size = int(backbone.get_input_embeddings().weight.shape[1])
        for layer in part(backbone, f"{family.decoder}.{family.layers}"):
            by_layer = config.adapter_sites == "layer"
            for site in [layer] if by_layer else [part(layer, path) for path in family.sublayers]:
                yield site, cls(config, model_size)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Near the identity but not equal, so that decoders start alike and can part; or as `nn.Linear`; or wider."""
        width = _LARGE if self.init == "large" else 1.0
        for weight, bias in ((self.w2_KDH, self.b2_KH), (self.w1_KHD, self.b1_KD)):
            bound = 1 / math.sqrt(weight.shape[1])
            weight.uniform_(-width * bound, width * bound)
            bias.uniform_(-bound, bound)
        if self.init == "near-identity":
            self.w1_KHD.mul_(0.01)
            self.b1_KD.zero_()
            self.b2_KH.zero_()

    def branch(self, decoders: slice) -> Branch:
        """W1·φ(W2·x) of some decoders: two batched products."""
        w2_ADH, w1_AHD = self.w2_KDH[decoders], self.w1_KHD[decoders]
        b2_A1H, b1_A1D = self.b2_KH[decoders, None], self.b1_KD[decoders, None]

        def bottleneck(x_AXD: Tensor) -> Tensor:
            inner_AXH = self.activation(torch.baddbmm(b2_A1H, x_AXD, w2_ADH))
            return torch.baddbmm(b1_A1D, inner_AXH, w1_AHD)

        return bottleneck

    def join(self, output: Tensor, change: Tensor) -> Tensor:
        """With the skip connection, or what the branch computed alone."""
        return output + change if self.skip else change

    def describe(self) -> str:
        """The inner size."""
        return f"bottleneck of inner size {self.inner_size}"


ADAPTERS: dict[str, type[Adapter]] = {"bottleneck": BottleneckAdapter}


def adapter_type(name: str) -> type[Adapter]:
    """A registered adapter type; the error for an unknown one lists those that are registered."""
    if name not in ADAPTERS:
        raise PolyReplyError(
            f"expected an adapter of one of the types {', '.join(ADAPTERS)}, found {name!r}; register it in "
            "polyreply.models.adapters.ADAPTERS"
        )
    return ADAPTERS[name]


def insert_adapters(
    backbone: Any, family: Family, config: PolyReplyConfig, router: Router
) -> list[tuple[nn.Module, Adapter]]:
    """Put K adapters of the configured type at its sites in the backbone's decoder; returns them with their sites."""
    inserted = list(adapter_type(config.adapter).build(backbone, family, config))
    for site, adapter in inserted:
        adapter.router = router
        site.register_forward_hook(adapter.hook)
    return inserted
