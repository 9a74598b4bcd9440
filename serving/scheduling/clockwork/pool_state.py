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
        "ahead_s",
        "back",
        "began_s",
        "models",
        "now_s",
        "parameters",
        "patience_s",
        "reserve",
        "shares",
        "work",
        "workers",
    )

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.models: dict[ModelId, PoolModel] = {}
        self.workers: dict[int, PoolWorker] = {}
        self.back = SlidingMaximum(parameters.lag_s, 0.0)
        """Latency of results: from an action's end to its report."""
        self.reserve = AdmissionMargin()
        self.shares = Shares()
        self.now_s = 0.0
        """Time of the last call."""
        self.began_s = NEVER_S
        """Time of the first request."""
        self.patience_s = NEVER_S
        """Shortest recent relative deadline."""
        self.ahead_s = parameters.ahead_s
        """How long before a worker is free its next action is issued.
        Early batches miss later requests, so short deadlines reduce it, down to the message
        latency."""
        self.work = Rate()
        """Requested executor seconds, in the largest batches."""

    def asked(self, model: PoolModel, items: int, within_s: float) -> None:
        """Record a request with a deadline in `within_s`."""
        if self.began_s == NEVER_S:
            self.began_s = self.now_s
        self.work.add(items * model.durations.item_s, self.now_s)
        if within_s >= model.durations.worth_s[0]:
            self.patience_s = relative_deadline_s(self.patience_s, within_s)
        parameters = self.parameters
        least_s = parameters.lag_s + self.back.worth_s
        self.ahead_s = min(parameters.ahead_s, max(least_s, AHEAD_OF_DEADLINE * self.patience_s))
        model.asked(self.now_s, within_s=within_s, items=items)

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
