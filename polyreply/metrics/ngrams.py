"""N-grams as integers, their clipped matches, and sentence BLEU between all sentences of a context at once.

BLEU clips: an n-gram that occurs a times in one sentence and b times in another counts min(a, b). Here the j-th
occurrence of an n-gram in a sentence is a symbol of its own, (n-gram, j). A sentence is then a *set* of symbols, min(a,
b) is the number of symbols that two sentences share, and with the 0/1 matrix B of sentences and symbols all clipped
counts are B·Bᵀ: one sparse product for a whole block of contexts. BLEU equals NLTK's `sentence_bleu` without smoothing.

Legend: C contexts of a block, K most responses of a context in it, R most references, S = K + R slots of a
context (its responses, then its references), T tokens, E n-grams of one order, n the order.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from polyreply.arrays import Bools, Floats, Ints
from polyreply.metrics.tokenize import Tokenize

ORDERS = 4
"""The longest n-grams are those of BLEU-4."""
_TINY = sys.float_info.min
"""NLTK's substitute for a precision of 0, so that its logarithm exists: BLEU becomes about 0, not 0."""


class Vocabulary(dict[str, int]):
    """Gives each new token the next number."""

    def __missing__(self, token: str) -> int:
        """Number a token that is seen for the first time."""
        number = self[token] = len(self)
        return number


@dataclass(frozen=True, eq=False)
class Block:
    """Some contexts with their responses and references as token numbers; slot s of context c is row c·S + s.

    N-grams, matches and BLEU are computed when a metric first asks for them, and kept for the others.
    """

    tokens_T: Ints
    row_T: Ints
    """The row of each token; tokens of a row follow each other."""
    lengths_CS: Ints
    """Tokens of each slot; 0 where a context has fewer responses or references than others."""
    num_responses_C: Ints
    num_references_C: Ints
    most_responses: int
    responses: Sequence[Sequence[str]] = ()
    references: Sequence[Sequence[str]] = ()
    """The texts themselves, for metrics that read them."""

    @property
    def num_contexts(self) -> int:
        """C."""
        return len(self.lengths_CS)

    @property
    def slots(self) -> int:
        """S."""
        return int(self.lengths_CS.shape[1])

    @property
    def is_response_CK(self) -> Bools:
        """Which of the slots for responses are filled."""
        return np.arange(self.most_responses) < self.num_responses_C[:, None]

    @property
    def response_lengths_CK(self) -> Ints:
        """Tokens of each response."""
        return self.lengths_CS[:, : self.most_responses]

    @cached_property
    def grams_n(self) -> list["Grams"]:
        """The n-grams of each order."""
        return list(grams(self))

    @cached_property
    def matches_n(self) -> list[Ints]:
        """Clipped matches of each order, (C, K, S)."""
        return [matches(self, of_order) for of_order in self.grams_n]

    @cached_property
    def bleu_n(self) -> list[Floats]:
        """BLEU-1 to BLEU-4 of every response with every sentence of its context, (C, K, S)."""
        return sentence_bleu(self.matches_n, self.response_lengths_CK[:, :, None], self.lengths_CS[:, None, :])


@dataclass(frozen=True)
class Grams:
    """The n-grams of one order in a block, one entry for each occurrence."""

    row_E: Ints
    symbol_E: Ints
    """Number of the (context, n-gram, occurrence) triple: equal in all sentences of a context that share it."""
    distinct_C: Ints
    """How many different n-grams the responses of each context have."""


def make_block(
    responses: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    tokenize: Tokenize,
    vocabulary: Vocabulary,
) -> Block:
    """Tokenise the texts of some contexts; `references` holds an empty list for each context where there are none."""
    num_responses_C = np.array([len(texts) for texts in responses], np.int64)
    num_references_C = np.array([len(texts) for texts in references], np.int64)
    most = int(num_responses_C.max(initial=0))
    slots = most + int(num_references_C.max(initial=0))
    numbers: list[int] = []
    lengths_CS = np.zeros((len(responses), slots), np.int64)
    number_of = vocabulary.__getitem__
    for context, (ours, theirs) in enumerate(zip(responses, references, strict=True)):
        for first, texts in ((0, ours), (most, theirs)):
            for slot, text in enumerate(texts, start=first):
                tokens = tokenize(text)
                numbers.extend(map(number_of, tokens))
                lengths_CS[context, slot] = len(tokens)
    row_T = np.repeat(np.arange(lengths_CS.size), lengths_CS.ravel())
    tokens_T = np.array(numbers, np.int64)
    return Block(tokens_T, row_T, lengths_CS, num_responses_C, num_references_C, most, responses, references)


