"""What gateways on several machines share of selection, in a Redis server; needs the extra `redis`.

It is durable if the server saves it (`appendonly yes`). Each write is one script, so whole or not at
all. Keys begin with `luthier:`; a script's first key is that of the application or the log.

    luthier:ids                       next id
    luthier:log                       stream of told texts by place; :last :base :trimmed :taken
    luthier:replayed:NAME             hash of `PLACE TEXT` by user; :places users by place
    luthier:decisions:NAME            hash of texts by key; :order by place, :inputs, :keys, :bytes
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from serving.errors import NotReady
from serving.selection.stores.shared_store import (
    KEPT_BYTES,
    KEPT_DECISIONS,
    KEPT_KEYS,
    KEPT_PLACES,
    KeptDecision,
    Page,
    Place,
    PlacedState,
    StateKey,
    Told,
)
from serving.system import redis_client

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_IDS, _LOG = "luthier:ids", "luthier:log"
_LAST, _BASE, _TRIMMED, _TAKEN = (f"{_LOG}:{name}" for name in ("last", "base", "trimmed", "taken"))
_REPLAYED, _DECISIONS = "luthier:replayed:", "luthier:decisions:"
LOAD_TIMEOUT_S = 0.1
"""Timeout of a call while the event loop waits.

A nearby server takes about 0.1 ms, and some tens of ms under full load.
"""
_RETRY_S = 1.0

# Lua writes large numbers as 1e+15 unless told otherwise.
_RESERVE = """
local first = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), tonumber(ARGV[2]))
redis.call('SET', KEYS[1], string.format('%.0f', first + tonumber(ARGV[1])))
return string.format('%.0f', first)
"""
_DROP = """
local function drop(decisions, key)
  if redis.call('ZREM', decisions .. ':order', key) == 0 then return end
  local held = redis.call('HSTRLEN', decisions, key)
  local inputs, keys = decisions .. ':inputs', decisions .. ':keys'
  local input = redis.call('HGET', keys, key)
  if input and redis.call('HGET', inputs, input) == key then redis.call('HDEL', inputs, input) end
  redis.call('HDEL', keys, key)
  redis.call('HDEL', decisions, key)
  redis.call('DECRBY', decisions .. ':bytes', held)
end
"""
_APPEND = f"""{_DROP}
local places = {{}}
for i = 2, #ARGV, 3 do
  local key, name, text = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local place = redis.call('ZSCORE', KEYS[3], key)
  if not place then
    place = redis.call('INCR', KEYS[2])
    redis.call('XADD', KEYS[1], string.format('%.0f-0', place), 'k', key, 'a', name, 't', text)
    redis.call('ZADD', KEYS[3], place, key)
  end
  places[#places + 1] = tonumber(place)
  drop(KEYS[4] .. name, key)
end
redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -tonumber(ARGV[1]) - 1)
return places
"""
_SAVE = f"""{_DROP}
local function number(key) return tonumber(redis.call('GET', key) or '0') end
local data = cjson.decode(ARGV[1])
if data.base > number(KEYS[5]) then return end
for _, one in ipairs(data.states) do
  local name, user, place, text = one[1], one[2], one[3], one[4]
  local held = redis.call('HGET', KEYS[1] .. name, user)
  if not held or tonumber(string.match(held, '^%d+')) < place then
    redis.call('HSET', KEYS[1] .. name, user, string.format('%.0f %s', place, text))
    if user ~= '' then redis.call('ZADD', KEYS[1] .. name .. ':places', place, user) end
  end
end
for _, one in ipairs(data.deleted) do
  local states, places = KEYS[1] .. one[1], KEYS[1] .. one[1] .. ':places'
  local shared = redis.call('HGET', states, '')
  if shared and tonumber(string.match(shared, '^%d+')) < one[2] then redis.call('HDEL', states, '') end
  for _, user in ipairs(redis.call('ZRANGEBYSCORE', places, '-inf', '(' .. one[2])) do
    redis.call('HDEL', states, user)
    redis.call('ZREM', places, user)
  end
  local decisions = KEYS[6] .. one[1]
  local order = decisions .. ':order'
  if redis.call('ZCOUNT', order, one[2], '+inf') == 0 then
    redis.call('UNLINK', decisions, order, decisions .. ':inputs', decisions .. ':keys',
      decisions .. ':bytes')
  else
    for _, key in ipairs(redis.call('ZRANGEBYSCORE', order, '-inf', '(' .. one[2])) do
      drop(decisions, key)
    end
  end
