"""Loads of requested models, and prefetches for later requests. Pure."""

from __future__ import annotations

from serving.scheduling.clockwork.eviction import is_evictable, lost_per_s, make_room
from serving.scheduling.clockwork.instances import (
    NEVER_S,
    ROUNDING_S,
    InstanceState,
    IssuedAction,
    ModelInstance,
    PoolModel,
    PoolWorker,
    Swap,
)
from serving.scheduling.clockwork.pool_queue import PoolQueue
from serving.scheduling.clockwork.pool_state import PoolState
from serving.scheduling.clockwork.schedulability import SchedulabilityTest
from serving.scheduling.clockwork.swapping import Swapping, plan_swap
from serving.scheduling.interface import ActionType

AHEAD_SHARE = 0.05
"""Maximum share of an executor's time spent on prefetches if it also runs batches."""


class Loading:
    """Plans and issues a pool's loads."""

    def __init__(self, pool: PoolState, queue: PoolQueue) -> None:
        self._pool, self._queue = pool, queue
        self._swapping = Swapping(pool, queue)

    def plan(self, model: PoolModel, demand: SchedulabilityTest) -> ModelInstance | None:
        """Plan to load a model on the worker where it is ready first, if any is in time."""
        if model.is_gone or demand.now_s < model.broken_until_s:
            return None
        found = self._at_once(model, demand)
        if found is not None:
            return found
        swap = plan_swap(self._pool, model, demand)
        if swap is None:
            return None
        return self._plan(swap.worker, model, swap.start_s + model.load.estimate_s, swap)

    def _at_once(self, model: PoolModel, demand: SchedulabilityTest) -> ModelInstance | None:
        now_s, start_s = demand.now_s, demand.start_s
        load_s, reserve_s = model.load.estimate_s, demand.margin_s
        # By then the worker may have batches for `schedule_ahead_s`, after one of the longest.
        after_s = (
            self._pool.result_latency.estimate_s
            + self._pool.parameters.schedule_ahead_s
            + reserve_s
        )
        chosen: PoolWorker | None = None
        chosen_s = last_s = demand.deadline_s - demand.min_s - after_s
        for worker in self._pool.workers.values():
            if worker.draining or model.index in worker.instances:
                continue
            loaded_s = max(worker.load.free_s(now_s), start_s) + worker.planned_s + load_s
            if loaded_s >= chosen_s:
                continue
            if worker.free_pages + worker.evictable_pages < worker.planned_pages + model.pages:
                continue
            free_s = max(worker.exec.free_s(now_s), start_s)
            if not worker.concurrent_loads:
                done_s = free_s + worker.backlog.total_s + 2.0 * worker.longest.estimate_s
                if worker.next_start_s(now_s) < NEVER_S and done_s + load_s < last_s:
                    continue  # it can wait for reserved batches
                if not worker.backlog.keeps(loaded_s):
                    continue
            is_in_time = demand.is_in_time(
                worker,
                free_s=free_s,
                ready_s=loaded_s + worker.longest.estimate_s + after_s,
                blocking_s=reserve_s,
                load_s=0.0 if worker.concurrent_loads else load_s,
            )
            if is_in_time and self._is_worth(worker, model):
                chosen, chosen_s = worker, loaded_s
        return None if chosen is None else self._plan(chosen, model, chosen_s)

    def _is_worth(self, worker: PoolWorker, model: PoolModel) -> bool:
        lost = lost_per_s(self._pool, worker, worker.planned_pages + model.pages)
        return not lost or self._pool.rate_of(model) >= lost

    def prefetch(self, model: PoolModel, deadline_s: float, items: int, now_s: float) -> None:
        """Prefetch the model of a request that was rejected only because it was not loaded.

        Models are evicted in order of their last request but one (O'Neil et al., "The LRU-K Page
        Replacement Algorithm", SIGMOD 1993).
        """
        if model.is_gone or now_s < model.broken_until_s:
            return
        if any(holding.state is not InstanceState.LOADED for holding in model.holdings):
            return
        workers = [
            worker
            for worker in self._pool.workers.values()
            if not (worker.draining or worker.planned or len(worker.load))
            and model.index not in worker.instances
        ]
        if not workers:
            return
        demand = SchedulabilityTest(self._pool, model, deadline_s, now_s, items)
        start_s = demand.start_s
        chosen: PoolWorker | None = None
        for worker in workers:
            is_free = worker.backlog.total_s <= ROUNDING_S
            if not worker.concurrent_loads and (now_s < worker.ahead_again_s or not is_free):
                continue
            if chosen is not None and worker.committed_work >= chosen.committed_work:
                continue
            free_s = max(worker.exec.free_s(now_s), start_s)
            held_up_s = 0.0 if is_free else worker.longest.estimate_s
            if not demand.is_in_time(worker, free_s=free_s, ready_s=0.0, blocking_s=held_up_s):
                continue
            if worker.free_pages >= model.pages or is_evictable(worker, model):
                chosen = worker
        if chosen is not None:
            load_s = model.load.estimate_s
            begin_s = max(chosen.load.free_s(now_s), start_s)
            chosen.ahead_again_s = begin_s + load_s / AHEAD_SHARE
            self._plan(chosen, model, begin_s + load_s).is_prefetch = True

    def _plan(
        self, worker: PoolWorker, model: PoolModel, loaded_s: float, swap: Swap | None = None
    ) -> ModelInstance:
        holding = ModelInstance(
            model, worker, InstanceState.PLANNED, loaded_s + self._pool.result_latency.estimate_s
        )
        model.holdings.append(holding)
        worker.instances.setdefault(model.index, holding)
        worker.planned.append(holding)
        if swap is None or worker.concurrent_loads:  # otherwise its time is already reserved
            holding.planned_s = model.load.estimate_s
            worker.planned_s += holding.planned_s
        if swap is None:
            worker.planned_pages += model.pages
        else:
            self._swapping.bind(holding, swap)
        self._pool.to_check[worker.id] = worker
        return holding

    def give(self, worker: PoolWorker, now_s: float) -> list[PoolModel]:
        """Issue the loads that the worker could start soon.

        Returns:
            Models no longer on any worker: place their requests again, then call this again.
        """
        while worker.planned:
            free_s = self._pool.start_s(worker, worker.load)
            if free_s is None:
                break
            holding = self._first(worker, free_s, now_s)
            if holding is None:
                break
            if lost := self._take(holding, free_s):
                return lost
        return []

    def _first(self, worker: PoolWorker, free_s: float, now_s: float) -> ModelInstance | None:
        """Return the next planned load that may begin; among swaps, the most urgent one."""
        swaps: list[tuple[float, int, ModelInstance, Swap]] = []
        for number, holding in enumerate(worker.planned):
            swap = holding.swap
            if swap is None:
                if self._may_begin(holding, free_s):
                    return holding
                continue
            if not holding.model.waiting.entries:  # no requests: cancelled
                return holding
            swaps.append((swap.start_s, number, holding, swap))
        for start_s, _, holding, swap in sorted(swaps):
            if self._swapping.may_begin(holding, swap, free_s, now_s):
                return holding
            if start_s > now_s:
                break
        return None

    def _may_begin(self, holding: ModelInstance, free_s: float) -> bool:
        worker, charge = holding.worker, holding.charge
        if worker.concurrent_loads or charge is None:
            return True
        end_s = free_s + holding.model.load.estimate_s
        if worker.backlog.keeps(end_s, [(charge.bucket_s, charge.work_s)]):
            return True
        return worker.next_start_s(free_s) == NEVER_S

    def _take(self, holding: ModelInstance, free_s: float) -> list[PoolModel]:
        """Begin a planned load if it is still wanted; return what `give` does."""
        worker, model, swap = holding.worker, holding.model, holding.swap
        self._unplan(holding)
        if len(model.holdings) == 1:
            loaded_s = free_s + model.load.estimate_s + self._pool.result_latency.estimate_s
            self._queue.drop(model, loaded_s + model.durations.estimate_s[0])
        is_wanted = bool(model.waiting.entries)
        if holding.is_prefetch and not is_wanted and not model.is_gone:
            loaded_s = free_s + model.load.estimate_s
            is_wanted = worker.concurrent_loads or worker.backlog.keeps(loaded_s)
        if not is_wanted:
            return self._lose(holding)
        lost = [] if swap is None else self._swapping.begin(holding, swap)
        if not make_room(self._pool, worker, model.pages):
            return lost + self._lose(holding)
        self._begin(holding, free_s)
        return lost

    def _unplan(self, holding: ModelInstance) -> None:
        worker = holding.worker
        worker.planned.remove(holding)
        worker.planned_s -= holding.planned_s
        if holding.swap is None:
            worker.planned_pages -= holding.model.pages
        if not worker.planned:
            worker.planned_s = 0.0
        if holding.charge is not None:
            holding.charge.take_back()
            holding.charge = None

    def withdraw(self, holding: ModelInstance) -> list[PoolModel]:
        """Cancel a planned load; return what `give` does."""
        self._unplan(holding)
        return self._lose(holding)

    def _lose(self, holding: ModelInstance) -> list[PoolModel]:
        """Remove an instance; return the models no longer on any worker."""
        needless = self._swapping.cancel(holding)
        holding.forget()
        worker, others = holding.worker, holding.model.holdings
        lost = [] if others else [holding.model]
        if others:
            by = min(others, key=lambda one: (one.worker.draining, one.worker is not worker))
            self._queue.move(holding, by)
        for one in needless:
            if one not in worker.planned:  # already withdrawn
                continue
            lost += self.withdraw(one)
        return lost

    def _begin(self, holding: ModelInstance, free_s: float) -> None:
        worker, model = holding.worker, holding.model
        load_s = model.load.estimate_s
        worker.free_pages -= model.pages
        holding.state = InstanceState.LOADING
        latest_s = free_s + self._pool.parameters.window_s
        if model.waiting.entries:  # as long as the load is of use to a queued request
            left_s = model.waiting.deadlines_s[-1] - model.durations.estimate_s[0]
            latest_s = max(latest_s, left_s - load_s)
        action = self._pool.send(ActionType.LOAD, holding, latest_s=latest_s, expected_s=load_s)
        holding.ready_s = (
            worker.load.add(action, free_s, load_s) + self._pool.result_latency.estimate_s
        )

    def end_load(
        self, sent: IssuedAction, now_s: float, *, ok: bool, took_s: float | None
    ) -> list[PoolModel]:
        """Record the end of a load; return what `give` does. `took_s` is None if it never began."""
        holding = sent.holding
        worker, model = holding.worker, holding.model
        model.measured_at_s = now_s
        if not ok:
            worker.free_pages += model.pages
            if took_s is not None:
                model.broke(now_s, is_sure=True)
            return self._lose(holding)
        model.failures = 0
        if took_s is not None:
            model.load.observe(took_s)
        self.mark_loaded(holding)
        return []

    def mark_loaded(self, holding: ModelInstance) -> None:
        """Mark a model as loaded."""
        holding.state = InstanceState.LOADED
        self._queue.settle(holding.model)
