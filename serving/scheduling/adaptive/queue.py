"""Queue of requests of one flow and level, ordered by deadline."""

from __future__ import annotations

import bisect
import heapq
import math
import operator
from collections import deque
from collections.abc import Sequence
from typing import Any

from serving.scheduling.interface import Part

SLACK = 1024
"""Maximum number of stale entries beyond one per queued item."""


class QueuedRequest:
    """A request, from submission until all its parts have results."""

    __slots__ = (
        "arrived_s",
        "attempts",
        "cost",
        "deadline_s",
        "flow",
        "id",
        "is_solo",
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
        self.items = items
        self.deadline_s = deadline_s
        self.arrived_s = arrived_s
        self.level = level
        """Priority level; 1 is the most urgent."""
        self.flow = flow
        self.cost = cost
        """Weight of one item in fair queueing: 1, or more for large items."""
        self.spans = [(0, items)]
        """Ranges of queued items, the next one last."""
        self.outstanding = 0
        self.attempts = 0
        """Number of workers lost while running a part."""
        self.is_solo = False
        self.left = False
        """Whether the request was rejected or cancelled, so that later results are ignored."""

    @property
    def waiting_items(self) -> int:
        """Number of queued items."""
        items = 0
        for start, stop in self.spans:  # nearly always one: `sum` takes four times as long
            items += stop - start
        return items


_BY_ARRIVAL = operator.attrgetter("id")


def upcoming(heap: Sequence[tuple[Any, ...]], items: int) -> list[QueuedRequest]:
    """Return the first entries of a heap that together hold this many items."""
    found: list[QueuedRequest] = []
    fringe = [(heap[0], 0)] if heap else []
    while fringe and items > 0:
        key, place = heapq.heappop(fringe)
        entry: QueuedRequest = key[-1]
        if entry.spans and (not found or found[-1] is not entry):
            found.append(entry)
            items -= entry.waiting_items
        for below in range(2 * place + 1, min(2 * place + 3, len(heap))):
            heapq.heappush(fringe, (heap[below], below))
    return found


class DeadlineQueue:
    """Queued entries ordered by (deadline, arrival)."""

    __slots__ = ("_arrivals", "_heap", "items")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, QueuedRequest]] = []
        self._arrivals: deque[QueuedRequest] = deque()
        self.items = 0

    def push(self, entry: QueuedRequest) -> None:
        """Queue a new entry; arrival times must not decrease."""
        heapq.heappush(self._heap, (entry.deadline_s, entry.id, entry))
        self._arrivals.append(entry)
        self.items += entry.items

    def give_back(self, entry: QueuedRequest, part: Part) -> None:
        """Requeue a part that a worker did not run, keeping its deadline and age."""
        was_waiting = bool(entry.spans)
        _, start, stop = part
        entry.spans.append((start, stop))
        self.items += stop - start
        if not was_waiting:
            heapq.heappush(self._heap, (entry.deadline_s, entry.id, entry))
            bisect.insort(self._arrivals, entry, key=_BY_ARRIVAL)

    def discard(self, entry: QueuedRequest) -> None:
        """Remove an entry."""
        self.items -= entry.waiting_items
        entry.spans.clear()
        entry.left = True
        most = 2 * self.items + SLACK
        if len(self._heap) > most or len(self._arrivals) > most:
            self._tidy()

    def drain(self) -> list[QueuedRequest]:
        """Remove and return all queued entries in order of arrival."""
        entries = self._waiting()
        self._heap.clear()
        self._arrivals.clear()
        self.items = 0
        return entries

    def oldest_arrival_s(self) -> float | None:
        """Return when the oldest queued entry arrived."""
        arrivals = self._arrivals
        while arrivals:
            if arrivals[0].spans:
                return arrivals[0].arrived_s
            arrivals.popleft()
        return None

    def head(self) -> QueuedRequest | None:
        """Return the queued entry with the earliest deadline."""
        heap = self._heap
        while heap:
            if heap[0][2].spans:
                return heap[0][2]
            heapq.heappop(heap)
        return None

    def first(self) -> QueuedRequest | None:
        """Return the entry that the next batch begins with."""
        return self.head()

    def upcoming(self, items: int) -> list[QueuedRequest]:
        """Return the first entries by deadline that together hold this many items."""
        return upcoming(self._heap, items)

    def take(self, size: int, budget: float = math.inf) -> list[tuple[QueuedRequest, Part]]:
        """Form a batch of at most `size` items in deadline order.

        An entry larger than `size` is split. A smaller entry that does not fit ends the batch, so
        that nothing overtakes it. A solo entry forms a batch of its own. The first entry may cost
        more than `budget`.
        """
        batch: list[tuple[QueuedRequest, Part]] = []
        room = size
        heap = self._heap
        while room and heap:
            entry = heap[0][2]
            spans = entry.spans
            if not spans:
                heapq.heappop(heap)
                continue
            if entry.is_solo:
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

    def _waiting(self) -> list[QueuedRequest]:
        # An entry that was given back may be listed twice; its first place is the original one.
        return list(dict.fromkeys([entry for entry in self._arrivals if entry.spans]))

    def _tidy(self) -> None:
        waiting = self._waiting()
        self._arrivals = deque(waiting)
        self._heap = [(entry.deadline_s, entry.id, entry) for entry in waiting]
        heapq.heapify(self._heap)
