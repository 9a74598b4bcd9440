"""Swaps: a model is loaded in the place of others that are in use, by a time that is set when it is asked for.

    planned -------- waits --------> those in its place have left -> LOAD
    in its place --- is promised for what can be done until then, and no more --> UNLOAD

So the promise to who waits for the load is as good as any, and those of before are kept. What is promised is no
more than what is left when all promised work has been done first, so a swap finds its time at any load. It is
put off, for who else asks for the model meanwhile comes along, and where loads and batches share an executor it
has its turn among them by its time. A model in use stays for some loads at least, and gives way only if those
who ask for it can wait until it is back: who cannot would lose more than others win.

A model that leaves may be planned to come back, behind the one that it leaves for. Starts along such a chain
grow, so that nothing waits for itself.

Pure; a step for each model in the worker's memory when a swap is planned. Times are in seconds on the
controller's clock.
"""

from __future__ import annotations

import dataclasses

from serving.scheduling.clockwork.demand import Demand
from serving.scheduling.clockwork.holdings import (
    Charge,
    Holding,
    Leave,
    Model,
    Pool,
    State,
    Swap,
    Worker,
)
from serving.scheduling.clockwork.memory import Memory
from serving.scheduling.clockwork.orders import Orders
from serving.scheduling.clockwork.queue import Queue
from serving.scheduling.seam import Kind

