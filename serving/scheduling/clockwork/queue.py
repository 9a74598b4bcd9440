"""Requests of a pool that wait: what was promised for them, and the refusal of what became hopeless.

A request that is admitted is charged to the worker that promises it, and waits in its model's queue until a
worker takes it. No scan: what is looked at per event is the first of a queue.

Pure; times are in seconds on the controller's clock.
"""

from __future__ import annotations

import heapq
import itertools
import math

from serving.scheduling.clockwork.holdings import (
    NEVER_S,
    Charge,
    Holding,
    Model,
    Pool,
    State,
)
from serving.scheduling.clockwork.memory import Memory
from serving.scheduling.clockwork.orders import Orders
from serving.scheduling.clockwork.waiting import Bundle, Entry
from serving.scheduling.seam import Reason, Refusal


class Queue:
    """All requests of a pool that were admitted and have no end yet."""

    __slots__ = (
        "_expiry",
        "_memory",
        "_numbers",
        "_orders",
        "_pool",
        "entries",
        "items",
        "refusals",
    )

    def __init__(self, pool: Pool, orders: Orders, memory: Memory) -> None:
        self._pool, self._orders, self._memory = pool, orders, memory
        self._expiry: list[tuple[float, int, Model]] = []
        """When the first of a model's requests becomes hopeless."""
        self._numbers = itertools.count(1)
        self.entries: dict[int, tuple[Entry, Model]] = {}
        """Request -> what is known of it; also of one that is with a worker."""
        self.items = 0
        """That wait."""
        self.refusals: list[Refusal] = []
        """Of the next plan."""

    # In

    def push(self, entry: Entry, model: Model, count: int) -> None:
        """So many items of an entry wait from now on."""
        self.items += count
        if model.waiting.push(entry, count):
            self.watch(model)
        self.offer(model)

    def offer(self, model: Model) -> None:
        """A model's queue has grown: its place with the workers that hold it."""
        for holding in model.holdings:
            if holding.leave is not None and holding.has_left(self._pool.now_s):
                continue
            if holding.state is State.LOADED:
                self._memory.use(holding)
                first_s = holding.first_s
                if first_s < holding.key_s:
                    self.turn(holding, first_s)
                self._orders.stir(holding.worker)

    def turn(self, holding: Holding, key_s: float) -> None:
        """A model has its turn with a worker by the first cell of its promises; its turn of before is void."""
        holding.key_s = key_s
        heapq.heappush(holding.worker.heap, (key_s, next(self._numbers), holding))

    def watch(self, model: Model) -> None:
        """Be there when the first that waits becomes hopeless."""
        at_s = model.waiting.deadlines_s[0] - model.durations.worth_s[0]
        if at_s != model.expiry_s:
            model.expiry_s = at_s
            heapq.heappush(self._expiry, (at_s, next(self._numbers), model))

    # Promises

    def charge(
        self,
        entry: Entry,
        model: Model,
        holding: Holding,
        items: int,
        bundle: Bundle | None = None,
    ) -> None:
        """The worker of a holding promises the work of an entry, of which so many items wait.

        Args:
            entry: that nobody promises.
            model: its model.
            holding: where.
            items: how many.
            bundle: of the holding, with which it goes; None: with a new one.
        """
        promises, leave = holding.promises, holding.leave
        backlog, until_s = promises.backlog, entry.deadline_s
        if leave is not None and leave.at_s < until_s:
            until_s = leave.at_s
        if bundle is None:
            cell_s = backlog.cell_s(until_s, self._pool.now_s)
            bundle = Bundle(promises, cell_s, until_s)
            bundle.cost_s = model.durations.quickest_s(items)
            promises.add(bundle)
            backlog.add(cell_s, until_s, bundle.cost_s)
        else:
            bundle.until_s = min(bundle.until_s, until_s)
            cost_s = model.durations.quickest_s(bundle.count + items)
            backlog.grow(bundle.cell_s, bundle.until_s, cost_s - bundle.cost_s)
            bundle.cost_s = cost_s
        load_s = holding.load_before_s(bundle.cell_s)
        if load_s:
            if holding.charge is not None:
                holding.charge.take_back()
            holding.charge = Charge.of(backlog, bundle.cell_s, bundle.until_s, load_s)
        bundle.count += items
        entry.flow.promised_s += items * entry.cost_s
        bundle.entries.append(entry)
        entry.bundle = bundle
        promises.owes += items

    def uncharge(self, entry: Entry, model: Model, items: int) -> None:
        """Nobody promises an entry any more, of which so many items have waited."""
        bundle = entry.bundle
        if bundle is not None:
            entry.bundle = None
            entry.flow.promised_s -= items * entry.cost_s
            bundle.entries.remove(entry)
            self._shrink(bundle, model, items)

    def give(self, items: list[Entry], model: Model) -> list[int]:
        """A worker is given an item of each of these entries, which wait no more; returns which items."""
        self.items -= len(items)
        found: list[int] = []
        counts: dict[Bundle, int] = {}
        for entry in items:
            found.append(entry.give())
            bundle = entry.bundle
            if bundle is not None:
                counts[bundle] = counts.get(bundle, 0) + 1
                entry.flow.promised_s -= entry.cost_s
                if not entry.waits:
                    entry.bundle = None
                    bundle.entries.remove(entry)
        for bundle, count in counts.items():
            self._shrink(bundle, model, count)
        return found

    def _shrink(self, bundle: Bundle, model: Model, items: int) -> None:
        """A bundle has lost items."""
        by = bundle.by
        by.owes -= items
        bundle.count -= items
        if bundle.count:
            cost_s = model.durations.quickest_s(bundle.count)
            by.backlog.grow(bundle.cell_s, bundle.until_s, cost_s - bundle.cost_s)
            bundle.cost_s = cost_s
        else:
            by.backlog.remove(bundle.cell_s, bundle.cost_s)
            by.remove(bundle)
        if by.leaves:
            worker = self._pool.workers.get(by.worker)
            if worker is not None:  # perhaps another model may have the memory now
                self._orders.dirty[worker.id] = worker

    def bring_forward(self, holding: Holding) -> None:
        """A model leaves: what its worker has promised of it is due before.

        A step for each request that waits for it.
        """
        self._promise_again(holding, holding)

    def move(self, holding: Holding) -> None:
        """A model will not be where it was to be: where it is besides promises what was promised there.

        A step for each request that waits for it.
        """
        here = holding.worker
        others = holding.model.holdings
        found = min(others, key=lambda one: (one.worker.draining, one.worker is not here))
        self._promise_again(holding, found)

    def _promise_again(self, holding: Holding, by: Holding) -> None:
        before, promises, leave = holding.promises, by.promises, by.leave
        for bundle in tuple(before.bundles):
            before.remove(bundle)
            before.backlog.remove(bundle.cell_s, bundle.cost_s)
            before.owes -= bundle.count
            until_s = min(entry.deadline_s for entry in bundle.entries)
            if leave is not None:
                until_s = min(until_s, leave.at_s)
            bundle.by, bundle.until_s = promises, until_s
            bundle.cell_s = promises.backlog.cell_s(until_s, self._pool.now_s)
            promises.add(bundle)
            promises.backlog.add(bundle.cell_s, until_s, bundle.cost_s)
            promises.owes += bundle.count

    # Out

    def unwait(self, entry: Entry, model: Model) -> None:
        """What of an entry waits is forgotten."""
        if count := entry.waits:
            self.items -= count
            model.waiting.remove(entry)
            self.uncharge(entry, model, count)
            if model.waiting.entries:
                self.watch(model)
            self._memory.settle(model)

    def cancel(self, id_: int) -> None:
        """Nobody waits for a request any more."""
        found = self.entries.pop(id_, None)
        if found is not None:
            self.unwait(*found)

    def refuse(self, entry: Entry, model: Model, reason: Reason, detail: str = "") -> None:
        """One that was admitted will not be run, if it has no end yet."""
        if self.entries.pop(entry.id, None) is None:
            return
        self.unwait(entry, model)
        self.refusals.append(Refusal(entry.id, reason, detail))

    def drop(self, model: Model, start_s: float) -> None:
        """Refuse those of a model's requests that could not be in time if they started then."""
        self._drop(model, start_s + model.durations.worth_s[0])

    def _drop(self, model: Model, before_s: float) -> None:
        """Refuse those of a model's requests whose deadline is earlier."""
        waiting = model.waiting
        for entry in waiting.hopeless(before_s):
            count, entry.waits = entry.waits, 0
            self.items -= count
            self.uncharge(entry, model, count)
            if self.entries.pop(entry.id, None) is None:
                continue
            self.refusals.append(Refusal(entry.id, Reason.HOPELESS, ""))
            self._pool.reserve.dropped(self._pool.now_s)
        if waiting.entries:
            self.watch(model)
        else:
            self._memory.settle(model)

    def expire(self, now_s: float) -> None:
        """Refuse what has become hopeless."""
        expiry = self._expiry
        while expiry and expiry[0][0] < now_s:
            at_s, _, model = heapq.heappop(expiry)
            if at_s == model.expiry_s:
                model.expiry_s = NEVER_S
                self._drop_late(model, now_s)

    def _drop_late(self, model: Model, now_s: float) -> None:
        """Drop what is later than was watched for, or watch anew: sums are rounded, and durations change."""
        if not model.waiting.entries:
            return
        least_s, first_s = model.durations.worth_s[0], model.waiting.deadlines_s[0]
        if first_s - least_s < now_s:
            self._drop(model, max(now_s + least_s, math.nextafter(first_s, NEVER_S)))
        else:
            self.watch(model)

    def expiry_s(self) -> float:
        """When the next becomes hopeless; what is out of date in the heap is forgotten."""
        expiry = self._expiry
        while expiry and expiry[0][2].expiry_s != expiry[0][0]:
            heapq.heappop(expiry)
        return expiry[0][0] if expiry else NEVER_S
