"""State store in a SQLite file, the default.

A batch is a transaction. A killed process loses at most the last batch, a power loss the last few
(`synchronous=NORMAL`).
"""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import time
from collections.abc import Sequence

from serving.errors import NotReady
from serving.selection.stores.state_store import EVERYBODY
from serving.selection.stores.write_behind import Key, WriteBatch, WriteBehind
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
_CHANGE = "UPDATE states SET text = ?, saved = ? WHERE application = ? AND user = ?"
_ADD = "INSERT INTO states (text, saved, application, user) VALUES (?, ?, ?, ?)"
_COUNT = "SELECT count(*) FROM states WHERE application = ? AND user != ''"
_FORGET = """
DELETE FROM states WHERE application = :application AND user IN
    (SELECT user FROM states WHERE application = :application AND user != '' ORDER BY saved, user LIMIT :most)
"""
_BUSY_S = 10.0


class SqliteStore:
    """`StateStore` in a file; processes that share it see their own saves first."""

    def __init__(self, path: pathlib.Path, *, interval_s: float = 0.2) -> None:
        """Open or create the file.

        Raises:
            NotReady: it cannot be opened.
        """
        try:
            self._reader = _connection(path)
            self._writer = _connection(path)
        except sqlite3.Error as error:
            raise NotReady(f"the states' file {path} cannot be opened: {error}") from error
        self._path = path
        self._max_users: dict[str, int] = {}
        self._users: dict[str, int] = {}
        """User counts of limited applications, for the writer thread."""
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

    def keep_most(self, application: str, most: int) -> None:
        """See `StateStore`."""
        self._max_users[application] = most

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

    def _write(self, batch: WriteBatch) -> None:
        users = self._users
        self._users = {}  # recounted if this fails
        with self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.executemany(
                "DELETE FROM states WHERE application = ?",
                [(application,) for application in batch.applications],
            )
            self._writer.executemany(
                "DELETE FROM states WHERE application = ? AND user = ?",
                [key for key, text in batch.texts.items() if text is None],
            )
            added = self._write_texts(
                [(key, text) for key, text in batch.texts.items() if text is not None]
            )
            if batch.applications or None in batch.texts.values():
                users = {}
            for application, count in added.items():
                if application in self._max_users:
                    users[application] = self._delete_excess_users(
                        application, users.get(application), count
                    )
        self._users = users

    def _write_texts(self, texts: Sequence[tuple[Key, str]]) -> dict[str, int]:
        added: dict[str, int] = {}
        for at, (key, text) in enumerate(texts, time.time_ns()):
            values = (text, at, *key)
            if not self._writer.execute(_CHANGE, values).rowcount:
                self._writer.execute(_ADD, values)
                if key[1] != EVERYBODY:
                    added[key[0]] = added.get(key[0], 0) + 1
        return added

    def _delete_excess_users(self, application: str, users: int | None, added: int) -> int:
        """Delete excess users, saved longest ago; return how many remain."""
        if users is None:
            ((users,),) = self._writer.execute(_COUNT, (application,))
        else:
            users += added
        most = self._max_users[application]
        if users > most:
            too_many = users - most + most // 100
            users -= self._writer.execute(
                _FORGET, {"application": application, "most": too_many}
            ).rowcount
        return users


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
    return connection
