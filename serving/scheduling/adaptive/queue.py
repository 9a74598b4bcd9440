"""Requests that wait, by earliest deadline; and the age of the oldest.

In: requests with item counts and deadlines. Out: batches of parts, in deadline order. Removal is
lazy: an entry that left is skipped when it comes up, so every operation costs O(log n) amortised, but for
giving back, which is rare and costs up to O(n). Knows nothing of workers or time.

All that waits here is of one flow and one level; `fair_queue` is for what is not.
"""

from __future__ import annotations

import bisect
import heapq
import math
import operator
from collections import deque
from collections.abc import Sequence
from typing import Any

from serving.scheduling.seam import Part

SLACK = 1024
"""Entries that wait no more and are still in the books: at most this many beside as many as there are items."""


class Entry:
    """One request from submission until all its parts have results."""

    __slots__ = (
        "alone",
        "arrived_s",
        "attempts",
        "cost",
        "deadline_s",
        "flow",
        "id",
        "items",
        "left",
        "level",
        "outstanding",
        "spans",
    )

    def __init__(
        self,
        id_: int,
        items: int,
        deadline_s: float,
        arrived_s: float,
        level: int = 1,
        flow: str = "",
        cost: int = 1,
    ) -> None:
        self.id = id_
        """Ids grow: they are the order of arrival, which decides among equal deadlines."""
        self.items = items
        self.deadline_s = deadline_s
        self.arrived_s = arrived_s
        self.level = level
        """1 is the most urgent."""
        self.flow = flow
        """Whose request it is."""
        self.cost = cost
        """What an item of it counts for among flows; 1, but for large ones."""
        self.spans = [(0, items)]
        """Item ranges that wait, the next one last."""
        self.outstanding = 0
        """Parts with workers."""
        self.attempts = 0
        """Times that a worker was lost while it ran a part of it."""
        self.alone = False
        """Suspected of having ended a worker, or too large to be with others: shares no batch any more."""
        self.left = False
        """Refused or cancelled: its late results mean nothing."""

    @property
    def waiting(self) -> bool:
        """Whether some items are still to be sent to a worker."""
        return bool(self.spans) and not self.left

    @property
    def waiting_items(self) -> int:
        """How many they are."""
        return sum(stop - start for start, stop in self.spans)


_BY_ARRIVAL = operator.attrgetter("id")


def upcoming(heap: Sequence[tuple[Any, ...]], items: int) -> list[Entry]:
    """The first waiting entries of a heap in its order, until they hold so many items together.

    They stay where they are. A heap is searched from its top, each entry before those under it:
    O(n log n) for n of them, however many wait (Frederickson 1993 does it in O(n)).

    Args:
        heap: keys, each with its entry last.
        items: how many.
    """
    found: list[Entry] = []
    fringe = [(heap[0], 0)] if heap else []
    while fringe and items > 0:
        key, place = heapq.heappop(fringe)
        entry: Entry = key[-1]
        if entry.spans and (not found or found[-1] is not entry):
            found.append(entry)
            items -= entry.waiting_items
        for below in range(2 * place + 1, min(2 * place + 3, len(heap))):
            heapq.heappush(fringe, (heap[below], below))
    return found


class DeadlineQueue:
    """Waiting entries ordered by (deadline, arrival)."""

    __slots__ = ("_arrivals", "_heap", "items")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self._arrivals: deque[Entry] = deque()
        """Every waiting entry, and some that wait no more, in the order of arrival."""
        self.items = 0
        """Items that wait."""

    def push(self, entry: Entry) -> None:
        """A new entry, all of whose items wait. Arrival times must not decrease."""
        heapq.heappush(self._heap, (entry.deadline_s, entry.id, entry))
        self._arrivals.append(entry)
        self.items += entry.items

    def give_back(self, entry: Entry, part: Part) -> None:
        """A part comes back from a lost worker; it keeps its deadline and its age."""
        was_waiting = bool(entry.spans)
        _, start, stop = part
        entry.spans.append((start, stop))
        self.items += stop - start
        if not was_waiting:
            heapq.heappush(self._heap, (entry.deadline_s, entry.id, entry))
            bisect.insort(self._arrivals, entry, key=_BY_ARRIVAL)

    def discard(self, entry: Entry) -> None:
        """The entry leaves; what waited of it no longer counts."""
        self.items -= sum(stop - start for start, stop in entry.spans)
        entry.spans.clear()
        entry.left = True
        most = 2 * self.items + SLACK
        if len(self._heap) > most or len(self._arrivals) > most:
            self._tidy()

    def drain(self) -> list[Entry]:
        """All waiting entries in the order of arrival; they wait here no more."""
        entries = self._waiting()
        self._heap.clear()
        self._arrivals.clear()
        self.items = 0
        return entries

    def oldest_arrival_s(self) -> float | None:
        """When the oldest waiting entry arrived."""
        arrivals = self._arrivals
        while arrivals:
            if arrivals[0].spans:
                return arrivals[0].arrived_s
            arrivals.popleft()
        return None

    def head(self) -> Entry | None:
        """The waiting entry with the earliest deadline."""
        heap = self._heap
        while heap:
            if heap[0][2].spans:
                return heap[0][2]
            heapq.heappop(heap)
        return None

    def first(self) -> Entry | None:
        """The entry with which the next batch begins."""
        return self.head()

    def upcoming(self, items: int) -> list[Entry]:
        """The first entries in deadline order, until they hold so many items together."""
        return upcoming(self._heap, items)

    def take(self, size: int, budget: float = math.inf) -> list[tuple[Entry, Part]]:
        """Form a batch of at most `size` items in deadline order.

        An entry that fits into no batch is split; one that fits into a batch, but not into what is
        left of this one, ends the batch: nothing overtakes it. One that shall be alone is a batch.

        Args:
            size: most items.
            budget: most cost of all large entries together, unless the first one has more.
        """
        batch: list[tuple[Entry, Part]] = []
        room = size
        heap = self._heap
        while room and heap:
            entry = heap[0][2]
            spans = entry.spans
            if not spans:
                heapq.heappop(heap)
                continue
            if entry.alone:
                if batch:
                    break
                room = size = min(size, spans[-1][1] - spans[-1][0])
            start, stop = spans[-1]
            wanted = stop - start
            if entry.cost > 1:
                budget -= min(wanted, room) * entry.cost
                if budget < 0 and batch:
                    break
            if wanted > room:
                if wanted <= size:
                    break
                stop = start + room
                spans[-1] = (stop, spans[-1][1])
            else:
                spans.pop()
                if not spans:
                    heapq.heappop(heap)
            batch.append((entry, (entry.id, start, stop)))
            room -= stop - start
        self.items -= size - room
        if not self.items:
            self._arrivals.clear()
        elif len(self._arrivals) > 2 * self.items + SLACK:
            self._tidy()
        return batch

    def _waiting(self) -> list[Entry]:
        # One that was given back may have two places among the arrivals; the first one is where it was.
        return list(dict.fromkeys([entry for entry in self._arrivals if entry.spans]))

    def _tidy(self) -> None:
        """Forget what waits no more: behind one that waits for long, much may have come and gone."""
        waiting = self._waiting()
        self._arrivals = deque(waiting)
        self._heap = [(entry.deadline_s, entry.id, entry) for entry in waiting]
        heapq.heapify(self._heap)
