"""LRU response cache, limited by the size of keys and values; capacity 0 disables it.

Whole keys are compared, never hashes alone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from serving.values import ModelId

_ENTRY_BYTES = 200
"""Overhead in bytes of an entry's objects and table slots in CPython 3.11."""


class CacheKey(NamedTuple):
    """Model, input encoding and input bytes."""

    model: ModelId
    encoding: int
    input: bytes


class ResponseCache:
    """Cached responses by key."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[CacheKey, bytes] = OrderedDict()
        self.bytes = 0
        """Size of all entries, including overhead."""
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CacheKey) -> bytes | None:
        """Return the cached response, if any."""
        value = self._entries.get(key)
        if value is None:
            self.misses += 1
            return None
        self._entries.move_to_end(key)
        self.hits += 1
        return value

    def put(self, key: CacheKey, value: bytes) -> None:
        """Cache a response unless it is too large, evicting the least recently used as needed."""
        self.discard(key)
        cost = _cost(key, value)
        if cost > self._capacity_bytes:
            return
        while self.bytes + cost > self._capacity_bytes:
            old_key, old_value = self._entries.popitem(last=False)
            self.bytes -= _cost(old_key, old_value)
        self._entries[key] = value
        self.bytes += cost

    def discard(self, key: CacheKey) -> None:
        """Remove a response, if cached."""
        value = self._entries.pop(key, None)
        if value is not None:
            self.bytes -= _cost(key, value)

    def clear(self) -> None:
        """Remove all responses; the counters stay."""
        self._entries.clear()
        self.bytes = 0

    def resize(self, capacity_bytes: int) -> None:
        """Change the capacity, evicting as needed."""
        self._capacity_bytes = capacity_bytes
        while self.bytes > capacity_bytes:
            key, value = self._entries.popitem(last=False)
            self.bytes -= _cost(key, value)


def _cost(key: CacheKey, value: bytes) -> int:
    return len(key.input) + len(value) + _ENTRY_BYTES
