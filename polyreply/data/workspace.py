"""The tables behind `prepare`, in a DuckDB database on disk: what does not fit in memory spills there.

Every step is one statement over whole columns, so the cost of a corpus grows with its rows and its memory does not.
"""

import gzip
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from polyreply.arrays import Ints
from polyreply.data.ingest import TURN_SEPARATOR
from polyreply.data.sources import SPLITS, Split

MEMORY_LIMIT = "800MB"
_KEYS = {"pairs": "pair_key", "contexts": "context_key"}


class Workspace:
    """Pairs and dialogues of a corpus while it is being prepared. `pairs` holds what is left so far."""

    def __init__(self, folder: Path) -> None:
        self.connection = duckdb.connect(str(folder / "work.duckdb"))
        self.connection.execute(f"SET memory_limit='{MEMORY_LIMIT}'")
        self.connection.execute("SET temp_directory=?", [str(folder / "spill")])
        self.connection.execute("SET enable_progress_bar=false")
        self.connection.execute("SET preserve_insertion_order=false")
        self.connection.execute("CREATE TABLE dialogues (dialogue BIGINT, split VARCHAR, text VARCHAR)")
        self.connection.execute(
            "CREATE TABLE pairs (pair BIGINT, row BIGINT, dialogue BIGINT, split VARCHAR, context VARCHAR, "
            "response VARCHAR, act VARCHAR, context_key UHUGEINT, pair_key UHUGEINT)"
        )

    def __enter__(self) -> "Workspace":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def add(self, dialogues: pa.Table, pairs: pa.Table) -> None:
        """Appends one batch. Keys are 128-bit hashes of the normalised text."""
        self._insert("dialogues", dialogues, "*")
        self._insert(
            "pairs",
            pairs,
            "pair, row, dialogue, split, context, response, act, md5_number(context_key), "
            "md5_number(context_key || chr(31) || response_key)",
        )

    def count(self, statement: str, *values: Any) -> int:
        """The one number a statement asks for."""
        [[number]] = self.connection.execute(statement, list(values)).fetchall()
        return int(number or 0)

    def merge_contexts(self) -> None:
        """Makes one dialogue of the rows that have the same context, so that no split tears them apart."""
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
        """So many dialogues, drawn at random, in the order they were drawn: the same for the same seed, anywhere."""
        drawn = self.connection.sql(
            f"SELECT dialogue FROM dialogues ORDER BY md5_number('{int(seed)}:' || dialogue) LIMIT {int(number)}"
        )
        return np.asarray(drawn.fetchnumpy()["dialogue"], np.int64)

    def assign_splits(self, held_out: dict[Split, Ints]) -> None:
        """Puts the given dialogues into valid and test, every other one into train, and the pairs with them."""
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
        """Keeps the first of equal (context, response) pairs in each split; how many went, and examples."""
        return self._drop(
            "pair NOT IN (SELECT min(pair) FROM pairs GROUP BY split, md5_number(context || chr(31) || response))"
        )

    def count_overlap(self, split: Split, others: list[Split], what: str) -> int:
        """How many pairs of a split have their key (`pairs` or `contexts`) in one of the other splits."""
        return self.count(f"SELECT count(*) FROM pairs WHERE {_overlapping(split, others, what)}")

    def drop_overlap(self, split: Split, others: list[Split], what: str) -> tuple[int, list[Any]]:
        """Drops them; how many went, and examples."""
        return self._drop(_overlapping(split, others, what))

    def drop_dialogues(self, dialogues: pa.Array) -> tuple[int, list[Any]]:
        """Drops every pair of the given dialogues."""
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
        """Writes one split as gzip-compressed JSONL in the input's order; what it holds."""
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
    """Replaces a file by its gzip form, the same bytes for the same content."""
    with plain.open("rb") as source, path.open("wb") as file:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=4, mtime=0) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
    plain.unlink()
