"""Outbox of actions for workers, and the times to check workers again. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from serving.scheduling.clockwork.instances import NEVER_S, IssuedAction, ModelInstance, PoolWorker
from serving.scheduling.clockwork.model_queue import PendingRequest
from serving.scheduling.clockwork.pool_state import PoolState
from serving.scheduling.clockwork.timeline import Timeline
from serving.scheduling.interface import Action, ActionType, Part


class ActionOutbox:
    """Outbox of a pool."""

    __slots__ = ("_actions", "_last", "_looks", "_pool", "to_check")

    def __init__(self, pool: PoolState) -> None:
        self._pool = pool
        self._actions: list[Action] = []
        self._last = 0
        self._looks: list[tuple[float, int]] = []
        self.to_check: dict[int, PoolWorker] = {}

    def send(
        self,
        kind: ActionType,
        holding: ModelInstance,
        *,
        latest_s: float,
        expected_s: float,
        items: list[tuple[PendingRequest, int]] | None = None,
        parts: list[Part] | None = None,
    ) -> int:
        """Add an action to the plan; return its number."""
        self._last = number = self._last + 1
        worker, model = holding.worker, holding.model
        worker.issued[number] = IssuedAction(kind, holding, items or [], self._pool.now_s)
        self._actions.append(
            Action(number, kind, worker.id, model.id, parts or [], 0.0, latest_s, expected_s)
        )
        return number

    def take_actions(self) -> list[Action]:
        """Return the actions since the last call."""
        actions, self._actions = self._actions, []
        return actions

    def start_s(self, worker: PoolWorker, executor: Timeline, now_s: float) -> float | None:
        """Return when an executor could start an action; None, and a check then, if not soon."""
        ahead_s = self._pool.schedule_ahead_s
        free_s = executor.free_s(now_s)
        if free_s <= now_s + ahead_s:
            return max(free_s, now_s + self._pool.parameters.message_latency_s)
        self.check_at(worker, free_s - ahead_s)
        return None

    def wake(self, worker: PoolWorker) -> None:
        """Check a worker, now or when it could start more."""
        if self.start_s(worker, worker.exec, self._pool.now_s) is not None:
            self.to_check[worker.id] = worker

    def check_at(self, worker: PoolWorker, at_s: float) -> None:
        """Check a worker at a time."""
        if at_s < worker.next_check_s:
            worker.next_check_s = at_s
            heapq.heappush(self._looks, (at_s, worker.id))

    def due(self, now_s: float) -> Iterator[PoolWorker]:
        """Yield the workers to check now; a check may add others."""
        looks, workers = self._looks, self._pool.workers
        while looks and looks[0][0] <= now_s:
            look_s, number = heapq.heappop(looks)
            worker = workers.get(number)
            if worker is not None and worker.next_check_s == look_s:
                worker.next_check_s = NEVER_S
                self.to_check[number] = worker
        while self.to_check:
            number, worker = self.to_check.popitem()
            if workers.get(number) is worker:  # not lost
                yield worker

    @property
    def next_check_s(self) -> float:
        """Time of the next check."""
        return self._looks[0][0] if self._looks else NEVER_S
