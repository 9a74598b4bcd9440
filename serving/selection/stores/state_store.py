"""Interface of state stores, one text per application and user, and a store in memory.

A load sees every save of this process. The empty user is the shared state.
"""

from __future__ import annotations

from typing import Protocol

EVERYBODY = ""


class StateStore(Protocol):
    """Texts by application and user; single-threaded."""

    def load(self, application: str, user: str) -> str | None:
        """Return the last saved text, if any.

        Raises:
            NotReady: the store is unavailable.
        """
        ...

    def save(self, application: str, user: str, text: str) -> None:
        """Replace a text; durable after the next batch or `flush`.

        Raises:
            NotReady: too many writes wait.
        """
        ...

    def delete(self, application: str) -> None:
        """Delete all texts of an application."""
        ...

    def keep_most(self, application: str, most: int) -> None:
        """Limit an application's users; those saved longest ago are deleted."""
        ...

    def flush(self) -> None:
        """Wait until everything saved is durable.

        Raises:
            NotReady: the write failed and will be retried.
        """
        ...

    def close(self) -> None:
        """Flush if possible, and close files and connections."""
        ...


class MemoryStore:
    """State store in a dictionary."""

    def __init__(self) -> None:
        self._texts: dict[str, dict[str, str]] = {}
        self._most: dict[str, int] = {}

    def load(self, application: str, user: str) -> str | None:
        """Return the last saved text, if any."""
        return self._texts.get(application, {}).get(user)

    def save(self, application: str, user: str, text: str) -> None:
        """Replace a text."""
        texts = self._texts.setdefault(application, {})
        texts.pop(user, None)
        texts[user] = text
        most = self._most.get(application)
        if most is not None and len(texts) - (EVERYBODY in texts) > most:
            oldest = next(name for name in texts if name != EVERYBODY)
            del texts[oldest]

    def delete(self, application: str) -> None:
        """Delete all texts of an application."""
        self._texts.pop(application, None)

    def keep_most(self, application: str, most: int) -> None:
        """Limit an application's users; excess ones go one per later save."""
        self._most[application] = most

    def flush(self) -> None:
        """Do nothing: no text is durable."""

    def close(self) -> None:
        """Do nothing: nothing is open."""