def grams(block: Block) -> Iterator[Grams]:
    """The n-grams of order 1, 2, 3 and 4."""
    row_T, total = block.row_T, len(block.row_T)
    key_T = row_T // block.slots * (block.tokens_T.max(initial=0) + 1) + block.tokens_T
    gram_T, unigrams = _number(block, key_T, row_T)
    yield unigrams
    word_T = gram_T
    for order in range(2, ORDERS + 1):
        # An n-gram is the (n-1)-gram at its first token and the word at its last, if both are in one sentence.
        first_E = np.flatnonzero(row_T[: max(0, total - order + 1)] == row_T[order - 1 :])
        number_E, ngrams = _number(block, gram_T[first_E] * total + word_T[first_E + order - 1], row_T[first_E])
        yield ngrams
        gram_T = np.zeros(total, np.int64)
        gram_T[first_E] = number_E


def shared(symbol_E: Ints) -> Bools:
    """Which entries have a symbol that another entry also has."""
    return np.asarray(np.bincount(symbol_E)[symbol_E] > 1) if len(symbol_E) else np.zeros(0, np.bool_)


def _number(block: Block, key_E: Ints, row_E: Ints) -> tuple[Ints, Grams]:
    """Number n-grams by their keys, which are equal where n-grams of one context are equal, and their occurrences."""
    slot_E = row_E % block.slots
    order_E = np.argsort(key_E * block.slots + slot_E)
    key_E, slot_E, sorted_row_E = key_E[order_E], slot_E[order_E], row_E[order_E]
    place_E = np.arange(len(key_E))
    new_gram_E = _changes(key_E)
    new_run_E = new_gram_E | _changes(sorted_row_E)
    gram_start_E = np.maximum.accumulate(np.where(new_gram_E, place_E, 0))
    run_start_E = np.maximum.accumulate(np.where(new_run_E, place_E, 0))
    # The occurrences of an n-gram in one row are fewer than in all rows, so these numbers differ between n-grams.
    symbol_E = gram_start_E + place_E - run_start_E
    # Responses are the first slots, so a gram that occurs in a response begins with an entry of a response.
    in_responses_E = new_gram_E & (slot_E < block.most_responses)
    distinct_C = np.bincount(sorted_row_E[in_responses_E] // block.slots, minlength=block.num_contexts)
    number_E = np.empty_like(gram_start_E)
    number_E[order_E] = gram_start_E
    return number_E, Grams(sorted_row_E, symbol_E, distinct_C)


def _changes(values: Ints) -> Bools:
    """Where a value differs from the one before it."""
    return np.asarray(np.r_[True, values[1:] != values[:-1]][: len(values)])


def matches(block: Block, grams: Grams) -> Ints:
    """Clipped n-gram matches of every response with every sentence of its context, (C, K, S)."""
    shared_E = shared(grams.symbol_E)
    row_E, symbol_E = grams.row_E[shared_E], grams.symbol_E[shared_E]
    is_response_E = row_E % block.slots < block.most_responses
    shape = (block.lengths_CS.size, int(symbol_E.max(initial=-1)) + 1)
    everything = _incidence(row_E, symbol_E, shape)
    responses = _incidence(row_E[is_response_E], symbol_E[is_response_E], shape)
    product = responses @ everything.T
    matches_CSS = np.zeros((block.num_contexts, block.slots, block.slots), np.int64)
    row = np.repeat(np.arange(shape[0]), np.diff(product.indptr))
    matches_CSS.reshape(shape[0], block.slots)[row, product.indices % block.slots] = product.data
    return matches_CSS[:, : block.most_responses]


def _incidence(row_E: Ints, symbol_E: Ints, shape: tuple[int, int]) -> csr_array:
    return csr_array((np.ones(len(row_E), np.int32), (row_E, symbol_E)), shape=shape)


def sentence_bleu(matches_n: Sequence[Ints], hypothesis_lengths: Ints, reference_lengths: Ints) -> list[Floats]:
    """BLEU-1, BLEU-2, … with equal weights, from the matches of each order and broadcastable lengths."""
    # Brevity: 1 for a hypothesis longer than its reference, exp(1 - reference / hypothesis) otherwise, 0 if empty.
    ratio = reference_lengths / np.maximum(hypothesis_lengths, 1)
    penalty = np.where(hypothesis_lengths > 0, np.exp(np.minimum(1 - ratio, 0.0)), 0.0)
    some = matches_n[0] > 0
    log_sum: Floats = np.zeros(1)
    scores = []
    for order, matched in enumerate(matches_n, start=1):
        total = np.maximum(hypothesis_lengths - order + 1, 1)
        log_sum = log_sum + np.log(np.where(matched > 0, matched / total, _TINY))
        scores.append(np.where(some, penalty * np.exp(log_sum / order), 0.0))
    return scores
