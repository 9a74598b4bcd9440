"""A worker's next model, and its largest batch that does not delay reserved work. Pure."""

from __future__ import annotations

import bisect
import heapq
import operator
from typing import NamedTuple

from serving.scheduling.clockwork.eviction import mark_evictable
from serving.scheduling.clockwork.instances import NEVER_S, IssuedAction, ModelInstance, PoolWorker
from serving.scheduling.clockwork.model_queue import (
    BatchCandidate,
    BatchReservation,
    PendingRequest,
)
from serving.scheduling.clockwork.pool_queue import PoolQueue
from serving.scheduling.clockwork.pool_state import PoolState
from serving.scheduling.interface import ActionType, Part, RejectionReason

MAX_PASSED_OVER = 8
"""Maximum number of models about to be evicted that a larger batch may overtake."""


class NextBatch(NamedTuple):
    """A batch for a worker."""

    holding: ModelInstance
    place: int
    entries: list[PendingRequest]
    """One entry per item, by deadline."""
    first: int | None
    """Queue index of the first item; None if the items are not adjacent."""


class Batches:
    """Issues the batches of a pool."""

    def __init__(self, pool: PoolState, queue: PoolQueue) -> None:
        self._pool, self._queue = pool, queue
        self._dues: list[tuple[float, int, PoolWorker]] = []
        """Heap of issued batches as (first deadline, action, worker)."""

    def give(self, worker: PoolWorker) -> None:
        """Issue batches that the worker could start soon."""
        while worker.heap:
            start_s = self._pool.start_s(worker, worker.exec)
            if start_s is None:
                return
            found = self._next(worker, start_s)
            if found is None:
                return
            self._begin(found, start_s)

    def _next(self, worker: PoolWorker, start_s: float) -> NextBatch | None:
        """Return the next model's batch; if that model is to be evicted, perhaps a larger one."""
        found = self._turn(worker, start_s)
        if found is None or found.holding.planned_eviction is None:
            return found
        popped: list[tuple[float, int, ModelInstance]] = []
        other: NextBatch | None = found
        while (
            other is not None
            and other.holding.planned_eviction is not None
            and len(other.entries) <= len(found.entries)
        ):
            popped.append(heapq.heappop(worker.heap))
            other = self._turn(worker, start_s) if len(popped) < MAX_PASSED_OVER else None
        for turn in popped:
            heapq.heappush(worker.heap, turn)
        if other is None or len(other.entries) <= len(found.entries):
            return found
        return other if self._is_kept(other, start_s) else found

    def _turn(self, worker: PoolWorker, start_s: float) -> NextBatch | None:
        heap = worker.heap
        while heap:
            key_s, _, holding = heap[0]
            if holding.key_s != key_s:
                heapq.heappop(heap)  # stale
                continue
            model = holding.model
            if holding.planned_eviction is not None and holding.has_left(start_s):
                heapq.heappop(heap)
                holding.key_s = NEVER_S  # requests wait for its return
                continue
            if model.waiting.entries and holding.first_s > key_s:
                heapq.heappop(heap)
                self._queue.turn(holding, holding.first_s)
                continue
            durations = model.durations
            chosen = model.waiting.choose(start_s, durations.sizes, durations.estimate_s)
            if chosen is None:
                heapq.heappop(heap)
                holding.key_s = NEVER_S
                if len(model.holdings) == 1:
                    self._queue.drop(model, start_s + durations.estimate_s[0])
                continue
            found = self._fit_to_reservations(holding, chosen, start_s)
            if found is not None:
                return found
            heapq.heappop(heap)  # other workers reserved it all, and this one has no spare time
            holding.key_s = NEVER_S
        if worker.planned:  # a load may begin now
            self._pool.to_check[worker.id] = worker
        return None

    def _fit_to_reservations(
        self, holding: ModelInstance, chosen: BatchCandidate, start_s: float
    ) -> NextBatch | None:
        """Return the chosen batch, or a smaller one that does not delay reserved work.

        Return None if all items are reserved on other workers.
        """
        model = holding.model
        waiting, durations = model.waiting, model.durations
        sizes, worth_s = durations.sizes, durations.estimate_s
        first = NextBatch(
            holding,
            chosen.place,
            waiting.entries[chosen.first : chosen.first + sizes[chosen.place]],
            chosen.first,
        )
        if self._is_kept(first, start_s):
            return first
        if waiting.solo:
            return first
        bundles = holding.promises.bundles
        count = bundles[0].count if bundles else 0
        below, above = bisect.bisect_right(sizes, count) - 1, chosen.place + bool(chosen.first)
        found = None
        while above - below > 1:
            place = (below + above) // 2
            turn = NextBatch(holding, place, waiting.entries[: sizes[place]], 0)
            end_s = start_s + worth_s[place]
            if end_s <= waiting.deadlines_s[0] and self._is_kept(turn, start_s):
                found, below = turn, place
            else:
                above = place
        if found is not None or not bundles:
            return found
        members = [entry for entry in bundles[0].entries for _ in range(entry.waits)]
        members.sort(key=operator.attrgetter("deadline_s"))
        for place in range(bisect.bisect_right(sizes, count) - 1, -1, -1):
            found = NextBatch(holding, place, members[: sizes[place]], None)
            if start_s + worth_s[place] <= members[0].deadline_s and self._is_kept(found, start_s):
                return found
        return first

    def _is_kept(self, turn: NextBatch, start_s: float) -> bool:
        holding = turn.holding
        durations, backlog = holding.model.durations, holding.worker.backlog
        free_s = start_s + durations.estimate_s[turn.place]
        if backlog.keeps(free_s):
            return True
        counts: dict[BatchReservation, int] = {}
        for entry in turn.entries:
            bundle = entry.bundle
            if bundle is not None and bundle.by.backlog is backlog:
                counts[bundle] = counts.get(bundle, 0) + 1
        done = [
            (bundle.bucket_s, bundle.cost_s - durations.quickest_s(bundle.count - count))
            for bundle, count in counts.items()
        ]
        return backlog.keeps(free_s, done)

    def _begin(self, turn: NextBatch, start_s: float) -> None:
        holding, entries = turn.holding, turn.entries
        worker, model, queue = holding.worker, holding.model, self._queue
        durations, waiting = model.durations, model.waiting
        deadline_s = entries[0].deadline_s
        if turn.first is None:
            waiting.pick(entries)
        else:
            waiting.take(turn.first, len(entries))
        parts: list[Part] = []
        items = list(zip(entries, queue.give(entries, model), strict=True))
        for entry, item in items:
            if parts and parts[-1][0] == entry.id and parts[-1][2] == item:
                parts[-1] = (entry.id, parts[-1][1], item + 1)
            else:
                parts.append((entry.id, item, item + 1))
        due_s = min(entry.due_s for entry in entries)
        took_s = durations.estimate_s[turn.place]
        latest_s = max(deadline_s - took_s, start_s)
        if not entries[0].is_solo:  # a large one may arrive after any window
            latest_s = min(latest_s, start_s + self._pool.parameters.window_s)
        action = self._pool.send(
            ActionType.INFER,
            holding,
            latest_s=latest_s,
            expected_s=took_s,
            items=items,
            parts=parts,
        )
        worker.exec.add(action, start_s, took_s)
        worker.longest.observe(took_s)
        heapq.heappush(self._dues, (due_s, action, worker))
        holding.busy += 1
        worker.instances[model.index] = worker.instances.pop(model.index)
        holding.key_s = NEVER_S
        if waiting.entries:
            if turn.first is None or turn.first == 0:
                queue.watch(model)
            queue.offer(model)
        else:
            mark_evictable(self._pool, model)

    def ran(self, sent: IssuedAction, took_s: float) -> None:
        """Record a batch that was run."""
        sent.holding.model.durations.observe(len(sent.items), took_s)
        self._pool.reserve.ran(len(sent.items))
        for entry, _ in sent.items:
            entry.open_items -= 1
            if not entry.open_items:
                self._queue.entries.pop(entry.id, None)

    def expire(self, now_s: float) -> None:
        """Reject issued requests whose deadline has passed."""
        dues = self._dues
        while dues and dues[0][0] <= now_s:
            _, number, worker = heapq.heappop(dues)
            sent = worker.issued.get(number)
            if sent is None:
                continue
            next_s = NEVER_S
            for entry, _ in sent.items:
                if entry.due_s <= now_s:
                    self._queue.reject(
                        entry, sent.holding.model, RejectionReason.DEADLINE_IN_REPLICA
                    )
                else:
                    next_s = min(next_s, entry.due_s)
            if next_s < NEVER_S:
                heapq.heappush(dues, (next_s, number, worker))

    def expiry_s(self) -> float:
        """Return the next deadline of an issued request."""
        dues = self._dues
        while dues and dues[0][1] not in dues[0][2].issued:
            heapq.heappop(dues)
        return dues[0][0] if dues else NEVER_S
