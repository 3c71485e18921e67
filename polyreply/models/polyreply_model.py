"""The K-decoder model: a stock Transformers backbone, and what makes its K decoders differ.

Legend: B contexts, S context tokens, R rows (one for each (context, decoder) pair, sorted by decoder), T response
tokens, D model size, K decoders, V vocabulary, P positions.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from polyreply.errors import PolyReplyError
from polyreply.models.adapters import AdapterStack, Router
from polyreply.models.architectures import (
    copy_decoders,
    insert_adapters,
    new_backbone,
    share_attention,
    swapped,
    tied_embeddings,
)
from polyreply.models.config import PolyReplyConfig
from polyreply.models.families import family_of, part
from polyreply.models.generation import without_beam_search
from polyreply.models.memory import Memory, read_with_decoder, read_with_encoder
from polyreply.models.pretrained import load_checked
from polyreply.models.prior import LearnedPrior, mean_pool
from polyreply.models.rows import OneDecoder, Rows


class PolyReplyModel(PreTrainedModel):
    """An ordinary Transformers model with K decoders: `save_pretrained`, `from_pretrained` and `.to` work as usual."""

    config_class = PolyReplyConfig
    config: PolyReplyConfig
    base_model_prefix = "polyreply"
    _supports_sdpa = True

    def __init__(self, config: PolyReplyConfig, backbone: PreTrainedModel | None = None) -> None:
        """Builds the model; `backbone` is taken over where given, with its weights, else made from the config."""
        super().__init__(config)
        config.check()
        self.family = family_of(config.backbone["model_type"])
        self.backbone: Any = _taken_over(backbone) if backbone is not None else new_backbone(config)
        share_attention(self.backbone)
        self.generation_config = without_beam_search(self.backbone.generation_config)
        self.router = Router()
        self.adapters, self.extra_decoders = nn.ModuleList(), nn.ModuleList()
        if config.architecture == "multi-adapter":
            self.adapters = insert_adapters(self.backbone, config, self.router)
        else:
            self.extra_decoders = copy_decoders(self.backbone, config)
            if not config.copy_embeddings:
                self._tied_weights_keys = tied_embeddings(self.backbone, len(self.extra_decoders))
        self.prior = LearnedPrior(self.model_size, self.num_decoders) if config.prior == "learned" else None
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def from_backbone(cls, backbone: PreTrainedModel, **settings: Any) -> "PolyReplyModel":
        """K decoders on a loaded backbone; the settings are those of `PolyReplyConfig`."""
        config = PolyReplyConfig(backbone=backbone.config.to_dict(), **settings)
        model = cls(config, backbone)
        model.train(False)
        return model

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, **options: Any) -> Any:
        """As everywhere in Transformers, from safetensors only; what does not fit is one clear error."""
        with_info = options.pop("output_loading_info", False)
        model, info = load_checked(super().from_pretrained, pretrained_model_name_or_path, *arguments, **options)
        return (model, info) if with_info else model

    @classmethod
    def can_generate(cls) -> bool:
        """Tells Transformers to save a generation config with the model."""
        return True

    @property
    def generation_config(self) -> Any:
        """How to decode unless told otherwise: the backbone's, so that there is one."""
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
        """The full decoders of `multi-decoder`; one shared stack in `multi-adapter`."""
        return [part(self.backbone, self.family.decoder), *self.extra_decoders]

    def shared_parameters(self) -> Iterator[nn.Parameter]:
        """The weights all decoders share: what stage 2 freezes."""
        own = {id(parameter) for parameter in self.decoder_parameters()}
        yield from (parameter for parameter in self.parameters() if id(parameter) not in own)

    def decoder_parameters(self) -> Iterator[nn.Parameter]:
        """The weights in which decoders differ (and the prior): what stage 2 trains."""
        if self.config.architecture == "multi-adapter":
            yield from self.adapters.parameters()
        else:
            embeddings = {id(self.backbone.get_input_embeddings().weight)}
            yield from (p for decoder in self.decoders for p in decoder.parameters() if id(p) not in embeddings)
        if self.prior is not None:
            yield from self.prior.parameters()

    def encode(self, context_BS: Tensor, mask_BS: Tensor) -> Memory:
        """Reads the contexts, once for all decoders; padding may be on either side."""
        if self.family.encoder:
            return read_with_encoder(part(self.backbone, self.family.encoder), context_BS, mask_BS)
        with self.routed(None):
            return read_with_decoder(self.decoders[0], context_BS, mask_BS)

    def log_prior(self, memory: Memory) -> Tensor:
        """log p(z|c), (B, K): learned, or uniform."""
        if self.prior is None:
            uniform = torch.full((), -torch.tensor(float(self.num_decoders)).log().item())
            return uniform.expand(len(memory), self.num_decoders).to(memory.mask_BS.device)
        log_prior_BK: Tensor = self.prior(mean_pool(memory.states_BSD, memory.mask_BS))
        return log_prior_BK

    def first_tokens(self, rows: Rows, memory: Memory) -> Tensor:
        """(R,): the token each row starts from."""
        if memory.last_B is not None:
            return memory.last_B[rows.context_R]
        start = self.backbone.config.decoder_start_token_id
        if start is None:
            start = self.backbone.generation_config.decoder_start_token_id
        return torch.full_like(rows.context_R, start)

    def states(
        self, tokens_RT: Tensor, rows: Rows, memory: Memory, caches: list[Any] | None = None, *, adapters: bool = True
    ) -> Tensor:
        """Last hidden states (R, T, D) of each row's decoder. `caches` (one for each stack) hold earlier tokens."""
        with self.routed(rows if adapters else None):
            if not self.extra_decoders:
                return self._run(self.decoders[0], tokens_RT, rows, memory, caches and caches[0])
            return torch.cat(
                [
                    self._run(self.decoders[k], tokens_RT[begin:end], rows.segment(i), memory, caches and caches[k])
                    for i, (k, begin, end) in enumerate(rows.segments)
                ]
            )

    def logits(self, states_PD: Tensor, segments: Sequence[tuple[int, int, int]] = ()) -> Tensor:
        """Scores over the vocabulary (P, V); `segments` say whose positions they are, where decoders have own heads."""
        if getattr(self.backbone.config, "scale_decoder_outputs", False):
            states_PD = states_PD * self.model_size**-0.5
        if self._has_own_heads and self.extra_decoders:
            return torch.cat([self._own_logits(states_PD[begin:end], k) for k, begin, end in segments])
        logits_PV: Tensor = self.backbone.get_output_embeddings()(states_PD)
        bias = getattr(self.backbone, "final_logits_bias", None)
        return logits_PV if bias is None else logits_PV + bias

    @contextmanager
    def routed(self, rows: Rows | OneDecoder | None) -> Iterator[None]:
        """Within it, adapters act on rows as these say; None switches them off."""
        before, self.router.rows = self.router.rows, rows
        try:
            yield
        finally:
            self.router.rows = before

    @contextmanager
    def as_decoder(self, k: int) -> Iterator[Any]:
        """The backbone as an ordinary single-decoder model that generates with decoder k, whatever the batch."""
        if self.extra_decoders:
            own_head = self._has_own_heads
            chosen = swapped(self.backbone, self.family.decoder, self.decoders[k], own_head=own_head)
        else:
            chosen = self.routed(OneDecoder(k, last_token_only=not self.family.encoder))
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
        memory = self.encode(input_ids, mask_BS)
        order = torch.argsort(decoder_ids, stable=True)
        rows = Rows.pairs(order, decoder_ids[order], len(input_ids))
        tokens_RT = self.shift(labels.clamp(min=0)[order], rows, memory)
        states_RTD = self.states(tokens_RT, rows, memory)
        segments = [(k, b * labels.shape[1], e * labels.shape[1]) for k, b, e in rows.segments]
        logits_RTV = self.logits(states_RTD.flatten(0, 1), segments).unflatten(0, labels.shape)
        return torch.index_select(logits_RTV, 0, torch.argsort(order))

    def shift(self, response_RT: Tensor, rows: Rows, memory: Memory) -> Tensor:
        """The tokens a decoder reads to predict a response: the response one place later."""
        return torch.cat([self.first_tokens(rows, memory)[:, None], response_RT[:, :-1]], 1)

    def _init_weights(self, module: nn.Module) -> None:
        """Called by Transformers for modules that no checkpoint fills."""
        if isinstance(module, AdapterStack | nn.Linear):
            module.reset_parameters()

    @property
    def _has_own_heads(self) -> bool:
        """Decoders with an embedding of their own use it as output layer, unless the backbone has a separate one."""
        head, embedding = self.backbone.get_output_embeddings(), self.backbone.get_input_embeddings()
        return bool(self.config.copy_embeddings and head.weight is embedding.weight)

    def _own_logits(self, states_PD: Tensor, k: int) -> Tensor:
        return nn.functional.linear(states_PD, self.decoders[k].embed_tokens.weight)

    def _run(self, stack: Any, tokens_RT: Tensor, rows: Rows, memory: Memory, cache: Any) -> Tensor:
        options: dict[str, Any] = {"rows": rows, "past_key_values": cache, "use_cache": cache is not None}
        options |= memory.inputs(tokens_RT, rows, cache)
        states_RTD: Tensor = stack(input_ids=tokens_RT, **options).last_hidden_state
        return states_RTD


def _taken_over(backbone: PreTrainedModel) -> PreTrainedModel:
    modules: Iterator[Any] = backbone.modules()
    for module in modules:
        module._is_hf_initialized = True  # else Transformers has still to fill buffers that no file holds
    return backbone


AutoConfig.register(PolyReplyConfig.model_type, PolyReplyConfig, exist_ok=True)
AutoModel.register(PolyReplyConfig, PolyReplyModel, exist_ok=True)
