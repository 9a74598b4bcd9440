"""Slow-client detector: finds clients that read nothing, or too little, of what they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

STALL_S = 30.0
"""Seconds in which a receiver must read `MIN_BYTES`."""
MIN_BYTES = 4096
"""Minimum to read in `STALL_S`: 136 bytes a second, slower than any link."""

K = TypeVar("K")


class SlowClientDetector(Generic[K]):
    """Detector that remembers the progress of each receiver."""

    def __init__(self) -> None:
        self._marks: dict[K, tuple[float, int]] = {}

    def find_stalled(self, taken: Mapping[K, int], now_s: float) -> list[K]:
        """Return the slow receivers; `taken` has the bytes read by each one with pending data."""
        before, self._marks = self._marks, {}
        stalled = []
        for receiver, so_far in taken.items():
            since_s, then = before.get(receiver, (now_s, so_far))
            if so_far >= then + MIN_BYTES:
                since_s, then = now_s, so_far
            self._marks[receiver] = since_s, then
            if now_s - since_s >= STALL_S:
                stalled.append(receiver)
        return stalled
