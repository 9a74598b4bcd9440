"""A queue that flows share evenly, each ordered by level and deadline.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with equal weights, counted in items
times `cost`. Large and small items are not batched together, because small ones would wait while
large ones are copied. Levels order requests only within a flow.

    batches of 4 from flows A: 1 2 3 4 5 6 and B: 7 8     ->  1 7 2 8 | 3 4 5 6
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from serving.scheduling.adaptive.queue import SLACK, DeadlineQueue, QueuedRequest, upcoming
from serving.scheduling.interface import Part

MAX_FLOWS = 256
"""Number of flows beyond which new ones are treated as a single flow."""
_UNNAMED = ""


class Flow:
    """The queued entries of one flow."""

    __slots__ = ("heap", "items", "last", "name", "number")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.items = 0
        self.heap: list[tuple[int, float, int, QueuedRequest]] = []
        self.last: list[tuple[int, float, int, QueuedRequest]] | None = None

    def add(self, entry: QueuedRequest) -> None:
        """Queue an entry."""
        heapq.heappush(self.heap, (entry.level, entry.deadline_s, entry.id, entry))
        most = 2 * self.items + SLACK
        if len(self.heap) > most:
            self.heap = [item for item in self.heap if item[3].spans]
            heapq.heapify(self.heap)
        if self.last is not None:
            heapq.heappush(self.last, (-entry.level, -entry.deadline_s, -entry.id, entry))
            if len(self.last) > most:
                self.last = None

    def first_entry(self) -> QueuedRequest | None:
        """Return the flow's next entry."""
        heap = self.heap
        while heap:
            if heap[0][3].spans:
                return heap[0][3]
            heapq.heappop(heap)
        return None

    @property
    def is_large(self) -> bool:
        """Whether the next item costs more than an ordinary one; False if the flow is empty."""
        entry = self.first_entry()
        return entry is not None and entry.cost > 1

    def upcoming(self, items: int) -> list[QueuedRequest]:
        """Return the flow's first entries that together hold this many items."""
        return upcoming(self.heap, items)

    def last_entry(self) -> QueuedRequest | None:
        """Return the flow's last entry."""
        if self.last is None:
            self.last = [
                (-entry.level, -entry.deadline_s, -entry.id, entry)
                for *_, entry in self.heap
                if entry.spans
            ]
            heapq.heapify(self.last)
        last = self.last
        while last:
            if last[0][3].spans:
                return last[0][3]
            heapq.heappop(last)
        return None


