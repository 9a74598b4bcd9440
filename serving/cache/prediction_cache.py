"""Least-recently-used cache of answers, bounded in bytes of keys and values.

In: keys (a model and the bytes of its input), answers as bytes. The whole key is compared, never a
hash of it alone, so an answer can only be that of an equal input. Pure: no clock, no tasks. Off at
capacity 0.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from serving.values import ModelId

_ENTRY_BYTES = 200
"""What an entry costs beside its bytes: objects and table slots, measured on CPython 3.11."""


class Key(NamedTuple):
    """Model, how the input is written, and the input's bytes."""

    model: ModelId
    encoding: int
    input: bytes


class PredictionCache:
    """Answers by key."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[Key, bytes] = OrderedDict()
        self.bytes = 0
        """Bytes in use, keys and values and what holds them."""
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> bytes | None:
        """The answer for a key, which becomes the most recently used."""
        value = self._entries.get(key)
        if value is None:
            self.misses += 1
            return None
        self._entries.move_to_end(key)
        self.hits += 1
        return value

    def put(self, key: Key, value: bytes) -> None:
        """Keep an answer, at the cost of the least recently used ones.

        One that is too large alone is not kept.
        """
        self.discard(key)
        cost = _cost(key, value)
        if cost > self._capacity_bytes:
            return
        while self.bytes + cost > self._capacity_bytes:
            old_key, old_value = self._entries.popitem(last=False)
            self.bytes -= _cost(old_key, old_value)
        self._entries[key] = value
        self.bytes += cost

    def discard(self, key: Key) -> None:
        """Forget one answer, if it is there."""
        value = self._entries.pop(key, None)
        if value is not None:
            self.bytes -= _cost(key, value)

    def clear(self) -> None:
        """Forget everything; the counters stay."""
        self._entries.clear()
        self.bytes = 0

    def resize(self, capacity_bytes: int) -> None:
        """A new capacity; the least recently used answers leave until it is kept."""
        self._capacity_bytes = capacity_bytes
        while self.bytes > capacity_bytes:
            key, value = self._entries.popitem(last=False)
            self.bytes -= _cost(key, value)


def _cost(key: Key, value: bytes) -> int:
    return len(key.input) + len(value) + _ENTRY_BYTES