end
for _, one in ipairs(data.most) do
  local states, places = KEYS[1] .. one[1], KEYS[1] .. one[1] .. ':places'
  local many = redis.call('ZCARD', places) - one[2]
  if many > 0 then
    for _, user in ipairs(redis.call('ZRANGE', places, 0, many - 1)) do
      redis.call('HDEL', states, user)
      redis.call('ZREM', places, user)
    end
  end
end
local base = math.max(data.base, number(KEYS[3]))
local trimmed = math.max(number(KEYS[4]), math.min(base, number(KEYS[5]) - data.kept))
redis.call('SET', KEYS[3], string.format('%.0f', base))
redis.call('SET', KEYS[4], string.format('%.0f', trimmed))
redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f-0', trimmed + 1))
"""
_KEEP = f"""{_DROP}
local order, inputs, of = KEYS[1] .. ':order', KEYS[1] .. ':inputs', KEYS[1] .. ':keys'
local bytes, place = KEYS[1] .. ':bytes', redis.call('GET', KEYS[3]) or '0'
if redis.call('EXISTS', KEYS[1], order, of, bytes) < 4 then -- new, or a part was evicted
  redis.call('UNLINK', KEYS[1], order, inputs, of, bytes)
end
for i = 3, #ARGV, 3 do
  local key, input, text = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if not redis.call('ZSCORE', KEYS[2], key) then
    drop(KEYS[1], key)
    redis.call('HSET', KEYS[1], key, text)
    redis.call('HSET', inputs, input, key)
    redis.call('HSET', of, key, input)
    redis.call('ZADD', order, place, key)
    redis.call('INCRBY', bytes, #text)
  end
end
local most, most_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])
local oldest = redis.call('ZRANGE', order, 0, 0)[1]
while oldest and (redis.call('ZCARD', order) > most or
    tonumber(redis.call('GET', bytes) or '0') > most_bytes) do
  drop(KEYS[1], oldest)
  oldest = redis.call('ZRANGE', order, 0, 0)[1]
end
"""
_BY_INPUT = """
for _, input in ipairs(ARGV) do
  local key = redis.call('HGET', KEYS[1] .. ':inputs', input)
  local text = key and redis.call('HGET', KEYS[1], key)
  if text then return text end
