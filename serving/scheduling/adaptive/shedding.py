"""Load shedding: which requests to reject so that batches stay large under overload.

The deadline of the head (the first request) limits the next batch to k items. If the request behind
that batch cannot join any later batch of k items, one of the two is lost anyway, so the head is
rejected, because serving it would keep batches small (as in Nexus, SOSP'19, section 4.3). If flows
share a batch, the request behind is a flow's first one beyond its share.

    with batches of 8 and backlogs A of 100 items and B of 3, all of B fits the next batch, and
    A is shed as if it were alone with batches of 5

Pure.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from serving.scheduling.adaptive.batch_times import BatchTimeEstimator
from serving.scheduling.adaptive.queue import QueuedRequest

AMPLE = 2.0
"""Number of full batches for which the head must have time so that nothing is shed."""
_LOOK_AHEAD = 2
MAX_OTHERS = 7
"""Maximum number of other workers whose next batches are considered."""


class BatchShares:
    """Number of items that each flow gets in a batch; unused shares are divided evenly."""

    __slots__ = ("_known", "_waiting")

    def __init__(self, waiting: Sequence[int]) -> None:
        self._waiting = sorted(waiting)
        self._known: dict[int, int] = {}

    def of(self, size: int) -> int:
        """Return the maximum number of items of one flow in a batch of `size`."""
        known = self._known.get(size)
        if known is None:
            known = self._known[size] = self._worked_out(size)
        return known

    def _worked_out(self, size: int) -> int:
        flows = len(self._waiting)
        rest = size
        for place, items in enumerate(self._waiting):
            level = -(-rest // (flows - place))
            if items >= level:
                return max(1, level)
            rest -= items
        return size  # all waiting items fit the batch


class Shedding:
    """One pass over the backlogs to find requests to reject before a batch forms."""

    __slots__ = ("_ample_s", "_others_s", "_profile", "_shares", "_size", "_starts_s", "_waiting")

    def __init__(
        self,
        profile: BatchTimeEstimator,
        shares: BatchShares | None,
        *,
        size: int,
        waiting: int,
        starts_s: float,
        others_s: Sequence[float],
    ) -> None:
        """Store the state of the queue; `shares` is None for a single backlog.

        A full batch has `size` items, and `waiting` items are queued in all. The next batch starts
        at `starts_s`, and those of the other workers at `others_s`, ascending.
        """
        self._profile = profile
        self._shares = shares
        self._size = size
        self._waiting = waiting
        self._starts_s = starts_s
        self._others_s = others_s
        self._ample_s = AMPLE * profile.estimate_s(size)

    def given_up(self, upcoming: Callable[[int], list[QueuedRequest]]) -> list[QueuedRequest]:
        """Return a backlog's requests to reject; `upcoming` returns its first requests."""
        size = self._size
        refused: list[QueuedRequest] = []
        asked = (_LOOK_AHEAD + len(self._others_s)) * size
        found = upcoming(asked)
        is_all = _items(found) < asked
        place = 0
        ahead = 0  # items of more urgent levels, which go first
        while place < len(found):
            head = found[place]
            left_s = head.deadline_s - self._starts_s
            gives_up = False
            if left_s < self._ample_s:
                fitting = self._profile.largest(left_s, size)
                own = fitting if self._shares is None else self._shares.of(fitting)
                taken, beyond = ahead, place
                while taken < own and beyond < len(found):
                    items = found[beyond].waiting_items
                    if taken + items > own and beyond > place and items <= size:
                        break  # not split: it ends the batch
                    taken += items
                    beyond += 1
                if beyond < len(found):
                    batch = min(fitting, fitting + taken - own)
                    gives_up = self._hinders(head, found, beyond, fitting, batch)
                elif not is_all:
                    asked *= 2
                    found = upcoming(asked)
                    is_all = _items(found) < asked
                    continue
                gives_up = gives_up or self._is_lost(head, -math.inf if own <= ahead else left_s)
            if gives_up:
                refused.append(head)
                self._waiting -= head.waiting_items
                place += 1
                continue
            level = head.level
            if found[-1].level == level:
                break
            while found[place].level == level:
                ahead += found[place].waiting_items
                place += 1
        return refused

    def _hinders(
        self,
        head: QueuedRequest,
        found: Sequence[QueuedRequest],
        place: int,
        fitting: int,
        batch: int,
    ) -> bool:
        if head.is_solo or head.outstanding or fitting < min(self._size, head.waiting_items):
            return False
        if found[place].level != head.level or found[place].deadline_s <= head.deadline_s:
            return False
        profile = self._profile
        if batch > profile.max_measured:
            return False  # the gain is unknown
        again_s = self._starts_s + profile.estimate_s(batch)
        waiting = self._waiting - batch
        begins = sorted([*self._others_s, again_s])  # a heap
        while True:
            begins_s = begins[0]
            left_s = found[place].deadline_s - begins_s
            if left_s < profile.estimate_s(min(batch, waiting)):
                return True
            if begins_s >= again_s:
                break
            taken = max(1, min(profile.largest(left_s, self._size), waiting))
            heapq.heapreplace(begins, begins_s + profile.estimate_s(taken))
            waiting -= taken
            taken = taken if self._shares is None else self._shares.of(taken)
            while taken > 0 and place < len(found):
                taken -= found[place].waiting_items
                place += 1
            if waiting <= 0 or place == len(found) or found[place].level != head.level:
                break
        return False

    def _is_lost(self, head: QueuedRequest, left_s: float) -> bool:
        start, stop = head.spans[-1]
        min_s = self._profile.estimate_s(min(self._size, stop - start))
        if self._others_s:
            left_s = max(left_s, head.deadline_s - self._others_s[0])
        return left_s < min_s and self._waiting > head.waiting_items


def _items(entries: Sequence[QueuedRequest]) -> int:
    return sum([entry.waiting_items for entry in entries])
