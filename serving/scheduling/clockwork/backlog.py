"""Work that a worker has promised, by the time at which it must be done: whether one request more fits.

In: seconds of work and deadlines. Out: yes or no. A promise is kept if, up to every deadline, no more work is
due than there is time (the demand bound of earliest deadline first: Baruah, Rosier and Howell, Real-Time
Systems 2, 1990). Deadlines are counted in buckets of a fixed width up to a horizon; those behind it are
measured against all work together. A question costs the same however much waits.

Pure; times are in seconds.
"""

from __future__ import annotations

import math

import numpy as np

BUCKETS = 128
_ENDS = np.arange(BUCKETS) + 1.0


class Backlog:
    """Promised work of one worker."""

    __slots__ = ("_first", "_near_s", "_rolls_s", "_slack_s", "_width_s", "total_s")

    def __init__(self, width_s: float) -> None:
        """Nothing is promised.

        Args:
            width_s: of a bucket: the smallest difference of deadlines that counts.
        """
        self._width_s = width_s
        self._first = 0
        """Number of the first bucket, from time 0."""
        self._rolls_s = 0.0
        """When that is another one."""
        self.total_s = 0.0
        """All work."""
        self._near_s = 0.0
        """That up to the horizon."""
        self._slack_s = _ENDS * width_s
        """End of each bucket less the work that is due by then."""

    def fits(self, deadline_s: float, work_s: float, *, free_s: float, now_s: float) -> bool:
        """Whether work could be done in time, and all that is promised with it.

        Args:
            deadline_s: by when.
            work_s: how much.
            free_s: when the worker can begin.
            now_s: the time.
        """
        if now_s >= self._rolls_s:
            self._roll(now_s)
        place = int(deadline_s / self._width_s) - self._first
        if place >= BUCKETS:
            return free_s + self.total_s + work_s <= deadline_s
        place = max(place, 0)
        slack_s = self._slack_s
        due_s = (self._first + place + 1) * self._width_s - float(slack_s[place])
        if free_s + due_s + work_s > deadline_s:
            return False
        return place + 1 == BUCKETS or float(slack_s[place + 1 :].min()) - free_s >= work_s

    def add(self, deadline_s: float, work_s: float) -> bool:
        """Promise work; returns whether its deadline lies before the horizon, which `remove` asks for."""
        self.total_s += work_s
        place = int(deadline_s / self._width_s) - self._first
        if place >= BUCKETS:
            return False
        self._slack_s[max(place, 0) :] -= work_s
        self._near_s += work_s
        return True

    def remove(self, deadline_s: float, work_s: float, *, is_near: bool) -> None:
        """Promised work was given to the worker, or will not be done."""
        self.total_s -= work_s
        if is_near:
            place = int(deadline_s / self._width_s) - self._first
            self._slack_s[max(place, 0) :] += work_s
            self._near_s -= work_s

    def _roll(self, now_s: float) -> None:
        """Buckets that lie behind are gone, new ones come up at the horizon."""
        first = math.floor(now_s / self._width_s)
        self._rolls_s = (first + 1) * self._width_s
        gone = first - self._first
        if gone <= 0:
            return
        slack_s = self._slack_s
        self._first = first
        kept = max(0, BUCKETS - gone)
        slack_s[:kept] = slack_s[BUCKETS - kept :]
        slack_s[kept:] = (_ENDS[kept:] + first) * self._width_s - self._near_s
