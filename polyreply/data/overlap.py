"""When two texts count as the same: exact keys, and near-duplicate dialogues by unigram overlap.

Both compare text after lower-casing and removing punctuation. The near-duplicate search is exact. Two dialogues are
near-duplicates when 2·|A∩B| / (|A|+|B|) on their token multisets is above a threshold (Wen, Luo and Mou, 2022). The
search indexes the held-out side only, so that memory follows its size while the training side streams past.

How it stays fast and exact: a multiset becomes a set by numbering repeats ("no" "no" -> no#0 no#1); the items of a
dialogue are sorted rarest first; two dialogues that overlap enough must share an item among the first few of both
(prefix filter), early enough that what follows can still suffice (position filter), and cannot differ in more bits of
a 256-bit signature than they may differ in items. The few pairs that pass are counted item by item.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse
from scipy.sparse import csgraph

from polyreply.arrays import Bools, Ints
from polyreply.data.characters import CJK
from polyreply.data.dialogue import Split
from polyreply.progress import Notify

_SIGNATURE_WORDS = 4
_EXPANSION = 4_000_000
"""Most candidate matches held at once: bounds the working memory to a few hundred megabytes."""


def exact_key(texts: pa.Array) -> pa.Array:
    """The letters and digits of each text, lower-cased: equal for texts that differ in case, punctuation or spacing.

    A text without any letter stays as it is.
    """
    plain = pc.replace_substring_regex(pc.utf8_lower(texts), r"[^\p{L}\p{N}\p{M}]+", "")
    return pc.if_else(pc.equal(plain, ""), texts, plain)


def tokens(texts: pa.Array) -> pa.ListArray:
    """The lower-cased words of each text without punctuation; single characters where words are not separated."""
    plain = pc.replace_substring_regex(pc.utf8_lower(texts), r"[^\p{L}\p{N}\p{M}]+", " ")
    spaced = pc.replace_substring_regex(plain, rf"([{CJK}])", r" \1 ")
    words = pc.split_pattern_regex(pc.utf8_trim_whitespace(spaced), r"\s+")
    real = pc.not_equal(words.flatten(), "").to_numpy(zero_copy_only=False)  # a text without letters gives one ""
    ends = pc.list_value_length(words).to_numpy(zero_copy_only=False).cumsum()
    offsets = np.r_[0, np.r_[0, real.cumsum()][ends]]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), words.flatten().filter(pa.array(real)))


@dataclass(frozen=True)
class _Items:
    """Dialogues as sets of item ids, rarest first, in one flat array; items not in the index are only counted."""

    item: Ints
    start: Ints
    size: Ints
    unknown: Ints

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True)
class Matches:
    """Near-duplicates between a batch of dialogues and the indexed ones."""

    probe: Bools
    """Which dialogues of the batch have one."""
    links: Ints
    """(M, 2): number in the batch, number in the index. At least one link for each dialogue that has any."""


class NearDuplicateIndex:
    """Held-out dialogues, ready to be compared with a stream of others."""

    def __init__(self, texts: pa.Array, threshold: float = 0.75) -> None:
        """Index one text per dialogue. `threshold` is exclusive: the overlap has to be above it."""
        self.threshold = threshold
        self.hit = np.zeros(len(texts), np.bool_)
        """Which of the indexed dialogues have met a near-duplicate so far."""
        code, owner, words = _encode(tokens(texts))
        self._vocabulary = words
        repeat = _repeats(code, owner)
        frequency = np.bincount(code, minlength=len(words))
        self._radix = int(repeat.max(initial=0)) + 1
        keys, item = np.unique(code * self._radix + repeat, return_inverse=True)
        # Rarest first; among equals later repeats first, because fewer dialogues have them.
        order = np.lexsort((-(keys % self._radix), frequency[keys // self._radix]))
        rank = np.empty(len(keys), np.int64)
        rank[order] = np.arange(len(keys))
        self._keys, self._rank = keys, rank
        self._items = _pack(rank[item], owner, len(texts), np.zeros(len(texts), np.int64))
        self._signature = _signatures(self._items)
        self._rows = _as_matrix(self._items, len(keys))
        self._index_prefixes()

    def __len__(self) -> int:
        return len(self._items)

    def find(self, texts: pa.Array, every_link: bool = False) -> Matches:
        """Compare a batch of dialogues with all indexed ones.

        With `every_link` all near-duplicate pairs are linked; without, only enough of them to know which dialogues
        have one, which is much cheaper where thousands of dialogues resemble each other.
        """
        hit = np.zeros(len(texts), np.bool_)
        links = [np.zeros((0, 2), np.int64)]
        if len(self) and len(texts):
            probes = self._encode_probes(texts)
            signature, rows = _signatures(probes), _as_matrix(probes, len(self._keys))
            for probe, indexed in self._candidates(probes, signature):
                if not every_link:
                    unsure = ~hit[probe] | ~self.hit[indexed]
                    probe, indexed = probe[unsure], indexed[unsure]
                overlap = _overlap(rows, probe, self._rows, indexed)
                same = overlap >= self._needed(probes.size[probe], self._items.size[indexed])
                hit[probe[same]] = True
                self.hit[indexed[same]] = True
                links.append(np.column_stack([probe[same], indexed[same]]))
        return Matches(hit, np.concatenate(links))

    def _needed(self, size: Ints, other: Ints) -> Ints:
        """The smallest overlap that puts two dialogues of these sizes above the threshold."""
        return np.asarray(np.floor(self.threshold / 2 * (size + other) + 1e-9), np.int64) + 1

    def _prefix(self, size: Ints) -> Ints:
        """How many of its rarest items are enough to find every possible near-duplicate of a dialogue."""
        smallest_partner = np.floor(size * self.threshold / (2 - self.threshold) + 1e-9).astype(np.int64) + 1
        return np.asarray(np.clip(size - self._needed(size, smallest_partner) + 1, 0, size))

    def _index_prefixes(self) -> None:
        length = self._prefix(self._items.size)
        owner = np.repeat(np.arange(len(self)), length)
        position = _ranges(length)
        item = self._items.item[self._items.start[owner] + position]
        order = np.lexsort((self._items.size[owner], item))
        self._posting_owner, self._posting_position = owner[order], position[order]
        self._posting_start = np.searchsorted(item[order], np.arange(len(self._keys) + 1))

    def _encode_probes(self, texts: pa.Array) -> _Items:
        words = tokens(texts)
        code = pc.index_in(words.flatten(), value_set=self._vocabulary)
        code = pc.fill_null(code, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        owner = np.repeat(np.arange(len(texts)), pc.list_value_length(words).to_numpy(zero_copy_only=False))
        repeat = _repeats(code, owner)
        key = code * self._radix + repeat
        place = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        known = (code >= 0) & (repeat < self._radix) & (self._keys[place] == key)
        unknown = np.bincount(owner[~known], minlength=len(texts))
        return _pack(self._rank[place[known]], owner[known], len(texts), unknown)

    def _candidates(self, probes: _Items, signature: npt.NDArray[np.uint64]) -> Iterator[tuple[Ints, Ints]]:
        """Pairs that pass the prefix, position and signature filters, in bounded pieces. No true pair is missing."""
        # Unknown items come first in every order: they are the rarest of all.
        known_prefix = np.clip(self._prefix(probes.size) - probes.unknown, 0, None)
        known_prefix = np.minimum(known_prefix, probes.size - probes.unknown)
        owner = np.repeat(np.arange(len(probes)), known_prefix)
        rank_in_known = _ranges(known_prefix)
        item = probes.item[probes.start[owner] + rank_in_known]
        count = self._posting_start[item + 1] - self._posting_start[item]
        for piece in _pieces(count, _EXPANSION):
            probe = np.repeat(owner[piece], count[piece])
            posting = np.repeat(self._posting_start[item[piece]], count[piece]) + _ranges(count[piece])
            position = np.repeat(rank_in_known[piece], count[piece]) + probes.unknown[probe]
            yield self._filter(probes, signature, probe, position, posting)

    def _filter(self, probes: _Items, signature: Any, probe: Ints, position: Ints, posting: Ints) -> tuple[Ints, Ints]:
        indexed = self._posting_owner[posting]
        size, other = probes.size[probe], self._items.size[indexed]
        reachable = np.minimum(size - position, other - self._posting_position[posting])
        keep = reachable >= self._needed(size, other)
        probe, indexed = np.divmod(np.unique(probe[keep] * len(self) + indexed[keep]), len(self))
        missing = np.bitwise_count(signature[probe] & ~self._signature[indexed]).sum(axis=1, dtype=np.int64)
        known = (probes.size - probes.unknown)[probe]
        keep = known - missing >= self._needed(probes.size[probe], self._items.size[indexed])
        return probe[keep], indexed[keep]


def _encode(words: pa.ListArray) -> tuple[Ints, Ints, pa.Array]:
    """The token codes of all texts in one array, the text that each belongs to, and the vocabulary of the codes."""
    encoded = words.flatten().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    owner = np.repeat(np.arange(len(words)), pc.list_value_length(words).to_numpy(zero_copy_only=False))
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), owner, encoded.dictionary


def _repeats(code: Ints, owner: Ints) -> Ints:
    """For each token, how many equal ones come before it in its text."""
    order = np.lexsort((code, owner))
    sorted_code, sorted_owner = code[order], owner[order]
    new = np.r_[True, (sorted_code[1:] != sorted_code[:-1]) | (sorted_owner[1:] != sorted_owner[:-1])][: len(code)]
    first = np.flatnonzero(new)
    repeat = np.empty(len(code), np.int64)
    repeat[order] = np.arange(len(code)) - np.repeat(first, np.diff(np.r_[first, len(code)]))
    return repeat


def _pack(item: Ints, owner: Ints, num_texts: int, unknown: Ints) -> _Items:
    order = np.lexsort((item, owner))
    known = np.bincount(owner, minlength=num_texts)
    start = np.r_[0, np.cumsum(known)[:-1]] if num_texts else np.zeros(0, np.int64)
    return _Items(item[order], start, known + unknown, unknown)


def _signatures(items: _Items) -> npt.NDArray[np.uint64]:
    """256 bits for each dialogue: the bit of every known item it holds."""
    owner = np.repeat(np.arange(len(items)), items.size - items.unknown)
    bit = (items.item * 2654435761 >> 8) % (64 * _SIGNATURE_WORDS)
    bits = np.zeros((len(items), 64 * _SIGNATURE_WORDS), np.bool_)
    bits[owner, bit] = True
    return np.packbits(bits, axis=1).view(np.uint64)


def _as_matrix(items: _Items, num_items: int) -> Any:
    ends = np.r_[items.start, len(items.item)]
    return sparse.csr_matrix((np.ones(len(items.item), np.int32), items.item, ends), (len(items), num_items))


def _overlap(rows: Any, probe: Ints, others: Any, indexed: Ints) -> Ints:
    """|A∩B| of each pair, a piece at a time."""
    overlap = np.zeros(len(probe), np.int64)
    for begin in range(0, len(probe), 100_000):
        piece = slice(begin, begin + 100_000)
        overlap[piece] = np.asarray(rows[probe[piece]].multiply(others[indexed[piece]]).sum(axis=1)).ravel()
    return overlap


def _ranges(lengths: Ints) -> Ints:
    """0..n-1 for each n, one after the other."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _pieces(count: Ints, most: int) -> Iterator[slice]:
    """Consecutive slices whose counts add up to at most `most` (or one element above it)."""
    total = np.cumsum(count)
    begin = 0
    while begin < len(count):
        before = total[begin - 1] if begin else 0
        end = max(int(np.searchsorted(total, before + most, side="right")), begin + 1)
        yield slice(begin, end)
        begin = end