class FairQueue(DeadlineQueue):
    """A queue ordered by flow, level and deadline."""

    __slots__ = ("_flows", "_now", "_opened", "_turns")

    def __init__(self) -> None:
        super().__init__()
        self._flows: dict[str, Flow] = {}
        self._turns: list[tuple[int, int, Flow]] = []
        self._now = 0
        self._opened = 0

    def adopt(self, entries: Sequence[QueuedRequest]) -> None:
        """Take over the entries of another queue, in order of arrival."""
        self.drain()
        for entry in entries:
            items = entry.waiting_items
            self._arrivals.append(entry)
            heapq.heappush(self._heap, (entry.deadline_s, entry.id, entry))
            self.items += items
            self._now = entry.cost - 1  # a flow of large items has just had its turn
            self._join(entry, items)
        self._now = 0

    def drain(self) -> list[QueuedRequest]:
        """Remove and return all queued entries in order of arrival."""
        self._flows.clear()
        self._turns.clear()
        self._now = 0
        return super().drain()

    def push(self, entry: QueuedRequest) -> None:
        """Queue a new entry."""
        super().push(entry)
        self._join(entry, entry.items)

    def give_back(self, entry: QueuedRequest, part: Part) -> None:
        """Requeue a part that a worker did not run; its flow is still charged for it."""
        was_waiting = bool(entry.spans)
        super().give_back(entry, part)
        _, start, stop = part
        items = stop - start
        if was_waiting:
            self._flows[entry.flow].items += items
        else:
            self._join(entry, items)

    def discard(self, entry: QueuedRequest) -> None:
        """Remove an entry."""
        if entry.spans:
            self._flows[entry.flow].items -= entry.waiting_items
        super().discard(entry)

    def first(self) -> QueuedRequest | None:
        """Return the entry that the next batch begins with."""
        flow = self._next_flow()
        return None if flow is None else flow.first_entry()

    def waiting_flows(self) -> list[Flow]:
        """Return the flows with queued items."""
        return [flow for flow in self._flows.values() if flow.items]

    def last(self, name: str = "", capacity: int | None = None) -> QueuedRequest | None:
        """Return the entry to reject when the queue is full: the last one of the fullest flow.

        If the queue would exceed `capacity` even with every flow cut to the size of `name`, the
        newcomer's flow, return the last entry of `name`.
        """
        own = None if capacity is None else self._flows.get(name)
        if own is not None and capacity is not None:
            most = own.items
            if sum([min(flow.items, most) for flow in self._flows.values()]) > capacity:
                return own.last_entry()
        fullest: Flow | None = None
        for flow in self._flows.values():
            if fullest is None or flow.items > fullest.items:
                fullest = flow
        return None if fullest is None else fullest.last_entry()

    def take(
        self,
        size: int,
        budget: float = math.inf,
        most: Callable[[float], int] | None = None,
    ) -> list[tuple[QueuedRequest, Part]]:
        """Form a batch flow by flow, but otherwise as `DeadlineQueue.take` does.

        Args:
            size: maximum number of items that meets the first entry's deadline.
            budget: maximum cost of large entries.
            most: function from a deadline to the largest batch that meets it.
        """
        batch: list[tuple[QueuedRequest, Part]] = []
        aside: list[tuple[int, int, Flow]] = []
        whole = size
        taken = 0
        earliest_s = math.inf
        while taken < size:
            flow = self._fitting_flow(batch, aside)
            if flow is None:
                break
            entry = flow.heap[0][3]
            spans = entry.spans
            start, stop = spans[-1]
            wanted = stop - start
            budget -= min(wanted, size - taken) * entry.cost if entry.cost > 1 else 0
            if batch and (entry.is_solo or budget < 0):
                break
            if entry.is_solo:
                size = min(size, wanted)
            elif batch and most is not None and entry.deadline_s < earliest_s:
                size = min(size, most(entry.deadline_s))
                if size <= taken:
                    break
            if wanted > size - taken:
                if wanted <= whole:
                    break
                stop = start + size - taken
                spans[-1] = (stop, spans[-1][1])
            else:
                spans.pop()
                if not spans:
                    heapq.heappop(flow.heap)
            batch.append((entry, (entry.id, start, stop)))
            earliest_s = min(earliest_s, entry.deadline_s)
            self._charge(flow, stop - start, entry.cost)
            taken += stop - start
        for turn in aside:
            heapq.heappush(self._turns, turn)
        self.items -= taken
        if len(self._arrivals) > 2 * self.items + SLACK or len(self._heap) > 2 * self.items + SLACK:
            self._tidy()
        return batch

    def _join(self, entry: QueuedRequest, items: int) -> None:
        flow = self._flows.get(entry.flow)
        if flow is None:
            if len(self._flows) >= MAX_FLOWS:
                entry.flow = _UNNAMED
                flow = self._flows.get(_UNNAMED)
            if flow is None:
                self._opened += 1
                flow = self._flows[entry.flow] = Flow(entry.flow, self._opened)
                heapq.heappush(self._turns, (self._now, flow.number, flow))
        flow.items += items
        flow.add(entry)

    def _next_flow(self) -> Flow | None:
        """Return the flow whose turn it is.

        An empty flow is forgotten only at its turn; otherwise it could return for a second turn.
        """
        turns = self._turns
        while turns:
            flow = turns[0][2]
            if flow.first_entry() is not None:
                return flow
            self._now = turns[0][0]
            heapq.heappop(turns)
            del self._flows[flow.name]
        return None

    def _fitting_flow(
        self, batch: list[tuple[QueuedRequest, Part]], aside: list[tuple[int, int, Flow]]
    ) -> Flow | None:
        while (flow := self._next_flow()) is not None:
            if not batch or (flow.heap[0][3].cost > 1) == (batch[0][0].cost > 1):
                break
            aside.append(heapq.heappop(self._turns))
        return flow

    def _charge(self, flow: Flow, items: int, cost: int) -> None:
        turns = self._turns
        self._now = turns[0][0]
        flow.items -= items
        heapq.heapreplace(turns, (self._now + items * cost, flow.number, flow))
