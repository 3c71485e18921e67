"""What the model benchmarks share: a model of T5-small's dimensions with random weights, and natural lengths.

Lengths are drawn from those of the chitchat corpus, in tokens of a unigram tokenizer of 8 000 pieces. Replies are given
their lengths by one mechanism in every alternative: a logits processor that makes a row's first token say which context
it replies to, forbids EOS, and forces it, at each step, on as many rows of a context as it has replies of that length.
So every way gives the same lengths for each context; beam search stops when it has its K replies (`early_stopping`).
"""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, T5Config, T5ForConditionalGeneration

from polyreply.models.model import PolyReplyModel
from polyreply.models.score import Samples

EOS, FIRST_CODE = 1, 100
RESPONSE_QUANTILES = (2, 4, 5, 7, 8, 9, 11, 12, 13, 15, 17, 18, 20, 23, 25, 29, 33, 37, 44, 57, 64)
CONTEXT_QUANTILES = (2, 5, 6, 8, 9, 10, 11, 13, 14, 15, 17, 19, 21, 23, 26, 29, 33, 38, 44, 57, 64)
"""The 0, 5, 10, … 100 % quantiles of the lengths, cut off at 64 tokens."""


def t5_small(num_decoders: int, dtype: torch.dtype = torch.float32) -> PolyReplyModel:
    """T5-small (6 layers, 512 wide, vocabulary of 32 128) with K decoders; weights are random."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "decoder_start_token_id": 0}
    config = T5Config(vocab_size=32128, **sizes)
    backbone: Any = T5ForConditionalGeneration(config)
    return PolyReplyModel.from_backbone(backbone.to(dtype), num_decoders=num_decoders)


def natural_lengths(number: int, quantiles: tuple[int, ...], seed: int) -> list[int]:
    """Lengths drawn from a distribution given by its quantiles, at least 2 (a token and EOS)."""
    places = np.random.default_rng(seed).random(number)
    found = np.interp(places, np.linspace(0, 1, len(quantiles)), quantiles)
    return [max(2, round(length)) for length in found]


def natural_samples(number: int, seed: int = 0) -> Samples:
    """Contexts and responses of natural lengths and random tokens."""
    generator = torch.Generator().manual_seed(seed)
    context, context_mask = _ragged(natural_lengths(number, CONTEXT_QUANTILES, seed), generator)
    response, response_mask = _ragged(natural_lengths(number, RESPONSE_QUANTILES, seed + 1), generator)
    return Samples(context, context_mask, response, response_mask)


def _ragged(lengths: list[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    ids = torch.randint(3, 32000, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = EOS
    return ids.masked_fill(~mask, 0), mask


class ForcedLengths(LogitsProcessor):
    """Gives the replies to each context their lengths, whatever the way to decode does with its rows.

    `lengths_BX` are the lengths of the replies to each context, and `context_R` whose reply each row is at first.
    """

    def __init__(self, lengths_BX: list[list[int]], context_R: list[int]) -> None:
        self.lengths_BX = lengths_BX
        self.first_R = torch.tensor(context_R) + FIRST_CODE

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Scores in which only what the lengths allow is left."""
        scores = scores.clone()
        if input_ids.shape[1] == 1:
            scores.fill_(-torch.inf)
            scores[torch.arange(len(scores)), self.first_R] = 0.0
            return scores
        scores[:, EOS] = -torch.inf
        ending = self._ending(input_ids)
        scores[ending] = -torch.inf
        scores[ending, EOS] = 0.0
        return scores

    def _ending(self, input_ids: Any) -> list[int]:
        """The rows that have to end now: as many rows of a context as it has replies of this length, at random."""
        number = input_ids.shape[1]
        running = ~(input_ids == EOS).any(1)
        ending: list[int] = []
        for context, lengths in enumerate(self.lengths_BX):
            if number in lengths:
                rows = ((input_ids[:, 1] == FIRST_CODE + context) & running).nonzero()[:, 0].tolist()
                ending += random.Random(number * len(self.lengths_BX) + context).sample(rows, lengths.count(number))
        return ending
