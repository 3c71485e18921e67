"""Numbers that belong to the whole corpus and are no mean over contexts: inter Dist-n and corpus Pairwise-BLEU."""

import math
from collections.abc import Sequence

import numpy as np

from polyreply.arrays import Ints
from polyreply.metrics.ngrams import ORDERS, Block

_MERGE_AT = 1 << 20


class InterDist:
    """Different words and pairs of words of all responses over all of them."""

    def __init__(self) -> None:
        """Begins with no text."""
        self._distinct = [_Distinct(), _Distinct()]
        self._total = [0, 0]

    def add(self, block: Block) -> None:
        """Counts the responses of a block, whose token numbers must be of one vocabulary throughout."""
        said_T = block.row_T % block.slots < block.most_responses
        words, row = block.tokens_T[said_T], block.row_T[said_T]
        pairs = ((words[:-1] << 32) | words[1:])[row[:-1] == row[1:]]
        for place, keys in enumerate((words, pairs)):
            self._distinct[place].add(keys)
            self._total[place] += len(keys)

    def numbers(self) -> dict[str, float]:
        """`inter_dist1` and `inter_dist2` in percent; 0 where there is no text."""
        counts = [distinct.count() for distinct in self._distinct]
        return {
            f"inter_dist{order}": 100 * count / max(total, 1)
            for order, count, total in zip((1, 2), counts, self._total, strict=True)
        }


class _Distinct:
    """A set of integers, kept as sorted arrays that are merged when enough have come together."""

    def __init__(self) -> None:
        self._merged = np.zeros(0, np.int64)
        self._waiting: list[Ints] = []
        self._size = 0

    def add(self, keys: Ints) -> None:
        fresh = np.unique(keys)
        self._waiting.append(fresh)
        self._size += len(fresh)
        if self._size > max(_MERGE_AT, len(self._merged)):  # so that each key is merged only a few times
            self.count()

    def count(self) -> int:
        self._merged = np.unique(np.concatenate([self._merged, *self._waiting]))
        self._waiting, self._size = [], 0
        return len(self._merged)


class CorpusPairwise:
    """Pairwise-BLEU as Shen et al. (2019) compute it: one corpus BLEU-4 over all ordered pairs of all contexts.

    That is sacreBLEU's corpus BLEU on our tokens, with its exponential smoothing. Over ordered pairs both sides have
    the same tokens in total, so that the brevity penalty is 1.
    """

    def __init__(self) -> None:
        """Begins with no pair."""
        self._matches = np.zeros(ORDERS, np.int64)
        self._totals = np.zeros(ORDERS, np.int64)
        self._pairs = 0

    def add(self, block: Block, matches_n: Sequence[Ints]) -> None:
        """Adds the pairs of a block; the matches of each order are (C, K, K)."""
        others_C = block.num_responses_C - 1
        for order, found_CKK in enumerate(matches_n, start=1):
            grams_CK = np.maximum(block.lengths_CS[:, : block.most_responses] - order + 1, 0)
            self._matches[order - 1] += found_CKK.sum() - np.trace(found_CKK, axis1=1, axis2=2).sum()
            self._totals[order - 1] += (grams_CK.sum(1) * others_C).sum()
        self._pairs += int((block.num_responses_C * others_C).sum())

    def bleu(self) -> float | None:
        """Percent; None when no context has two responses."""
        if not self._pairs:
            return None
        if not self._matches.any() or not self._totals.all():
            return 0.0
        half, logs = 1.0, []
        for found, total in zip(self._matches.tolist(), self._totals.tolist(), strict=True):
            half = half if found else half / 2
            logs.append(math.log((found or half) / total))
        return 100 * math.exp(sum(logs) / ORDERS)
