"""The K-decoder model: a stock Transformers backbone, and what makes its K decoders differ.

`multi-adapter` puts K adapters at the sites of one shared decoder (`adapters.py`); `multi-decoder` has K full decoders,
the backbone's own and K-1 copies. Either way one pass serves rows of all decoders: `encode` reads each context once,
`states` runs every row through its own decoder, `logits` scores the vocabulary.

Legend: B contexts, S context tokens, R rows (one for each (context, decoder) pair, sorted by decoder), T response
tokens, D model size, K decoders, V vocabulary, P positions.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

import polyreply.models.dialogbert  # noqa: F401 – a backbone that Transformers does not know until it is imported
from polyreply.errors import PolyReplyError
from polyreply.models.adapters import Adapter, LowRanks, Router, insert_adapters, linear_layers, linear_sizes
from polyreply.models.attention import SHARED_ATTENTION
from polyreply.models.config import DecoderSettings, PolyReplyConfig, portable_name
from polyreply.models.families import family_of, part
from polyreply.models.memory import Memory, read_with_decoder, read_with_encoder
from polyreply.models.pretrained import load_checked, without_beam_search
from polyreply.models.reference import own_weights, reference_to
from polyreply.models.rows import OneDecoder, Rows
from polyreply.models.settings import BackboneIn

if TYPE_CHECKING:
    from polyreply.models.sharded import ShardedLayers

_PERTURBATION = 0.1
"""How much copies of stage 1's adapter differ from it, as a share of the root mean square of its weights."""


