"""A worker's reserved work by deadline: whether all of it is in time, and whether more fits.

All work is in time if the work due by each deadline fits the time until then (the demand bound of
earliest deadline first: Baruah, Rosier and Howell, Real-Time Systems 2, 1990). Deadlines share
buckets of about a hundredth of the remaining time, so the cost of a test is bounded. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np

_FINE = 7
"""Negative log2 of a bucket's width, relative to the power of two above the remaining time."""
_MIN_S = 2.0**-7
"""Remaining time below which buckets get no finer."""
ROUNDING_S = 1e-7
"""Time kept free to absorb rounding errors in sums."""


class Backlog:
    """One worker's reserved work."""

    __slots__ = ("_buckets_s", "_charges", "_slack_s", "_untils_s", "total_s")

    def __init__(self) -> None:
        self.total_s = 0.0
        self._buckets_s: list[float] = []
        self._untils_s: list[float] = []
        self._charges: list[int] = []
        self._slack_s = np.zeros(64)
        """Each bucket's first deadline minus the work of all buckets up to this one."""

    @staticmethod
    def bucket_s(until_s: float, now_s: float) -> float:
        """Return the bucket of a deadline."""
        _, exponent = math.frexp(max(until_s - now_s, _MIN_S))
        fine = _FINE - exponent
        return math.ldexp(math.floor(math.ldexp(until_s, fine)), -fine)

    def fits(self, bucket_s: float, until_s: float, work_s: float, *, free_s: float) -> bool:
        """Return whether work can be done in time together with all reserved work.

        Args:
            bucket_s: bucket of the deadline, or of the work to join.
            free_s: time at which the worker can begin.
        """
        buckets_s, slack_s = self._buckets_s, self._slack_s
        work_s += ROUNDING_S
        place, count = bisect_right(buckets_s, bucket_s), len(buckets_s)
        if place:
            last_s = self._untils_s[place - 1]
            due_s = last_s - float(slack_s[place - 1])
            if last_s < until_s and buckets_s[place - 1] == bucket_s:
                until_s = last_s
        else:
            due_s = 0.0
        if free_s + due_s + work_s > until_s:
            return False
        return place == count or float(slack_s[place:count].min()) - free_s >= work_s

    def keeps(self, free_s: float, done: Iterable[tuple[float, float]] = ()) -> bool:
        """Return whether the worker can do all reserved work in time.

        Args:
            free_s: time at which it can begin.
            done: pairs of a bucket and the work in it that will be done by then.
        """
        buckets_s = self._buckets_s
        free_s -= ROUNDING_S
        slack_s = self._slack_s[: len(buckets_s)]
        if not buckets_s or float(slack_s.min()) >= free_s:
            return True
        done = tuple(done)
        if not done:
            return False
        slack_s = slack_s.copy()
        for bucket_s, work_s in done:
            slack_s[bisect_left(buckets_s, bucket_s) :] += work_s
        return float(slack_s.min()) >= free_s

    def add(self, bucket_s: float, until_s: float, work_s: float) -> None:
        """Reserve a piece of work."""
        buckets_s, slack_s = self._buckets_s, self._slack_s
        self.total_s += work_s
        place, count = bisect_left(buckets_s, bucket_s), len(buckets_s)
        if place == count or buckets_s[place] != bucket_s:
            if count == len(slack_s):
                self._slack_s = slack_s = np.concatenate((slack_s, slack_s))
            due_s = self._untils_s[place - 1] - float(slack_s[place - 1]) if place else 0.0
            slack_s[place + 1 : count + 1] = slack_s[place:count]
            slack_s[place] = until_s - due_s
            buckets_s.insert(place, bucket_s)
            self._untils_s.insert(place, until_s)
            self._charges.insert(place, 0)
            count += 1
        self._charges[place] += 1
        self._more(place, until_s, work_s)

    def grow(self, bucket_s: float, until_s: float, work_s: float) -> None:
        """Add `work_s` seconds, which may be negative, to a piece of work due by `until_s`."""
        self.total_s += work_s
        self._more(bisect_left(self._buckets_s, bucket_s), until_s, work_s)

    def remove(self, bucket_s: float, work_s: float) -> None:
        """Remove a piece of work that was issued or given up."""
        self.total_s -= work_s
        buckets_s, slack_s = self._buckets_s, self._slack_s
        place, count = bisect_left(buckets_s, bucket_s), len(buckets_s)
        slack_s[place:count] += work_s
        self._charges[place] -= 1
        if self._charges[place]:
            return
        slack_s[place : count - 1] = slack_s[place + 1 : count]
        del buckets_s[place], self._untils_s[place], self._charges[place]
        if not buckets_s:
            self.total_s = 0.0

    def _more(self, place: int, until_s: float, work_s: float) -> None:
        slack_s, sooner_s = self._slack_s, self._untils_s[place] - until_s
        if sooner_s > 0.0:
            self._untils_s[place] = until_s
            slack_s[place] -= sooner_s
        slack_s[place : len(self._buckets_s)] -= work_s


class LoadReservation(NamedTuple):
    """Reserved work that does not belong to a request."""

    backlog: Backlog
    bucket_s: float
    work_s: float

    @classmethod
    def of(cls, backlog: Backlog, bucket_s: float, until_s: float, work_s: float) -> Self:
        """Reserve work in a backlog."""
        backlog.add(bucket_s, until_s, work_s)
        return cls(backlog, bucket_s, work_s)

    def take_back(self) -> None:
        """Remove the reservation."""
        self.backlog.remove(self.bucket_s, self.work_s)
