"""Whose receiver does not take what is sent to it.

In, every few seconds: how many bytes each sender still holds, and the time. Out: those that held on to
them for too long. A receiver that takes a little now and then is given up as well: what it leaves
standing is memory. Pure.
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
    """What was held when, since a receiver last took enough."""

    def __init__(self, within_s: float = STALL_S) -> None:
        self._within_s = within_s
        self._marks: dict[K, tuple[float, int]] = {}

    def over(self, held: Mapping[K, int], now_s: float) -> list[K]:
        """The senders that have waited for too long; each is named until it is `held` no more.

        Args:
            held: bytes that wait, of each sender that has any. Only how they fall counts: more to send
                is no progress.
            now_s: monotonic.
        """
        before, self._marks = self._marks, {}
        stalled = []
        for sender, left in held.items():
            since_s, most = before.get(sender, (now_s, left))
            if left <= most - LEAST_BYTES:
                since_s, most = now_s, left
            most = max(most, left)
            self._marks[sender] = since_s, most
            if now_s - since_s >= self._within_s:
                stalled.append(sender)
        return stalled
