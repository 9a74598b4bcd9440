"""Requests of several flows that wait: each flow gets its share, and orders its own by level and deadline.

In: requests with a flow and a level each. Out: batches of parts. While several flows wait, each gets as
many items into batches as any other one, whatever it sends: start-time fair queueing (Goyal, Vin and
Cheng, SIGCOMM 1996) with equal weights, an item being the unit (a large one counts for more: its `cost`). Over
any time in which two flows wait all along, what they got differs by at most the largest part of each. What a
flow leaves unused the others get. Large items and others share no batch, for the others would wait for their
copying: a flow whose next item is of the other kind lets those behind it fill the batch, and begins the next one.

Within a flow the more urgent level goes first, strictly, and within a level the earliest deadline.
Levels say nothing across flows: who could overtake the others by calling itself urgent would.

    flows A and B wait, batches of 4:   A: 1 2 3 4 5 6   B: 7 8     ->  1 7 2 8 | 3 4 5 6

Operations cost O(log n) amortised, but for giving back (up to O(n)) and for `last`, which looks at every
flow. Knows nothing of workers or time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from serving.scheduling.adaptive.queue import SLACK, DeadlineQueue, Entry, upcoming
from serving.scheduling.seam import Part

MAX_FLOWS = 256
"""Flows with a share of their own; those beyond share the one without a name, so that names cost nothing."""
_UNNAMED = ""


class Flow:
    """What waits of one flow, and where it stands."""

    __slots__ = ("heap", "items", "last", "name", "number")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        """Decides among flows that stand equal."""
        self.items = 0
        self.heap: list[tuple[int, float, int, Entry]] = []
        """By level, deadline and arrival."""
        self.last: list[tuple[int, float, int, Entry]] | None = None
        """The same in the opposite order; made when the queue is full, for only then it is asked for."""

    def add(self, entry: Entry) -> None:
        """An entry begins to wait."""
        heapq.heappush(self.heap, (entry.level, entry.deadline_s, entry.id, entry))
        most = 2 * self.items + SLACK
        if len(self.heap) > most:
            self.heap = [item for item in self.heap if item[3].spans]
            heapq.heapify(self.heap)
        if self.last is not None:
            heapq.heappush(self.last, (-entry.level, -entry.deadline_s, -entry.id, entry))
            if len(self.last) > most:
                self.last = None

    def first_entry(self) -> Entry | None:
        """The one whose turn it is."""
        heap = self.heap
        while heap:
            if heap[0][3].spans:
                return heap[0][3]
            heapq.heappop(heap)
        return None

    @property
    def is_large(self) -> bool:
        """Whether its next item is."""
        entry = self.first_entry()
        return entry is not None and entry.cost > 1

    def upcoming(self, items: int) -> list[Entry]:
        """The first entries in the order of their turns, until they hold so many items together."""
        return upcoming(self.heap, items)

    def last_entry(self) -> Entry | None:
        """The one whose turn would come last."""
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
    """Waiting entries by flow, level and deadline; `head` is the one whose deadline is first of all."""

    __slots__ = ("_flows", "_now", "_opened", "_turns")

    def __init__(self) -> None:
        super().__init__()
        self._flows: dict[str, Flow] = {}
        self._turns: list[tuple[int, int, Flow]] = []
        """Each known flow once, by its virtual time: the items that it would have got by then."""
        self._now = 0
        """Virtual time of the queue: that of the flow which was served last."""
        self._opened = 0

    def adopt(self, entries: Sequence[Entry]) -> None:
        """Begin anew with entries that waited elsewhere, in the order of arrival."""
        self.drain()
        for entry in entries:
            items = sum(stop - start for start, stop in entry.spans)
            self._arrivals.append(entry)
            heapq.heappush(self._heap, (entry.deadline_s, entry.id, entry))
            self.items += items
            self._now = entry.cost - 1  # a flow of large ones has just had its turn, alone
            self._join(entry, items)
        self._now = 0

    def drain(self) -> list[Entry]:
        """All waiting entries in the order of arrival; they wait here no more, and no flow is known."""
        self._flows.clear()
        self._turns.clear()
        self._now = 0
        return super().drain()

    def push(self, entry: Entry) -> None:
        """A new entry, all of whose items wait. Arrival times must not decrease."""
        super().push(entry)
        self._join(entry, entry.items)

    def give_back(self, entry: Entry, part: Part) -> None:
        """A part comes back from a lost worker; its flow has had its turn all the same."""
        was_waiting = bool(entry.spans)
        super().give_back(entry, part)
        _, start, stop = part
        items = stop - start
        if was_waiting:
            self._flows[entry.flow].items += items
        else:
            self._join(entry, items)

    def discard(self, entry: Entry) -> None:
        """The entry leaves; what waited of it no longer counts."""
        if entry.spans:
            waiting = sum(stop - start for start, stop in entry.spans)
            self._flows[entry.flow].items -= waiting
        super().discard(entry)

    def first(self) -> Entry | None:
        """The entry with which the next batch begins."""
        flow = self._next_flow()
        return None if flow is None else flow.first_entry()

    def waiting_flows(self) -> list[Flow]:
        """The flows of which something waits."""
        return [flow for flow in self._flows.values() if flow.items]

    def last(self, name: str = "", capacity: int | None = None) -> Entry | None:
        """The entry that gives way where there is no room: of the flow with the most items, the last one.

        Args:
            name: of the flow that something came to. Where it has more than there would be room for, were all others
                cut down to as many, it is the one to give way: the others would, and in vain.
            capacity: items that there is room for; None: the fullest flow gives way.
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
    ) -> list[tuple[Entry, Part]]:
        """Form a batch of at most `size` items, flow by flow.

        What is split and what shares no batch is as in `DeadlineQueue.take`.

        Args:
            size: most items; what the deadline of the first one allows.
            most: deadline -> most items of a batch that keeps it. One that is more urgent than the
                first, but not its flow's turn, is in the batch only as far as the batch stays so small.
            budget: as in `DeadlineQueue.take`.
        """
        batch: list[tuple[Entry, Part]] = []
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
            if batch and (entry.alone or budget < 0):
                break
            if entry.alone:
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

    def _join(self, entry: Entry, items: int) -> None:
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
        """The flow whose turn it is; its heap begins with the entry.

        A flow without entries is forgotten when its turn comes and not before: until then it has had
        more than its share, which it must not get again by coming back as new.
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
        self, batch: list[tuple[Entry, Part]], aside: list[tuple[int, int, Flow]]
    ) -> Flow | None:
        """The flow whose turn it is, of those whose next entry may be in the batch; the others are put aside."""
        while (flow := self._next_flow()) is not None:
            if not batch or (flow.heap[0][3].cost > 1) == (batch[0][0].cost > 1):
                break
            aside.append(heapq.heappop(self._turns))
        return flow

    def _charge(self, flow: Flow, items: int, cost: int) -> None:
        """The flow whose turn it is got so many items, each of which counts for so much."""
        turns = self._turns
        self._now = turns[0][0]
        flow.items -= items
        heapq.heapreplace(turns, (self._now + items * cost, flow.number, flow))
