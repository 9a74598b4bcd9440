"""Admission of requests: a worker's time is reserved, or the request is rejected. Pure."""

from __future__ import annotations

from serving.scheduling.clockwork.eviction import evict, mark_evictable
from serving.scheduling.clockwork.instances import (
    NEVER_S,
    ROUNDING_S,
    InstanceState,
    IssuedAction,
    ModelInstance,
    PoolModel,
)
from serving.scheduling.clockwork.loading import Loading
from serving.scheduling.clockwork.model_queue import BatchReservation, PendingRequest
from serving.scheduling.clockwork.pool_queue import PoolQueue
from serving.scheduling.clockwork.pool_state import PoolState
from serving.scheduling.clockwork.schedulability import SchedulabilityTest
from serving.scheduling.clockwork.shares import FlowShare
from serving.scheduling.interface import BACKGROUND, Rejection, RejectionReason, Submitted

DOUBTED_AFTER_S = 0.25
"""Age of a model's last measurement above which a rejection drops the longest ones."""


class Admission:
    """Admission of requests that can finish by their deadlines to a pool's queue."""

    def __init__(self, pool: PoolState, queue: PoolQueue, loading: Loading) -> None:
        self._pool, self._queue, self._loading = pool, queue, loading

    def submit(self, event: Submitted, now_s: float) -> None:
        """Admit or reject a request."""
        pool, queue = self._pool, self._queue
        model = pool.models.get(event.model)
        parameters = pool.parameters
        if model is None:
            queue.refusals.append(Rejection(event.id, RejectionReason.CANNOT_LOAD, ""))
            return
        if event.priority >= BACKGROUND and queue.items:
            queue.refusals.append(Rejection(event.id, RejectionReason.CANNOT_FINISH, ""))
            return
        shares, durations, items = pool.shares, model.durations, event.items
        work_s, min_s = items * durations.item_s, durations.quickest_s(items)
        flow = shares.flow(event.flow, now_s, len(pool.workers) or 1)
        most = parameters.max_waiting
        if items > most:
            queue.refusals.append(Rejection(event.id, RejectionReason.TOO_MANY_ITEMS, str(most)))
            return
        kept = (
            shares.reserved_places(most, durations.item_s) if flow.had_s >= shares.level_s else 0.0
        )
        if queue.items + items + kept > most:
            shares.record_rejected(flow, work_s, min_s)
            queue.refusals.append(Rejection(event.id, RejectionReason.QUEUE_FULL, str(most)))
            return
        buffer_s = parameters.deadline_margin * (event.deadline_s - now_s)
        deadline_s = event.deadline_s - buffer_s - pool.result_latency.estimate_s
        is_solo = now_s < model.solo_until_s
        entry = PendingRequest(
            event.id, items, deadline_s, event.deadline_s, flow, durations.item_s, is_solo
        )
        pool.record_request(model, items, deadline_s - now_s)
        reason = self._place(model, entry, items, now_s, flow)
        if reason is None:
            shares.record_admitted(flow, work_s, min_s)
            queue.entries[event.id] = (entry, model)
            if entry.is_solo:
                model.waiting.solo.append(entry)
            return
        detail = ""
        if now_s + min_s > deadline_s:  # even without other work
            reason, detail = RejectionReason.CANNOT_FINISH, repr(min_s)
        elif _is_possible(model, min_s, deadline_s, now_s):
            shares.record_rejected(flow, work_s, min_s)
        queue.refusals.append(Rejection(event.id, reason, detail))
        self._loading.prefetch(model, deadline_s, items, now_s)
        if now_s - model.measured_at_s > DOUBTED_AFTER_S:
            self._doubt(model, now_s)

    def _doubt(self, model: PoolModel, now_s: float) -> None:
        model.measured_at_s = now_s
        model.load.drop_longest()
        self._pool.result_latency.drop_longest()
        holders = [holding.worker for holding in model.holdings]
        for worker in holders or self._pool.workers.values():
            worker.longest.drop_longest()
        if model.durations.drop_longest() and model.waiting.entries:
            self._queue.watch(model)
            self._queue.offer(model)

    def _place(
        self,
        model: PoolModel,
        entry: PendingRequest,
        items: int,
        now_s: float,
        flow: FlowShare | None = None,
    ) -> RejectionReason | None:
        """Queue items with time reserved on a worker, or return why no worker can take them.

        `flow` is None if the request was already admitted.
        """
        for holding in tuple(model.holdings):
            if holding.is_idle and holding.is_needed_for_loads:  # evict it now; it may return later
                evict(self._pool, holding)
        demand = SchedulabilityTest(
            self._pool, model, entry.deadline_s, now_s, items, is_alone=entry.is_solo, flow=flow
        )
        chosen, bundle = self._find_instance(model, demand)
        if chosen is None:
            chosen = self._loading.plan(model, demand)
        if chosen is not None:
            self._queue.charge(entry, model, chosen, items, bundle)
        elif not self._can_wait(model, demand):
            return RejectionReason.CANNOT_FINISH if model.holdings else RejectionReason.CANNOT_LOAD
        self._queue.push(entry, model, items)
        return None

    def _find_instance(
        self, model: PoolModel, demand: SchedulabilityTest
    ) -> tuple[ModelInstance | None, BatchReservation | None]:
        """Return the instance that finishes first, if any is in time, and the bundle to join."""
        now_s, start_s = demand.now_s, demand.start_s
        ahead_s = self._pool.schedule_ahead_s
        chosen: ModelInstance | None = None
        chosen_bundle: BatchReservation | None = None
        chosen_s = NEVER_S
        for holding in model.holdings:
            worker = holding.worker
            promised_s = worker.backlog.total_s
            free_s = max(worker.exec.free_s(now_s), start_s)
            if free_s + promised_s >= chosen_s or worker.draining:
                continue
            is_loaded = holding.state is InstanceState.LOADED
            is_free = is_loaded and promised_s < ROUNDING_S and free_s < now_s + ahead_s
            ready_s = 0.0 if is_loaded else holding.ready_s
            if holding.swap is not None:  # loaded late, perhaps behind other work
                ready_s += worker.longest.estimate_s + demand.margin_s + ahead_s
            done_s = max(free_s, ready_s) + promised_s
            if done_s >= chosen_s:
                continue
            fits, bundle = demand.place(holding, free_s=free_s, ready_s=ready_s, is_free=is_free)
            if fits:
                chosen, chosen_bundle, chosen_s = holding, bundle, done_s
        return chosen, chosen_bundle

    def _can_wait(self, model: PoolModel, demand: SchedulabilityTest) -> bool:
        if demand.now_s + model.load.estimate_s + demand.min_s > demand.deadline_s:
            return False
        return all(worker.draining for worker in self._pool.workers.values())

    def replace(self, model: PoolModel, now_s: float) -> None:
        """Place all queued requests of a model again; reject those that fit nowhere."""
        waiting = model.waiting
        for entry in dict.fromkeys(waiting.take(0, len(waiting.entries))):
            count, entry.waits = entry.waits, 0
            self._queue.items -= count
            self._queue.uncharge(entry, model, count)
            self._put_back(entry, model, count, now_s)
        mark_evictable(self._pool, model)

    def unrun(self, sent: IssuedAction, now_s: float, *, too_large: bool = False) -> None:
        """Requeue the items of a batch that was not run.

        A request then runs alone if the batch was too large, or if this is the second time that
        the request was not run: it may be so large that it reaches its worker late.
        """
        if too_large:
            sent.holding.model.note_oversized_batch(now_s)
        counts: dict[PendingRequest, int] = {}
        for entry, item in sent.items:
            entry.returned.append(item)
            counts[entry] = counts.get(entry, 0) + 1
        for entry, count in counts.items():
            entry.returned.sort(reverse=True)
            entry.is_solo |= too_large or entry.was_unrun
            entry.was_unrun = True
            is_lost = not self._put_back(entry, sent.holding.model, count, now_s)
            if is_lost and too_large:  # it was admitted for a shared batch
                self._pool.reserve.record_drop(now_s)

    def _put_back(self, entry: PendingRequest, model: PoolModel, count: int, now_s: float) -> bool:
        """Requeue items that were not run; return False if the request was rejected."""
        queue = self._queue
        if entry.id not in queue.entries:
            return True
        before = entry.waits
        if before:  # reserve together with those still queued
            queue.items -= before
            model.waiting.remove(entry)
            queue.uncharge(entry, model, before)
        if entry.is_solo:
            model.waiting.solo.append(entry)
        if model.is_gone and not model.holdings:
            queue.reject(entry, model, RejectionReason.CANNOT_LOAD)
            return False
        if self._place(model, entry, before + count, now_s) is None:
            return True
        is_broken = now_s < model.broken_until_s and not model.holdings
        queue.reject(
            entry,
            model,
            RejectionReason.CANNOT_LOAD if is_broken else RejectionReason.DEADLINE_UNREACHABLE,
        )
        return False


def _is_possible(model: PoolModel, min_s: float, deadline_s: float, now_s: float) -> bool:
    """Whether a request could be in time if there were no reservations."""
    latest_s = deadline_s - min_s
    return any(holding.worker.exec.free_s(now_s) <= latest_s for holding in model.holdings)
