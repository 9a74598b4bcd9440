"""Record of changes made by management calls: strings by kind, name and version in a SQLite file.

A write is durable when it returns (`synchronous=FULL`).
"""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

from serving.errors import NotReady
from serving.system import private_folder

SCHEMA = 1

_TABLE = """
CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (kind, name, version)
)
"""
_READ = "SELECT kind, name, version, text FROM records ORDER BY id"
_DELETE = "DELETE FROM records WHERE kind = ? AND name = ? AND version = ?"
_PUT = """
INSERT INTO records (kind, name, version, text) VALUES (?, ?, ?, ?)
ON CONFLICT (kind, name, version) DO UPDATE SET text = excluded.text
"""
_BUSY_S = 5.0


class RecordKey(NamedTuple):
    """Subject of a row."""

    kind: str
    name: str
    version: str = ""


Rows = dict[RecordKey, str]


class SqliteRecords:
    """A record in a SQLite file; calls to its methods must not overlap."""

    def __init__(self, path: pathlib.Path) -> None:
        """Open or create the file.

        Raises:
            NotReady: the file cannot be opened, or a newer version of Luthier wrote it.
        """
        self._path = path
        with contextlib.suppress(OSError):  # SQLite reports the error
            private_folder.close_file(path)
        try:
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise NotReady(f"the record {path} cannot be opened: {error}") from error
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        connection = self._connection
        try:
            (schema,) = connection.execute("PRAGMA user_version").fetchone()
            if schema > SCHEMA:
                raise NotReady(
                    f"the record {self._path} was written by a newer version of Luthier (its schema is "
                    f"{schema}, this one reads {SCHEMA}); use that version, or another server.state_dir"
                )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if schema < SCHEMA:
                with connection:  # one transaction
                    connection.execute("BEGIN IMMEDIATE")
                    connection.execute(_TABLE)
                    connection.execute(f"PRAGMA user_version = {SCHEMA}")
        except sqlite3.Error as error:
            raise NotReady(
                f"the record {self._path} cannot be opened: {error}; move it away to start without"
            ) from error

    def load(self) -> Rows:
        """Return all rows, in the order in which their keys were first written.

        Raises:
            NotReady: the rows cannot be read.
        """
        try:
            return {
                RecordKey(kind, name, version): text
                for kind, name, version, text in self._connection.execute(_READ)
            }
        except sqlite3.Error as error:
            raise NotReady(
                f"the record {self._path} cannot be read: {error}; move it away to start without"
            ) from error

    def write(self, changes: Mapping[RecordKey, str | None]) -> None:
        """Write rows durably; None deletes a row.

        Raises:
            NotReady: the file cannot be written.
        """
        connection = self._connection
        try:
            with connection:  # one transaction
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(_DELETE, [k for k, text in changes.items() if text is None])
                connection.executemany(
                    _PUT, [(*key, text) for key, text in changes.items() if text is not None]
                )
        except sqlite3.Error as error:
            raise NotReady(
                f"the change is in effect, but the record {self._path} cannot be written: {error}"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