class PolyReplyModel(PreTrainedModel):
    """An ordinary Transformers model with K decoders: `save_pretrained`, `from_pretrained` and `.to` work as usual."""

    config_class = PolyReplyConfig
    config: PolyReplyConfig
    base_model_prefix = "polyreply"
    backbone_source: str = ""
    """What loads the backbone alone; empty if it came with the model's own weights."""
    _supports_sdpa = True

    def __init__(self, config: PolyReplyConfig, backbone: PreTrainedModel | None = None) -> None:
        """Build the model around `backbone`, which keeps its weights, or around a new one made from the config."""
        super().__init__(config)
        config.check()
        self.family = family_of(config.backbone["model_type"])
        self.backbone: Any = _new_backbone(config) if backbone is None else backbone
        modules: Iterator[Any] = self.backbone.modules()
        for module in modules:
            if backbone is not None:
                module._is_hf_initialized = True  # otherwise Transformers would fill buffers that no file holds
            if hasattr(module, "config"):
                module.config._attn_implementation = SHARED_ATTENTION
        self.generation_config = without_beam_search(self.backbone.generation_config)
        self.sharded: ShardedLayers | None = None
        """The layers of the backbone, if each process holds a share of them."""
        self.router = Router()
        self.decodes_in_int8 = False
        """Whether decoding multiplies with weights of eight bits, see packed.py."""
        self.low_ranks: dict[tuple[int, ...], LowRanks] = {}
        """The LoRAs at layers that decoding multiplies at once, by the identities of the layers."""
        self.sites: list[nn.Module] = []
        """The modules of the backbone at which the adapters are, in the order of `adapters`."""
        self.adapters, self.extra_decoders = nn.ModuleList(), nn.ModuleList()
        if config.architecture == "multi-adapter":
            inserted = insert_adapters(self.backbone, self.family, config, self.router)
            self.sites = [site for site, _ in inserted]
            self.adapters = nn.ModuleList(adapter for _, adapter in inserted)
        else:
            self.extra_decoders = _copy_decoders(self.backbone, config)
            if not config.copy_embeddings:
                self._tied_weights_keys = _tied_embeddings(self.backbone, len(self.extra_decoders))
        self.prior = LearnedPrior(self.model_size, self.num_decoders) if config.prior == "learned" else None
        self.objective: nn.Module | None = None
        """While a method with an objective trains the model: what only the training needs."""
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def from_backbone(
        cls, backbone: PreTrainedModel, *, backbone_name: str = "", **settings: Unpack[DecoderSettings]
    ) -> "PolyReplyModel":
        """K untrained decoders on a loaded backbone, in eval mode.

        `backbone_name` is what the config and the model card call it; by default the name it was loaded by.
        """
        described = backbone.config.to_dict()
        source = backbone_name or str(described.get("_name_or_path") or "")
        described["_name_or_path"] = portable_name(source)
        model = cls(PolyReplyConfig(backbone=described, **settings), backbone)
        model.backbone_source = source
        for own in (model.adapters, model.prior):
            if own is not None:
                own.to(backbone.dtype)
        model.train(False)
        return model

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, **options: Any) -> Any:
        """As everywhere in Transformers, but from safetensors only and with every weight checked.

        `backbone` names another place for the backbone of a model that was saved without it.
        """
        with_info = options.pop("output_loading_info", False)
        load = super().from_pretrained
        model, info = load_checked(cls, load, pretrained_model_name_or_path, *arguments, **options)
        return (model, info) if with_info else model

    def save_pretrained(  # type: ignore[override]
        self, save_directory: Any, *, backbone: BackboneIn = "whole", tokenizer: Any = None, **options: Any
    ) -> None:
        """As everywhere in Transformers; `backbone="reference"` leaves the backbone's weights out, see reference.py.

        The reference then also says if `tokenizer` is the backbone's own, so that it need not be saved.
        """
        self.config.backbone_reference = {}
        if backbone == "reference":
            self.config.backbone_reference = reference_to(self, tokenizer)
            options["state_dict"] = own_weights(self)
        elif self.sharded is not None:
            options["state_dict"] = {**self.state_dict(), **self.sharded_weights()}
        super().save_pretrained(save_directory, **options)

    @classmethod
    def can_generate(cls) -> bool:
        """Makes Transformers save a generation config with the model."""
        return True

    @property
    def generation_config(self) -> Any:
        """How to decode by default: the backbone's own generation config."""
        return self.backbone.generation_config

    @generation_config.setter
    def generation_config(self, config: Any) -> None:
        if "backbone" in self._modules:  # Transformers sets a default one before there is a backbone
            self.backbone.generation_config = config

    @property
    def num_decoders(self) -> int:
        """K."""
        return self.config.num_decoders

    @property
    def model_size(self) -> int:
        """D."""
        return int(self.backbone.get_input_embeddings().weight.shape[1])

    @property
    def decoders(self) -> list[Any]:
        """The K full decoders of `multi-decoder`; the one shared stack of `multi-adapter`."""
        return [part(self.backbone, self.family.decoder), *self.extra_decoders]

    @cached_property
    def numbers_per_token(self) -> int:
        """About how many numbers the layers compute for one token, all of which a backward pass needs."""
        layers = linear_layers(self.backbone, self.family.decoder)
        return max(1, sum(sum(linear_sizes(layer)) for _, layer in layers))

    def sharded_weights(self) -> dict[str, Tensor]:
        """Whole copies of the weights of which processes hold shares, by name; the other processes have to help."""
        return {} if self.sharded is None else self.sharded.whole()

    def plain_backbone(self) -> PreTrainedModel:
        """A copy of the backbone without adapters, as stage 1 left it; guidance is for decoders, and left out."""
        copied: Any = _new_backbone(self.config).to(self.backbone.dtype)
        copied.load_state_dict(self.backbone.state_dict())
        copied.config._commit_hash = getattr(self.backbone.config, "_commit_hash", None)
        copied.generation_config = copy.deepcopy(self.backbone.generation_config)
        copied.generation_config.guidance_scale = None
        return copied  # type: ignore[no-any-return]

    @torch.no_grad()
    def copy_adapter(self, stage1: "PolyReplyModel") -> None:
        """Begin with the adapter that stage 1 trained: an exact copy, kept as it is, and K perturbed a little.

        A decoder's weights get noise of a tenth of their root mean square: enough to tell decoders apart, too little
        to lose what stage 1 learned.
        """
        sites: Any = zip(self.adapters, stage1.adapters, strict=True)
        for adapter, trained in sites:
            for own, found in zip(adapter.parameters(), trained.parameters(), strict=True):
                one = found[stage1.config.single_adapter].to(own)
                own.copy_(one.expand_as(own))
                noise = torch.randn_like(own[: self.num_decoders])
                own[: self.num_decoders] += noise * (_PERTURBATION * one.square().mean().sqrt())

    def shared_parameters(self) -> Iterator[nn.Parameter]:
        """The weights that all decoders share: what stage 2 freezes."""
        own = {id(parameter) for parameter in self.decoder_parameters()}
        yield from (parameter for parameter in self.parameters() if id(parameter) not in own)

    def decoder_parameters(self) -> Iterator[nn.Parameter]:
        """The weights in which decoders differ, and the prior's: what stage 2 trains."""
        if self.config.architecture == "multi-adapter":
            yield from self.adapters.parameters()
        else:
            embedding = self.backbone.get_input_embeddings().weight
            yield from (p for decoder in self.decoders for p in decoder.parameters() if p is not embedding)
        if self.prior is not None:
            yield from self.prior.parameters()

    def encode(self, context_BS: Tensor, mask_BS: Tensor, rows: Rows | None = None) -> Memory:
        """Read the contexts, padded on either side, for the given rows; None means for the single-decoder model.

        It is done once for all decoders where the adapters leave contexts alone, else once for each pair in `rows`.
        """
        if rows is None or not self.has_own_memory:
            return self._read(context_BS, mask_BS, None)
        entries = rows.distinct()
        if self.config.adapt == "response":
            return self._read(context_BS, mask_BS, None).expand(entries)
        index = entries.context_R
        return replace(self._read(context_BS[index], mask_BS[index], entries), entries=entries)

    def _read(self, context_BS: Tensor, mask_BS: Tensor, rows: Rows | None) -> Memory:
        single = self.single_decoder if self.config.adapt == "everything" else None
        with self.routed(single if rows is None else rows):
            if self.family.encoder:
                return read_with_encoder(part(self.backbone, self.family.encoder), context_BS, mask_BS)
            memory = read_with_decoder(self.decoders[0], context_BS, mask_BS, self.config.num_invocation_tokens)
        if self.sharded is not None and memory.prefix is not None:
            # Gradients reach keys and values of a layer past its output, where it would be gathered for them.
            for number, own in enumerate(zip(memory.prefix.keys, memory.prefix.values, strict=True)):
                self.sharded.gather_for_backward(number, own)
        return memory

    @property
    def single_decoder(self) -> OneDecoder | None:
        """What the single-decoder model of stage 1 routes all rows to: its adapter, or none."""
        return None if self.config.single_adapter is None else OneDecoder(self.config.single_adapter)

    @property
    def has_own_memory(self) -> bool:
        """Whether decoders see contexts differently: adapters act on contexts, or on how they are attended to."""
        adapters: Any = self.adapters
        return self.config.adapt == "everything" or any(adapter.reads_memory for adapter in adapters)

    def log_prior(self, memory: Memory) -> Tensor:
        """log p(z|c), (B, K): learned, or uniform."""
        if self.prior is None:
            uniform = torch.full((), -torch.tensor(float(self.num_decoders)).log().item())
            return uniform.expand(len(memory), self.num_decoders).to(memory.mask_BS.device)
        log_prior_BK: Tensor = self.prior(memory.states_BSD, memory.mask_BS)
        return log_prior_BK

    def first_tokens(self, rows: Rows, memory: Memory) -> Tensor:
        """(R, A): the tokens from which each row starts, the last of which predicts the first of the response."""
        if memory.last_BA is not None:
            return memory.last_BA[memory.rows(rows).context_R]
        start = self.backbone.config.decoder_start_token_id
        if start is None:
            start = self.backbone.generation_config.decoder_start_token_id
        return torch.full_like(rows.context_R, start)[:, None]

    def response_states(self, response_RT: Tensor, rows: Rows, memory: Memory, *, single: bool = False) -> Tensor:
        """The states (R, T, D) that predict each token of the responses: those of the tokens before it."""
        tokens = torch.cat([self.first_tokens(rows, memory), response_RT[:, :-1]], 1)
        return self.states(tokens, rows, memory, single=single)[:, -response_RT.shape[1] :]

    def states(
        self, tokens_RT: Tensor, rows: Rows, memory: Memory, caches: list[Any] | None = None, *, single: bool = False
    ) -> Tensor:
        """Last hidden states (R, T, D) of each row's decoder, or with `single` of the single-decoder model.

        `caches` (one for each stack) hold earlier tokens.
        """
        rows = memory.rows(rows)
        with self.routed(self.single_decoder if single else rows, memory.entries):
            if not self.extra_decoders:
                return self._run(self.decoders[0], tokens_RT, rows, memory, caches and caches[0])
            return torch.cat(
                [
                    self._run(self.decoders[k], tokens_RT[begin:end], rows.segment(i), memory, caches and caches[k])
                    for i, (k, begin, end) in enumerate(rows.segments)
                ]
            )

    def _run(self, stack: Any, tokens_RT: Tensor, rows: Rows, memory: Memory, cache: Any) -> Tensor:
        options: dict[str, Any] = {"rows": rows, "past_key_values": cache, "use_cache": cache is not None}
        options |= memory.inputs(tokens_RT, rows, cache)
        states_RTD: Tensor = stack(input_ids=tokens_RT, **options).last_hidden_state
        return states_RTD

    def logits(self, states_PD: Tensor, segments: Sequence[tuple[int, int, int]] = ()) -> Tensor:
        """Scores over the vocabulary (P, V); `segments` name each position's decoder, if decoders have own heads."""
        config = self.backbone.config
        if getattr(config, "scale_decoder_outputs", False):
            states_PD = states_PD * self.model_size**-0.5
        if self._has_own_heads and self.extra_decoders:
            heads = [decoder.embed_tokens.weight for decoder in self.decoders]
            return torch.cat([nn.functional.linear(states_PD[begin:end], heads[k]) for k, begin, end in segments])
        logits_PV: Tensor = self.backbone.get_output_embeddings()(states_PD)
        if (bias := getattr(self.backbone, "final_logits_bias", None)) is not None:
            logits_PV = logits_PV + bias
        if (divisor := getattr(config, "logits_scaling", None)) is not None:
            logits_PV = logits_PV / divisor
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits_PV = torch.tanh(logits_PV / cap) * cap
        return logits_PV

    @property
    def vocabulary(self) -> Any:
        """The output layer."""
        return self.backbone.get_output_embeddings()

    @property
    def _has_own_heads(self) -> bool:
        """Whether decoders use their own embedding as output layer: not if the backbone has a separate one."""
        head, embedding = self.backbone.get_output_embeddings(), self.backbone.get_input_embeddings()
        return bool(self.config.copy_embeddings and head.weight is embedding.weight)

    @contextmanager
    def routed(self, rows: Rows | OneDecoder | None, entries: Rows | None = None) -> Iterator[None]:
        """Route rows to their adapters while the block lasts; None switches the adapters off.

        `entries` are those of the memory, for adapters at modules that read it.
        """
        before, self.router.now = self.router.now, (rows, entries)
        try:
            yield
        finally:
            self.router.now = before

    @contextmanager
    def as_decoder(self, k: int | None) -> Iterator[Any]:
        """The backbone as an ordinary model that generates with decoder k, for any batch; None is stage 1's model."""
        k = self.config.single_adapter if k is None else k
        if k is None:
            chosen = self.routed(None)
        elif self.extra_decoders:
            chosen = _swapped(self.backbone, self.family.decoder, self.decoders[k], own_head=self._has_own_heads)
        else:
            in_response = self.config.adapt == "response" and not self.family.encoder
            chosen = self.routed(OneDecoder(k, self.config.num_invocation_tokens if in_response else None))
        with chosen:
            yield self.backbone

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Logits (B, T, V) of `labels` (-100 where padded) under the decoder that `decoder_ids` gives each row."""
        if labels is None or decoder_ids is None:
            raise PolyReplyError(
                "expected labels and decoder_ids; to generate, use polyreply.decoding or PolyReply.reply"
            )
        mask_BS = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        order = torch.argsort(decoder_ids, stable=True)
        rows = Rows.pairs(order, decoder_ids[order], len(input_ids))
        memory = self.encode(input_ids, mask_BS, rows)
        states_RTD = self.response_states(labels.clamp(min=0)[order], rows, memory)
        segments = [(k, b * labels.shape[1], e * labels.shape[1]) for k, b, e in rows.segments]
        logits_RTV = self.logits(states_RTD.flatten(0, 1), segments).unflatten(0, labels.shape)
        return torch.index_select(logits_RTV, 0, torch.argsort(order))

    def _init_weights(self, module: nn.Module) -> None:
        """Called by Transformers for modules that no checkpoint fills."""
        if isinstance(module, Adapter | nn.Linear):
            module.reset_parameters()


class LearnedPrior(nn.Module):
    """p(z|c): a network from the mean state of a context to the log-probability of each decoder."""

    def __init__(self, model_size: int, num_decoders: int) -> None:
        super().__init__()
        self.inner = nn.Linear(model_size, model_size)
        self.outer = nn.Linear(model_size, num_decoders)

    def forward(self, states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Log-probabilities (B, K), in float32."""
        weights_BS1 = mask_BS.unsqueeze(-1).to(states_BSD.dtype)
        pooled_BD = (states_BSD * weights_BS1).sum(1) / weights_BS1.sum(1).clamp(min=1)
        scores_BK = self.outer(torch.tanh(self.inner(pooled_BD)))
        return torch.log_softmax(scores_BK.float(), -1)


