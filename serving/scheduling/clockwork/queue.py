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
    ROUNDING_S,
    Holding,
    Model,
    Pool,
    State,
)
from serving.scheduling.clockwork.memory import Memory
from serving.scheduling.clockwork.orders import Orders
from serving.scheduling.clockwork.waiting import Entry, Promises
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
        waiting, durations = model.waiting, model.durations
        count = len(waiting.entries)
        place = 0
        for size in durations.sizes[1:]:
            if size > count:
                break
            place += 1
        key_s = waiting.deadlines_s[0] - durations.worth_s[place]
        for holding in model.holdings:
            leave = holding.leave
            if leave is not None and holding.has_left(self._pool.now_s):
                continue
            if holding.state is State.LOADED:
                self._memory.use(holding)
                turn_s = key_s if leave is None else min(key_s, holding.hurry_s)
                if turn_s < holding.key_s:
                    self.turn(holding, turn_s)
                self._orders.stir(holding.worker)

    def turn(self, holding: Holding, key_s: float) -> None:
        """A model has its turn with a worker when its batch must start by then; its turn of before is void."""
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
        self, entry: Entry, model: Model, holding: Holding, work_s: float, items: int
    ) -> None:
        """The worker of a holding promises the work of an entry, which so many items of it take."""
        self.uncharge(entry, model)
        promises, leave = holding.promises, holding.leave
        entry.promised = promises
        entry.cost_s = work_s
        entry.until_s = entry.deadline_s
        if leave is not None:
            promises.owes += items
            entry.owed = items
            entry.until_s = min(entry.deadline_s, leave.at_s)
        entry.is_near = promises.backlog.add(entry.until_s, work_s)
        model.charged_s += work_s

    def uncharge(self, entry: Entry, model: Model) -> None:
        """Nobody promises it any more."""
        promised = entry.promised
        if promised is None:
            return
        promised.backlog.remove(entry.until_s, entry.cost_s, is_near=entry.is_near)
        model.charged_s -= entry.cost_s
        entry.promised = None
        if entry.owed:
            promised.owes -= entry.owed
            entry.owed = 0
            worker = self._pool.workers.get(promised.worker)
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
        for entry in dict.fromkeys(holding.model.waiting.entries):
            if entry.promised is holding.promises:
                self.charge(entry, holding.model, by, entry.cost_s, entry.waits)

    def recharge(self, model: Model, holding: Holding | None = None) -> None:
        """Those that are left cost what they cost together: their batch lost members, or did not come about.

        Args:
            model: which.
            holding: that promises what nobody does yet: the rest of a request, of which some items were run.
        """
        waiting = model.waiting
        more_s = model.durations.quickest_s(len(waiting.entries)) - model.charged_s
        if more_s > ROUNDING_S:
            first = waiting.entries[0]
            if first.promised is not None:
                self._add(first, first.promised, model, more_s)
            elif holding is not None or model.holdings:
                self.charge(first, model, holding or model.holdings[0], more_s, first.waits)
        elif more_s < -ROUNDING_S:
            # Promises may lie on several workers, and none can give back more than it has.
            for entry in waiting.entries[: model.durations.sizes[-1]]:
                if entry.promised is not None:
                    less_s = min(entry.cost_s, -more_s)
                    self._add(entry, entry.promised, model, -less_s)
                    more_s += less_s
                    if more_s > -ROUNDING_S:
                        break

    def _add(self, entry: Entry, promised: Promises, model: Model, more_s: float) -> None:
        """An entry that is promised costs so much more."""
        promised.backlog.remove(entry.until_s, -more_s, is_near=entry.is_near)
        entry.cost_s += more_s
        model.charged_s += more_s

    # Out

    def unwait(self, entry: Entry, model: Model) -> None:
        """What of an entry waits is forgotten."""
        if entry.waits:
            self.items -= entry.waits
            model.waiting.remove(entry)
            self.uncharge(entry, model)
            if model.waiting.entries:
                self.recharge(model)
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
            self.items -= entry.waits
            entry.waits = 0
            self.uncharge(entry, model)
            if self.entries.pop(entry.id, None) is None:
                continue
            self.refusals.append(Refusal(entry.id, Reason.HOPELESS, ""))
            self._pool.reserve.dropped(self._pool.now_s)
        if waiting.entries:
            self.recharge(model)
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
