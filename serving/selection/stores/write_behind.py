"""Write-behind queue of states: a thread writes saves in batches.

`write` gets batches in order, with each user's last text only, and writes atomically. A failed
batch is retried. A killed process loses at most the last `interval_s` and the batch being written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from serving.errors import NotReady

log = logging.getLogger(__name__)

Key = tuple[str, str]

MAX_WAITING = 65_536
"""Waiting states beyond which new ones are rejected."""


class WriteBatch:
    """Changes written together: deletions first, then texts."""

    __slots__ = ("applications", "texts")

    def __init__(self) -> None:
        self.applications: set[str] = set()
        self.texts: dict[Key, str | None] = {}
        """Last saved last; None: delete."""

    def __bool__(self) -> bool:
        return bool(self.applications or self.texts)

    def save(self, key: Key, text: str | None) -> None:
        """Set or delete (None) a state."""
        self.texts.pop(key, None)
        self.texts[key] = text

    def delete_all(self, application: str) -> None:
        """Delete an application's states."""
        self.applications.add(application)
        self.texts = {key: text for key, text in self.texts.items() if key[0] != application}

    def then(self, later: WriteBatch) -> WriteBatch:
        """Merge with a later batch."""
        both = WriteBatch()
        both.applications, both.texts = set(self.applications), dict(self.texts)
        for application in later.applications:
            both.delete_all(application)
        both.texts |= later.texts
        return both

    def of(self, key: Key) -> tuple[bool, str | None]:
        """Return whether this batch determines a state, and its text."""
        if key in self.texts:
            return True, self.texts[key]
        return key[0] in self.applications, None


class _Outage:
    def __init__(self, begins: str, ends: str) -> None:
        self._begins = begins
        self._ends = ends
        self._is_on = False

    def tell(self, error: Exception | None) -> None:
        """Record a failure, or (None) a success."""
        if error is not None and not self._is_on:
            log.error(self._begins, extra={"reason": str(error)})
        elif error is None and self._is_on:
            log.info(self._ends)
        self._is_on = error is not None


class WriteBehind:
    """Writer thread, which alone calls `write`.

    Methods except `close` are thread-safe.
    """

    def __init__(
        self,
        write: Callable[[WriteBatch], None],
        *,
        interval_s: float,
        name: str,
        most: int = MAX_WAITING,
    ) -> None:
        self._write = write
        self._most = most
        self._interval_s = interval_s
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
            "states cannot be read; queries are decided without learnt states",
            "states can be read again",
        )
        self._hurried = False
        self._closing = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def save(self, key: Key, text: str) -> None:
        """Queue a text.

        Raises:
            NotReady: too many states wait.
        """
        with self._changed:
            waiting, writing = self._waiting.texts, self._writing.texts
            is_full = len(waiting) + len(writing) >= self._most
            if is_full and key not in waiting and key not in writing:
                raise NotReady(
                    f"{self._most} states are already waiting to be written: {self._error}"
                )
            self._waiting.save(key, text)
            self._record_save()

    def delete(self, application: str, user: str | None) -> None:
        """Queue the deletion of one state, or (None) of an application."""
        with self._changed:
            if user is None:
                self._waiting.delete_all(application)
            else:
                self._waiting.save((application, user), None)
            self._record_save()

    def load(self, key: Key, stored: Callable[[], str | None]) -> str | None:
        """Return a state's text, pending or stored."""
        with self._changed:
            for batch in (self._waiting, self._writing):
                is_there, text = batch.of(key)
                if is_there:
                    return text
        return self._read(stored)

    def flush(self) -> None:
        """Wait until everything saved is durable.

        Raises:
            NotReady: the write failed; it is retried.
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
        """Write what is left, once, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._waiting:
            log.error("states lost", extra={"contexts": len(self._waiting.texts)})

    def _record_save(self) -> None:
        self._saved += 1
        self._changed.notify_all()

    def _read(self, stored: Callable[[], str | None]) -> str | None:
        try:
            found = stored()
        except NotReady as error:
            self._reads.tell(error)
            raise
        self._reads.tell(None)
        return found

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._hurried or self._closing)
                # Later saves join the batch.
                self._changed.wait_for(
                    lambda: self._hurried or self._closing, timeout=self._interval_s
                )
                self._hurried = False
                closing, goal = self._closing, self._saved
                self._writing, self._waiting = self._waiting, WriteBatch()
            error: Exception | None = None
            try:
                if self._writing:
                    self._write(self._writing)
            except Exception as raised:  # keep the batch on any error
                error = raised
            with self._changed:
                if error is None:
                    self._durable = goal
                else:
                    self._waiting = self._writing.then(self._waiting)
                    self._failures += 1
                    self._error = error
                self._writing = WriteBatch()
                self._changed.notify_all()
            self._writes.tell(error)
            if closing:
                return
