"""The answers of a study in SQLite: on disk before the caller continues, each exactly once.

An annotator's session is a list of events, numbered from 0: an answer to an item, or the undo of the last one. The page
sends the number with every request. A number that is already taken by the same event is a repeated request (a double
click, a retry after a lost connection) and changes nothing; one taken by another event comes from an outdated page and
is refused. Nothing is ever deleted or overwritten.
"""

import contextlib
import datetime
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyreply.errors import PolyReplyError
from polyreply.files import check_schema_version

SCHEMA_VERSION = 1
UNDO = "undo"
ACTIONS = ("1", "2", "tie", UNDO)
_WAIT_SECONDS = 30
"""How long a write waits for another process that is writing."""
_SCHEMA = """
CREATE TABLE study (id TEXT NOT NULL);
CREATE TABLE events (
    annotator TEXT NOT NULL,
    turn INTEGER NOT NULL,
    item TEXT NOT NULL,
    action TEXT NOT NULL CHECK (action IN ('1', '2', 'tie', 'undo')),
    seconds REAL,
    at TEXT NOT NULL,
    PRIMARY KEY (annotator, turn)
) WITHOUT ROWID;
"""


class StaleTurnError(PolyReplyError):
    """The request comes from a page that is no longer up to date."""


class OtherItemError(PolyReplyError):
    """The item is not one of this annotator's."""


@dataclass(frozen=True)
class Event:
    """An answer, or the undo of one."""

    item: str
    action: str
    seconds: float | None
    """How long the item was on the screen, as the page measured it."""
    at: str
    """UTC time at which it was saved."""


class Answers:
    """The events of all annotators of one study; safe to use from several threads and processes."""

    def __init__(self, path: Path, study_id: str) -> None:
        """Open the answers of a study; raises if there are none, or they belong to another one."""
        if not path.is_file():
            raise PolyReplyError(f"{path}: expected the answers of the study, found no such file; restore it")
        self._lock = threading.Lock()
        try:
            self._database = _connect(path)
            [version] = self._database.execute("PRAGMA user_version").fetchone()
            owner = self._database.execute("SELECT id FROM study").fetchone()
        except sqlite3.DatabaseError as error:
            raise PolyReplyError(f"{path}: expected the answers of a study, found {error}; restore the file") from None
        check_schema_version(path, version, SCHEMA_VERSION)
        if owner != (study_id,):
            raise PolyReplyError(f"{path}: expected the answers of study {study_id}, found another's; restore the file")

    @staticmethod
    def create(path: Path, study_id: str) -> None:
        """Make an empty file of answers."""
        with contextlib.closing(_connect(path)) as database:
            database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
            database.execute("INSERT INTO study VALUES (?)", (study_id,))

    def close(self) -> None:
        """Close the file; everything recorded is on disk already."""
        with self._lock:
            self._database.close()

    def record(
        self, annotator: str, turn: int, item: str, action: str, items: Sequence[str], seconds: float | None = None
    ) -> list[Event]:
        """Save an event durably and return all events of the annotator; a repeated request changes nothing.

        `items` are the ids of the annotator's items in their order: an answer has to be for the first one that is
        open, an undo for the last one that is answered.
        """
        if item not in items:
            raise OtherItemError("this item belongs to another annotator or another study; nothing was saved")
        with self._transaction():
            events = self._events(annotator)
            if turn < len(events) and (events[turn].item, events[turn].action) == (item, action):
                return events
            done = len(answered(events))
            expected = items[done - 1 : done] if action == UNDO else items[done : done + 1]
            if turn != len(events) or [*expected] != [item]:
                raise StaleTurnError("the page is out of date; nothing was saved")
            event = Event(item, action, seconds, _now())
            self._insert([(annotator, turn, event)])
            return [*events, event]

    def record_all(self, rows: Iterable[tuple[str, int, Event]]) -> None:
        """Save many events (annotator, turn, event) in one transaction, for scripted annotators."""
        with self._transaction():
            self._insert(rows)

    def events(self, annotator: str) -> list[Event]:
        """All events of an annotator in their order."""
        with self._lock:
            return self._events(annotator)

    def count(self) -> int:
        """How many events there are; results change only if it does."""
        with self._lock:
            [number] = self._database.execute("SELECT count(*) FROM events").fetchone()
            return int(number)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")

    def _events(self, annotator: str) -> list[Event]:
        query = "SELECT item, action, seconds, at FROM events WHERE annotator = ? ORDER BY turn"
        return [Event(*row) for row in self._database.execute(query, (annotator,))]

    def _insert(self, rows: Iterable[tuple[str, int, Event]]) -> None:
        values = ((name, turn, one.item, one.action, one.seconds, one.at) for name, turn, one in rows)
        self._database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", values)


def answered(events: Iterable[Event]) -> list[Event]:
    """The answers that were not undone, in their order."""
    kept: list[Event] = []
    for event in events:
        if event.action == UNDO:
            kept.pop()
        else:
            kept.append(event)
    return kept


def _connect(path: Path) -> sqlite3.Connection:
    """A connection whose commits are on disk when they return: a write-ahead log, synchronised at every commit."""
    database = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    return database


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
