"""The record in a Redis server, which gateways on several machines share.

It is one string, `luthier:records`, beside `NUMBER NONCE` of its revision: a record is small, and
changes seldom. It is durable as far as the server's persistence is (`appendfsync always`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping

from serving.errors import NotReady, StaleRevision
from serving.state.records import RecordKey, Revision, RevisionId, changed
from serving.system import redis_client

_ROWS = "luthier:records"
_REVISION = "luthier:records:revision"
_WRITE = """
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] then return 0 end
redis.call('MSET', KEYS[1], ARGV[2], KEYS[2], ARGV[3])
return 1
"""


class RedisRecords:
    """A record in a Redis server; implements `Records`."""

    def __init__(self, url: str, *, password: str | None = None) -> None:
        """Connect; raises as `redis_client.connect` does."""
        self._client = redis_client.connect(url, password)
        self._script = self._client.register_script(_WRITE)

    def revision(self) -> RevisionId:
        """Implement `Records.revision`."""
        try:
            return _id(self._client.get(_REVISION))
        except Exception as error:  # clients raise many types
            raise NotReady(f"the record in Redis cannot be read: {error}") from error

    def snapshot(self) -> Revision:
        """Implement `Records.snapshot`."""
        return self._read()[0]

    def _read(self) -> tuple[Revision, str]:
        """Return the newest revision, and the text of its id."""
        try:
            text, id_ = self._client.mget(_ROWS, _REVISION)  # both of one moment
            rows = {RecordKey(*key): row for key, row in json.loads(text or "[]")}
            # Without its rows, as after an eviction, it is not the revision that the id names.
            return Revision(_id(id_ if text else None), rows), id_ or ""
        except Exception as error:
            raise NotReady(f"the record in Redis cannot be read: {error}") from error

    def write(
        self,
        changes: Mapping[RecordKey, str | None],
        revision: RevisionId | None = None,
        above: int = 0,
    ) -> RevisionId:
        """Implement `Records.write`."""
        while True:
            base, base_id = self._read()
            if revision is not None and base.id != revision:
                raise StaleRevision(base.id.number)
            written = RevisionId(max(base.id.number, above) + 1, secrets.token_hex(8))
            rows = json.dumps(list(changed(base.rows, dict(changes)).items()))
            try:
                id_ = f"{written.number} {written.nonce}"
                if self._script(keys=[_ROWS, _REVISION], args=[base_id, rows, id_]):
                    return written
            except Exception as error:
                raise NotReady(f"the record in Redis cannot be written: {error}") from error
            # Another write came between, which the next turn sees.

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _id(text: str | None) -> RevisionId:
    number, _, nonce = (text or "0").partition(" ")
    return RevisionId(int(number), nonce)
