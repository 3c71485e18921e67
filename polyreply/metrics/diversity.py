"""How much the responses to one context differ, and what kind of responses they are.

Each function gives one value per context, in percent unless it says otherwise, and NaN where a context has no value:
two responses are needed to compare them. Legend: C contexts, K responses of a context, T tokens, n the order.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from polyreply.arrays import Bools, Floats, Ints
from polyreply.metrics.bleu import sentence_bleu
from polyreply.metrics.ngrams import Block, Grams, shared

REPEATED_UNIT, REPEATED_TIMES = 8, 4
"""A response repeats itself when a phrase of up to so many tokens stands so many times in a row."""

_QUESTION_MARKS = ("?", "？", "؟")
_CLOSING = " \t\r\n\"'”’»)]）】」』!！.。…~～"


def dist(block: Block, grams: Grams, order: int) -> Floats:
    """Intra Dist-n: different n-grams of a context's responses over all of them; 0 where they have none."""
    total_C = np.maximum(_response_lengths(block) - order + 1, 0).sum(1)
    return np.asarray(100 * grams.distinct_C / np.maximum(total_C, 1))


def pairwise_bleu(block: Block, bleu4_CKK: Floats) -> Floats:
    """Mean BLEU-4 over the ordered pairs of a context's responses."""
    return 100 * _mean_of_pairs(block, bleu4_CKK)


def identical(block: Block) -> Floats:
    """Share of the ordered pairs of a context's responses that are equal, token by token."""
    raw, ends = block.tokens_T.tobytes(), np.cumsum(block.lengths_CS) * block.tokens_T.itemsize
    seen: dict[bytes, int] = {}
    starts = [0, *ends[:-1].tolist()]
    numbers = [seen.setdefault(raw[start:end], len(seen)) for start, end in zip(starts, ends.tolist(), strict=True)]
    number_CK = np.array(numbers).reshape(block.lengths_CS.shape)[:, : block.most_responses]
    both_CKK = block.said_CK[:, :, None] & block.said_CK[:, None, :]
    return 100 * _mean_of_pairs(block, both_CKK & (number_CK[:, :, None] == number_CK[:, None, :]))


def self_bleu(block: Block, grams_n: Sequence[Grams]) -> Floats:
    """Mean BLEU-4 of each response against all others of its context as its references (Zhu et al., 2018)."""
    lengths_CK = _response_lengths(block)
    found_n = [_matches_with_others(block, grams) for grams in grams_n]
    bleu4_CK = sentence_bleu(found_n, lengths_CK, _closest_lengths(block, lengths_CK))[-1]
    scored_C = block.num_responses_C > 1
    return 100 * np.where(scored_C, bleu4_CK.sum(1) / block.num_responses_C, np.nan)


def mean_length(block: Block) -> Floats:
    """Tokens of a response (a number, not a percentage)."""
    return np.asarray(_response_lengths(block).sum(1) / block.num_responses_C)


def empty(block: Block) -> Floats:
    """Share of responses without a token."""
    return _share(block, _response_lengths(block) == 0)


def repeating(block: Block) -> Floats:
    """Share of responses in which a phrase of up to 8 tokens stands four times in a row ("no no no no")."""
    row_T, tokens_T = block.row_T, block.tokens_T
    repeats = np.zeros(block.lengths_CS.size, bool)
    for unit in range(1, REPEATED_UNIT + 1):
        needed = unit * (REPEATED_TIMES - 1)
        if len(row_T) <= needed:
            break
        same = (tokens_T[unit:] == tokens_T[:-unit]) & (row_T[unit:] == row_T[:-unit])
        runs = np.cumsum(np.r_[0, same])
        repeats[row_T[: len(same) - needed + 1][runs[needed:] - runs[:-needed] == needed]] = True
    return _share(block, repeats.reshape(block.lengths_CS.shape)[:, : block.most_responses])


def questions(responses: Sequence[Sequence[str]]) -> Floats:
    """Share of responses that end in a question mark, whatever quotes, brackets or further marks close them."""
    asked = [sum(text.rstrip(_CLOSING).endswith(_QUESTION_MARKS) for text in texts) / len(texts) for texts in responses]
    return 100 * np.array(asked, np.float64)


def _response_lengths(block: Block) -> Ints:
    return block.lengths_CS[:, : block.most_responses]


def _share(block: Block, flags_CK: Bools) -> Floats:
    return np.asarray(100 * (flags_CK & block.said_CK).sum(1) / block.num_responses_C)


def _mean_of_pairs(block: Block, values_CKK: npt.NDArray[np.generic]) -> Floats:
    """Mean of the values off the diagonal; those of empty slots must be 0."""
    total_C = values_CKK.sum((1, 2), dtype=np.float64) - np.trace(values_CKK, axis1=1, axis2=2, dtype=np.float64)
    pairs_C = block.num_responses_C * (block.num_responses_C - 1)
    return np.where(pairs_C > 0, total_C / np.maximum(pairs_C, 1), np.nan)


def _matches_with_others(block: Block, grams: Grams) -> Ints:
    """N-grams of each response that another response of its context has too, clipped by the one that has most, (C, K).

    The j-th occurrence of an n-gram is within that limit exactly if another response has a j-th occurrence of it.
    """
    said_E = grams.row_E % block.slots < block.most_responses
    row_E, symbol_E = grams.row_E[said_E], grams.symbol_E[said_E]
    shared_E = shared(symbol_E)
    counts = np.bincount(row_E[shared_E], minlength=block.lengths_CS.size)
    return counts.reshape(block.lengths_CS.shape)[:, : block.most_responses]


def _closest_lengths(block: Block, lengths_CK: Ints) -> Ints:
    """The length, among the other responses, that is closest to each response's own; the shorter of two as close."""
    theirs_CKK, own_CKK = lengths_CK[:, None, :], lengths_CK[:, :, None]
    distance_CKK = 2 * abs(theirs_CKK - own_CKK) + (theirs_CKK > own_CKK)
    excluded_CKK = ~block.said_CK[:, None, :] | np.eye(block.most_responses, dtype=bool)
    closest_CK = np.where(excluded_CKK, np.iinfo(np.int64).max, distance_CKK).argmin(2)
    return np.take_along_axis(lengths_CK, closest_CK, 1)
