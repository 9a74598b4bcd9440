"""A pool's queue: reservations for admitted requests, and rejection of late ones. Pure."""

from __future__ import annotations

import heapq
import itertools
import math

from serving.scheduling.clockwork.backlog import LoadReservation
from serving.scheduling.clockwork.eviction import mark_evictable
from serving.scheduling.clockwork.instances import NEVER_S, InstanceState, ModelInstance, PoolModel
from serving.scheduling.clockwork.model_queue import BatchReservation, PendingRequest
from serving.scheduling.clockwork.pool_state import PoolState
from serving.scheduling.interface import Rejection, RejectionReason


class PoolQueue:
    """A pool's admitted requests that have not ended."""

    def __init__(self, pool: PoolState) -> None:
        self._pool = pool
        self._expiry: list[tuple[float, int, PoolModel]] = []
        """Heap of the times when each model's first deadline becomes unreachable."""
        self._numbers = itertools.count(1)
        self.entries: dict[int, tuple[PendingRequest, PoolModel]] = {}
        """Entries by request id, including those with a worker."""
        self.items = 0
        self.refusals: list[Rejection] = []

    # Adding requests

    def push(self, entry: PendingRequest, model: PoolModel, count: int) -> None:
        """Queue items of an entry."""
        self.items += count
        if model.waiting.push(entry, count):
            self.watch(model)
        self.offer(model)

    def offer(self, model: PoolModel) -> None:
        """Update a model's places in the heaps of its workers after its queue has grown."""
        for holding in model.holdings:
            if holding.planned_eviction is not None and holding.has_left(self._pool.now_s):
                continue
            if holding.state is InstanceState.LOADED:
                holding.use()
                first_s = holding.first_s
                if first_s < holding.key_s:
                    self.turn(holding, first_s)
                self._pool.wake(holding.worker)

    def settle(self, model: PoolModel) -> None:
        """Place a loaded model in its workers' heaps, or mark it as evictable if nothing waits for it."""
        if model.waiting.entries:
            self.offer(model)
        else:
            mark_evictable(self._pool, model)

    def turn(self, holding: ModelInstance, key_s: float) -> None:
        """Place an instance in its worker's heap by its first reserved bucket."""
        holding.key_s = key_s
        heapq.heappush(holding.worker.heap, (key_s, next(self._numbers), holding))

    def watch(self, model: PoolModel) -> None:
        """Schedule the check of a model's first queued request."""
        at_s = model.waiting.deadlines_s[0] - model.durations.estimate_s[0]
        if at_s != model.expiry_s:
            model.expiry_s = at_s
            heapq.heappush(self._expiry, (at_s, next(self._numbers), model))

    # Reservations

    def charge(
        self,
        entry: PendingRequest,
        model: PoolModel,
        holding: ModelInstance,
        items: int,
        bundle: BatchReservation | None = None,
    ) -> None:
        """Reserve a worker's time for `items` of an entry, which joins `bundle` if given."""
        promises, leave = holding.promises, holding.planned_eviction
        backlog, until_s = promises.backlog, entry.deadline_s
        if leave is not None and leave.at_s < until_s:
            until_s = leave.at_s
        if bundle is None:
            bucket_s = backlog.bucket_s(until_s, self._pool.now_s)
            cost_s = model.durations.quickest_s(items)
            bundle = BatchReservation(promises, bucket_s, until_s, cost_s)
            promises.add(bundle)
            backlog.add(bucket_s, until_s, cost_s)
        else:
            bundle.until_s = min(bundle.until_s, until_s)
            cost_s = model.durations.quickest_s(bundle.count + items)
            backlog.grow(bundle.bucket_s, bundle.until_s, cost_s - bundle.cost_s)
            bundle.cost_s = cost_s
        load_s = holding.load_before_s(bundle.bucket_s)
        if load_s:
            if holding.charge is not None:
                holding.charge.take_back()
            holding.charge = LoadReservation.of(backlog, bundle.bucket_s, bundle.until_s, load_s)
        bundle.count += items
        entry.flow.reserved_s += items * entry.cost_s
        bundle.entries.append(entry)
        entry.bundle = bundle
        promises.reserved_items += items

    def uncharge(self, entry: PendingRequest, model: PoolModel, items: int) -> None:
        """Remove the reservation for an entry's `items` queued items."""
        bundle = entry.bundle
        if bundle is not None:
            entry.bundle = None
            entry.flow.reserved_s -= items * entry.cost_s
            bundle.entries.remove(entry)
            self._shrink(bundle, model, items)

    def give(self, items: list[PendingRequest], model: PoolModel) -> list[int]:
        """Remove one item of each entry for a worker; return the item numbers."""
        self.items -= len(items)
        found: list[int] = []
        counts: dict[BatchReservation, int] = {}
        for entry in items:
            found.append(entry.give())
            bundle = entry.bundle
            if bundle is not None:
                counts[bundle] = counts.get(bundle, 0) + 1
                entry.flow.reserved_s -= entry.cost_s
                if not entry.waits:
                    entry.bundle = None
                    bundle.entries.remove(entry)
        for bundle, count in counts.items():
            self._shrink(bundle, model, count)
        return found

    def _shrink(self, bundle: BatchReservation, model: PoolModel, items: int) -> None:
        by = bundle.by
        by.reserved_items -= items
        bundle.count -= items
        if bundle.count:
            cost_s = model.durations.quickest_s(bundle.count)
            by.backlog.grow(bundle.bucket_s, bundle.until_s, cost_s - bundle.cost_s)
            bundle.cost_s = cost_s
        else:
            by.backlog.remove(bundle.bucket_s, bundle.cost_s)
            by.remove(bundle)
        if by.is_before_eviction:
            worker = self._pool.workers.get(by.worker)
            if worker is not None:  # perhaps the memory is free now
                self._pool.to_check[worker.id] = worker

    def move(self, holding: ModelInstance, by: ModelInstance) -> None:
        """Move reservations to another instance, and to before its eviction if one is planned."""
        before, promises, leave = holding.promises, by.promises, by.planned_eviction
        for bundle in tuple(before.bundles):
            before.remove(bundle)
            before.backlog.remove(bundle.bucket_s, bundle.cost_s)
            before.reserved_items -= bundle.count
            until_s = min(entry.deadline_s for entry in bundle.entries)
            if leave is not None:
                until_s = min(until_s, leave.at_s)
            bundle.by, bundle.until_s = promises, until_s
            bundle.bucket_s = promises.backlog.bucket_s(until_s, self._pool.now_s)
            promises.add(bundle)
            promises.backlog.add(bundle.bucket_s, until_s, bundle.cost_s)
            promises.reserved_items += bundle.count

    # Removing requests

    def unwait(self, entry: PendingRequest, model: PoolModel) -> None:
        """Remove the queued items of an entry."""
        if count := entry.waits:
            self.items -= count
            model.waiting.remove(entry)
            self.uncharge(entry, model, count)
            self._watch_or_let_go(model)

    def cancel(self, id_: int) -> None:
        """Cancel a request."""
        found = self.entries.pop(id_, None)
        if found is not None:
            self.unwait(*found)

    def reject(
        self, entry: PendingRequest, model: PoolModel, reason: RejectionReason, detail: str = ""
    ) -> None:
        """Reject an admitted request that has not ended."""
        if self.entries.pop(entry.id, None) is None:
            return
        self.unwait(entry, model)
        self.refusals.append(Rejection(entry.id, reason, detail))

    def drop(self, model: PoolModel, before_s: float) -> None:
        """Reject a model's queued requests that are due before `before_s`."""
        for entry in model.waiting.hopeless(before_s):
            count, entry.waits = entry.waits, 0
            self.items -= count
            self.uncharge(entry, model, count)
            if self.entries.pop(entry.id, None) is None:
                continue
            self.refusals.append(Rejection(entry.id, RejectionReason.DEADLINE_UNREACHABLE, ""))
            self._pool.reserve.record_drop(self._pool.now_s)
        self._watch_or_let_go(model)

    def _watch_or_let_go(self, model: PoolModel) -> None:
        if model.waiting.entries:
            self.watch(model)
        else:
            mark_evictable(self._pool, model)

    def expire(self, now_s: float) -> None:
        """Reject requests whose deadline has become unreachable."""
        expiry = self._expiry
        while expiry and expiry[0][0] < now_s:
            at_s, _, model = heapq.heappop(expiry)
            if at_s == model.expiry_s:
                model.expiry_s = NEVER_S
                if model.waiting.entries:
                    self._drop_late(model, now_s)

    def _drop_late(self, model: PoolModel, now_s: float) -> None:
        min_s, first_s = model.durations.estimate_s[0], model.waiting.deadlines_s[0]
        if first_s - min_s < now_s:
            self.drop(model, max(now_s + min_s, math.nextafter(first_s, NEVER_S)))
        else:
            self.watch(model)

    def expiry_s(self) -> float:
        """Return when the next queued deadline becomes unreachable."""
        expiry = self._expiry
        while expiry and expiry[0][2].expiry_s != expiry[0][0]:
            heapq.heappop(expiry)
        return expiry[0][0] if expiry else NEVER_S
