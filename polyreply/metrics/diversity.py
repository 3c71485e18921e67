"""How much the responses to one context differ, and what kind of responses they are.

Functions of a block give one value per context, in percent unless they say otherwise, and NaN where a context has no
value: two responses are needed to compare them. `InterDist` and `CorpusPairwise` are scores of the whole corpus.
Legend: C contexts, K responses of a context, T tokens, n the order.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from polyreply.arrays import Bools, Floats, Ints
from polyreply.metrics.ngrams import ORDERS, Block, Grams, sentence_bleu, shared
from polyreply.metrics.registry import Metric
from polyreply.tables import Column

REPEATED_UNIT, REPEATED_TIMES = 8, 4
"""A response is repeating if a phrase of at most 8 tokens occurs 4 times in a row."""

_QUESTION_MARKS = ("?", "？", "؟")
_CLOSING = " \t\r\n\"'”’»)]）】」』!！.。…~～"
_MERGE_AT = 1 << 20


# --- differences between the responses to a context


def dist(block: Block, order: int) -> Floats:
    """Intra Dist-n: different n-grams of a context's responses over all of them; 0 where they have none."""
    total_C = np.maximum(block.response_lengths_CK - order + 1, 0).sum(1)
    return np.asarray(100 * block.grams_n[order - 1].distinct_C / np.maximum(total_C, 1))


def pairwise_bleu(block: Block) -> Floats:
    """Mean BLEU-4 over the ordered pairs of a context's responses."""
    return 100 * _mean_of_pairs(block, block.bleu_n[-1][:, :, : block.most_responses])


def identical(block: Block) -> Floats:
    """Share of the ordered pairs of a context's responses that are equal, token by token."""
    raw, ends = block.tokens_T.tobytes(), np.cumsum(block.lengths_CS) * block.tokens_T.itemsize
    seen: dict[bytes, int] = {}
    starts = [0, *ends[:-1].tolist()]
    numbers = [seen.setdefault(raw[start:end], len(seen)) for start, end in zip(starts, ends.tolist(), strict=True)]
    number_CK = np.array(numbers).reshape(block.lengths_CS.shape)[:, : block.most_responses]
    both_CKK = block.is_response_CK[:, :, None] & block.is_response_CK[:, None, :]
    return 100 * _mean_of_pairs(block, both_CKK & (number_CK[:, :, None] == number_CK[:, None, :]))


def self_bleu(block: Block) -> Floats:
    """Mean BLEU-4 of each response against all others of its context as its references (Zhu et al., 2018)."""
    matches_n = [_matches_with_others(block, grams) for grams in block.grams_n]
    lengths_CK = block.response_lengths_CK
    bleu4_CK = sentence_bleu(matches_n, lengths_CK, _closest_lengths(block, lengths_CK))[-1]
    return 100 * np.where(block.num_responses_C > 1, bleu4_CK.sum(1) / block.num_responses_C, np.nan)


def _mean_of_pairs(block: Block, values_CKK: npt.NDArray[np.generic]) -> Floats:
    """Mean of the values off the diagonal; those of empty slots must be 0."""
    total_C = values_CKK.sum((1, 2), dtype=np.float64) - np.trace(values_CKK, axis1=1, axis2=2, dtype=np.float64)
    pairs_C = block.num_responses_C * (block.num_responses_C - 1)
    return np.where(pairs_C > 0, total_C / np.maximum(pairs_C, 1), np.nan)


def _matches_with_others(block: Block, grams: Grams) -> Ints:
    """N-grams of each response that another response of its context has, clipped by the one that has most, (C, K).

    The j-th occurrence of an n-gram is within that limit exactly if another response has a j-th occurrence of it.
    """
    is_response_E = grams.row_E % block.slots < block.most_responses
    row_E, symbol_E = grams.row_E[is_response_E], grams.symbol_E[is_response_E]
    counts = np.bincount(row_E[shared(symbol_E)], minlength=block.lengths_CS.size)
    return counts.reshape(block.lengths_CS.shape)[:, : block.most_responses]


