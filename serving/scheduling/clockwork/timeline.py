"""The actions issued to one executor, which run in order, with their expected ends. Pure."""

from __future__ import annotations

import math

from serving.scheduling.clockwork.durations import SlidingMaximum


class Timeline:
    """The actions issued to one executor."""

    __slots__ = ("_back", "_due_s", "_ends_s", "_free_s", "_moved_s")

    def __init__(self, result_latency: SlidingMaximum) -> None:
        """Start without actions; `result_latency` is the time that results take to arrive."""
        self._back = result_latency
        self._free_s = 0.0
        self._moved_s = 0.0
        self._ends_s: dict[int, float] = {}
        """Action number -> expected end without the shift."""
        self._due_s = math.inf

    def __len__(self) -> int:
        return len(self._ends_s)

    def free_s(self, now_s: float) -> float:
        """Return when the executor can start more work; the time may have passed.

        An overdue action is expected to take as long again as it is overdue.
        """
        late_s = now_s - self._due_s
        if late_s <= 0.0:
            return self._free_s
        late_s -= self._back.estimate_s
        return self._free_s + 2.0 * late_s if late_s > 0.0 else self._free_s

    def add(self, action: int, start_s: float, expected_s: float) -> float:
        """Add an action; return its expected end."""
        self._free_s = end_s = start_s + expected_s
        if not self._ends_s:
            self._due_s = end_s
        self._ends_s[action] = end_s - self._moved_s
        return end_s

    def record_end(self, action: int, at_s: float) -> None:
        """Record an action's end, and shift the actions that follow.

        An action that ends before its turn was not run.
        """
        if action != next(iter(self._ends_s)):
            self._take_out(action)
            return
        expected_s = self._ends_s.pop(action) + self._moved_s
        if not self._ends_s:
            self._free_s = at_s
            self._moved_s = 0.0
            self._due_s = math.inf
            return
        moved_s = at_s - expected_s
        self._moved_s += moved_s
        self._free_s += moved_s
        self._due_s = next(iter(self._ends_s.values())) + self._moved_s

    def _take_out(self, action: int) -> None:
        numbers = list(self._ends_s)
        place = numbers.index(action)
        took_s = self._ends_s[action] - self._ends_s[numbers[place - 1]]
        del self._ends_s[action]
        for later in numbers[place + 1 :]:
            self._ends_s[later] -= took_s
        self._free_s -= took_s
