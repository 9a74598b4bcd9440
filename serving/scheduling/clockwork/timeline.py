"""One executor of a worker: what it was given, and when it will have done it.

The controller decides everything, so it knows: an executor runs one action at a time, in order, and each
takes about what it is expected to take. What ends earlier or later moves all that follows.

Pure; times are in seconds on the controller's clock.
"""

from __future__ import annotations

import math

from serving.scheduling.clockwork.durations import Window


class Timeline:
    """Actions with one executor, the first of which runs."""

    __slots__ = ("_back", "_due_s", "_ends_s", "_free_s", "_moved_s")

    def __init__(self, back: Window) -> None:
        """Nothing is given yet.

        Args:
            back: what passes between an end and its result.
        """
        self._back = back
        self._free_s = 0.0
        """When all will be done, as far as ends have told."""
        self._moved_s = 0.0
        """By how much ends so far have moved what was expected when it was added."""
        self._ends_s: dict[int, float] = {}
        """Action -> its expected end, without that."""
        self._due_s = math.inf
        """Expected end of the first."""

    def __len__(self) -> int:
        return len(self._ends_s)

    def free_s(self, now_s: float) -> float:
        """When it can start something more; may lie in the past.

        What is not told to have ended when it should have been is taken to need as long again as it is late: nobody
        knows better, and a worker that hangs is trusted less the longer it does.
        """
        late_s = now_s - self._due_s
        if late_s <= 0.0:
            return self._free_s
        late_s -= self._back.worth_s
        return self._free_s + 2.0 * late_s if late_s > 0.0 else self._free_s

    def add(self, action: int, start_s: float, expected_s: float) -> float:
        """Give it an action; returns its expected end."""
        self._free_s = end_s = start_s + expected_s
        if not self._ends_s:
            self._due_s = end_s
        self._ends_s[action] = end_s - self._moved_s
        return end_s

    def ended(self, action: int, at_s: float) -> None:
        """An action has ended, or will not be run: what follows moves by as much.

        One that is not the first will not be run, and what follows it is due earlier by what it would have taken.
        """
        if action != next(iter(self._ends_s)):
            self._taken_out(action)
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

    def _taken_out(self, action: int) -> None:
        numbers = list(self._ends_s)
        place = numbers.index(action)
        took_s = self._ends_s[action] - self._ends_s[numbers[place - 1]]
        del self._ends_s[action]
        for later in numbers[place + 1 :]:
            self._ends_s[later] -= took_s
        self._free_s -= took_s
