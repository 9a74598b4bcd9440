"""States in a SQLite file, the default.

In: texts by application and user context. Out: the same after a restart. Saves are written in
batches, each one transaction in a write-ahead log: a process killed at any moment leaves a whole
file that lacks at most the last batch. `synchronous=NORMAL` syncs at checkpoints only, so a loss of
power may take the last batches as well, never the file.
"""

from __future__ import annotations

import pathlib
import sqlite3

from serving.errors import NotReady
from serving.selection.write_behind import Batch, WriteBehind

_SCHEMA = """
CREATE TABLE IF NOT EXISTS states (
    application TEXT NOT NULL,
    user TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (application, user)
) WITHOUT ROWID
"""
_BUSY_S = 10.0
"""How long a statement waits for another process that holds the file."""


class SqliteStore:
    """A `StateStore` in a file; several processes may share it, each sees its own saves first."""

    def __init__(self, path: pathlib.Path, *, interval_s: float = 0.2) -> None:
        """Open the file, and make it where there is none.

        Raises:
            NotReady: it cannot be opened.
        """
        try:
            self._reader = _connection(path)
            self._writer = _connection(path)
        except sqlite3.Error as error:
            raise NotReady(f"the states' file {path} cannot be opened: {error}") from error
        self._path = path
        self._behind = WriteBehind(self._write, interval_s=interval_s, name="states-sqlite")

    def load(self, application: str, user: str) -> str | None:
        """See `StateStore`."""
        statement = "SELECT text FROM states WHERE application = ? AND user = ?"
        return self._behind.load(
            (application, user), lambda: next(iter(self._read(statement, application, user)), None)
        )

    def save(self, application: str, user: str, text: str) -> None:
        """See `StateStore`."""
        self._behind.save((application, user), text)

    def delete(self, application: str, user: str | None = None) -> None:
        """See `StateStore`."""
        self._behind.delete(application, user)

    def users(self, application: str) -> list[str]:
        """See `StateStore`."""
        statement = "SELECT user FROM states WHERE application = ?"
        return self._behind.users(application, lambda: self._read(statement, application))

    def flush(self) -> None:
        """See `StateStore`."""
        self._behind.flush()

    def close(self) -> None:
        """See `StateStore`."""
        self._behind.close()
        self._reader.close()
        self._writer.close()

    def _read(self, statement: str, *values: str) -> list[str]:
        try:
            return [row[0] for row in self._reader.execute(statement, values)]
        except sqlite3.Error as error:
            raise NotReady(f"the states' file {self._path} cannot be read: {error}") from error

    def _write(self, batch: Batch) -> None:
        with self._writer:  # one transaction
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.executemany(
                "DELETE FROM states WHERE application = ?",
                [(application,) for application in batch.applications],
            )
            self._writer.executemany(
                "DELETE FROM states WHERE application = ? AND user = ?",
                [key for key, text in batch.texts.items() if text is None],
            )
            self._writer.executemany(
                "INSERT OR REPLACE INTO states VALUES (?, ?, ?)",
                [(*key, text) for key, text in batch.texts.items() if text is not None],
            )


def _connection(path: pathlib.Path) -> sqlite3.Connection:
    """A connection in autocommit mode; writes are kept to one thread by `WriteBehind`."""
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(_SCHEMA)
    return connection
