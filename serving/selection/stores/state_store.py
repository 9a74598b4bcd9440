"""State stores: one text per application and user.

A load sees every save of this process. The empty user is the shared state.
"""

from __future__ import annotations

from serving.selection.stores.write_behind import WriteBehindStore

EVERYBODY = ""


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


StateStore = MemoryStore | WriteBehindStore
