"""Base class of state stores outside this process, where a thread writes saves in batches.

A failed batch is retried. If the process is killed, at most the saves of the last `interval_s` and
the batch being written are lost.
"""

from __future__ import annotations

import abc
import logging
import threading
from collections.abc import Mapping

from serving.errors import NotReady

log = logging.getLogger(__name__)

MAX_WAITING = 65_536
"""Maximum number of waiting states, beyond which new ones are rejected."""


class WriteBatch:
    """Changes written together: first deletions of applications, then states."""

    __slots__ = ("applications", "texts")

    def __init__(self) -> None:
        self.applications: set[str] = set()
        self.texts: dict[tuple[str, str], str] = {}
        """Serialized states by application and user, in the order of saving."""

    def delete_all(self, application: str) -> None:
        """Delete all states of an application."""
        self.applications.add(application)
        self.texts = {key: text for key, text in self.texts.items() if key[0] != application}

    def add(self, later: WriteBatch) -> None:
        """Add the changes of a later batch."""
        for application in later.applications:
            self.delete_all(application)
        self.texts |= later.texts


class _Outage:
    def __init__(self, begins: str, ends: str) -> None:
        self._begins = begins
        self._ends = ends
        self._is_on = False

    def report(self, error: Exception | None) -> None:
        """Log the first failure, and the first success (`error` is None) after it."""
        if error is not None and not self._is_on:
            log.error(self._begins, extra={"reason": str(error)})
        elif error is None and self._is_on:
            log.info(self._ends)
        self._is_on = error is not None


class WriteBehindStore(abc.ABC):
    """A state store that reads and writes elsewhere; thread-safe except for `close`."""

    def __init__(self, *, interval_s: float, name: str, max_waiting: int = MAX_WAITING) -> None:
        """Start the writer thread; a subclass calls this once it can write."""
        self._max_waiting = max_waiting
        self._interval_s = interval_s
        self._max_users: dict[str, int] = {}
        self._changed = threading.Condition()
        self._waiting = WriteBatch()
        self._writing = WriteBatch()
        self._saved = 0
        self._durable = 0
        self._failures = 0
        self._writes = _Outage(
            "states not written; they are kept for another try", "states are written again"
        )
        self._reads = _Outage(
            "states cannot be read; queries are decided without learned states",
            "states can be read again",
        )
        self._hurried = False
        self._closing = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @abc.abstractmethod
    def _read(self, application: str, user: str) -> str | None:
        """Return the written string, if any, or raise `NotReady`."""

    @abc.abstractmethod
    def _write(self, batch: WriteBatch) -> None:
        """Write the whole batch, or raise an error; called by the writer thread."""

    def load(self, application: str, user: str) -> str | None:
        """Return the last saved string, waiting or written, if any.

        Raises:
            NotReady: the store is unavailable.
        """
        with self._changed:
            for batch in (self._waiting, self._writing):
                if (application, user) in batch.texts:
                    return batch.texts[application, user]
                if application in batch.applications:
                    return None
        try:
            found = self._read(application, user)
        except NotReady as error:
            self._reads.report(error)
            raise
        self._reads.report(None)
        return found

    def save(self, application: str, texts: Mapping[str, str]) -> None:
        """Replace the strings of users together; they are durable after the next batch or `flush`.

        Raises:
            NotReady: too many states are waiting to be written; none is replaced.
        """
        with self._changed:
            waiting, writing = self._waiting.texts, self._writing.texts
            new = {(application, user) for user in texts} - waiting.keys() - writing.keys()
            if new and len(waiting) + len(writing) + len(new) > self._max_waiting:
                raise NotReady(
                    f"{self._max_waiting} states are already waiting to be written: {self._error}"
                )
            for user, text in texts.items():
                waiting.pop((application, user), None)
                waiting[application, user] = text
            self._note_change()

    def delete(self, application: str) -> None:
        """Delete all states of an application."""
        with self._changed:
            self._waiting.delete_all(application)
            self._note_change()

    def keep_most(self, application: str, most: int) -> None:
        """Limit an application's users, deleting those saved longest ago."""
        self._max_users[application] = most

    def flush(self) -> None:
        """Wait until everything saved is durable.

        Raises:
            NotReady: writing failed and will be retried.
        """
        with self._changed:
            goal, failures = self._saved, self._failures
            self._hurried = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._durable >= goal or self._failures > failures or self._closing
            )
            if self._durable < goal:
                raise NotReady(f"the states cannot be written: {self._error}") from self._error

    def close(self) -> None:
        """Try once to write the waiting states, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._waiting.applications or self._waiting.texts:
            log.error("states lost", extra={"contexts": len(self._waiting.texts)})

    def _note_change(self) -> None:
        self._saved += 1
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._saved > self._durable or self._hurried or self._closing
                )
                # Later saves join the batch.
                self._changed.wait_for(
                    lambda: self._hurried or self._closing, timeout=self._interval_s
                )
                self._hurried = False
                closing, goal = self._closing, self._saved
                self._writing, self._waiting = self._waiting, WriteBatch()
            error: Exception | None = None
            try:
                if self._writing.applications or self._writing.texts:
                    self._write(self._writing)
            except Exception as raised:  # keep the batch on any error
                error = raised
            with self._changed:
                if error is None:
                    self._durable = goal
                else:
                    self._writing.add(self._waiting)
                    self._waiting = self._writing
                    self._failures += 1
                    self._error = error
                self._writing = WriteBatch()
                self._changed.notify_all()
            self._writes.report(error)
            if closing:
                return
