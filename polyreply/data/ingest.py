"""Rows of an input become clean (context, response) pairs, a batch of rows at a time, in columns."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from polyreply.data.clean import RULES, CleanConfig, Cleaned, Language, Rule, clean
from polyreply.data.overlap import exact_key
from polyreply.data.records import Record

TURN_SEPARATOR = "\x1e"
"""Joins the turns of a context inside the tables; never part of a text."""
BATCH_RECORDS = 10_000
MAX_EXAMPLES = 3


@dataclass
class RuleCount:
    """What one rule did: utterances changed or dropped, pairs lost through it, and the first examples."""

    rewrites: bool
    utterances: int = 0
    pairs: int = 0
    examples: list[Any] = field(default_factory=list)


@dataclass
class Ingest:
    """Turns records into tables and counts what happened on the way."""

    config: CleanConfig
    language: Language
    context_turns: int
    rows: int = 0
    conversations: int = 0
    pairs: int = 0
    kept_pairs: int = 0
    rules: dict[str, RuleCount] = field(default_factory=lambda: {r.name: RuleCount(r.rewrites) for r in RULES})

    def __post_init__(self) -> None:
        self._dialogue_ids, self._row_ids, self._pair_ids = count(), count(), count()

    def batches(self, records: Iterable[Record], split: str | None) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Pairs of tables: the dialogues that have a pair left, and those pairs."""
        stream = iter(records)
        while batch := list(islice(stream, BATCH_RECORDS)):
            self.rows += len(batch)
            self.conversations += sum(record.responses is None for record in batch)
            columns = self._lay_out(batch)
            cleaned = clean(pa.array(columns.texts, pa.string()), self.config, self.language)
            kept = self._judge(columns, cleaned)
            yield self._tables(columns, cleaned, kept, split)

    def _lay_out(self, batch: list[Record]) -> "_Columns":
        """Every utterance of the batch once, and each pair as places among them."""
        columns = _Columns()
        for record in batch:
            columns.add(record, self.context_turns, next(self._dialogue_ids), self._row_ids)
        return columns.freeze()

    def _judge(self, columns: "_Columns", cleaned: Cleaned) -> npt.NDArray[np.bool_]:
        """Which pairs have a clean response and context; counts what each rule did."""
        bad = np.flatnonzero(cleaned.dropped_by >= 0)
        if len(bad):
            # The first bad utterance at or after a context's start, or the response's own.
            nearest = bad[np.minimum(np.searchsorted(bad, columns.low), len(bad) - 1)]
            in_context = (nearest >= columns.low) & (nearest < columns.high)
            reason = np.where(in_context, cleaned.dropped_by[nearest], cleaned.dropped_by[columns.response])
        else:
            reason = np.full(len(columns.response), -1, np.int8)
        for index, rule in enumerate(RULES):
            tally = self.rules[rule.name]
            tally.pairs += int((reason == index).sum())
            self._count_utterances(tally, rule, index, columns, cleaned)
        self.pairs += len(reason)
        self.kept_pairs += int((reason < 0).sum())
        return np.asarray(reason < 0)

    def _count_utterances(
        self, tally: RuleCount, rule: Rule, index: int, columns: "_Columns", cleaned: Cleaned
    ) -> None:
        touched = cleaned.changed_by.get(rule.name) if rule.rewrites else cleaned.dropped_by == index
        if touched is None:
            return
        where = np.flatnonzero(touched)
        tally.utterances += len(where)
        for place in where[: MAX_EXAMPLES - len(tally.examples) if rule.shows_examples else 0]:
            step = cleaned.steps.get(rule.name)
            tally.examples.append([texts[place].as_py() for texts in step] if step else columns.texts[place])

    def _tables(
        self, columns: "_Columns", cleaned: Cleaned, kept: npt.NDArray[np.bool_], split: str | None
    ) -> tuple[pa.Table, pa.Table]:
        texts = pc.replace_substring(cleaned.texts, TURN_SEPARATOR, " ")
        context = _join_ranges(texts, columns.low[kept], columns.high[kept], TURN_SEPARATOR)
        response = texts.take(pa.array(columns.response[kept]))
        size = int(kept.sum())
        pairs = pa.table(
            {
                "pair": np.fromiter(islice(self._pair_ids, size), np.int64, size),
                "row": columns.row[kept],
                "dialogue": columns.dialogue[kept],
                "split": pa.array([split] * size, pa.string()),
                "context": context,
                "response": response,
                "act": pa.array(columns.acts, pa.string()).filter(pa.array(kept)),
                "context_key": exact_key(context),
                "response_key": exact_key(response),
            }
        )
        return self._dialogue_table(columns, cleaned, texts, np.unique(columns.dialogue[kept]), split), pairs

    def _dialogue_table(
        self, columns: "_Columns", cleaned: Cleaned, texts: pa.Array, wanted: Any, split: str | None
    ) -> pa.Table:
        """The whole text of each dialogue, without the utterances that were dropped."""
        good = cleaned.dropped_by < 0
        ends = np.cumsum(good)[columns.dialogue_end - 1]
        starts = np.r_[0, ends[:-1]]
        whole = _join_ranges(texts.filter(pa.array(good)), starts, ends, " ")
        place = wanted - columns.first_dialogue
        return pa.table(
            {
                "dialogue": wanted,
                "split": pa.array([split] * len(wanted), pa.string()),
                "text": whole.take(pa.array(place)),
            }
        )


class _Columns:
    """The utterances of a batch, flat, and its pairs: context = texts[low:high], response = texts[response]."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.acts: list[str | None] = []
        self._pairs: list[tuple[int, int, int, int, int]] = []
        self._dialogue_end: list[int] = []
        self.first_dialogue = -1

    def add(self, record: Record, context_turns: int, dialogue: int, row_ids: Iterator[int]) -> None:
        if self.first_dialogue < 0:
            self.first_dialogue = dialogue
        base = len(self.texts)
        self.texts += record.turns
        after = base + len(record.turns)
        if record.responses is not None:
            self.texts += record.responses
            row = next(row_ids)
            self._pairs += [(base, after, after + k, row, dialogue) for k in range(len(record.responses))]
            self.acts += record.acts or [None] * len(record.responses)
        else:
            answers = range(base + 1, after)
            self._pairs += [(max(base, k - context_turns), k, k, next(row_ids), dialogue) for k in answers]
            self.acts += [None] * len(answers)
        self._dialogue_end.append(len(self.texts))

    def freeze(self) -> "_Columns":
        places = np.array(self._pairs, np.int64).reshape(-1, 5)
        self.low, self.high, self.response, self.row, self.dialogue = places.T
        self.dialogue_end = np.array(self._dialogue_end, np.int64)
        return self


def _join_ranges(texts: pa.Array, low: Any, high: Any, separator: str) -> pa.Array:
    """texts[low:high] joined, for each range."""
    lengths = high - low
    ends = np.cumsum(lengths)
    places = np.arange(lengths.sum()) + np.repeat(low - (ends - lengths), lengths)
    offsets = pa.array(np.r_[0, ends], pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(offsets, texts.take(pa.array(places))), separator)
