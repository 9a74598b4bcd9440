"""How often something may be told: whoever can bring it about as often as he likes must not fill a log with it.

In: the time of each. Out: whether it is told, and how many were not since the last one that was. Pure.
"""

from __future__ import annotations


class Seldom:
    """One of a kind at a time."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._told_s: float | None = None
        self._untold = 0

    def told(self, now_s: float) -> int | None:
        """Tell this one: how many were left out before it; None: it is left out as well."""
        if self._told_s is not None and now_s - self._told_s < self._every_s:
            self._untold += 1
            return None
        untold, self._untold, self._told_s = self._untold, 0, now_s
        return untold
