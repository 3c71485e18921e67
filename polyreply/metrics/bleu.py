"""Sentence BLEU between all sentences of a context at once, equal to NLTK's `sentence_bleu` without smoothing.

Legend: C contexts, K responses, R references, S = K + R slots of a context, n the order.
"""

import sys
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from polyreply.arrays import Floats, Ints
from polyreply.metrics.ngrams import Block, Grams, shared

TINY = sys.float_info.min
"""What NLTK puts in the place of a precision of 0, so that the logarithm exists: BLEU becomes about 0, not 0."""


def matches(block: Block, grams: Grams) -> Ints:
    """Clipped n-gram matches of every response with every sentence of its context, (C, K, S)."""
    shared_E = shared(grams.symbol_E)
    row_E, symbol_E = grams.row_E[shared_E], grams.symbol_E[shared_E]
    said_E = row_E % block.slots < block.most_responses
    shape = (block.lengths_CS.size, int(symbol_E.max(initial=-1)) + 1)
    everything = _incidence(row_E, symbol_E, shape)
    said = _incidence(row_E[said_E], symbol_E[said_E], shape)
    product = said @ everything.T
    found_CSS = np.zeros((block.num_contexts, block.slots, block.slots), np.int64)
    row = np.repeat(np.arange(shape[0]), np.diff(product.indptr))
    found_CSS.reshape(shape[0], block.slots)[row, product.indices % block.slots] = product.data
    return found_CSS[:, : block.most_responses]


def _incidence(row_E: Ints, symbol_E: Ints, shape: tuple[int, int]) -> csr_array:
    return csr_array((np.ones(len(row_E), np.int32), (row_E, symbol_E)), shape=shape)


def sentence_bleu(matches_n: Sequence[Ints], hypothesis_lengths: Ints, reference_lengths: Ints) -> list[Floats]:
    """BLEU-1, BLEU-2, … with equal weights, from the matches of each order and broadcastable lengths."""
    penalty = brevity_penalty(hypothesis_lengths, reference_lengths)
    some = matches_n[0] > 0
    log_sum: Floats = np.zeros(1)
    scores = []
    for order, found in enumerate(matches_n, start=1):
        total = np.maximum(hypothesis_lengths - order + 1, 1)
        log_sum = log_sum + np.log(np.where(found > 0, found / total, TINY))
        scores.append(np.where(some, penalty * np.exp(log_sum / order), 0.0))
    return scores


def brevity_penalty(hypothesis_lengths: Ints, reference_lengths: Ints) -> Floats:
    """1 for a hypothesis longer than its reference, exp(1 - reference / hypothesis) otherwise, 0 for an empty one."""
    ratio = reference_lengths / np.maximum(hypothesis_lengths, 1)
    penalty = np.exp(np.minimum(1 - ratio, 0.0))
    return np.where(hypothesis_lengths > 0, penalty, 0.0)
