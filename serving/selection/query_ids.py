"""Ids of queries, which no other gateway has, nor had before."""

from __future__ import annotations

import itertools
import time

BLOCK = 1 << 24
"""Ids that a gateway reserves at a time: minutes of queries, so that a store may be away."""


def since_1970() -> int:
    """Return a first id that no earlier process reached: microseconds."""
    return time.time_ns() // 1000


class QueryIds:
    """Ids in rising order; of a block that was reserved, where other gateways take ids, too."""

    def __init__(self, first: int, count: int | None = None) -> None:
        """Begin with a block of `count` ids; None is without end, for a gateway that is alone."""
        self._ids = itertools.count(first)
        self._left = count
        self._next: int | None = None

    @property
    def wants_block(self) -> bool:
        """Whether half of the block is used, and no next one is there."""
        return self._left is not None and self._next is None and self._left < BLOCK // 2

    def add_block(self, first: int) -> None:
        """Add a reserved block of `BLOCK` ids."""
        self._next = first

    def take(self) -> int | None:
        """Return the next id; None if all are used and the store did not give more."""
        if self._left is None:
            return next(self._ids)
        if not self._left:
            if self._next is None:
                return None
            self._ids, self._left, self._next = itertools.count(self._next), BLOCK, None
        self._left -= 1
        return next(self._ids)
