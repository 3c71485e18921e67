"""Memory: contexts, read once and shared by all decoders.

*Encoder-decoder models* read a context with the encoder, which all decoders share; the memory is its states.

*Decoder-only models* read and generate with one stack, in which the adapters sit. If an adapter acted on context
tokens, every decoder would need its own keys and values for them. So adapters act from the last context token on: the
tokens before it are read with the adapters off, their keys and values (`prefix`) serve every decoder, and the last one
is the first token each decoder reads itself. The same rule holds in training, scoring and decoding.

A memory is also where gradients meet: scoring reads all contexts once, runs many chunks of rows on detached copies of
`leaves()`, and sends the summed gradients through the encoder in one backward pass.

Legend: B contexts, S context tokens, P the same without the last, R rows, T response tokens, D model size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from polyreply.models.attention import Prefix
from polyreply.models.rows import Rows


@dataclass(frozen=True)
class Memory:
    """Encoded contexts, in the form that the decoders of a model need."""

    mask_BS: Tensor
    states_BSD: Tensor
    """Last hidden states of the contexts: the encoder's, or those of a decoder-only model without adapters."""
    prefix: Prefix | None = None
    """Decoder-only models: keys and values of all context tokens but the last."""
    last_B: Tensor | None = None
    """Decoder-only models: the last context token, the first on which adapters act."""

    def __len__(self) -> int:
        """The number of contexts."""
        return len(self.mask_BS)

    def leaves(self) -> list[Tensor]:
        """The tensors through which gradients reach the weights that read the contexts."""
        return [*self.prefix.keys, *self.prefix.values] if self.prefix else [self.states_BSD]

    def with_leaves(self, leaves: Sequence[Tensor]) -> "Memory":
        """The same memory over other tensors, such as detached ones."""
        if not self.prefix:
            return replace(self, states_BSD=leaves[0])
        half = len(leaves) // 2
        return replace(self, prefix=replace(self.prefix, keys=tuple(leaves[:half]), values=tuple(leaves[half:])))

    def inputs(self, tokens_RT: Tensor, rows: Rows, cache: Any) -> dict[str, Any]:
        """The arguments of a decoder stack besides the tokens; earlier tokens are in the cache."""
        if self.prefix is None:
            return {"encoder_hidden_states": self.states_BSD, "encoder_attention_mask": self.mask_BS[:, None, None, :]}
        done = cache.get_seq_length() if cache is not None else 0
        begin_R = self.mask_BS.sum(1)[rows.context_R] - 1 + done
        positions_RT = begin_R[:, None] + torch.arange(tokens_RT.shape[1], device=tokens_RT.device)
        return {"position_ids": positions_RT, "prefix": self.prefix}


def read_with_encoder(encoder: Any, context_BS: Tensor, mask_BS: Tensor) -> Memory:
    """Read contexts, padded on either side, with an encoder."""
    context_BS, mask_BS = _pad_right(context_BS, mask_BS.bool())
    states_BSD = encoder(input_ids=context_BS, attention_mask=mask_BS.long()).last_hidden_state
    return Memory(mask_BS, states_BSD)


def read_with_decoder(decoder: Any, context_BS: Tensor, mask_BS: Tensor) -> Memory:
    """Read contexts, padded on either side, with the stack that generates; its adapters have to be off."""
    context_BS, mask_BS = _pad_right(context_BS, mask_BS.bool())
    length_B = mask_BS.sum(1)
    last_B = context_BS.gather(1, (length_B - 1).clamp(min=0)[:, None])[:, 0]
    cache = DynamicCache(config=decoder.config)
    positions_BS = torch.arange(context_BS.shape[1], device=context_BS.device).expand_as(context_BS)
    states_BSD = decoder(
        input_ids=context_BS,
        attention_mask=mask_BS.long(),
        position_ids=positions_BS,
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    layers: Any = cache.layers
    keys, values = zip(*((layer.keys, layer.values) for layer in layers), strict=True)
    mask_BP = positions_BS < (length_B - 1)[:, None]
    return Memory(mask_BS, states_BSD, Prefix(keys, values, mask_BP), last_B)


def _pad_right(context_BS: Tensor, mask_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Move the padding of each row to its right end."""
    order = torch.argsort(mask_BS.long(), dim=1, descending=True, stable=True)
    return context_BS.gather(1, order), mask_BS.gather(1, order)
