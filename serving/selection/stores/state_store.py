"""State stores, which keep one string per application and user.

`load` sees all saves made by this process. An empty user means the shared state.
"""

from __future__ import annotations

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

    def save(self, application: str, user: str, text: str) -> None:
        """Replace a user's string."""
        texts = self._texts.setdefault(application, {})
        texts.pop(user, None)
        texts[user] = text
        most = self._most.get(application)
        if most is not None and len(texts) - (EVERYBODY in texts) > most:
            oldest = next(name for name in texts if name != EVERYBODY)
            del texts[oldest]

    def delete(self, application: str) -> None:
        """Delete all states of an application."""
        self._texts.pop(application, None)

    def keep_most(self, application: str, most: int) -> None:
        """Limit an application's users; each later save deletes one if there are more."""
        self._most[application] = most

    def flush(self) -> None:
        """Do nothing, because states are never durable."""

    def close(self) -> None:
        """Do nothing."""


StateStore = MemoryStore | WriteBehindStore
