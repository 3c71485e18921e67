"""N-grams as integers, counted once per sentence, so that every pair of sentences is compared by one matrix product.

BLEU clips: an n-gram that a sentence has a times and another b times counts min(a, b). Here the j-th occurrence of an
n-gram in a sentence is a symbol of its own, (n-gram, j). A sentence is then a *set* of symbols, min(a, b) is the number
of symbols two sentences share, and with the 0/1 matrix B of sentences and symbols all clipped counts are B·Bᵀ.

Legend: C contexts of a block, K most responses of a context in it, R most references, S = K + R slots of a
context (its responses, then its references), T tokens, E n-grams of one order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from polyreply.arrays import Bools, Ints
from polyreply.metrics.tokenize import Tokenize

ORDERS = 4
"""BLEU-4 is the longest that is asked for."""


class Vocabulary(dict[str, int]):
    """Gives each new token the next number."""

    def __missing__(self, token: str) -> int:
        """The number of a token that is met for the first time."""
        number = self[token] = len(self)
        return number


@dataclass(frozen=True)
class Block:
    """Some contexts with their responses and references as token numbers; slot s of context c is row c·S + s."""

    tokens_T: Ints
    row_T: Ints
    """The row each token stands in; tokens of a row follow each other."""
    lengths_CS: Ints
    """Tokens of each slot; 0 where a context has fewer responses or references than others."""
    num_responses_C: Ints
    num_references_C: Ints
    most_responses: int

    @property
    def num_contexts(self) -> int:
        """C."""
        return len(self.lengths_CS)

    @property
    def slots(self) -> int:
        """S."""
        return int(self.lengths_CS.shape[1])

    @property
    def said_CK(self) -> Bools:
        """Which of the slots for responses are filled."""
        return np.arange(self.most_responses) < self.num_responses_C[:, None]

    @property
    def gold_CR(self) -> Bools:
        """Which of the slots for references are filled."""
        return np.arange(self.slots - self.most_responses) < self.num_references_C[:, None]


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
    """Tokenises the texts of some contexts; `references` holds an empty list for each context where there are none."""
    num_responses_C = np.array([len(texts) for texts in responses], np.int64)
    num_references_C = np.array([len(texts) for texts in references], np.int64)
    most = int(num_responses_C.max(initial=0))
    slots = most + int(num_references_C.max(initial=0))
    numbers: list[int] = []
    lengths_CS = np.zeros((len(responses), slots), np.int64)
    number_of = vocabulary.__getitem__
    for context, (said, gold) in enumerate(zip(responses, references, strict=True)):
        for first, texts in ((0, said), (most, gold)):
            for slot, text in enumerate(texts, start=first):
                tokens = tokenize(text)
                numbers.extend(map(number_of, tokens))
                lengths_CS[context, slot] = len(tokens)
    row_T = np.repeat(np.arange(lengths_CS.size), lengths_CS.ravel())
    return Block(np.array(numbers, np.int64), row_T, lengths_CS, num_responses_C, num_references_C, most)


def grams(block: Block) -> Iterator[Grams]:
    """The n-grams of order 1, 2, 3 and 4."""
    row_T, total = block.row_T, len(block.row_T)
    gram_T, found = _number(block, row_T // block.slots * (block.tokens_T.max(initial=0) + 1) + block.tokens_T, row_T)
    yield found
    word_T = gram_T
    for order in range(2, ORDERS + 1):
        # An n-gram is the (n-1)-gram at its first token and the word at its last, if both are in one sentence.
        first_E = np.flatnonzero(row_T[: max(0, total - order + 1)] == row_T[order - 1 :])
        number_E, found = _number(block, gram_T[first_E] * total + word_T[first_E + order - 1], row_T[first_E])
        yield found
        gram_T = np.zeros(total, np.int64)
        gram_T[first_E] = number_E


def shared(symbol_E: Ints) -> Bools:
    """Which entries have a symbol that another entry has too."""
    return np.asarray(np.bincount(symbol_E)[symbol_E] > 1) if len(symbol_E) else np.zeros(0, np.bool_)


def _number(block: Block, key_E: Ints, row_E: Ints) -> tuple[Ints, Grams]:
    """Numbers n-grams by their keys, which are equal where n-grams of one context are equal, and their occurrences."""
    slot_E = row_E % block.slots
    order_E = np.argsort(key_E * block.slots + slot_E)
    key_E, slot_E, sorted_row_E = key_E[order_E], slot_E[order_E], row_E[order_E]
    place_E = np.arange(len(key_E))
    new_gram_E = _changes(key_E)
    new_run_E = new_gram_E | _changes(sorted_row_E)
    gram_start_E = np.maximum.accumulate(np.where(new_gram_E, place_E, 0))
    run_start_E = np.maximum.accumulate(np.where(new_run_E, place_E, 0))
    # The occurrences of an n-gram in one row are fewer than in all rows, so these numbers stay apart.
    symbol_E = gram_start_E + place_E - run_start_E
    said_E = new_gram_E & (slot_E < block.most_responses)  # responses come first, so they begin a gram they have
    distinct_C = np.bincount(sorted_row_E[said_E] // block.slots, minlength=block.num_contexts)
    number_E = np.empty_like(gram_start_E)
    number_E[order_E] = gram_start_E
    return number_E, Grams(sorted_row_E, symbol_E, distinct_C)


def _changes(values: Ints) -> Bools:
    """Where a value differs from the one before it."""
    return np.asarray(np.r_[True, values[1:] != values[:-1]][: len(values)])