# New splits in which near-duplicate dialogues stay together. Dialogues that resemble each other, directly or through
# others, form a component, and a whole component goes to one split. Only the components of the dialogues drawn for
# valid and test are followed, so the cost depends on their size, not on that of the corpus.

Batches = Callable[[], Iterator[pa.RecordBatch]]
"""Gives all dialogues of a corpus, number and text, in batches; called once for each pass over them."""

_MOST_GROWTH = 10
"""Components are followed until they hold this many times the dialogues drawn; larger ones stay in train."""


def draw_together(
    drawn: Ints, sizes: dict[Split, int], batches: Batches, threshold: float, notify: Notify
) -> dict[Split, Ints]:
    """Dialogues for test and valid, in about these sizes, without a near-duplicate left in another split.

    `drawn` are the dialogues that a draw without regard to near-duplicates chose, in the order they were drawn.
    """
    members, links, unfinished = _follow(drawn, batches, threshold, notify)
    ends = np.searchsorted(members, links)
    graph = sparse.coo_matrix((np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), (len(members), len(members)))
    component = np.asarray(csgraph.connected_components(graph, directed=False)[1], np.int64)
    stays_in_train = set(component[np.isin(members, unfinished)])
    place = np.searchsorted(members, drawn)
    order = [name for name in dict.fromkeys(component[place]) if name not in stays_in_train]
    weight = np.bincount(component)
    chosen: dict[Split, list[int]] = {"test": [], "valid": []}
    room = {split: sizes[split] for split in chosen}
    for name in order:
        split = next((split for split in chosen if weight[name] <= room[split]), None)
        if split:
            chosen[split].append(name)
            room[split] -= weight[name]
    return {split: members[np.isin(component, names)] for split, names in chosen.items()}


