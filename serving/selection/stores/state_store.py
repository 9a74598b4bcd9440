"""State stores, which keep one string per application and user.

`load` sees all saves made by this process. An empty user means the shared state.
"""

from __future__ import annotations

from collections.abc import Mapping

from serving.selection.stores.write_behind import WriteBehindStore

EVERYBODY = ""


class MemoryStore:
    """A state store in memory."""

    def __init__(self) -> None:
        self._texts: dict[str, dict[str, str]] = {}
        self._most: dict[str, int] = {}

    def load(self, application: str, user: str) -> str | None:
        """Return the last saved string, if any."""
        return self._texts.get(application, {}).get(user)

    def save(self, application: str, texts: Mapping[str, str]) -> None:
        """Replace the strings of users."""
        known = self._texts.setdefault(application, {})
        for user, text in texts.items():
            known.pop(user, None)
            known[user] = text
        most = self._most.get(application)
        while most is not None and len(known) - (EVERYBODY in known) > most:
            oldest = next(name for name in known if name != EVERYBODY)
            del known[oldest]

    def delete(self, application: str) -> None:
        """Delete all states of an application."""
        self._texts.pop(application, None)

    def keep_most(self, application: str, most: int) -> None:
        """Limit an application's users; each later save deletes those saved longest ago."""
        self._most[application] = most

    def flush(self) -> None:
        """Do nothing, because states are never durable."""

    def close(self) -> None:
        """Do nothing."""


StateStore = MemoryStore | WriteBehindStore
