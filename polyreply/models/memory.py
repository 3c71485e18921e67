"""Memory: contexts, read once and shared by all decoders.

*Encoder-decoder models* read a context with the encoder, which all decoders share; the memory is its states, one for
each token or, in DialogBERT, for each turn.

*Decoder-only models* read and generate with one stack, in which the adapters sit. If an adapter acted on context
tokens, every decoder would need its own keys and values for them. So by default (`adapt: response`) adapters act from
the *invocation tokens* on, the constant tokens that end every context: a chat template's assistant header, or
the separator. The tokens before them are read with the adapters off, their keys and values (`prefix`) serve every
decoder, and the invocation tokens are the first that each decoder reads itself. The same rule holds in training,
scoring and decoding.

With `adapt: everything` decoders read contexts differently, so the memory has an entry for each (context, decoder)
pair instead of one for each context; `entries` says which. The same holds if an adapter is on the keys or values of
cross-attention, though the encoder then still reads each context once. For attention an entry is a context like any
other: `Memory.rows` renumbers the rows.

A memory is also where gradients meet: scoring reads all contexts once, runs many chunks of rows on detached copies of
`leaves()`, and sends the summed gradients through the encoder in one backward pass.

Legend: B contexts (or entries), S context tokens, A invocation tokens, P context tokens without them, R rows, T
response tokens, D model size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from polyreply.errors import PolyReplyError
from polyreply.models.attention import Prefix
from polyreply.models.rows import Rows


@dataclass(frozen=True)
class Memory:
    """Encoded contexts, in the form that the decoders of a model need."""

    mask_BS: Tensor
    states_BSD: Tensor
    """Last hidden states of the contexts: the encoder's, or those of a decoder-only model without adapters."""
    prefix: Prefix | None = None
    """Decoder-only models: keys and values of all context tokens but the last ones."""
    last_BA: Tensor | None = None
    """Decoder-only models: the last context tokens, which each decoder reads itself."""
    entries: Rows | None = None
    """The (context, decoder) pair each entry was read for; None if there is one entry for each context."""

    def __len__(self) -> int:
        """The number of contexts."""
        return len(self.mask_BS) if self.entries is None else self.entries.num_contexts

    def rows(self, rows: Rows) -> Rows:
        """The rows with the numbers of their entries as those of their contexts."""
        return rows if self.entries is None else rows.among(self.entries)

    def expand(self, entries: Rows) -> "Memory":
        """What an encoder read once for each context, as an entry for each pair."""
        index = entries.context_R
        return Memory(self.mask_BS[index], self.states_BSD[index], entries=entries)

    def select(self, index: Tensor) -> "Memory":
        """Some of the contexts, in the given order; for a memory with one entry for each context."""
        assert self.entries is None
        selected = replace(self, mask_BS=self.mask_BS[index], states_BSD=self.states_BSD[index])
        if self.prefix is None or self.last_BA is None:
            return selected
        keys, values = (tuple(x[index] for x in tensors) for tensors in (self.prefix.keys, self.prefix.values))
        return replace(selected, prefix=Prefix(keys, values, self.prefix.mask_BP[index]), last_BA=self.last_BA[index])

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
        assert self.last_BA is not None
        begin_R = self.mask_BS.sum(1)[rows.context_R] - self.last_BA.shape[1] + done
        positions_RT = begin_R[:, None] + torch.arange(tokens_RT.shape[1], device=tokens_RT.device)
        return {"position_ids": positions_RT, "prefix": self.prefix}


def read_with_encoder(encoder: Any, context_BS: Tensor, mask_BS: Tensor) -> Memory:
    """Read contexts, padded on either side, with an encoder."""
    context_BS, mask_BS = _pad_right(context_BS, mask_BS.bool())
    read = encoder(input_ids=context_BS, attention_mask=mask_BS.long())
    own_mask = getattr(read, "mask_BC", None)  # of an encoder with one state for each turn (dialogbert.py)
    return Memory(mask_BS if own_mask is None else own_mask, read.last_hidden_state)


def read_with_decoder(decoder: Any, context_BS: Tensor, mask_BS: Tensor, num_last: int) -> Memory:
    """Read contexts, padded on either side, with the stack that generates; decoders read the last tokens themselves."""
    context_BS, mask_BS = _pad_right(context_BS, mask_BS.bool())
    length_B = mask_BS.sum(1)
    if num_last > 1 and int(length_B.min()) < num_last:
        raise PolyReplyError(
            f"expected contexts that end in the model's {num_last} invocation tokens, found one of {length_B.min()} "
            "tokens; encode contexts in the model's own format"
        )
    place_BA = (length_B[:, None] - num_last + torch.arange(num_last, device=length_B.device)).clamp(min=0)
    last_BA = context_BS.gather(1, place_BA)
    cache = DynamicCache()  # without a config, so that it keeps all tokens where attention has a sliding window
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
    mask_BP = positions_BS < (length_B - num_last)[:, None]
    return Memory(mask_BS, states_BSD, Prefix(keys, values, mask_BP), last_BA)


def _pad_right(context_BS: Tensor, mask_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Move the padding of each row to its right end."""
    order = torch.argsort(mask_BS.long(), dim=1, descending=True, stable=True)
    return context_BS.gather(1, order), mask_BS.gather(1, order)
