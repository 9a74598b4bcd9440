"""Which waiting requests are given up, so that batches stay long under overload.

In: backlogs in the order of their turns, what batches take, and how much of a batch each backlog gets. Out:
the requests to refuse: those for whose sake batches would go on shrinking.

The batch with the head holds k items, as its deadline allows. Where the request behind them can then still
go into a batch of k, serving the head harms nobody. Where it cannot, requests come faster than batches of
k are done: that one's batch would be shorter, the next one's shorter still, and a part of the requests
is lost in any case. Then the head is what is given up, for it is what keeps batches short. Nexus drops early
for the same reason (SOSP'19, section 4.3). Other workers that come first have their batches of what is behind; what
they leave must find room in this one's next batch.

Where several flows wait, each has its share of a batch, and the request behind is the first one of the same
flow that is beyond this share. So a flow that can finish all its requests by its share of full batches loses
none, whatever waits of the others. Within a flow no request is given up for a less urgent level.

    batches of 8, a backlog A of 100 items and B of 3:  all of B is in the next batch, and none is given up;
                                                        A gives up as if it were alone with batches of 5

Pure: times are arguments, and nothing is refused here.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from serving.profiles import Profile
from serving.scheduling.adaptive.queue import Entry

AMPLE = 2.0
"""Full batches that fit into the time left of the most urgent request where nothing need be shed."""
_LOOK_AHEAD = 2
"""Full batches of which the members' deadlines are looked at first."""
MOST_OTHERS = 7
"""Other workers, the first that are free, whose next batches are looked at."""


class Shares:
    """How many items of a batch one flow gets: what some leave unused, the others share alike."""

    __slots__ = ("_known", "_waiting")

    def __init__(self, waiting: Sequence[int]) -> None:
        """Of flows with so many items each."""
        self._waiting = sorted(waiting)
        self._known: dict[int, int] = {}

    def of(self, size: int) -> int:
        """Most items of one flow in a batch of `size`; at least 1."""
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
        return size  # all that waits is in the batch


class Shedding:
    """One look at the backlogs, before a batch is formed."""

    __slots__ = ("_ample_s", "_others_s", "_profile", "_shares", "_size", "_starts_s", "_waiting")

    def __init__(
        self,
        profile: Profile,
        shares: Shares | None,
        *,
        size: int,
        waiting: int,
        starts_s: float,
        others_s: Sequence[float],
    ) -> None:
        """Nothing is looked at yet.

        Args:
            profile: what batches take.
            shares: of the backlogs; None where there is one.
            size: items of a full batch.
            waiting: items of all backlogs.
            starts_s: when the next batch begins.
            others_s: when other workers could begin one, ascending.
        """
        self._profile = profile
        self._shares = shares
        self._size = size
        self._waiting = waiting
        self._starts_s = starts_s
        self._others_s = others_s
        self._ample_s = AMPLE * profile.estimate_s(size)

    def given_up(self, upcoming: Callable[[int], list[Entry]]) -> list[Entry]:
        """The requests of one backlog that are to be refused, the next one first.

        Args:
            upcoming: items -> the first requests of the backlog, by level and deadline, until they hold
                so many.
        """
        size = self._size
        refused: list[Entry] = []
        asked = (_LOOK_AHEAD + len(self._others_s)) * size
        found = upcoming(asked)
        is_all = _items(found) < asked
        place = 0
        ahead = 0  # items of more urgent levels, which go before the head whatever its deadline
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
                        break  # it is not split, and ends the batch
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
        self, head: Entry, found: Sequence[Entry], place: int, fitting: int, batch: int
    ) -> bool:
        """Whether one beyond the head's batch, from a place on, finds no room in a later one as large."""
        if head.alone or head.outstanding or fitting < min(self._size, head.waiting_items):
            return False
        if found[place].level != head.level or found[place].deadline_s <= head.deadline_s:
            return False  # another head would gain nothing
        profile = self._profile
        if not profile.covers(batch):
            return False  # what it would gain is not known
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

    def _is_lost(self, head: Entry, left_s: float) -> bool:
        """Whether no batch can have it in time, and it would only cut one short; the last one is tried."""
        start, stop = head.spans[-1]
        least_s = self._profile.estimate_s(min(self._size, stop - start))
        if self._others_s:
            left_s = max(left_s, head.deadline_s - self._others_s[0])
        return left_s < least_s and self._waiting > head.waiting_items


def _items(entries: Sequence[Entry]) -> int:
    return sum([entry.waiting_items for entry in entries])
