"""Rate limit for log messages that users can provoke."""

from __future__ import annotations


class LogRateLimiter:
    """Rate limiter for one kind of message."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._told_s: float | None = None
        self._untold = 0

    def allow(self, now_s: float) -> int | None:
        """Return how many messages were suppressed before this one, or None to suppress it."""
        if self._told_s is not None and now_s - self._told_s < self._every_s:
            self._untold += 1
            return None
        untold, self._untold, self._told_s = self._untold, 0, now_s
        return untold
