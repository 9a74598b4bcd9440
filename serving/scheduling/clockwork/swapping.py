"""Swaps, which load models in place of models in use, at a time set on admission.

    planned model -- waits ------------------------------------> evicted models are gone -> LOAD
    evicted model -- keeps the reservations that fit before --> UNLOAD

A swap costs executor time, so each one waits until spare time and the share `PAID` have made up for
earlier swaps. It uses only time that is not reserved. Start times increase along a chain of swaps,
so none waits for itself. Pure.
"""

from __future__ import annotations

from serving.scheduling.clockwork.backlog import LoadReservation
from serving.scheduling.clockwork.eviction import evict
from serving.scheduling.clockwork.instances import (
    InstanceState,
    ModelInstance,
    PlannedEviction,
    PoolModel,
    PoolWorker,
    Swap,
)
from serving.scheduling.clockwork.pool_queue import PoolQueue
from serving.scheduling.clockwork.pool_state import PoolState
from serving.scheduling.clockwork.schedulability import SchedulabilityTest
from serving.scheduling.interface import ActionType

WAITS = 0.5
"""Share of the available time for which a swap is delayed so that requests can join."""
MAX_WAIT = 50.0
"""Maximum delay of a swap, in load times."""
RESIDENCE = 5.0
"""Minimum stay of a model in use, in load times."""
BUSIER = 2.0
"""Ratio of the new model's work to the evicted models' from which a swap costs nothing."""
PAID = 0.05
"""Share of an executor's time that swaps may cost in addition to the spare time."""
SLACK = 0.25
"""Margin before a model with a planned load is evicted, as a share of the time until then."""


class Swapping:
    """Begins and cancels a pool's swaps."""

    def __init__(self, pool: PoolState, queue: PoolQueue) -> None:
        self._pool, self._queue = pool, queue

    def bind(self, holding: ModelInstance, swap: Swap) -> None:
        """Make a planned load wait for the memory of the models that it evicts."""
        worker, now_s = swap.worker, self._pool.now_s
        holding.swap = swap
        swap.pages = _missing_pages(holding, swap)
        worker.planned_pages += swap.pages
        worker.paid_back_at_s = max(worker.paid_back_at_s, now_s) + swap.payback_s
        if not worker.concurrent_loads:
            load_s = holding.model.load.estimate_s
            due_s = swap.start_s + load_s
            bucket_s = worker.backlog.bucket_s(due_s, now_s)
            swap.charge = LoadReservation.of(worker.backlog, bucket_s, due_s, load_s)
        for one in swap.evicts:
            one.use()
            one.planned_eviction = PlannedEviction(holding, swap.start_s)
            one.promises.is_before_eviction = True
            self._queue.move(one, one)
            if one.model.waiting.entries:
                self._queue.offer(one.model)
        self._pool.check_at(worker, swap.start_s)

    def may_begin(self, holding: ModelInstance, swap: Swap, free_s: float, now_s: float) -> bool:
        """Whether the executor has time and the evicted models may leave now."""
        worker = holding.worker
        if worker.instances[holding.model.index] is not holding:
            return False
        if any(one.state is not InstanceState.LOADED or one.busy for one in swap.evicts):
            return False
        if now_s < swap.start_s:
            self._pool.check_at(worker, swap.start_s)
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
        """Evict the swap's models; return those no longer on any worker."""
        for one in swap.evicts:
            _stay(one)
            evict(self._pool, one)
        _end(holding, swap)
        return [one.model for one in swap.evicts if not one.model.holdings]

    def cancel(self, holding: ModelInstance) -> list[ModelInstance]:
        """Cancel a swap's evictions; return planned loads that are no longer needed."""
        worker, swap, leave = holding.worker, holding.swap, holding.planned_eviction
        needless = []
        if leave is not None and leave.to.swap is not None:
            _stay(holding)
            leave.to.swap.evicts.remove(holding)
            if holding.state is InstanceState.PLANNED:
                needless.append(leave.to)
            else:
                kept = _missing_pages(leave.to, leave.to.swap)
                worker.planned_pages += kept - leave.to.swap.pages
                leave.to.swap.pages = kept
        if swap is None:
            return needless
        _end(holding, swap)
        for one in swap.evicts:
            _stay(one)
            if one.state is InstanceState.LOADED:
                self._queue.settle(one.model)
        stays = [one.model for one in swap.evicts]
        return needless + [
            one for one in worker.planned if one.model in stays and one not in swap.evicts
        ]


def _is_awaited(worker: PoolWorker) -> bool:
    return any(
        sent.kind is ActionType.LOAD and sent.holding.model.waiting.entries
        for sent in worker.issued.values()
    )


def _missing_pages(holding: ModelInstance, swap: Swap) -> int:
    return max(0, holding.model.pages - sum(one.model.pages for one in swap.evicts))


def _end(holding: ModelInstance, swap: Swap) -> None:
    holding.swap = None
    holding.worker.planned_pages -= swap.pages
    if swap.charge is not None:
        swap.charge.take_back()


def _stay(holding: ModelInstance) -> None:
    holding.planned_eviction = None
    holding.promises.is_before_eviction = False