def _closest_lengths(block: Block, lengths_CK: Ints) -> Ints:
    """The length, among the other responses, that is closest to each response's; the shorter of two equally close."""
    theirs_CKK, own_CKK = lengths_CK[:, None, :], lengths_CK[:, :, None]
    distance_CKK = 2 * abs(theirs_CKK - own_CKK) + (theirs_CKK > own_CKK)
    excluded_CKK = ~block.is_response_CK[:, None, :] | np.eye(block.most_responses, dtype=bool)
    closest_CK = np.where(excluded_CKK, np.iinfo(np.int64).max, distance_CKK).argmin(2)
    return np.take_along_axis(lengths_CK, closest_CK, 1)


# --- kinds of responses


def mean_length(block: Block) -> Floats:
    """Tokens of a response (a number, not a percentage)."""
    return np.asarray(block.response_lengths_CK.sum(1) / block.num_responses_C)


def empty(block: Block) -> Floats:
    """Share of responses without a token."""
    return _share(block, block.response_lengths_CK == 0)


def repeating(block: Block) -> Floats:
    """Share of responses in which a phrase of at most 8 tokens occurs four times in a row ("no no no no")."""
    row_T, tokens_T = block.row_T, block.tokens_T
    repeats = np.zeros(block.lengths_CS.size, bool)
    for unit in range(1, REPEATED_UNIT + 1):
        needed = unit * (REPEATED_TIMES - 1)
        if len(row_T) <= needed:
            break
        # A phrase repeats where `needed` tokens in a row equal the token one phrase earlier.
        same = (tokens_T[unit:] == tokens_T[:-unit]) & (row_T[unit:] == row_T[:-unit])
        runs = np.cumsum(np.r_[0, same])
        repeats[row_T[: len(same) - needed + 1][runs[needed:] - runs[:-needed] == needed]] = True
    return _share(block, repeats.reshape(block.lengths_CS.shape)[:, : block.most_responses])


def questions(responses: Sequence[Sequence[str]]) -> Floats:
    """Share of responses that end in a question mark, whatever quotes, brackets or further marks close them."""
    shares = [
        sum(text.rstrip(_CLOSING).endswith(_QUESTION_MARKS) for text in texts) / len(texts) for texts in responses
    ]
    return 100 * np.array(shares, np.float64)


def _share(block: Block, flags_CK: Bools) -> Floats:
    return np.asarray(100 * (flags_CK & block.is_response_CK).sum(1) / block.num_responses_C)


# --- the corpus as a whole


class InterDist:
    """Inter Dist-n for n = 1 or 2: different n-grams of all responses over all of them.

    The different n-grams are kept as sorted arrays, which are merged only once there are as many new keys as old ones:
    each key is merged a few times, however large the corpus is.
    """

    def __init__(self, order: int) -> None:
        self._order, self._total = order, 0
        self._merged = np.zeros(0, np.int64)
        self._waiting: list[Ints] = []
        self._num_waiting = 0

    def add(self, block: Block) -> None:
        """Count the responses of a block; the token numbers of all blocks must be of one vocabulary."""
        is_response_T = block.row_T % block.slots < block.most_responses
        keys, row = block.tokens_T[is_response_T], block.row_T[is_response_T]
        if self._order == 2:
            keys = ((keys[:-1] << 32) | keys[1:])[row[:-1] == row[1:]]
        self._total += len(keys)
        self._waiting.append(np.unique(keys))
        self._num_waiting += len(self._waiting[-1])
        if self._num_waiting > max(_MERGE_AT, len(self._merged)):
            self._merge()

    def value(self) -> float:
        """Percent; 0 if there is no text."""
        self._merge()
        return 100 * len(self._merged) / max(self._total, 1)

    def _merge(self) -> None:
        self._merged = np.unique(np.concatenate([self._merged, *self._waiting]))
        self._waiting, self._num_waiting = [], 0


