"""Backlog of items to write to a store: oldest first, in pieces, each gone once it is written."""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from typing import Generic, TypeVar

PIECE = 500
"""Maximum number of items in a piece, which a store writes in one call."""
PIECE_BYTES = 2**20
"""Size of a piece from which it takes no more items."""
_T = TypeVar("_T")


class WriteBacklog(Generic[_T]):
    """Items by key; who adds heeds the bounds, so that items can be refused or the oldest dropped."""

    def __init__(self, *, capacity: int = 65_536, capacity_bytes: int = 64 * 2**20) -> None:
        self.capacity = capacity
        self.capacity_bytes = capacity_bytes
        self.bytes = 0
        self._items: dict[int, tuple[_T, int]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: int) -> bool:
        return key in self._items

    def keys(self) -> KeysView[int]:
        """Return the keys, the oldest first."""
        return self._items.keys()

    def fits(self, size_bytes: int) -> bool:
        """Return whether one more item is within the bounds."""
        return len(self) < self.capacity and self.bytes + size_bytes <= self.capacity_bytes

    def put(self, key: int, item: _T, size_bytes: int) -> None:
        """Add an item."""
        self.discard([key])
        self._items[key] = item, size_bytes
        self.bytes += size_bytes

    def drop_oldest(self) -> None:
        """Remove the item that waits longest."""
        self.discard([next(iter(self._items))])

    def discard(self, keys: Iterable[int]) -> None:
        """Remove items, if they are there."""
        for key in keys:
            _, size_bytes = self._items.pop(key, (None, 0))
            self.bytes -= size_bytes

    def pieces(self) -> list[dict[int, _T]]:
        """Return all items by key, in pieces that a store can write in one call."""
        pieces: list[dict[int, _T]] = []
        held_bytes = PIECE_BYTES
        for key, (item, size_bytes) in list(self._items.items()):
            if held_bytes >= PIECE_BYTES or len(pieces[-1]) >= PIECE:
                pieces.append({})
                held_bytes = 0
            pieces[-1][key] = item
            held_bytes += size_bytes
        return pieces