def wide(x: Tensor) -> Tensor:
    """The same numbers in float32 or better: log-likelihoods are summed in it, whatever the model computes in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _new_backbone(config: PolyReplyConfig) -> PreTrainedModel:
    """A backbone with untrained weights, as the configuration describes it."""
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    backbone: PreTrainedModel = kind.from_config(config.backbone_config())
    return backbone


# multi-decoder: K-1 copies of the backbone's decoder.


def _copy_decoders(backbone: Any, config: PolyReplyConfig) -> nn.ModuleList:
    """K-1 copies of the backbone's decoder, which share its embedding or have copies of it."""
    path = family_of(config.backbone["model_type"]).decoder
    first = part(backbone, path)
    shared = backbone.get_input_embeddings().weight
    memo = {id(shared): shared}  # deepcopy takes what it finds here instead of copying it
    if config.copy_embeddings:
        first.embed_tokens = copy.deepcopy(first.embed_tokens)
        _untie(backbone, f"{path}.embed_tokens.weight")
        memo = {}
    return nn.ModuleList(copy.deepcopy(first, dict(memo)) for _ in range(config.num_decoders - 1))


def _untie(backbone: PreTrainedModel, name: str) -> None:
    """Make Transformers forget that a weight of the backbone is tied to another."""
    for submodel in backbone.modules():
        if isinstance(submodel, PreTrainedModel):
            keys = dict(submodel._tied_weights_keys or {})
            submodel._tied_weights_keys = {key: source for key, source in keys.items() if not name.endswith(key)}
    backbone.all_tied_weights_keys = {k: v for k, v in backbone.all_tied_weights_keys.items() if k != name}