class CorpusPairwise:
    """Pairwise-BLEU as Shen et al. (2019) compute it: one corpus BLEU-4 over all ordered pairs of all contexts.

    That is sacreBLEU's corpus BLEU on our tokens, with its exponential smoothing. Over ordered pairs both sides have
    the same tokens in total, so that the brevity penalty is 1.
    """

    def __init__(self) -> None:
        self._matches = np.zeros(ORDERS, np.int64)
        self._totals = np.zeros(ORDERS, np.int64)
        self._pairs = 0

    def add(self, block: Block) -> None:
        """Count the pairs of responses of a block."""
        others_C = block.num_responses_C - 1
        for order, matches_CKS in enumerate(block.matches_n, start=1):
            matches_CKK = matches_CKS[:, :, : block.most_responses]
            grams_CK = np.maximum(block.response_lengths_CK - order + 1, 0)
            self._matches[order - 1] += matches_CKK.sum() - np.trace(matches_CKK, axis1=1, axis2=2).sum()
            self._totals[order - 1] += (grams_CK.sum(1) * others_C).sum()
        self._pairs += int((block.num_responses_C * others_C).sum())

    def value(self) -> float | None:
        """Percent; None if no context has two responses."""
        if not self._pairs:
            return None
        if not self._matches.any() or not self._totals.all():
            return 0.0
        smoothed, logs = 1.0, []
        for matched, total in zip(self._matches.tolist(), self._totals.tolist(), strict=True):
            smoothed = smoothed if matched else smoothed / 2
            logs.append(math.log((matched or smoothed) / total))
        return 100 * math.exp(sum(logs) / ORDERS)


# --- all of them, in the order of score files


def _dist_column(order: int) -> Column:
    return Column(f"Dist-{order}", better=1, group="Distinct n-gram", own=f"Dist-{order}", narrow=f"Dist-{order}")


def _inter_column(order: int) -> Column:
    return Column(f"Inter Dist-{order}", better=1, group="Inter", own=f"Dist-{order}")


def _lower(heading: str, group: str, narrow: str) -> Column:
    return Column(heading, better=-1, group=group, narrow=narrow)


DIVERSITY_METRICS = (
    Metric("dist1", _dist_column(1), "different words, of all", partial(dist, order=1), shown=True),
    Metric("dist2", _dist_column(2), "different word pairs, of all", partial(dist, order=2), shown=True),
    Metric(
        "pairwise_bleu",
        _lower("Pairwise-BLEU", "Pairwise BLEU", "Pair-\nwise"),
        "how alike the responses are",
        pairwise_bleu,
        shown=True,
    ),
    Metric(
        "identical",
        _lower("Identical pairs", "Identical", "Iden-\ntical"),
        "responses that are the same",
        identical,
        shown=True,
    ),
    Metric("self_bleu", _lower("Self-BLEU", "Self-BLEU", "Self-\nBLEU"), "how alike each is to all others", self_bleu),
    Metric(
        "corpus_pairwise_bleu",
        _lower("Corpus Pairwise-BLEU", "Corpus Pairwise BLEU", "Corpus\npairw."),
        "Pairwise-BLEU of all pairs at once",
        corpus=CorpusPairwise,
    ),
    Metric("inter_dist1", _inter_column(1), "different words in the corpus", corpus=partial(InterDist, 1)),
    Metric("inter_dist2", _inter_column(2), "different word pairs in the corpus", corpus=partial(InterDist, 2)),
    Metric("length", Column("Tokens per response", narrow="Tokens"), "tokens, not a percentage", mean_length),
    Metric(
        "questions",
        Column("Questions %", narrow="Ques-\ntions"),
        "responses that end in a question mark",
        lambda block: questions(block.responses),
    ),
    Metric("empty", _lower("Empty %", "Empty", "Empty"), "responses without a token", empty),
    Metric("repeating", _lower("Repeating %", "Repeating", "Repea-\nting"), "a phrase four times in a row", repeating),
)
