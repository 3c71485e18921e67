"""(context, response) pairs while a corpus is prepared: cut from records and cleaned, then kept in a database.

Both work on whole columns. `PairMaker` lays the utterances of a batch of records into one Arrow column, each once, and
cleans that column; a pair is a range of it (the context) and a place in it (the response). `PairDatabase` keeps the
pairs in DuckDB tables on disk, where what does not fit in memory spills, and each step of `prepare` is one statement
over whole tables. So the cost of a corpus grows with its rows and its memory does not.
"""

import gzip
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from polyreply.arrays import Bools, Ints
from polyreply.data.clean import RULES, Cleaned, CleanSettings, Language, Rule, clean
from polyreply.data.dialogue import SPLITS, Record, Split
from polyreply.data.overlap import exact_key

TURN_SEPARATOR = "\x1e"
"""Joins the turns of a context inside the tables; never part of a text."""
BATCH_RECORDS = 10_000
MAX_EXAMPLES = 3
MEMORY_LIMIT = "800MB"
DIALOGUE_SCHEMA = pa.schema([("dialogue", pa.int64()), ("text", pa.string())])
"""The columns of `PairDatabase.dialogues_of`."""
_KEYS = {"pairs": "pair_key", "contexts": "context_key"}


@dataclass
class RuleCount:
    """What one rule did: utterances rewritten or dropped, pairs lost with them, and the first examples."""

    rewrites: bool
    utterances: int = 0
    pairs: int = 0
    examples: list[Any] = field(default_factory=list)


