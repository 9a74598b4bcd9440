"""State store in Redis, for gateways on any machine; needs the extra `redis`.

States are durable if the server saves them (`appendonly yes`). Each application has a hash
`luthier:states:NAME` by user and a sorted set `luthier:saved:NAME` of users by save time. Each
batch is a MULTI/EXEC transaction. With several gateways, the last save wins.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time

from serving.errors import NotReady
from serving.selection.stores.write_behind import WriteBatch, WriteBehindStore
from serving.system import redis_client

_PREFIX = "luthier:states:"
_SAVED = "luthier:saved:"
LOAD_TIMEOUT_S = 0.1
"""Timeout of loading a state while the event loop waits.

A nearby server takes about 0.1 ms, and some tens of ms under full load.
"""
_RETRY_S = 1.0


class RedisStore(WriteBehindStore):
    """A state store in a Redis server.

    After a failure, `load` raises `NotReady` at once until the server answers again, so that an
    outage does not block the event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        interval_s: float = 0.2,
        patience_s: float = LOAD_TIMEOUT_S,
    ) -> None:
        """Connect to `redis://host:port/db`, `rediss://...` or `unix:///path/to/socket`.

        The URL must not contain a password, because settings are visible.

        Raises:
            InvalidSettings: the package is missing, or the URL is invalid or has a password.
            NotReady: the server is unavailable.
        """
        self._client = redis_client.connect(url, password)
        self._patience_s = patience_s
        self._reader = concurrent.futures.ThreadPoolExecutor(1, "states-asked")
        self._outage = ""
        self._closed = threading.Event()
        super().__init__(interval_s=interval_s, name="states-redis")

    def close(self) -> None:
        """Write the waiting states and disconnect."""
        super().close()
        self._closed.set()
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _read(self, application: str, user: str) -> str | None:
        if not self._outage:
            asked = self._reader.submit(self._client.hget, _PREFIX + application, user)
            try:
                text: str | None = asked.result(self._patience_s)
            except concurrent.futures.TimeoutError:
                self._outage = f"no response within {self._patience_s:g} s"
            except Exception as error:  # clients raise many types
                self._outage = str(error) or repr(error)
            else:
                return text
            asked.cancel()
            threading.Thread(target=self._probe, name="states-probe", daemon=True).start()
        raise NotReady(f"the Redis server of the states does not answer: {self._outage}")

    def _probe(self) -> None:
        while self._outage and not self._closed.wait(_RETRY_S):
            with contextlib.suppress(Exception):  # the next probe may succeed
                self._client.ping()
                self._outage = ""

    def _write(self, batch: WriteBatch) -> None:
        pipeline = self._client.pipeline(transaction=True)
        for application in batch.applications:
            pipeline.delete(_PREFIX + application, _SAVED + application)
        for at, ((application, user), text) in enumerate(batch.texts.items()):
            pipeline.hset(_PREFIX + application, user, text)
            if user:  # not the shared state
                pipeline.zadd(_SAVED + application, {user: time.time() + 1e-6 * at})
        pipeline.execute()
        for application in {application for application, _ in batch.texts}:
            if application in self._max_users:
                self._delete_excess_users(application, self._max_users[application])

    def _delete_excess_users(self, application: str, most: int) -> None:
        states, saved = _PREFIX + application, _SAVED + application
        too_many = self._client.zcard(saved) - most
        if too_many <= 0:
            return
        oldest = self._client.zrange(saved, 0, too_many + most // 100 - 1)
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hdel(states, *oldest)
        pipeline.zrem(saved, *oldest)
        pipeline.execute()
