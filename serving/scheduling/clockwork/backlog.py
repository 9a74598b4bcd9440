"""Reserved work of a worker by deadline: whether all of it is in time, and whether more fits.

All work is in time if no more is due by any deadline than there is time (the demand bound of
earliest deadline first: Baruah, Rosier and Howell, Real-Time Systems 2, 1990). Deadlines share
buckets of a hundredth of the remaining time, so a test costs the same for any backlog. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np

_FINE = 7
"""A bucket's width is 2 ** -7 of the power of two above the remaining time."""
_MIN_S = 2.0**-7
"""Remaining time below which buckets get no finer."""
ROUNDING_S = 1e-7
"""Time kept free because sums are rounded."""


class Backlog:
    """Reserved work of one worker."""

    __slots__ = ("_buckets_s", "_charges", "_slack_s", "_untils_s", "total_s")

    def __init__(self) -> None:
        self.total_s = 0.0
        self._buckets_s: list[float] = []
        """Starts of buckets with work, ascending."""
        self._untils_s: list[float] = []
        self._charges: list[int] = []
        self._slack_s = np.zeros(64)
        """First deadline of each bucket, less the work of all buckets up to it."""

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
            free_s: when the worker can begin.
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
            free_s: when it can begin.
            done: buckets, and the work in each that will be done by then.
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
        """Change a piece of work by `work_s` seconds, due by `until_s`."""
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
    """Work in a backlog that belongs to no request."""

    backlog: Backlog
    bucket_s: float
    work_s: float

    @classmethod
    def of(cls, backlog: Backlog, bucket_s: float, until_s: float, work_s: float) -> Self:
        """Reserve work in a backlog."""
        backlog.add(bucket_s, until_s, work_s)
        return cls(backlog, bucket_s, work_s)

    def take_back(self) -> None:
        """Remove the reservation, done or cancelled."""
        self.backlog.remove(self.bucket_s, self.work_s)
