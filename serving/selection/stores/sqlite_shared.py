"""What the gateways of one machine share of selection, in a SQLite file.

If a process is killed, nothing of what it wrote is lost; in a power failure, the last moment may be
(`synchronous=NORMAL`).
"""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence

from serving.errors import NotReady
from serving.selection.stores.shared_store import (
    KEPT_BYTES,
    KEPT_DECISIONS,
    KEPT_KEYS,
    KEPT_PLACES,
    KeptDecision,
    Page,
    Place,
    PlacedState,
    StateKey,
    Told,
)
from serving.system import private_folder

_SCHEMA = """
CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (place INTEGER PRIMARY KEY, key INTEGER NOT NULL,
    application TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS taken (key INTEGER PRIMARY KEY, place INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS taken_by_place ON taken (place);
CREATE TABLE IF NOT EXISTS replayed (application TEXT NOT NULL, user TEXT NOT NULL,
    place INTEGER NOT NULL, text TEXT NOT NULL, PRIMARY KEY (application, user)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS replayed_by_place ON replayed (application, place);
CREATE TABLE IF NOT EXISTS decisions (number INTEGER PRIMARY KEY AUTOINCREMENT,
    application TEXT NOT NULL, key INTEGER NOT NULL, user TEXT NOT NULL, input_hash TEXT NOT NULL,
    text TEXT NOT NULL, place INTEGER NOT NULL, written INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS decisions_by_key ON decisions (key);
CREATE INDEX IF NOT EXISTS decisions_by_input ON decisions (application, user, input_hash);
CREATE INDEX IF NOT EXISTS decisions_by_age ON decisions (application, written);
"""
_BASE, _TRIMMED, _LAST, _IDS = "base", "trimmed", "last", "ids"
_SET = "INSERT INTO numbers VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
_SAVE = """
INSERT INTO replayed VALUES (?, ?, ?, ?) ON CONFLICT (application, user)
DO UPDATE SET place = excluded.place, text = excluded.text WHERE excluded.place > replayed.place
"""
_FORGET = """
DELETE FROM replayed WHERE application = :name AND user IN (
    SELECT user FROM replayed WHERE application = :name AND user != '' ORDER BY place LIMIT
        max(0, (SELECT count(*) FROM replayed WHERE application = :name AND user != '') - :most))
"""
# `place` is the log's last one then; `written` counts the bytes of the application's earlier texts.
_KEEP = """
INSERT OR REPLACE INTO decisions (key, application, user, input_hash, text, place, written)
SELECT :key, :application, :user, :input_hash, :text, :place, :written
WHERE NOT EXISTS (SELECT 1 FROM taken WHERE key = :key)
"""
_WRITTEN = """
SELECT written + length(text) FROM decisions WHERE application = ? ORDER BY written DESC LIMIT 1
"""
_DROP = """
DELETE FROM decisions WHERE application = :application AND written < max(:written - :most_bytes,
    coalesce((SELECT written + 1 FROM decisions WHERE application = :application
        ORDER BY written DESC LIMIT 1 OFFSET :most), 0))
"""
_DELETE = (
    "DELETE FROM replayed WHERE application = ? AND place < ?",
    "DELETE FROM decisions WHERE application = ? AND place < ?",
)
_FROM_ONE = """
INSERT OR REPLACE INTO replayed SELECT application, user,
    coalesce((SELECT value FROM numbers WHERE name = 'last'), 0), text FROM states
"""
_BY_INPUT = """
SELECT text FROM decisions WHERE application = ? AND user = ? AND input_hash = ?
ORDER BY number DESC LIMIT 1
"""
_BUSY_S = 10.0


