"""Record of changes made by management calls: strings by kind, name and version.

Every write gives the record its next revision, and may demand the one that it was made on, so that
gateways over one record do not undo each other's changes. In the SQLite file, a write is durable
when it returns (`synchronous=FULL`); a record in Redis may lose its end, or all.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import sqlite3
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from serving.errors import NotReady, StaleRevision
from serving.system import private_folder

log = logging.getLogger(__name__)

SCHEMA = 1

_TABLE = """
CREATE TABLE IF NOT EXISTS records (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (kind, name, version)
)
"""
_REVISION_TABLE = "CREATE TABLE IF NOT EXISTS revision (number INTEGER NOT NULL)"
_REVISION = "SELECT coalesce(max(number), 0) FROM revision"
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
Changes = dict[RecordKey, str | None]
"""Rows to write; None deletes one."""


def difference(before: Rows, after: Rows) -> Changes:
    """Return the rows to write, or with None to delete, to come from one record to another."""
    changes: Changes = {key: text for key, text in after.items() if before.get(key) != text}
    return changes | dict.fromkeys(key for key in before if key not in after)


def changed(rows: Rows, changes: Changes) -> Rows:
    """Return the rows after changes."""
    kept = {key: text for key, text in rows.items() if changes.get(key, "") is not None}
    return kept | {key: text for key, text in changes.items() if text is not None}


class RevisionId(NamedTuple):
    """Which revision of a record it is."""

    number: int
    nonce: str = ""
    """Random where a record may lose its end: then another revision may get the number."""


class Revision(NamedTuple):
    """A record at one moment."""

    id: RevisionId
    rows: Rows
    """In the order in which their keys were first written."""


class Records(Protocol):
    """A record, which several gateways may share; its methods block, and must not overlap."""

    def revision(self) -> RevisionId:
        """Return which revision is the newest.

        Raises:
            NotReady: the record cannot be read.
        """
        ...

    def snapshot(self) -> Revision:
        """Return the newest revision.

        Raises:
            NotReady: the record cannot be read.
        """
        ...

    def write(
        self,
        changes: Mapping[RecordKey, str | None],
        revision: RevisionId | None = None,
        above: int = 0,
    ) -> RevisionId:
        """Write rows durably, where None deletes a row, and return the new revision's id.

        Its number is above the newest one's and `above`.

        Raises:
            StaleRevision: the newest revision is not the given one; nothing is written.
            NotReady: the record cannot be written.
        """
        ...

    def close(self) -> None:
        """Close the record."""
        ...


def newest(records: Records, known: Revision) -> Revision:
    """Return a record's newest revision; what it lost since a known one is written again first.

    Raises:
        NotReady: the record cannot be read or written.
    """
    while True:
        found = records.snapshot()
        if found.id == known.id or found.id.number > known.id.number:
            return found
        log.error(
            "the record has lost changes; they are written again",
            extra={"here": known.id.number, "there": found.id.number},
        )
        lost = difference(found.rows, known.rows)
        with contextlib.suppress(StaleRevision):  # another gateway writes, too
            id_ = records.write(lost, found.id, known.id.number)
            return Revision(id_, changed(found.rows, lost))


class SqliteRecords:
    """A record in a SQLite file, which processes may share."""

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
            with connection:  # one transaction
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_TABLE)
                connection.execute(_REVISION_TABLE)  # files of older versions lack it
                if schema < SCHEMA:
                    connection.execute(f"PRAGMA user_version = {SCHEMA}")
        except sqlite3.Error as error:
            raise NotReady(
                f"the record {self._path} cannot be opened: {error}; move it away to start without"
            ) from error

    def load(self) -> Rows:
        """Return all rows, as `snapshot`."""
        return self.snapshot().rows

    def revision(self) -> RevisionId:
        """Implement `Records.revision`."""
        try:
            (number,) = self._connection.execute(_REVISION).fetchone()
        except sqlite3.Error as error:
            raise NotReady(f"the record {self._path} cannot be read: {error}") from error
        return RevisionId(int(number))

    def snapshot(self) -> Revision:
        """Implement `Records.snapshot`."""
        connection = self._connection
        try:
            with connection:  # both of one moment
                connection.execute("BEGIN")
                rows = {
                    RecordKey(kind, name, version): text
                    for kind, name, version, text in connection.execute(_READ)
                }
                (number,) = connection.execute(_REVISION).fetchone()
        except sqlite3.Error as error:
            raise NotReady(
                f"the record {self._path} cannot be read: {error}; move it away to start without"
            ) from error
        return Revision(RevisionId(int(number)), rows)

    def write(
        self,
        changes: Mapping[RecordKey, str | None],
        revision: RevisionId | None = None,
        above: int = 0,
    ) -> RevisionId:
        """Implement `Records.write`."""
        connection = self._connection
        try:
            with connection:  # one transaction
                connection.execute("BEGIN IMMEDIATE")
                (number,) = connection.execute(_REVISION).fetchone()
                if revision is not None and revision != RevisionId(number):
                    raise StaleRevision(number)
                written = RevisionId(max(number, above) + 1)
                connection.execute("DELETE FROM revision")
                connection.execute("INSERT INTO revision VALUES (?)", (written.number,))
                connection.executemany(_DELETE, [k for k, text in changes.items() if text is None])
                connection.executemany(
                    _PUT, [(*key, text) for key, text in changes.items() if text is not None]
                )
        except sqlite3.Error as error:
            raise NotReady(f"the record {self._path} cannot be written: {error}") from error
        return written

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