WAITS = 0.5
"""Share of the time there is for which a load in the place of a model that is in use is put off: who else asks for
it meanwhile comes along."""
LONGEST_WAIT = 50.0
"""Loads that it is put off for at most."""
RESIDENCE = 5.0
"""Loads that a model which is in use stays in memory for at least."""
PAID = 0.05
"""Share of an executor's time that swaps may take besides what nobody asks for."""
SLACK = 0.25
"""Share by which one that is to be there only then may be late, with those in whose place it comes."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Place:
    """Where and when a model could be loaded."""

    worker: Worker
    start_s: float
    """At the latest."""
    gives: list[Holding]
    paid_s: float
    """When there will have been time to spare for it, and for the swaps before."""


class Swapping:
    """Swaps of a pool."""

    __slots__ = ("_memory", "_orders", "_pool", "_queue")

    def __init__(self, pool: Pool, orders: Orders, memory: Memory, queue: Queue) -> None:
        self._pool, self._orders, self._memory, self._queue = pool, orders, memory, queue

    def find(self, model: Model, demand: Demand) -> Place | None:
        """Where a model could be loaded first, in time."""
        workers = [worker for worker in self._pool.workers.values() if _may_come(worker, model)]
        if not workers:
            return None
        load_s, now_s = model.load.worth_s, demand.now_s
        patience_s = min(model.patience_s, demand.deadline_s - now_s)
        after_s = self._pool.back.worth_s + self._pool.parameters.ahead_s
        after_s += self._pool.reserve.share * patience_s
        last_s = now_s + patience_s - demand.least_s - after_s - load_s
        chosen: Place | None = None
        for worker in workers:
            place = self._place(worker, model, demand, last_s - worker.longest.worth_s)
            if place is None or (chosen is not None and place.start_s >= chosen.start_s):
                continue
            begin_s = demand.begins_s(
                worker,
                free_s=max(worker.exec.free_s(now_s), demand.start_s),
                ready_s=place.start_s + load_s,
                held_up_s=demand.reserve_s,
                load_s=0.0 if worker.loads_apart else load_s,
            )
            if begin_s is not None:
                chosen = place
        return chosen

    def _place(self, worker: Worker, model: Model, demand: Demand, last_s: float) -> Place | None:
        """When a worker could load a model, and who gives its memory."""
        now_s, load_s = demand.now_s, model.load.worth_s
        done_s = max(worker.exec.free_s(now_s), demand.start_s) + worker.longest.worth_s
        done_s += worker.backlog.total_s  # all that was promised, whatever its deadline
        start_s = max(worker.load.free_s(now_s), demand.start_s) + worker.planned_s
        if not worker.loads_apart:
            start_s = max(start_s, done_s)
        held = worker.held.get(model.index)
        if held is not None and held.leave is not None:  # it comes back behind whom it leaves for
            start_s = max(start_s, held.leave.at_s + held.leave.to.model.load.worth_s)
        if start_s > last_s:
            return None
        start_s += min(WAITS * (last_s - start_s), LONGEST_WAIT * load_s)
        spare_pages = worker.free_pages - worker.planned_pages
        pages = model.pages - max(0, spare_pages)
        spare_pages += worker.idle_pages  # less what planned loads count on
        clear_s = now_s + (done_s - now_s) / (1.0 - self._pool.reserve.share)
        stays_s = RESIDENCE * load_s
        away_s = done_s - now_s + stays_s + 2.0 * load_s
        patient_s = away_s / (1.0 - self._pool.reserve.share)
        gives: list[Holding] = []
        load = lost = 0.0
        for holding in sorted(worker.held.values(), key=_worth) if pages > 0 else ():
            if holding.leave is not None or holding.model is model:
                continue
            if holding.is_idle:
                if spare_pages < holding.model.pages:
                    continue
                spare_pages -= holding.model.pages
                if holding.model.patience_s < patient_s:
                    lost += self._pool.rate_of(holding.model)
            else:
                left_s = holding.ready_s + stays_s
                if holding.state is State.PLANNED:
                    left_s += SLACK * (left_s - now_s)
                if left_s > last_s:
                    continue
                rate = self._pool.rate_of(holding.model)
                if holding.model.patience_s < patient_s:
                    lost += rate
                load += rate * holding.model.item_s
                start_s = max(start_s, left_s, clear_s, worker.paid_s)
            gives.append(holding)
            pages -= holding.model.pages
            if pages <= 0:
                break
        if pages > 0 or start_s > last_s:
            return None
        paid_s = worker.paid_s
        if load or lost:
            won = 1 + int((start_s - now_s) * self._pool.rate_of(model))
            if lost * (2.0 * load_s + stays_s) > won:
                return None
            cost_s = load * (2.0 * load_s + min(stays_s, model.durations.quickest_s(won)))
            if not worker.loads_apart:
                cost_s += load_s
            paid_s = max(paid_s, now_s) + cost_s / (self._pool.spare + PAID)
        return Place(worker=worker, start_s=start_s, gives=gives, paid_s=paid_s)

    def bind(self, holding: Holding, place: Place) -> None:
        """Have a planned load wait for the memory of those who give it."""
        worker, model = place.worker, holding.model
        start_s, load_s = place.start_s, model.load.worth_s
        given = sum(one.model.pages for one in place.gives)
        kept = max(0, model.pages - given)
        holding.swap = swap = Swap(place.gives, start_s, start_s + load_s, kept)
        worker.planned_pages += kept
        worker.paid_s = place.paid_s
        if not worker.loads_apart:
            swap.charge = Charge.of(worker, swap.due_s, load_s)
        for one in place.gives:
            self._memory.use(one)
            one.leave = Leave(holding, start_s)
            self._queue.bring_forward(one)
            if one.model.waiting.entries:
                self._queue.offer(one.model)
        self._orders.look(worker, start_s)

    def may_begin(self, holding: Holding, swap: Swap, free_s: float, now_s: float) -> bool:
        """Whether its memory may be taken now, and the executor has the time."""
        worker = holding.worker
        if worker.held[holding.model.index] is not holding:
            return False  # it has not left yet
        if any(one.state is not State.LOADED or one.busy for one in swap.gives):
            return False
        if now_s < swap.start_s:
            self._orders.look(worker, swap.start_s)
            if any(one.model.waiting.entries for one in swap.gives):
                return False
            return worker.loads_apart or (
                worker.turn_s(now_s) >= swap.start_s and not _is_awaited(worker)
            )
        if any(one.leave is not None and one.leave.owes > 0 for one in swap.gives):
            return False
        until_s = min(swap.start_s, free_s + holding.model.load.worth_s)
        return worker.loads_apart or worker.turn_s(now_s) >= until_s

    def begin(self, holding: Holding, swap: Swap) -> list[Model]:
        """It takes the memory; returns models that are nowhere now."""
        for one in swap.gives:
            self._stay(one)
            self._memory.evict(one)
        self._end(holding, swap)
        return [one.model for one in swap.gives if not one.model.holdings]

    def cancel(self, holding: Holding) -> list[Holding]:
        """It will not be loaded, so those in whose place it was to be stay.

        Returns:
            Planned loads that are not needed any more: of those that stay.
        """
        worker, swap, leave = holding.worker, holding.swap, holding.leave
        needless = []
        if leave is not None and leave.to.swap is not None:
            self._stay(holding)
            leave.to.swap.gives.remove(holding)
            if holding.state is State.PLANNED:
                needless.append(leave.to)
            else:
                leave.to.swap.pages += holding.model.pages
                worker.planned_pages += holding.model.pages
        if swap is None:
            return needless
        self._end(holding, swap)
        for one in swap.gives:
            self._stay(one)
            self._settle(one)
        stays = [one.model for one in swap.gives]
        return needless + [one for one in worker.planned if one.model in stays]

    def _end(self, holding: Holding, swap: Swap) -> None:
        holding.swap = None
        holding.worker.planned_pages -= swap.pages
        if swap.charge is not None:
            swap.charge.take_back()

    def _settle(self, holding: Holding) -> None:
        if holding.state is State.LOADED:
            if holding.model.waiting.entries:
                self._queue.offer(holding.model)
            else:
                self._memory.settle(holding.model)

    def _stay(self, holding: Holding) -> None:
        holding.leave = None


def _may_come(worker: Worker, model: Model) -> bool:
    """Whether it is for want of memory, or of an executor's time, that a worker does not load a model at once.

    It must not be there; or leave, and not be planned to come back.
    """
    pages = worker.free_pages + worker.idle_pages - worker.planned_pages
    if worker.draining or (worker.load is not worker.exec and pages >= model.pages):
        return False
    held = worker.held.get(model.index)
    if held is None:
        return True
    if held.leave is None:
        return False
    return all(one is held or one.worker is not worker for one in model.holdings)


def _is_awaited(worker: Worker) -> bool:
    """Whether somebody waits for a model that the worker is loading."""
    return any(
        sent.kind is Kind.LOAD and sent.holding.model.waiting.entries
        for sent in worker.sent.values()
    )


def _worth(holding: Holding) -> tuple[bool, bool, float]:
    """Who is asked for gives way after those who are not; the less often, the sooner."""
    is_planned = holding.state is State.PLANNED
    return not holding.is_idle, is_planned, holding.model.asked_before_s
