"""Adapters: what makes the K decoders of a `multi-adapter` model differ.

An adapter type is a subclass of `Adapter`, registered in `ADAPTERS` under the name that `config.adapter` and a recipe's
`model.adapter` use. One instance is K adapters at one *site*, a module of the backbone. Its parameters are
stacked along the decoders, (K, …), so the rows of a batch, which are sorted by decoder (`rows.py`), are served by one
batched product for neighbouring decoders instead of K small ones.

A type decides three things: at which sites it is inserted (`build`), what the adapters of some decoders compute
(`branch`), and how that is combined with the site's output (`join`). Two shapes fit: an adapter on the output of a
sublayer (`reads = "output"`, as `bottleneck`), and one next to a linear layer, computed from the layer's input
(`reads = "input"`, as low-rank adaptation). The rest is common: a forward hook on the site looks up the rows of the
current batch in the model's `Router` and applies every row's own adapter. A site that reads the encoder's states (keys
and values of cross-attention) has no rows but the entries of the memory, one for each (context, decoder) pair
(`memory.py`).

Legend: R rows (sorted by decoder), T tokens, D model size, I and O sizes of a linear layer's input and output, H inner
size, r rank, K decoders, A neighbouring decoders, C their ranks, X rows times tokens of each of them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

from polyreply.errors import PolyReplyError
from polyreply.models.config import PolyReplyConfig
from polyreply.models.families import Family, part
from polyreply.models.rows import OneDecoder, Rows, Run
from polyreply.models.settings import AdapterInit

Branch = Callable[[Tensor], Tensor]
"""From (A, X, size of what is read) to (A, X, size of the site's output)."""

ALL_LINEAR = "all-linear"
_LINEAR = (nn.Linear, Conv1D)
_MOST_COLUMNS = 128
"""The most columns of all decoders' low-rank matrices side by side that are multiplied at once."""
_LARGE = 3.0
"""How much wider than PyTorch's default the initialisation `large` is."""


class Router:
    """Holds the rows of the current batch, and the entries of its memory, for every adapter of a model.

    None for the rows switches the adapters off.
    """

    now: tuple[Rows | OneDecoder | None, Rows | None] = (None, None)


class Adapter(nn.Module, ABC):
    """K adapters at one site, with parameters stacked as (K, …)."""

    reads: ClassVar[Literal["output", "input"]] = "output"
    """What the branch is computed from: the output of the site, or its (first) input."""
    router: Router
    """Set when the adapter is inserted."""
    reads_memory: bool = False
    """Whether the site's input is the memory's; set when the adapter is inserted."""

    @classmethod
    @abstractmethod
    def build(cls, backbone: Any, family: Family, config: PolyReplyConfig) -> Iterator[tuple[nn.Module, "Adapter"]]:
        """The sites in the backbone, each with its new adapter."""

    @abstractmethod
    def branch(self, decoders: slice) -> Branch:
        """What the adapters of neighbouring decoders compute, with their weights already cut out."""

    def side_by_side(self, run: Run) -> Branch | None:
        """What the adapters of a run compute where decoders have different numbers of rows, in one product for all.

        From (R, T, size of what is read), or (R, size). None if a product for each decoder is cheaper.
        """
        return None

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
        rows, entries = self.router.now
        if rows is None:
            return output
        if self.reads_memory and isinstance(rows, Rows):
            assert entries is not None
            rows = entries
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
        """All rows by one decoder; where adapters act on the response alone, only the last tokens of a call."""
        before = 0 if rows.last_tokens is None else max(0, output.shape[1] - rows.last_tokens)
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
        if (together := self.adapter.side_by_side(run)) is not None:
            return together(source)
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
        num_decoders, self.inner_size = config.num_adapters, config.adapter_size or model_size // 2
        self.w2_KDH = nn.Parameter(torch.empty(num_decoders, model_size, self.inner_size))
        self.b2_KH = nn.Parameter(torch.empty(num_decoders, self.inner_size))
        self.w1_KHD = nn.Parameter(torch.empty(num_decoders, self.inner_size, model_size))
        self.b1_KD = nn.Parameter(torch.empty(num_decoders, model_size))
        self.activation = ACT2FN[config.adapter_activation]
        self.init: AdapterInit = config.adapter_init
        self.skip = config.adapter_skip

    @classmethod
    def build(cls, backbone: Any, family: Family, config: PolyReplyConfig) -> Iterator[tuple[nn.Module, Adapter]]:
        """One adapter after each sublayer, or after each layer (`config.adapter_sites`)."""
        model_size = int(backbone.get_input_embeddings().weight.shape[1])
        sublayers = {family.decoder: family.sublayers, family.encoder: family.encoder_sublayers}
        for stack in adapted_stacks(family, config):
            for layer in part(backbone, f"{stack}.{family.layers}"):
                by_layer = config.adapter_sites == "layer"
                for site in [layer] if by_layer else [part(layer, path) for path in sublayers[stack]]:
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


class LoraAdapter(Adapter):
    """LoRA(x) = W·x + (alpha / r)·B·A·x (Hu et al., 2021) next to a linear layer W, as PEFT computes it."""

    reads = "input"

    def __init__(self, config: PolyReplyConfig, in_size: int, out_size: int) -> None:
        super().__init__()
        lora, num_decoders = config.lora_settings(), config.num_adapters
        self.a_KIr = nn.Parameter(torch.empty(num_decoders, in_size, lora.rank))
        self.b_KrO = nn.Parameter(torch.empty(num_decoders, lora.rank, out_size))
        self.rank, self.scale, self.dropout = lora.rank, lora.scale, lora.dropout
        self.init: AdapterInit = config.adapter_init

    @classmethod
    def build(cls, backbone: Any, family: Family, config: PolyReplyConfig) -> Iterator[tuple[nn.Module, Adapter]]:
        """One adapter at each linear layer that the targets name."""
        for layer in lora_sites(backbone, family, config).values():
            yield layer, cls(config, *linear_sizes(layer))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """A as `nn.Linear`, as in PEFT; B near zero but not zero, so that decoders start alike and can part."""
        a_bound, b_bound = self.a_KIr.shape[1] ** -0.5, self.rank**-0.5
        width = {"near-identity": 0.01, "linear": 1.0, "large": _LARGE}[self.init]
        self.a_KIr.uniform_(-a_bound, a_bound)
        self.b_KrO.uniform_(-width * b_bound, width * b_bound)

    def branch(self, decoders: slice) -> Branch:
        """(alpha / r)·B·A·x of some decoders: two batched products."""
        a_AIr, b_ArO = self.a_KIr[decoders], self.b_KrO[decoders] * self.scale

        def low_rank(x_AXI: Tensor) -> Tensor:
            x_AXI = nn.functional.dropout(x_AXI, self.dropout, self.training)
            return torch.bmm(torch.bmm(x_AXI, a_AIr), b_ArO)

        return low_rank

    def side_by_side(self, run: Run) -> Branch | None:
        """The ranks of all decoders as columns of one matrix; a row keeps those of its own decoder."""
        if len(run.segments) * self.rank > _MOST_COLUMNS:
            return None
        a_IC = self.a_KIr[run.decoders].transpose(0, 1).flatten(1)
        b_CO = (self.b_KrO[run.decoders] * self.scale).flatten(0, 1)
        own_RC = run.own_RA.repeat_interleave(self.rank, 1)

        def low_rank(x: Tensor) -> Tensor:
            inner = nn.functional.dropout(x, self.dropout, self.training) @ a_IC
            own = own_RC.to(inner.dtype)
            return (inner * (own[:, None] if x.dim() == 3 else own)) @ b_CO

        return low_rank

    def describe(self) -> str:
        """The rank."""
        return f"LoRA of rank {self.rank}"


class LowRanks:
    """The LoRAs of all decoders at linear layers that read the same input, as two matrices.

    As a layer it computes A·x of every decoder, so that it can be one product with the layers (`packed.py`). A row
    keeps those of its own decoder, and B makes of them what is added to the layers' outputs, laid side by side.
    Legend: C columns, the ranks of K decoders at one layer after the other.
    """

    bias = None

    def __init__(self, loras: Sequence[LoraAdapter | None], sizes: Sequence[int], num_decoders: int) -> None:
        """A LoRA or None for each layer, and the layers' output sizes."""
        self.loras, self.sizes, self.num_decoders = loras, sizes, num_decoders
        self._made: tuple[Any, Tensor, Tensor] | None = None

    @property
    def num_columns(self) -> int:
        """C."""
        return sum(self.num_decoders * lora.rank for lora in self.loras if lora is not None)

    def parameters(self) -> Iterator[Tensor]:
        """The weights of the LoRAs."""
        for lora in self.loras:
            yield from () if lora is None else lora.parameters()

    @property
    def weight(self) -> Tensor:
        """A, (C, I)."""
        return self._matrices()[0]

    @property
    def outer_CO(self) -> Tensor:
        """B, scaled; zero where the ranks of one layer meet the outputs of another."""
        return self._matrices()[1]

    def __call__(self, x: Tensor) -> Tensor:
        """A·x of all decoders."""
        return nn.functional.linear(x, self.weight)

    def own_RC(self, decoder_R: Tensor) -> Tensor:
        """One in the columns of each row's decoder, else zero."""
        own_RK = decoder_R[:, None] == torch.arange(self.num_decoders, device=decoder_R.device)
        parts = [own_RK.repeat_interleave(lora.rank, 1) for lora in self.loras if lora is not None]
        return torch.cat(parts, 1).to(self.weight.dtype)

    @torch.no_grad()
    def _matrices(self) -> tuple[Tensor, Tensor]:
        made_from = [(p.data_ptr(), p._version) for p in self.parameters()]
        if self._made is None or self._made[0] != made_from:
            inner, outer, place = list[Tensor](), list[Tensor](), 0
            for lora, size in zip(self.loras, self.sizes, strict=True):
                if lora is not None:
                    inner.append(lora.a_KIr[: self.num_decoders].transpose(1, 2).flatten(0, 1))
                    b_CO = (lora.b_KrO[: self.num_decoders] * lora.scale).flatten(0, 1)
                    outer.append(nn.functional.pad(b_CO, (place, sum(self.sizes) - place - size)))
                place += size
            self._made = made_from, torch.cat(inner), torch.cat(outer)
        return self._made[1:]


ADAPTERS: dict[str, type[Adapter]] = {"bottleneck": BottleneckAdapter, "lora": LoraAdapter}


def adapted_stacks(family: Family, config: PolyReplyConfig) -> list[str]:
    """The stacks of layers that adapters act in: the decoder's, and the encoder's too with `adapt: everything`."""
    return [family.encoder, family.decoder] if family.encoder and config.adapt == "everything" else [family.decoder]


def lora_sites(backbone: Any, family: Family, config: PolyReplyConfig) -> dict[str, nn.Module]:
    """The linear layers that get a LoRA, by their path in the backbone; targets are matched as PEFT does."""
    linear = {name: layer for stack in adapted_stacks(family, config) for name, layer in linear_layers(backbone, stack)}
    sites: dict[str, nn.Module] = {}
    for target in config.lora_settings().targets:
        fitting = {name for name in linear if target == ALL_LINEAR or f".{name}".endswith(f".{target}")}
        if not fitting:
            known = sorted({name.rpartition(".")[2] for name in linear})
            raise PolyReplyError(
                f"lora: expected targets among the linear layers of {config.backbone['model_type']} "
                f"({', '.join(known)}), found {target!r}; name some of these, or {ALL_LINEAR}"
            )
        sites |= {name: linear[name] for name in fitting}
    return {name: module for name, module in linear.items() if name in sites}


def linear_layers(backbone: Any, stack: str) -> Iterator[tuple[str, nn.Module]]:
    """The linear layers of a stack without the output layer, by their path in the backbone."""
    head = backbone.get_output_embeddings()
    for name, module in part(backbone, stack).named_modules():
        if isinstance(module, _LINEAR) and module is not head:
            yield f"{stack}.{name}", module


def linear_sizes(layer: Any) -> tuple[int, int]:
    """Input and output size of a linear layer; GPT-2's Conv1D has its weight the other way round."""
    first, second = layer.weight.shape
    return (int(first), int(second)) if isinstance(layer, Conv1D) else (int(second), int(first))


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
    """Put K adapters of the configured type at its sites in the backbone; returns them with their sites."""
    inserted = list(adapter_type(config.adapter).build(backbone, family, config))
    layers: Any = part(backbone, f"{family.decoder}.{family.layers}")
    readers = {id(part(layer, path)) for layer in layers for path in family.memory_readers}
    for site, adapter in inserted:
        adapter.router, adapter.reads_memory = router, id(site) in readers
        site.register_forward_hook(adapter.hook)
    return inserted
