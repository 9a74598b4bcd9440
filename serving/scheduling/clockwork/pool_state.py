"""State of the clockwork controller: its models, workers and recent demand.

Other modules decide. Pure.
"""

from __future__ import annotations

from serving.scheduling.clockwork.durations import SlidingMaximum
from serving.scheduling.clockwork.instances import NEVER_S, PoolModel, PoolWorker
from serving.scheduling.clockwork.parameters import Parameters
from serving.scheduling.clockwork.rates import AdmissionMargin, Rate, relative_deadline_s
from serving.scheduling.clockwork.shares import Shares
from serving.values import ModelId

AHEAD_OF_DEADLINE = 0.1
"""An action is issued at most this share of the shortest relative deadline in advance."""


class PoolState:
    """State of a pool."""

    __slots__ = (
        "began_s",
        "models",
        "now_s",
        "parameters",
        "relative_deadline_s",
        "reserve",
        "result_latency",
        "schedule_ahead_s",
        "shares",
        "work",
        "workers",
    )

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.models: dict[ModelId, PoolModel] = {}
        self.workers: dict[int, PoolWorker] = {}
        self.result_latency = SlidingMaximum(parameters.message_latency_s, 0.0)
        """Latency of results: from an action's end to its report."""
        self.reserve = AdmissionMargin()
        self.shares = Shares()
        self.now_s = 0.0
        """Time of the last call."""
        self.began_s = NEVER_S
        """Time of the first request."""
        self.relative_deadline_s = NEVER_S
        """Shortest recent relative deadline."""
        self.schedule_ahead_s = parameters.schedule_ahead_s
        """How long before a worker is free its next action is issued.
        Early batches miss later requests, so short deadlines reduce it, down to the message
        latency."""
        self.work = Rate()
        """Requested executor seconds, in the largest batches."""

    def record_request(self, model: PoolModel, items: int, within_s: float) -> None:
        """Record a request with a deadline in `within_s`."""
        if self.began_s == NEVER_S:
            self.began_s = self.now_s
        self.work.add(items * model.durations.item_s, self.now_s)
        if within_s >= model.durations.estimate_s[0]:
            self.relative_deadline_s = relative_deadline_s(self.relative_deadline_s, within_s)
        parameters = self.parameters
        min_s = parameters.message_latency_s + self.result_latency.estimate_s
        self.schedule_ahead_s = min(
            parameters.schedule_ahead_s, max(min_s, AHEAD_OF_DEADLINE * self.relative_deadline_s)
        )
        model.record_request(self.now_s, within_s=within_s, items=items)

    def rate_of(self, model: PoolModel) -> float:
        """Return the requested items per second of a model."""
        return model.rate.per_s(self.now_s, self.began_s)

    def work_of(self, model: PoolModel) -> float:
        """Return the share of an executor that they need in the largest batches."""
        return self.rate_of(model) * model.durations.item_s

    @property
    def spare(self) -> float:
        """Unrequested share of an executor's time."""
        count = max(1, sum(not worker.draining for worker in self.workers.values()))
        asked = self.work.per_s(self.now_s, self.began_s, count)  # initially all of it
        return max(0.0, 1.0 - asked / count)
