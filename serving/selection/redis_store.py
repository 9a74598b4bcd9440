"""States in a Redis server, for several gateways that share them; needs `pip install luthier[redis]`.

In: texts by application and user context. Out: the same after a restart of the gateway; after one
of the server, as far as that server persists (`appendonly yes`). One hash per application,
`luthier:states:NAME`, its fields the users. Saves are written in batches, each one MULTI/EXEC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from serving.errors import InvalidSettings, NotReady
from serving.selection.write_behind import Batch, WriteBehind

_PREFIX = "luthier:states:"
_TIMEOUT_S = 2.0
"""How long a load waits for a server that does not answer; the event loop waits with it."""


class RedisStore:
    """A `StateStore` in a Redis server."""

    def __init__(self, url: str, *, interval_s: float = 0.2) -> None:
        """Connect.

        Args:
            url: `redis://host:port/db`, `rediss://...` or `unix:///path/to/socket`.
            interval_s: seconds between batches.

        Raises:
            InvalidSettings: the package is not installed, or the address is none.
            NotReady: the server does not answer.
        """
        try:
            import redis  # noqa: PLC0415  an extra
        except ImportError:
            raise InvalidSettings(
                "states in Redis need the package redis: pip install 'luthier[redis]'"
            ) from None
        self._error: type[Exception] = redis.RedisError
        options = {
            "decode_responses": True,
            "socket_timeout": _TIMEOUT_S,
            "socket_connect_timeout": _TIMEOUT_S,
        }
        try:
            self._client: Any = redis.Redis.from_url(url, **options)
            self._client.ping()
        except ValueError as error:
            raise InvalidSettings(f"the address {url!r} of a Redis server: {error}") from error
        except self._error as error:
            raise NotReady(f"the Redis server of the states does not answer: {error}") from error
        self._behind = WriteBehind(self._write, interval_s=interval_s, name="states-redis")

    def load(self, application: str, user: str) -> str | None:
        """See `StateStore`."""
        name = _PREFIX + application
        return self._behind.load(
            (application, user), lambda: self._asked(self._client.hget, name, user)
        )

    def save(self, application: str, user: str, text: str) -> None:
        """See `StateStore`."""
        self._behind.save((application, user), text)

    def delete(self, application: str, user: str | None = None) -> None:
        """See `StateStore`."""
        self._behind.delete(application, user)

    def users(self, application: str) -> list[str]:
        """See `StateStore`."""
        name = _PREFIX + application
        return self._behind.users(application, lambda: self._asked(self._client.hkeys, name))

    def flush(self) -> None:
        """See `StateStore`."""
        self._behind.flush()

    def close(self) -> None:
        """See `StateStore`."""
        self._behind.close()
        self._client.close()

    def _asked(self, command: Callable[..., Any], *arguments: str) -> Any:
        try:
            return command(*arguments)
        except self._error as error:
            raise NotReady(f"the Redis server of the states does not answer: {error}") from error

    def _write(self, batch: Batch) -> None:
        pipeline = self._client.pipeline(transaction=True)
        for application in batch.applications:
            pipeline.delete(_PREFIX + application)
        for (application, user), text in batch.texts.items():
            if text is None:
                pipeline.hdel(_PREFIX + application, user)
            else:
                pipeline.hset(_PREFIX + application, user, text)
        pipeline.execute()