def plan_swap(pool: PoolState, model: PoolModel, demand: SchedulabilityTest) -> Swap | None:
    """Return the earliest swap that loads a model in time, or None."""
    workers = [worker for worker in pool.workers.values() if _may_come(worker, model)]
    if not workers:
        return None
    load_s, now_s = model.load.estimate_s, demand.now_s
    patience_s = min(model.relative_deadline_s, demand.deadline_s - now_s)
    after_s = (
        pool.result_latency.estimate_s
        + pool.parameters.schedule_ahead_s
        + pool.reserve.share * patience_s
    )
    last_s = now_s + patience_s - demand.min_s - after_s - load_s
    chosen: Swap | None = None
    for worker in workers:
        swap = _place(pool, worker, model, demand, last_s - worker.longest.estimate_s)
        if swap is None or (chosen is not None and swap.start_s >= chosen.start_s):
            continue
        if demand.is_in_time(
            worker,
            free_s=max(worker.exec.free_s(now_s), demand.start_s),
            ready_s=swap.start_s + load_s,
            blocking_s=demand.margin_s,
            load_s=0.0 if worker.concurrent_loads else load_s,
        ):
            chosen = swap
    return chosen


def _place(
    pool: PoolState, worker: PoolWorker, model: PoolModel, demand: SchedulabilityTest, last_s: float
) -> Swap | None:
    now_s, load_s = demand.now_s, model.load.estimate_s
    done_s = max(worker.exec.free_s(now_s), demand.start_s) + worker.longest.estimate_s
    done_s += worker.backlog.total_s  # all reserved work, whatever its deadline
    start_s = max(worker.load.free_s(now_s), demand.start_s) + worker.planned_s
    if not worker.concurrent_loads:
        start_s = max(start_s, done_s)
    held = worker.instances.get(model.index)
    if held is not None and held.planned_eviction is not None:  # it returns behind its successor
        start_s = max(
            start_s, held.planned_eviction.at_s + held.planned_eviction.to.model.load.estimate_s
        )
    if start_s > last_s:
        return None
    start_s += min(WAITS * (last_s - start_s), MAX_WAIT * load_s)
    gives = _find_evictions(worker, model, now_s, last_s)
    if gives is None:
        return None
    in_use = [one for one in gives if not one.is_idle]
    if in_use:
        clear_s = now_s + (done_s - now_s) / (1.0 - pool.reserve.share)
        left_s = max(_evictable_at_s(one, load_s, now_s) for one in in_use)
        start_s = max(start_s, clear_s, left_s)
        if not _is_busier(pool, model, in_use):
            start_s = max(start_s, worker.paid_back_at_s)
    if start_s > last_s:
        return None
    swap = Swap(worker, start_s, gives)
    return swap if _pays(pool, swap, model, now_s, done_s - now_s) else None


def _find_evictions(
    worker: PoolWorker, model: PoolModel, now_s: float, last_s: float
) -> list[ModelInstance] | None:
    """Return instances to evict by `last_s`, or None if they hold too little memory."""
    spare_pages = worker.free_pages - worker.planned_pages
    pages = model.pages - max(0, spare_pages)
    spare_pages += worker.evictable_pages  # less what planned loads need
    gives: list[ModelInstance] = []
    for holding in sorted(worker.instances.values(), key=_worth) if pages > 0 else ():
        if holding.planned_eviction is not None or holding.model is model:
            continue
        if holding.is_idle:
            if spare_pages < holding.model.pages:
                continue
            spare_pages -= holding.model.pages
        elif _evictable_at_s(holding, model.load.estimate_s, now_s) > last_s:
            continue
        gives.append(holding)
        pages -= holding.model.pages
        if pages <= 0:
            break
    return None if pages > 0 else gives


def _evictable_at_s(holding: ModelInstance, load_s: float, now_s: float) -> float:
    left_s = holding.ready_s + RESIDENCE * load_s
    if holding.state is InstanceState.PLANNED:
        left_s += SLACK * (left_s - now_s)
    return left_s


def _is_busier(pool: PoolState, model: PoolModel, others: list[ModelInstance]) -> bool:
    work = sum(pool.work_of(one.model) for one in others)
    return pool.work_of(model) >= BUSIER * work


def _pays(pool: PoolState, swap: Swap, model: PoolModel, now_s: float, busy_s: float) -> bool:
    """Return whether a swap gains more requests than it loses; if so, set `payback_s`."""
    load_s, stays_s = model.load.estimate_s, RESIDENCE * model.load.estimate_s
    patient_s = (busy_s + stays_s + 2.0 * load_s) / (1.0 - pool.reserve.share)
    work = lost = 0.0
    for holding in swap.evicts:
        rate = pool.rate_of(holding.model)
        if holding.model.relative_deadline_s < patient_s:
            lost += rate
        if not holding.is_idle:
            work += pool.work_of(holding.model)
    won = 1 + int((swap.start_s - now_s) * pool.rate_of(model))
    if lost * (2.0 * load_s + stays_s) > won:
        return False
    in_use = [one for one in swap.evicts if not one.is_idle]
    if work and not _is_busier(pool, model, in_use):
        cost_s = work * (2.0 * load_s + min(stays_s, model.durations.quickest_s(won)))
        if not swap.worker.concurrent_loads:
            cost_s += load_s
        swap.payback_s = cost_s / (pool.spare + PAID)
    return True


def _may_come(worker: PoolWorker, model: PoolModel) -> bool:
    """Whether the worker lacks only memory or executor time to load the model."""
    pages = worker.free_pages + worker.evictable_pages - worker.planned_pages
    if worker.draining or (worker.concurrent_loads and pages >= model.pages):
        return False
    held = worker.instances.get(model.index)
    if held is None:
        return True
    if held.planned_eviction is None:
        return False
    return all(one is held or one.worker is not worker for one in model.holdings)


def _worth(holding: ModelInstance) -> tuple[bool, bool, float]:
    is_planned = holding.state is InstanceState.PLANNED
    return not holding.is_idle, is_planned, holding.model.previous_request_s
