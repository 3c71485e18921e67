"""What the model benchmarks share: a model of T5-small's dimensions with random weights, and natural lengths.

Lengths are drawn from those of the chitchat corpus, in tokens of a unigram tokenizer of 8 000 pieces. Replies are given
their length by one mechanism in every alternative: a logits processor that chooses a row's first token, by which the
row is recognised afterwards, forbids EOS before the row's length is reached and forces it there.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, T5Config, T5ForConditionalGeneration

from polyreply.model.polyreply_model import PolyReplyModel
from polyreply.model.score import Samples

EOS, FIRST_CODE = 1, 100
RESPONSE_QUANTILES = (2, 4, 5, 7, 8, 9, 11, 12, 13, 15, 17, 18, 20, 23, 25, 29, 33, 37, 44, 57, 64)
CONTEXT_QUANTILES = (2, 5, 6, 8, 9, 10, 11, 13, 14, 15, 17, 19, 21, 23, 26, 29, 33, 38, 44, 57, 64)
"""The 0, 5, 10, … 100 % quantiles of the lengths, cut off at 64 tokens."""


def t5_small(num_decoders: int) -> PolyReplyModel:
    """T5-small (6 layers, 512 wide, vocabulary of 32 128) with K decoders; weights are random."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "decoder_start_token_id": 0}
    config = T5Config(vocab_size=32128, **sizes)
    return PolyReplyModel.from_backbone(T5ForConditionalGeneration(config), num_decoders=num_decoders)


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
    """Gives each reply its length. `codes_R` are the codes a row may start with at the first step."""

    def __init__(self, lengths: list[int], codes_R: list[list[int]]) -> None:
        self.lengths = torch.tensor(lengths)
        self.codes_R = codes_R

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Scores in which only what the length allows is left."""
        scores = scores.clone()
        if input_ids.shape[1] == 1:
            scores.fill_(-torch.inf)
            for row, codes in enumerate(self.codes_R):
                scores[row, [FIRST_CODE + code for code in codes]] = 0.0
            return scores
        target = self.lengths[input_ids[:, 1] - FIRST_CODE]
        last = input_ids.shape[1] >= target
        scores[~last, EOS] = -torch.inf
        kept = scores[last, EOS].clamp(min=-1e4)
        scores[last] = -torch.inf
        scores[last, EOS] = kept
        return scores