end
return false
"""


class RedisShared:
    """A shared store in a Redis server; implements `SharedStore`.

    After a failure, calls that the event loop waits for raise `NotReady` at once until the server
    answers again, so that an outage does not block it.
    """

    def __init__(
        self, url: str, *, password: str | None = None, patience_s: float = LOAD_TIMEOUT_S
    ) -> None:
        """Connect; raises as `redis_client.connect` does."""
        self._client = redis_client.connect(url, password)
        self._patience_s = patience_s
        self._reader = concurrent.futures.ThreadPoolExecutor(1, "states-asked")
        self._outage = ""
        self._closed = threading.Event()
        texts = (_RESERVE, _APPEND, _SAVE, _KEEP, _BY_INPUT)
        made = (self._client.register_script(text) for text in texts)
        self._reserve, self._append, self._save, self._keep, self._by_input = made

    def close(self) -> None:
        """Disconnect."""
        self._closed.set()
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def reserve_ids(self, count: int, *, at_least: int) -> int:
        """Implement `SharedStore.reserve_ids`."""
        with _failing():
            return int(self._reserve(keys=[_IDS], args=[count, at_least]))

    def append(self, told: Sequence[Told]) -> list[int]:
        """Implement `SharedStore.append`."""
        if not told:
            return []
        given = [part for one in told for part in one]
        with _failing():
            keys = [_LOG, _LAST, _TAKEN, _DECISIONS]
            return [int(place) for place in self._append(keys=keys, args=[KEPT_KEYS, *given])]

    def read(self, after: int, most: int) -> Page:
        """Implement `SharedStore.read`."""
        with _failing():
            pipeline = self._client.pipeline(transaction=True)
            pipeline.mget(_BASE, _TRIMMED, _LAST)
            pipeline.xrange(_LOG, min=f"{after + 1}-0", count=most)
            numbers, rows = pipeline.execute()
        places = [
            Place(int(id_.partition("-")[0]), Told(int(row["k"]), row["a"], row["t"]))
            for id_, row in rows
        ]
        base, trimmed, last = (int(number or 0) for number in numbers)
        return Page(base, trimmed, last, places)

    def load(self, keys: Sequence[StateKey]) -> dict[StateKey, PlacedState]:
        """Implement `SharedStore.load`."""
        with _failing():
            pipeline = self._client.pipeline(transaction=False)
            for application, user in keys:
                pipeline.hget(_REPLAYED + application, user)
            found = zip(keys, map(_state, pipeline.execute()), strict=True)
        return {key: state for key, state in found if state is not None}

    def save(
        self,
        states: Mapping[StateKey, PlacedState],
        *,
        base: int,
        deleted: Mapping[str, int],
        most_users: Mapping[str, int],
    ) -> None:
        """Implement `SharedStore.save`."""
        data = {
            "states": [(*key, *state) for key, state in states.items()],
            "deleted": list(deleted.items()),
            "most": list(most_users.items()),
            "base": base,
            "kept": KEPT_PLACES,
        }
        with _failing():
            keys = [_REPLAYED, _LOG, _BASE, _TRIMMED, _LAST, _DECISIONS]
            self._save(keys=keys, args=[json.dumps(data)])

    def keep_decisions(self, decisions: Sequence[KeptDecision]) -> None:
        """Implement `SharedStore.keep_decisions`."""
        by_name: dict[str, list[Any]] = {}
        for one in decisions:
            given = (one.key, f"{one.user}\0{one.input_hash}", one.text)
            by_name.setdefault(one.application, []).extend(given)
        with _failing():
            for name, args in by_name.items():
                keys = [_DECISIONS + name, _TAKEN, _LAST]
                self._keep(keys=keys, args=[KEPT_DECISIONS, KEPT_BYTES, *args])

    def find_decision(self, application: str, key: int) -> str | None:
        """Implement `SharedStore.find_decision`."""
        found: str | None = self._ask(lambda: self._client.hget(_DECISIONS + application, str(key)))
        return found

    def find_by_input(self, application: str, user: str, input_hash: str) -> str | None:
        """Implement `SharedStore.find_by_input`."""
        inputs = [f"{one}\0{input_hash}" for one in dict.fromkeys((user, ""))]
        found: str | None = self._ask(
            lambda: self._by_input(keys=[_DECISIONS + application], args=inputs)
        )
        return found

    def load_now(self, key: StateKey) -> PlacedState | None:
        """Implement `SharedStore.load_now`."""
        application, user = key
        return _state(self._ask(lambda: self._client.hget(_REPLAYED + application, user)))

    def _ask(self, question: Callable[[], _T]) -> _T:
        """Return the server's answer, unless it takes too long or the server is known to be away."""
        if not self._outage:
            asked = self._reader.submit(question)
            try:
                return asked.result(self._patience_s)
            except concurrent.futures.TimeoutError:
                self._outage = f"no response within {self._patience_s:g} s"
            except Exception as error:  # clients raise many types
                self._outage = str(error) or repr(error)
            asked.cancel()
            text = "states cannot be read; queries are decided without learned states"
            log.error(text, extra={"reason": self._outage})
            threading.Thread(target=self._probe, name="states-probe", daemon=True).start()
        raise NotReady(f"the Redis server of the states does not answer: {self._outage}")

    def _probe(self) -> None:
        while self._outage and not self._closed.wait(_RETRY_S):
            with contextlib.suppress(Exception):  # the next probe may succeed
                self._client.ping()
                self._outage = ""
                log.info("states can be read again")


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # clients raise many types
        raise NotReady(f"the Redis server of the states does not answer: {error}") from error


def _state(text: str | None) -> PlacedState | None:
    if text is None:
        return None
    place, _, state = text.partition(" ")
    return PlacedState(int(place), state)
