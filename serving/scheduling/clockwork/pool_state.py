"""State of the clockwork controller: models, workers, recent demand, actions and checks."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from serving.scheduling.clockwork.durations import SlidingMaximum
from serving.scheduling.clockwork.instances import (
    NEVER_S,
    IssuedAction,
    ModelInstance,
    PoolModel,
    PoolWorker,
)
from serving.scheduling.clockwork.model_queue import PendingRequest
from serving.scheduling.clockwork.parameters import Parameters
from serving.scheduling.clockwork.rates import AdmissionMargin, Rate, relative_deadline_s
from serving.scheduling.clockwork.shares import Shares
from serving.scheduling.clockwork.timeline import Timeline
from serving.scheduling.interface import Action, ActionType, Part
from serving.values import ModelId

AHEAD_OF_DEADLINE = 0.1
"""Share of the shortest relative deadline for which an action may be issued in advance."""


class PoolState:
    """A pool of workers with its models, demand and pending actions."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.models: dict[ModelId, PoolModel] = {}
        self.workers: dict[int, PoolWorker] = {}
        self.result_latency = SlidingMaximum(parameters.message_latency_s, 0.0)
        """Time from an action's end to the arrival of its result."""
        self.reserve = AdmissionMargin()
        self.shares = Shares()
        self.now_s = 0.0
        self.began_s = NEVER_S
        """Time of the first request."""
        self.relative_deadline_s = NEVER_S
        self.schedule_ahead_s = parameters.schedule_ahead_s
        """How long before a worker is free its next action is issued.
        Short deadlines reduce this time, because an early batch misses later requests."""
        self.work = Rate()
        """Requested executor seconds if all items ran in the largest batches."""
        self.to_check: dict[int, PoolWorker] = {}
        self._checks: list[tuple[float, int]] = []
        self.actions: list[Action] = []
        self._last_action = 0

    def record_request(self, model: PoolModel, items: int, within_s: float) -> None:
        """Record a request that is due in `within_s` seconds."""
        now_s = self.now_s
        if self.began_s == NEVER_S:
            self.began_s = now_s
        self.work.add(items * model.durations.item_s, now_s)
        model.rate.add(items, now_s)
        model.previous_request_s, model.last_request_s = model.last_request_s, now_s
        if within_s >= model.durations.estimate_s[0]:  # a shorter deadline is unreachable anyway
            self.relative_deadline_s = relative_deadline_s(self.relative_deadline_s, within_s)
            model.relative_deadline_s = relative_deadline_s(model.relative_deadline_s, within_s)
        parameters = self.parameters
        min_s = parameters.message_latency_s + self.result_latency.estimate_s
        self.schedule_ahead_s = min(
            parameters.schedule_ahead_s, max(min_s, AHEAD_OF_DEADLINE * self.relative_deadline_s)
        )

    def rate_of(self, model: PoolModel) -> float:
        """Return the number of a model's items requested per second."""
        return model.rate.per_s(self.now_s, self.began_s)

    def work_of(self, model: PoolModel) -> float:
        """Return the share of an executor's time that a model needs in the largest batches."""
        return self.rate_of(model) * model.durations.item_s

    @property
    def spare(self) -> float:
        """Share of an executor's time that requests do not need."""
        count = max(1, sum(not worker.draining for worker in self.workers.values()))
        asked = self.work.per_s(self.now_s, self.began_s, count)  # initially all of it
        return max(0.0, 1.0 - asked / count)

    # Actions and checks

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
        self._last_action = number = self._last_action + 1
        worker, model = holding.worker, holding.model
        worker.issued[number] = IssuedAction(kind, holding, items or [], self.now_s)
        self.actions.append(
            Action(number, kind, worker.id, model.id, parts or [], 0.0, latest_s, expected_s)
        )
        return number

    def start_s(self, worker: PoolWorker, executor: Timeline) -> float | None:
        """Return when an executor could start an action.

        If that is too far ahead, plan a check of its worker and return None.
        """
        now_s, ahead_s = self.now_s, self.schedule_ahead_s
        free_s = executor.free_s(now_s)
        if free_s <= now_s + ahead_s:
            return max(free_s, now_s + self.parameters.message_latency_s)
        self.check_at(worker, free_s - ahead_s)
        return None

    def wake(self, worker: PoolWorker) -> None:
        """Schedule a check of a worker, at once or when it can start more work."""
        if self.start_s(worker, worker.exec) is not None:
            self.to_check[worker.id] = worker

    def check_at(self, worker: PoolWorker, at_s: float) -> None:
        """Schedule a check of a worker."""
        if at_s < worker.next_check_s:
            worker.next_check_s = at_s
            heapq.heappush(self._checks, (at_s, worker.id))

    def due(self) -> Iterator[PoolWorker]:
        """Yield the workers to check now, including those that a check adds."""
        checks, workers = self._checks, self.workers
        while checks and checks[0][0] <= self.now_s:
            check_s, number = heapq.heappop(checks)
            worker = workers.get(number)
            if worker is not None and worker.next_check_s == check_s:
                worker.next_check_s = NEVER_S
                self.to_check[number] = worker
        while self.to_check:
            number, worker = self.to_check.popitem()
            if workers.get(number) is worker:  # not lost
                yield worker

    @property
    def next_check_s(self) -> float:
        """Time of the next check of a worker."""
        return self._checks[0][0] if self._checks else NEVER_S
