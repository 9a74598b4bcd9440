"""Batches: which model has the next turn with a worker, and the largest batch that is in time.

Of the models in a worker's memory the one whose largest possible batch must start first has the next turn.
Pure; times are in seconds on the controller's clock.
"""

from __future__ import annotations

import heapq

from serving.scheduling.clockwork.holdings import NEVER_S, Holding, Pool, Sent, Worker
from serving.scheduling.clockwork.memory import Memory
from serving.scheduling.clockwork.orders import Orders
from serving.scheduling.clockwork.queue import Queue
from serving.scheduling.clockwork.waiting import Chosen, Entry
from serving.scheduling.seam import Kind, Part, Reason

MOST_PASSED_OVER = 8
"""Models that leave, whose turns are passed over in search of a larger batch."""


class Batches:
    """Batches of a pool."""

    __slots__ = ("_dues", "_memory", "_orders", "_pool", "_queue")

    def __init__(self, pool: Pool, orders: Orders, memory: Memory, queue: Queue) -> None:
        self._pool, self._orders, self._memory, self._queue = pool, orders, memory, queue
        self._dues: list[tuple[float, int, Worker]] = []
        """When the first request of a batch with a worker is too late: its deadline, the action, the worker."""

    def give(self, worker: Worker, now_s: float) -> None:
        """Give the worker batches that it could begin soon."""
        while worker.heap:
            start_s = self._orders.start_s(worker, worker.exec, now_s)
            if start_s is None:
                return
            found = self._next(worker, start_s)
            if found is None:
                return
            self._begin(*found, start_s)

    def _next(self, worker: Worker, start_s: float) -> tuple[Holding, Chosen] | None:
        """The batch of the model whose turn it is, or a larger one of another model.

        A model that leaves has its turn before all others, and each request that still comes for it would be a
        batch of its own. So one goes before that is larger, where nothing that was promised would be late for it.
        """
        found = self._turn(worker, start_s)
        if found is None or found[0].leave is None:
            return found
        count, popped = _count(*found), []
        other: tuple[Holding, Chosen] | None = found
        while other is not None and other[0].leave is not None and _count(*other) <= count:
            popped.append(heapq.heappop(worker.heap))
            other = self._turn(worker, start_s) if len(popped) < MOST_PASSED_OVER else None
        for turn in popped:
            heapq.heappush(worker.heap, turn)
        if other is None or _count(*other) <= count:
            return found
        took_s = other[0].model.durations.worth_s[other[1].place]
        end_s = start_s + took_s
        fits = worker.backlog.fits(end_s, took_s, free_s=start_s, now_s=self._pool.now_s)
        return other if fits and end_s <= popped[0][0] else found

    def _turn(self, worker: Worker, start_s: float) -> tuple[Holding, Chosen] | None:
        """The model whose batch must start first, were it to start then, and the batch."""
        heap = worker.heap
        while heap:
            key_s, _, holding = heap[0]
            if holding.key_s != key_s:
                heapq.heappop(heap)  # it has another place now
                continue
            model, leave = holding.model, holding.leave
            if leave is not None and holding.has_left(start_s):
                heapq.heappop(heap)
                holding.key_s = NEVER_S  # those who wait, wait for it to come back
                continue
            chosen = model.waiting.choose(start_s, model.durations.sizes, model.durations.worth_s)
            if chosen is None:
                heapq.heappop(heap)
                holding.key_s = NEVER_S
                if len(model.holdings) == 1:
                    self._queue.drop(model, start_s)
                continue
            latest_s = chosen.latest_s
            if leave is not None:
                latest_s = min(latest_s, holding.hurry_s)
            if latest_s > key_s:
                heapq.heappop(heap)
                self._queue.turn(holding, latest_s)
                continue
            return holding, chosen
        if worker.planned:  # one that waited for the last turn may begin
            self._orders.dirty[worker.id] = worker
        return None

    def _begin(self, holding: Holding, chosen: Chosen, start_s: float) -> None:
        """Give the worker a batch."""
        worker, model, queue = holding.worker, holding.model, self._queue
        durations, waiting = model.durations, model.waiting
        deadline_s = waiting.deadlines_s[chosen.first]
        entries = waiting.take(chosen.first, durations.sizes[chosen.place])
        queue.items -= len(entries)
        parts: list[Part] = []
        items: list[tuple[Entry, int]] = []
        for entry in entries:
            item = entry.give()
            items.append((entry, item))
            if parts and parts[-1][0] == entry.id and parts[-1][2] == item:
                parts[-1] = (entry.id, parts[-1][1], item + 1)
            else:
                parts.append((entry.id, item, item + 1))
                queue.uncharge(entry, model)
        due_s = min(entry.due_s for entry in entries)
        took_s = durations.worth_s[chosen.place]
        latest_s = deadline_s - took_s
        if not entries[0].alone:  # else its way there may take longer than any window
            latest_s = min(latest_s, start_s + self._pool.parameters.window_s)
        action = self._orders.send(
            Kind.INFER, holding, latest_s=latest_s, expected_s=took_s, items=items, parts=parts
        )
        worker.exec.add(action, start_s, took_s)
        worker.longest.observe(took_s)
        heapq.heappush(self._dues, (due_s, action, worker))
        holding.busy += 1
        worker.held[model.index] = worker.held.pop(model.index)
        holding.key_s = NEVER_S
        if waiting.entries:
            queue.recharge(model, holding)
            if chosen.first == 0:
                queue.watch(model)
            queue.offer(model)
        else:
            self._memory.settle(model)

    def ran(self, sent: Sent, took_s: float) -> None:
        """A batch was run."""
        sent.holding.model.durations.observe(len(sent.items), took_s)
        self._pool.reserve.ran(len(sent.items))
        for entry, _ in sent.items:
            entry.open_items -= 1
            if not entry.open_items:
                self._queue.entries.pop(entry.id, None)

    def expire(self, now_s: float) -> None:
        """Refuse what is too late with a worker."""
        dues = self._dues
        while dues and dues[0][0] <= now_s:
            _, number, worker = heapq.heappop(dues)
            sent = worker.sent.get(number)
            if sent is None:
                continue
            next_s = NEVER_S
            for entry, _ in sent.items:
                if entry.due_s <= now_s:
                    self._queue.refuse(entry, sent.holding.model, Reason.DEADLINE_IN_REPLICA)
                else:
                    next_s = min(next_s, entry.due_s)
            if next_s < NEVER_S:
                heapq.heappush(dues, (next_s, number, worker))

    def expiry_s(self) -> float:
        """When the next is too late; what is out of date in the heap is forgotten."""
        dues = self._dues
        while dues and dues[0][1] not in dues[0][2].sent:
            heapq.heappop(dues)
        return dues[0][0] if dues else NEVER_S


def _count(holding: Holding, chosen: Chosen) -> int:
    """Items of a batch."""
    return holding.model.durations.sizes[chosen.place]
