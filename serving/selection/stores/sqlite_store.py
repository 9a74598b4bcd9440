"""State store in a SQLite file, the default.

A batch is a transaction. If the process is killed, at most the last batch is lost; in a power
failure, the last few (`synchronous=NORMAL`).
"""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import time

from serving.errors import NotReady
from serving.selection.stores.write_behind import WriteBatch, WriteBehindStore
from serving.system import private_folder

_SCHEMA = """
CREATE TABLE IF NOT EXISTS states (
    application TEXT NOT NULL,
    user TEXT NOT NULL,
    text TEXT NOT NULL,
    saved INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (application, user)
) WITHOUT ROWID
"""
_ADD_SAVED = "ALTER TABLE states ADD COLUMN saved INTEGER NOT NULL DEFAULT 0"
_BY_AGE = "CREATE INDEX IF NOT EXISTS states_by_age ON states (application, saved)"
_LOAD = "SELECT text FROM states WHERE application = ? AND user = ?"
_DELETE = "DELETE FROM states WHERE application = ?"
_ADD = "INSERT OR IGNORE INTO states (text, saved, application, user) VALUES (?, ?, ?, ?)"
_CHANGE = "UPDATE states SET text = ?, saved = ? WHERE application = ? AND user = ?"
_COUNT = "SELECT count(*) FROM states WHERE application = ? AND user != ''"
_FORGET = """
DELETE FROM states WHERE application = :application AND user IN
    (SELECT user FROM states WHERE application = :application AND user != '' ORDER BY saved, user LIMIT :most)
"""
_FROM_SEVERAL = """
INSERT OR REPLACE INTO states (application, user, text, saved)
SELECT application, user, text, place FROM replayed
"""
_BUSY_S = 10.0


class SqliteStore(WriteBehindStore):
    """A state store in a file, which processes may share."""

    def __init__(self, path: pathlib.Path, *, interval_s: float = 0.2) -> None:
        """Open or create the file.

        Raises:
            NotReady: the file cannot be opened.
        """
        try:
            self._reader = _connection(path)
            self._writer = _connection(path)
        except sqlite3.Error as error:
            raise NotReady(f"the states' file {path} cannot be opened: {error}") from error
        self._path = path
        super().__init__(interval_s=interval_s, name="states-sqlite")

    def close(self) -> None:
        """Write the waiting states and close the file."""
        super().close()
        self._reader.close()
        self._writer.close()

    def _read(self, application: str, user: str) -> str | None:
        try:
            row = self._reader.execute(_LOAD, (application, user)).fetchone()
        except sqlite3.Error as error:
            raise NotReady(f"the states' file {self._path} cannot be read: {error}") from error
        text: str | None = None if row is None else row[0]
        return text

    def _write(self, batch: WriteBatch) -> None:
        saved = [
            (text, at, *key) for at, (key, text) in enumerate(batch.texts.items(), time.time_ns())
        ]
        with self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.executemany(_DELETE, [(name,) for name in batch.applications])
            self._writer.executemany(_CHANGE, saved)
            if self._writer.executemany(_ADD, saved).rowcount > 0:
                for application in {application for application, _ in batch.texts}:
                    if application in self._max_users:
                        self._delete_excess_users(application, self._max_users[application])

    def _delete_excess_users(self, application: str, most: int) -> None:
        ((users,),) = self._writer.execute(_COUNT, (application,))
        if users > most:
            too_many = users - most + most // 100
            self._writer.execute(_FORGET, {"application": application, "most": too_many})


def _connection(path: pathlib.Path) -> sqlite3.Connection:
    with contextlib.suppress(OSError):  # SQLite reports errors
        private_folder.close_file(path)
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(_SCHEMA)
    if "saved" not in [row[1] for row in connection.execute("PRAGMA table_info(states)")]:
        connection.execute(_ADD_SAVED)  # file of an older version
    connection.execute(_BY_AGE)
    found = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'replayed'"
    if connection.execute(found).fetchone() is not None:  # several gateways were here
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_FROM_SEVERAL)
            connection.execute("DELETE FROM replayed")
    return connection
