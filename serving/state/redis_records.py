"""The record in a Redis server, which gateways on several machines share.

It is one string, `luthier:records`, beside the number of its revision: a record is small, and
changes seldom. It is durable as far as the server's persistence is (`appendfsync always`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from serving.errors import NotReady, StaleRevision
from serving.state.records import RecordKey, Revision
from serving.system import redis_client

_ROWS = "luthier:records"
_REVISION = "luthier:records:revision"
_WRITE = """
local now = tonumber(redis.call('GET', KEYS[2]) or '0')
if now ~= tonumber(ARGV[1]) then return {0, now} end
redis.call('SET', KEYS[1], ARGV[2])
return {1, redis.call('INCR', KEYS[2])}
"""


class RedisRecords:
    """A record in a Redis server; implements `Records`."""

    def __init__(self, url: str, *, password: str | None = None) -> None:
        """Connect; raises as `redis_client.connect` does."""
        self._client = redis_client.connect(url, password)
        self._script = self._client.register_script(_WRITE)

    def revision(self) -> int:
        """Implement `Records.revision`."""
        try:
            return int(self._client.get(_REVISION) or 0)
        except Exception as error:  # clients raise many types
            raise NotReady(f"the record in Redis cannot be read: {error}") from error

    def snapshot(self) -> Revision:
        """Implement `Records.snapshot`."""
        try:
            text, number = self._client.mget(_ROWS, _REVISION)  # both of one moment
            rows = {RecordKey(*key): row for key, row in json.loads(text or "[]")}
        except Exception as error:
            raise NotReady(f"the record in Redis cannot be read: {error}") from error
        return Revision(int(number or 0), rows)

    def write(self, changes: Mapping[RecordKey, str | None], revision: int | None = None) -> int:
        """Implement `Records.write`."""
        while True:
            base = self.snapshot()
            if revision is not None and base.number != revision:
                raise StaleRevision(base.number)
            rows: dict[RecordKey, str] = dict(base.rows)
            for key, text in changes.items():
                if text is None:
                    rows.pop(key, None)
                else:
                    rows[key] = text
            try:
                written, number = self._script(
                    keys=[_ROWS, _REVISION], args=[base.number, json.dumps(list(rows.items()))]
                )
            except Exception as error:
                raise NotReady(f"the record in Redis cannot be written: {error}") from error
            if written:
                return int(number)
            # Another write came between, which the next turn sees.

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
