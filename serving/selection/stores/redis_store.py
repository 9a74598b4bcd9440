"""State store in Redis, for gateways on any machine; needs the extra `redis`.

Durable if the server persists (`appendonly yes`). Each application has a hash `luthier:states:NAME`
by user and, if users are limited, a sorted set `luthier:saved:NAME` of save times. Batches are
MULTI/EXEC. An outage blocks nothing (see `reached`). With concurrent gateways the last save wins.
"""

from __future__ import annotations

import time
import urllib.parse
from typing import Any

from serving.errors import InvalidSettings, NotReady
from serving.selection.stores.circuit_breaker import CircuitBreaker
from serving.selection.stores.state_store import EVERYBODY
from serving.selection.stores.write_behind import WriteBatch, WriteBehind

_PREFIX = "luthier:states:"
_SAVED = "luthier:saved:"
_TIMEOUT_S = 2.0
"""Timeout of the store's threads."""
LOAD_TIMEOUT_S = 0.1
"""Load timeout, during which the event loop waits.

A nearby server takes a thousandth of it; full load adds some hundredths of a second.
"""
_RETRY_S = 1.0
"""Interval between probes of an unavailable server."""


def _connect(url: str, password: str | None) -> Any:
    """Return a client of a server that responds; raises as `RedisStore`."""
    try:
        import redis  # noqa: PLC0415  an extra
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415
    except ImportError:
        raise InvalidSettings(
            "server.state_store: states in Redis need the package redis: pip install '.[redis]' in a clone"
        ) from None
    options = {
        "password": password,
        "decode_responses": True,
        "socket_timeout": _TIMEOUT_S,
        "socket_connect_timeout": _TIMEOUT_S,
        "retry": Retry(NoBackoff(), 1),  # for connections broken by a server restart
    }
    try:
        address = urllib.parse.urlsplit(url)
        if address.password is not None or "password" in urllib.parse.parse_qs(address.query):
            raise InvalidSettings(
                "server.state_store: the address contains a password, which everybody "
                "who may read settings would see; set LUTHIER_STATE_STORE_PASSWORD "
                "instead"
            )
        client = redis.Redis.from_url(url, **options)
        client.ping()  # at startup, where waiting is fine
    except (TypeError, ValueError) as error:  # TypeError: unknown option
        raise InvalidSettings(f"server.state_store: the address {url!r}: {error}") from error
    except redis.RedisError as error:
        raise NotReady(f"server.state_store: the Redis server does not answer: {error}") from error
    return client


class RedisStore:
    """A `StateStore` in a Redis server."""

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        interval_s: float = 0.2,
        patience_s: float = LOAD_TIMEOUT_S,
    ) -> None:
        """Connect.

        Args:
            url: `redis://host:port/db`, `rediss://...` or `unix:///path/to/socket`, without a
                password, as settings are visible.
            password: password, if any.
            interval_s: seconds between batches.
            patience_s: load timeout.

        Raises:
            InvalidSettings: no package, or the URL is invalid or has a password.
            NotReady: the server is unavailable.
        """
        self._client = _connect(url, password)
        self._max_users: dict[str, int] = {}
        self._are_dated: set[str] = set()
        """Applications with complete save times; for the writer thread."""
        self._behind = WriteBehind(self._write, interval_s=interval_s, name="states-redis")
        self._reached = CircuitBreaker(
            "the Redis server of the states",
            self._client.ping,
            timeout_s=patience_s,
            retry_s=_RETRY_S,
        )

    def load(self, application: str, user: str) -> str | None:
        """See `StateStore`."""
        name = _PREFIX + application
        return self._behind.load(
            (application, user), lambda: self._reached.ask(lambda: self._client.hget(name, user))
        )

    def save(self, application: str, user: str, text: str) -> None:
        """See `StateStore`."""
        self._behind.save((application, user), text)

    def delete(self, application: str, user: str | None = None) -> None:
        """See `StateStore`."""
        self._behind.delete(application, user)

    def keep_most(self, application: str, most: int) -> None:
        """See `StateStore`."""
        self._max_users[application] = most

    def flush(self) -> None:
        """See `StateStore`."""
        self._behind.flush()

    def close(self) -> None:
        """See `StateStore`."""
        self._behind.close()
        self._reached.close()
        self._client.close()

    def _write(self, batch: WriteBatch) -> None:
        pipeline = self._client.pipeline(transaction=True)
        dates: dict[str, dict[str, float]] = {}
        for application in batch.applications:
            pipeline.delete(_PREFIX + application, _SAVED + application)
        for (application, user), text in batch.texts.items():
            if text is None:
                pipeline.hdel(_PREFIX + application, user)
                pipeline.zrem(_SAVED + application, user)
            else:
                pipeline.hset(_PREFIX + application, user, text)
                if user != EVERYBODY and application in self._max_users:
                    of_users = dates.setdefault(application, {})
                    of_users[user] = time.time() + 1e-6 * len(of_users)
        for application, of_users in dates.items():
            pipeline.zadd(_SAVED + application, of_users)
        pipeline.execute()
        for application in dates:
            self._bound(application)

    def _bound(self, application: str) -> None:
        """Delete the users saved longest ago beyond the limit."""
        states, saved, most = (
            _PREFIX + application,
            _SAVED + application,
            self._max_users[application],
        )
        if (
            application not in self._are_dated
        ):  # users saved before there was a limit are the oldest
            of_before = dict.fromkeys(self._client.hkeys(states), 0.0)
            of_before.pop(EVERYBODY, None)
            if of_before:
                self._client.zadd(saved, of_before, nx=True)
            self._are_dated.add(application)
        too_many = self._client.zcard(saved) - most
        if too_many <= 0:
            return
        oldest = self._client.zrange(saved, 0, too_many + most // 100 - 1)
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hdel(states, *oldest)
        pipeline.zrem(saved, *oldest)
        pipeline.execute()