@dataclass
class PairMaker:
    """Turns records into tables of clean pairs and counts what each rule did."""

    settings: CleanSettings
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
        """For each batch of records two tables: the dialogues that have a pair left, and those pairs."""
        stream = iter(records)
        while batch := list(islice(stream, BATCH_RECORDS)):
            self.rows += len(batch)
            self.conversations += sum(record.responses is None for record in batch)
            columns = _Columns()
            for record in batch:
                columns.add(record, self.context_turns, next(self._dialogue_ids), self._row_ids)
            columns.freeze()
            cleaned = clean(pa.array(columns.texts, pa.string()), self.settings, self.language)
            kept = self._judge(columns, cleaned)
            yield self._tables(columns, cleaned, kept, split)

    def _judge(self, columns: "_Columns", cleaned: Cleaned) -> Bools:
        """Which pairs have a clean response and context; counts what each rule did."""
        bad = np.flatnonzero(cleaned.dropped_by >= 0)
        if len(bad):
            # A pair is lost to the first bad utterance of its context (the first at or after the context's start, if it
            # is before the end), else to its response.
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
        self, columns: "_Columns", cleaned: Cleaned, kept: Bools, split: str | None
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
        """The whole text of each wanted dialogue, without the utterances that were dropped."""
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
    """The utterances of a batch, each once, and its pairs: context = texts[low:high], response = texts[response]."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.acts: list[str | None] = []
        self._pairs: list[tuple[int, int, int, int, int]] = []
        self._dialogue_end: list[int] = []
        self.first_dialogue = -1

    def add(self, record: Record, context_turns: int, dialogue: int, row_ids: Iterator[int]) -> None:
        """Append a record. Dialogues are numbered in a row; each context with its responses is a row of the output."""
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
            answers = (base + answer for answer in record.answers)
            self._pairs += [(max(base, k - context_turns), k, k, next(row_ids), dialogue) for k in answers]
            self.acts += [None] * len(record.answers)
        self._dialogue_end.append(len(self.texts))

    def freeze(self) -> None:
        """Turn the lists into arrays, after the last record."""
        places = np.array(self._pairs, np.int64).reshape(-1, 5)
        self.low, self.high, self.response, self.row, self.dialogue = places.T
        self.dialogue_end = np.array(self._dialogue_end, np.int64)


def _join_ranges(texts: pa.Array, low: Any, high: Any, separator: str) -> pa.Array:
    """For each range, texts[low:high] joined."""
    lengths = high - low
    ends = np.cumsum(lengths)
    places = np.arange(lengths.sum()) + np.repeat(low - (ends - lengths), lengths)
    offsets = pa.array(np.r_[0, ends], pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(offsets, texts.take(pa.array(places))), separator)


class PairDatabase:
    """The pairs that are left so far, and their dialogues, in two tables of a DuckDB database."""

    def __init__(self, folder: Path) -> None:
        self.connection = duckdb.connect(str(folder / "work.duckdb"))
        self.connection.execute(f"SET memory_limit='{MEMORY_LIMIT}'")
        self.connection.execute("SET temp_directory=?", [str(folder / "spill")])
        self.connection.execute("SET enable_progress_bar=false")
        self.connection.execute("SET preserve_insertion_order=false")
        self.connection.execute("CREATE TABLE dialogues (dialogue BIGINT, split VARCHAR, text VARCHAR)")
        self.connection.execute(
            "CREATE TABLE pairs (pair BIGINT, row BIGINT, dialogue BIGINT, split VARCHAR, context VARCHAR, "
            "response VARCHAR, act VARCHAR, context_key UHUGEINT, pair_key UHUGEINT, response_key UHUGEINT)"
        )

    def close(self) -> None:
        """Close the database; its file stays."""
        self.connection.close()

    def add(self, dialogues: pa.Table, pairs: pa.Table) -> None:
        """Append one batch. Keys are 128-bit hashes of the normalised text."""
        self._insert("dialogues", dialogues, "*")
        self._insert(
            "pairs",
            pairs,
            "pair, row, dialogue, split, context, response, act, md5_number(context_key), "
            "md5_number(context_key || chr(31) || response_key), md5_number(response_key)",
        )

    def count(self, statement: str, *values: Any) -> int:
        """The one number that a statement selects."""
        [[number]] = self.connection.execute(statement, list(values)).fetchall()
        return int(number or 0)

    def merge_contexts(self) -> None:
        """Make one dialogue of the rows that have the same context, so that they go to the same split."""
        self.connection.execute(
            "CREATE TEMP TABLE leaders AS SELECT dialogue, min(dialogue) OVER (PARTITION BY context_key) AS leader "
            "FROM (SELECT DISTINCT dialogue, context_key FROM pairs)"
        )
        self.connection.execute(
            "CREATE OR REPLACE TABLE pairs AS "
            "SELECT pairs.* REPLACE (leader AS dialogue) FROM pairs JOIN leaders USING (dialogue)"
        )
        self.connection.execute(
            "CREATE OR REPLACE TABLE dialogues AS SELECT leader AS dialogue, any_value(split) AS split, "
            "string_agg(text, ' ' ORDER BY dialogue) AS text "
            "FROM dialogues JOIN leaders USING (dialogue) GROUP BY leader"
        )
        self.connection.execute("DROP TABLE leaders")

    def draw(self, number: int, seed: int) -> Ints:
        """Dialogues drawn at random, in the order they were drawn: the same for the same seed on every machine."""
        drawn = self.connection.sql(
            f"SELECT dialogue FROM dialogues ORDER BY md5_number('{int(seed)}:' || dialogue) LIMIT {int(number)}"
        )
        return np.asarray(drawn.fetchnumpy()["dialogue"], np.int64)

    def assign_splits(self, held_out: dict[Split, Ints]) -> None:
        """Put the given dialogues into valid and test, all others into train, and their pairs with them."""
        chosen = pa.concat_tables(
            pa.table({"dialogue": dialogues, "split": pa.array([split] * len(dialogues), pa.string())})
            for split, dialogues in held_out.items()
        )
        self.connection.register("chosen", chosen)
        for table in ("dialogues", "pairs"):
            self.connection.execute(
                f"CREATE OR REPLACE TABLE {table} AS "
                f"SELECT {table}.* REPLACE (coalesce(chosen.split, 'train') AS split) "
                f"FROM {table} LEFT JOIN chosen USING (dialogue)"
            )
        self.connection.unregister("chosen")

    def drop_duplicates(self) -> tuple[int, list[Any]]:
        """Keep the first of equal (context, response) pairs in a split; return how many were dropped, and examples."""
        return self._drop(
            "pair NOT IN (SELECT min(pair) FROM pairs GROUP BY split, md5_number(context || chr(31) || response))"
        )

    def cap_responses(self, most: int, seed: int) -> tuple[int, list[Any]]:
        """Keep at most `most` pairs of a split with the same response, drawn at random; how many others, examples."""
        return self._drop(
            "pair IN (SELECT pair FROM pairs QUALIFY row_number() OVER "
            f"(PARTITION BY split, response_key ORDER BY md5_number('{int(seed)}:' || pair)) > {int(most)})"
        )

    def limit_train(self, most: int, seed: int, group: bool) -> int:
        """Keep rows of train as they will be written, drawn at random, with at most `most` pairs; how many others."""
        unit = "context" if group else "row"
        return self._drop(
            f"split = 'train' AND {unit} IN (SELECT unit FROM "
            f"(SELECT {unit} AS unit, count(*) AS pairs FROM pairs WHERE split = 'train' GROUP BY {unit}) "
            f"QUALIFY sum(pairs) OVER (ORDER BY md5_number('{int(seed)}:' || unit), unit) > {int(most)})"
        )[0]

    def count_overlap(self, split: Split, others: list[Split], what: str) -> int:
        """How many pairs of a split have their key (`pairs` or `contexts`) in one of the other splits."""
        return self.count(f"SELECT count(*) FROM pairs WHERE {_overlapping(split, others, what)}")

    def drop_overlap(self, split: Split, others: list[Split], what: str) -> tuple[int, list[Any]]:
        """Drop these pairs; return how many there were, and examples."""
        return self._drop(_overlapping(split, others, what))

    def drop_dialogues(self, dialogues: pa.Array) -> tuple[int, list[Any]]:
        """Drop every pair of the given dialogues; return how many there were, and examples."""
        self.connection.register("unwanted", pa.table({"dialogue": dialogues}))
        result = self._drop("dialogue IN (SELECT dialogue FROM unwanted)")
        self.connection.execute("DELETE FROM dialogues WHERE dialogue IN (SELECT dialogue FROM unwanted)")
        self.connection.unregister("unwanted")
        return result

    def dialogues_of(self, splits: list[Split] | None = None, batch_size: int = 20_000) -> Iterator[pa.RecordBatch]:
        """Number and text of each dialogue (of some splits), in input order, in batches."""
        names = ", ".join(f"'{split}'" for split in splits or ())
        condition = f"AND split IN ({names})" if splits else ""
        chosen = self.connection.cursor().sql(
            "SELECT dialogue, text FROM dialogues WHERE dialogue IN (SELECT dialogue FROM pairs) "
            f"{condition} ORDER BY dialogue"
        )
        yield from chosen.to_arrow_reader(batch_size)

    def write(self, split: Split, path: Path, group: bool) -> dict[str, Any]:
        """Write one split as gzip-compressed JSONL in the input's order; return what it holds."""
        acts = self.count("SELECT count(act) FROM pairs WHERE split = ?", split)
        statement = f"""
            SELECT CASE WHEN contains(context, chr({ord(TURN_SEPARATOR)}))
                        THEN to_json(string_split(context, chr({ord(TURN_SEPARATOR)})))
                        ELSE to_json(context) END AS context,
                   list(response ORDER BY pair) AS responses
                   {", CASE WHEN count(act) = count(*) THEN list(act ORDER BY pair) END AS acts" if acts else ""}
            FROM pairs WHERE split = '{split}'
            GROUP BY context{"" if group else ", row"} ORDER BY min(pair)"""
        plain = path.with_suffix("")
        quoted = str(plain).replace("'", "''")
        self.connection.execute(f"COPY ({statement}) TO '{quoted}' (FORMAT json)")
        _compress(plain, path)
        rows = "count(DISTINCT context)" if group else "count(DISTINCT row)"
        [numbers] = self.connection.execute(
            f"SELECT {rows}, count(*), count(DISTINCT context), count(DISTINCT dialogue), "
            "avg(length(context)), avg(length(response)) "
            "FROM pairs WHERE split = ?",
            [split],
        ).fetchall()
        names = ("rows", "pairs", "contexts", "dialogues", "mean_context_chars", "mean_response_chars")
        return dict(zip(names, numbers, strict=True))

    def splits(self) -> list[Split]:
        """The splits that have pairs, in the usual order."""
        found = {row[0] for row in self.connection.execute("SELECT DISTINCT split FROM pairs").fetchall()}
        return [split for split in SPLITS if split in found]

    def _insert(self, table: str, rows: pa.Table, columns: str) -> None:
        self.connection.register("incoming", rows)
        self.connection.execute(f"INSERT INTO {table} SELECT {columns} FROM incoming")
        self.connection.unregister("incoming")

    def _drop(self, condition: str) -> tuple[int, list[Any]]:
        self.connection.execute(
            f"CREATE TEMP TABLE gone AS SELECT pair, context, response FROM pairs WHERE {condition}"
        )
        number = self.count("SELECT count(*) FROM gone")
        examples = self.connection.execute(
            f"SELECT replace(context, chr({ord(TURN_SEPARATOR)}), ' / '), response FROM gone ORDER BY pair LIMIT 3"
        ).fetchall()
        if number:
            self.connection.execute("DELETE FROM pairs WHERE pair IN (SELECT pair FROM gone)")
        self.connection.execute("DROP TABLE gone")
        return number, [list(example) for example in examples]


def _overlapping(split: Split, others: list[Split], what: str) -> str:
    """The condition under which a pair of one split is in another too."""
    key, names = _KEYS[what], ", ".join(f"'{other}'" for other in others)
    return f"split = '{split}' AND {key} IN (SELECT {key} FROM pairs WHERE split IN ({names}))"


def _compress(plain: Path, path: Path) -> None:
    """Replace a file by its gzip form, the same bytes for the same content, and wait until it is on disk."""
    with plain.open("rb") as source, path.open("wb") as file:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=4, mtime=0) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
    plain.unlink()