def _tied_embeddings(backbone: Any, num_extra_decoders: int) -> dict[str, str]:
    """For each copied decoder the name of its embedding, with the name of the backbone's, which it shares."""
    shared = backbone.get_input_embeddings().weight
    source = next(name for name, parameter in backbone.named_parameters() if parameter is shared)
    return {f"extra_decoders.{i}.embed_tokens.weight": f"backbone.{source}" for i in range(num_extra_decoders)}


@contextmanager
def _swapped(backbone: Any, path: str, decoder: Any, *, own_head: bool) -> Iterator[None]:
    """Let the backbone generate with another decoder and, if `own_head`, with its embedding as output layer."""
    parent, _, name = path.rpartition(".")
    owner = part(backbone, parent) if parent else backbone
    stock, stock_head = getattr(owner, name), backbone.get_output_embeddings()
    setattr(owner, name, decoder)
    if own_head:
        weight_VD = decoder.embed_tokens.weight
        head = nn.Linear(weight_VD.shape[1], weight_VD.shape[0], bias=False, device="meta")
        head.weight = weight_VD
        backbone.set_output_embeddings(head)
    try:
        yield
    finally:
        setattr(owner, name, stock)
        backbone.set_output_embeddings(stock_head)


AutoConfig.register(PolyReplyConfig.model_type, PolyReplyConfig, exist_ok=True)
AutoModel.register(PolyReplyConfig, PolyReplyModel, exist_ok=True)