def _follow(drawn: Ints, batches: Batches, threshold: float, notify: Notify) -> tuple[Ints, Ints, Ints]:
    """The drawn dialogues and all that resemble them step by step; the links; and those not followed to the end."""
    seen, frontier = np.unique(drawn), np.unique(drawn)
    links: list[Ints] = [np.zeros((0, 2), np.int64)]
    while len(frontier) and len(seen) <= _MOST_GROWTH * len(drawn):
        new_links = _links_to(frontier, batches, threshold, notify)
        links.append(new_links)
        frontier = np.setdiff1d(new_links[:, 0], seen)
        seen = np.union1d(seen, frontier)
    return seen, np.concatenate(links), frontier


def _links_to(dialogues: Ints, batches: Batches, threshold: float, notify: Notify) -> Ints:
    """Every (dialogue, one of the given dialogues) that are near-duplicates."""
    wanted = pa.array(dialogues)
    parts = [batch.filter(pc.is_in(batch["dialogue"], value_set=wanted)) for batch in batches()]
    indexed = pa.Table.from_batches(parts)
    index = NearDuplicateIndex(indexed["text"].combine_chunks(), threshold)
    numbers = indexed["dialogue"].to_numpy()
    links: list[Ints] = [np.zeros((0, 2), np.int64)]
    for done, batch in enumerate(batches(), start=1):
        matches = index.find(batch["text"], every_link=True).links
        links.append(np.column_stack([batch["dialogue"].to_numpy()[matches[:, 0]], numbers[matches[:, 1]]]))
        notify("keeping near-duplicates together", done / len(parts))
    return np.concatenate(links)
