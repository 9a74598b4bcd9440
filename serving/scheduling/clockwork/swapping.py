"""Swaps: loads in place of models in use, at a time set on admission.

    planned -------- waits --------> evicted models have left -> LOAD
    evicted model -- reserved for what can be done until then --> UNLOAD

A swap gets only time left after all reserved work. Starts increase along a chain of swaps, so
nothing waits for itself. Pure.
"""

from __future__ import annotations

from serving.scheduling.clockwork.backlog import LoadReservation
from serving.scheduling.clockwork.instances import (
    InstanceState,
    ModelInstance,
    PlannedEviction,
    PoolModel,
    PoolWorker,
    Swap,
)
from serving.scheduling.clockwork.eviction import Memory
from serving.scheduling.clockwork.outbox import ActionOutbox
from serving.scheduling.clockwork.pool_queue import PoolQueue
from serving.scheduling.clockwork.swap_planner import SwapPlan
from serving.scheduling.interface import ActionType


class Swapping:
    """Swaps of a pool."""

    __slots__ = ("_memory", "_orders", "_queue")

    def __init__(self, orders: ActionOutbox, memory: Memory, queue: PoolQueue) -> None:
        self._orders, self._memory, self._queue = orders, memory, queue

    def bind(self, holding: ModelInstance, place: SwapPlan, now_s: float) -> None:
        """Make a planned load wait for the memory of the models it evicts."""
        worker, model = place.worker, holding.model
        start_s, load_s = place.start_s, model.load.estimate_s
        given = sum(one.model.pages for one in place.evicts)
        kept = max(0, model.pages - given)
        holding.swap = swap = Swap(place.evicts, start_s, start_s + load_s, kept)
        worker.planned_pages += kept
        worker.paid_back_at_s = max(worker.paid_back_at_s, now_s) + place.payback_s
        if not worker.concurrent_loads:
            bucket_s = worker.backlog.bucket_s(swap.due_s, now_s)
            swap.charge = LoadReservation.of(worker.backlog, bucket_s, swap.due_s, load_s)
        for one in place.evicts:
            self._memory.use(one)
            one.planned_eviction = PlannedEviction(holding, start_s)
            one.promises.is_before_eviction = True
            self._queue.bring_forward(one)
            if one.model.waiting.entries:
                self._queue.offer(one.model)
        self._orders.check_at(worker, start_s)

    def may_begin(self, holding: ModelInstance, swap: Swap, free_s: float, now_s: float) -> bool:
        """Whether the memory may be taken now, and the executor has time."""
        worker = holding.worker
        if worker.instances[holding.model.index] is not holding:
            return False
        if any(one.state is not InstanceState.LOADED or one.busy for one in swap.evicts):
            return False
        if now_s < swap.start_s:
            self._orders.check_at(worker, swap.start_s)
            if any(one.model.waiting.entries for one in swap.evicts):
                return False
            return worker.concurrent_loads or (
                worker.next_start_s(now_s) >= swap.start_s and not _is_awaited(worker)
            )
        if any(one.promises.reserved_items for one in swap.evicts):
            return False
        until_s = min(swap.start_s, free_s + holding.model.load.estimate_s)
        return worker.concurrent_loads or worker.next_start_s(now_s) >= until_s

    def begin(self, holding: ModelInstance, swap: Swap) -> list[PoolModel]:
        """Evict the models; return those now on no worker."""
        for one in swap.evicts:
            self._stay(one)
            self._memory.evict(one)
        self._end(holding, swap)
        return [one.model for one in swap.evicts if not one.model.holdings]

    def cancel(self, holding: ModelInstance) -> list[ModelInstance]:
        """Cancel a load, whose victims stay; return planned loads no longer needed."""
        worker, swap, leave = holding.worker, holding.swap, holding.planned_eviction
        needless = []
        if leave is not None and leave.to.swap is not None:
            self._stay(holding)
            leave.to.swap.evicts.remove(holding)
            if holding.state is InstanceState.PLANNED:
                needless.append(leave.to)
            else:
                given = sum(one.model.pages for one in leave.to.swap.evicts)
                kept = max(0, leave.to.model.pages - given)
                worker.planned_pages += kept - leave.to.swap.pages
                leave.to.swap.pages = kept
        if swap is None:
            return needless
        self._end(holding, swap)
        for one in swap.evicts:
            self._stay(one)
            self._settle(one)
        stays = [one.model for one in swap.evicts]
        return needless + [
            one for one in worker.planned if one.model in stays and one not in swap.evicts
        ]

    def _end(self, holding: ModelInstance, swap: Swap) -> None:
        holding.swap = None
        holding.worker.planned_pages -= swap.pages
        if swap.charge is not None:
            swap.charge.take_back()

    def _settle(self, holding: ModelInstance) -> None:
        if holding.state is InstanceState.LOADED:
            if holding.model.waiting.entries:
                self._queue.offer(holding.model)
            else:
                self._memory.mark_evictable(holding.model)

    def _stay(self, holding: ModelInstance) -> None:
        holding.planned_eviction = None
        holding.promises.is_before_eviction = False


def _is_awaited(worker: PoolWorker) -> bool:
    """Whether requests wait for a model that the worker is loading."""
    return any(
        sent.kind is ActionType.LOAD and sent.holding.model.waiting.entries
        for sent in worker.issued.values()
    )