class SqliteShared:
    """A shared store in a file; implements `SharedStore`."""

    def __init__(self, path: pathlib.Path) -> None:
        """Open or create the file.

        Raises:
            NotReady: the file cannot be opened.
        """
        self._path = path
        with contextlib.suppress(OSError):  # SQLite reports errors
            private_folder.close_file(path)
        with self._failing():
            # One connection for the event loop, which waits for no writer.
            self._now = _connection(path)
            self._later = _connection(path)
            with self._later as connection:
                connection.execute("BEGIN IMMEDIATE")
                _take_over(connection)
        self._turn = threading.Lock()

    def close(self) -> None:
        """Close the file."""
        with self._turn:
            self._now.close()
            self._later.close()

    def reserve_ids(self, count: int, *, at_least: int) -> int:
        """Implement `SharedStore.reserve_ids`."""
        with self._writing() as connection:
            first = max(at_least, _number(connection, _IDS))
            connection.execute(_SET, (_IDS, first + count))
        return first

    def append(self, told: Sequence[Told]) -> list[int]:
        """Implement `SharedStore.append`."""
        if not told:
            return []
        places = []
        with self._writing() as connection:
            place = _number(connection, _LAST)
            for one in told:
                taken = connection.execute(
                    "INSERT OR IGNORE INTO taken VALUES (?, ?)", (one.key, place + 1)
                )
                if taken.rowcount > 0:
                    place += 1
                    connection.execute("INSERT INTO log VALUES (?, ?, ?, ?)", (place, *one))
                at = "SELECT place FROM taken WHERE key = ?"
                places.append(int(connection.execute(at, (one.key,)).fetchone()[0]))
                connection.execute("DELETE FROM decisions WHERE key = ?", (one.key,))
            connection.execute(_SET, (_LAST, place))
            connection.execute("DELETE FROM taken WHERE place <= ?", (place - KEPT_KEYS,))
        return places

    def read(self, after: int, most: int) -> Page:
        """Implement `SharedStore.read`."""
        with self._failing(), self._turn, self._later as connection:
            connection.execute("BEGIN")
            base, trimmed, last = (_number(connection, name) for name in (_BASE, _TRIMMED, _LAST))
            rows = connection.execute(
                "SELECT place, key, application, text FROM log WHERE place > ? ORDER BY place LIMIT ?",
                (after, most),
            ).fetchall()
        places = [Place(place, Told(key, name, text)) for place, key, name, text in rows]
        return Page(base, trimmed, last, places)

    def load(self, keys: Sequence[StateKey]) -> dict[StateKey, PlacedState]:
        """Implement `SharedStore.load`."""
        with self._failing(), self._turn:
            found = {key: _state(self._later, key) for key in keys}
        return {key: state for key, state in found.items() if state is not None}

    def save(
        self,
        states: Mapping[StateKey, PlacedState],
        *,
        base: int,
        deleted: Mapping[str, int],
        most_users: Mapping[str, int],
    ) -> None:
        """Implement `SharedStore.save`."""
        with self._writing() as connection:
            last = _number(connection, _LAST)
            if base > last:
                return
            connection.executemany(_SAVE, [(*key, *state) for key, state in states.items()])
            for name, place in deleted.items():
                for older in _DELETE:
                    connection.execute(older, (name, place))
            for name, most in most_users.items():
                connection.execute(_FORGET, {"name": name, "most": most})
            base = max(base, _number(connection, _BASE))
            trimmed = max(_number(connection, _TRIMMED), min(base, last - KEPT_PLACES))
            connection.executemany(_SET, [(_BASE, base), (_TRIMMED, trimmed)])
            connection.execute("DELETE FROM log WHERE place <= ?", (trimmed,))

    def keep_decisions(self, decisions: Sequence[KeptDecision]) -> None:
        """Implement `SharedStore.keep_decisions`."""
        if not decisions:
            return
        with self._writing() as connection:
            place = _number(connection, _LAST)
            for one in decisions:
                facts = {"place": place, "written": _written(connection, one.application)}
                connection.execute(_KEEP, one._asdict() | facts)
            bounds = {"most": KEPT_DECISIONS, "most_bytes": KEPT_BYTES}
            for name in {one.application for one in decisions}:
                written = _written(connection, name)
                connection.execute(_DROP, {"application": name, "written": written, **bounds})

    def find_decision(self, application: str, key: int) -> str | None:
        """Implement `SharedStore.find_decision`."""
        found = "SELECT text FROM decisions WHERE application = ? AND key = ?"
        with self._failing():
            row = self._now.execute(found, (application, key)).fetchone()
        return None if row is None else str(row[0])

    def find_by_input(self, application: str, user: str, input_hash: str) -> str | None:
        """Implement `SharedStore.find_by_input`."""
        with self._failing():
            for one in dict.fromkeys((user, "")):
                row = self._now.execute(_BY_INPUT, (application, one, input_hash)).fetchone()
                if row is not None:
                    return str(row[0])
        return None

    def load_now(self, key: StateKey) -> PlacedState | None:
        """Implement `SharedStore.load_now`."""
        with self._failing():
            return _state(self._now, key)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._failing(), self._turn, self._later as connection:  # one transaction
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise NotReady(f"the states' file {self._path} cannot be used: {error}") from error


def _connection(path: pathlib.Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.executescript(_SCHEMA)
    return connection


def _take_over(connection: sqlite3.Connection) -> None:
    """Move the states that a gateway learnt which was alone, and so later than those here."""
    found = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'states'"
    if connection.execute(found).fetchone() is not None:
        connection.execute(_FROM_ONE)
        connection.execute("DELETE FROM states")


def _number(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
    return 0 if row is None else int(row[0])


def _written(connection: sqlite3.Connection, application: str) -> int:
    row = connection.execute(_WRITTEN, (application,)).fetchone()
    return 0 if row is None else int(row[0])


def _state(connection: sqlite3.Connection, key: StateKey) -> PlacedState | None:
    found = "SELECT place, text FROM replayed WHERE application = ? AND user = ?"
    row = connection.execute(found, key).fetchone()
    return None if row is None else PlacedState(int(row[0]), str(row[1]))
