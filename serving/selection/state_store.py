"""Where states are kept, one text per application and user context.

In: texts, as `Selector.stored` makes them. Out: the same texts, after a restart too. A save is
never lost to a later save of the same context that was made before it, and a load sees every save
of this process. `MemoryStore` keeps them for the life of the process; `sqlite_store.py` and
`redis_store.py` for longer.

Contexts are user names; the empty one is everybody's.
"""

from __future__ import annotations

from typing import Protocol

EVERYBODY = ""
"""The context that is no single user's."""


class StateStore(Protocol):
    """Texts by application and user context. Belongs to one thread."""

    def load(self, application: str, user: str) -> str | None:
        """The last text that was saved; None: none was.

        Raises:
            NotReady: the store cannot be reached.
        """
        ...

    def save(self, application: str, user: str, text: str) -> None:
        """Keep a text in place of the last one; it is durable after the next batch, or `flush`.

        Raises:
            NotReady: the store takes nothing for so long that too much waits for it already.
        """
        ...

    def delete(self, application: str, user: str | None = None) -> None:
        """Forget one context, or (None) all of an application."""
        ...

    def users(self, application: str) -> list[str]:
        """The contexts of an application, sorted.

        Raises:
            NotReady: the store cannot be reached.
        """
        ...

    def keep_most(self, application: str, most: int) -> None:
        """Keep so many users' contexts of an application at most, everybody's apart.

        Where there are more, those go that were saved the longest ago, up to a hundredth of them at a time.
        """
        ...

    def flush(self) -> None:
        """Return when everything saved so far is durable.

        Raises:
            NotReady: it cannot be written; it is kept and tried again.
        """
        ...

    def close(self) -> None:
        """Flush what can be flushed, and let go of files and connections."""
        ...


class MemoryStore:
    """Texts in a dictionary."""

    def __init__(self) -> None:
        self._texts: dict[str, dict[str, str]] = {}
        """Of each application those saved last come last."""
        self._most: dict[str, int] = {}

    def load(self, application: str, user: str) -> str | None:
        """See `StateStore`."""
        return self._texts.get(application, {}).get(user)

    def save(self, application: str, user: str, text: str) -> None:
        """See `StateStore`."""
        texts = self._texts.setdefault(application, {})
        texts.pop(user, None)
        texts[user] = text
        most = self._most.get(application)
        if most is not None and len(texts) - (EVERYBODY in texts) > most:
            oldest = next(name for name in texts if name != EVERYBODY)
            del texts[oldest]

    def delete(self, application: str, user: str | None = None) -> None:
        """See `StateStore`."""
        if user is None:
            self._texts.pop(application, None)
        else:
            self._texts.get(application, {}).pop(user, None)

    def users(self, application: str) -> list[str]:
        """See `StateStore`."""
        return sorted(self._texts.get(application, {}))

    def keep_most(self, application: str, most: int) -> None:
        """See `StateStore`; those that there are already go one by one with later saves."""
        self._most[application] = most

    def flush(self) -> None:
        """See `StateStore`; there is nothing to wait for."""

    def close(self) -> None:
        """See `StateStore`."""
