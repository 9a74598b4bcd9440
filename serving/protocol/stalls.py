"""Whose receiver does not take what is sent to it.

In, every few seconds: how many bytes each receiver has taken so far for which more waits, and the time. Out:
those that took too few for too long. One that takes a little now and then is given up as well: what it
leaves standing is memory. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

STALL_S = 30.0
"""A receiver that takes less than `LEAST_BYTES` in this time is given up.

As long as a request may take to arrive: who is alive sends and takes within seconds, and a network that
was away for longer has lost the connection anyway."""
LEAST_BYTES = 4096
"""136 bytes a second: no link is that slow."""

K = TypeVar("K")


class Stalls(Generic[K]):
    """What was taken when, since a receiver last took enough."""

    def __init__(self, within_s: float = STALL_S) -> None:
        self._within_s = within_s
        self._marks: dict[K, tuple[float, int]] = {}

    def over(self, taken: Mapping[K, int], now_s: float) -> list[K]:
        """The receivers that took too little for too long; each is named as long as it is in `taken`.

        Args:
            taken: bytes so far, of each receiver for which more waits.
            now_s: monotonic.
        """
        before, self._marks = self._marks, {}
        stalled = []
        for receiver, so_far in taken.items():
            since_s, then = before.get(receiver, (now_s, so_far))
            if so_far >= then + LEAST_BYTES:
                since_s, then = now_s, so_far
            self._marks[receiver] = since_s, then
            if now_s - since_s >= self._within_s:
                stalled.append(receiver)
        return stalled
