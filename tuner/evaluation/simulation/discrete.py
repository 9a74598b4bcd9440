"""Event simulation of the engine: the real scheduler in virtual time, with shared cores.

    client --request--> gateway --> scheduler --batch--> replica --> gateway --response--> client

Between events, all parts that have work (core-seconds) run at once, as fast as their threads allow;
if they need more cores than exist, all slow down alike (processor sharing). A replica that has
used its CPU quota stops until its next period (100 ms). Costs come from the profile, batching and
waits from `serving.scheduling`. Deterministic.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping

import numpy as np

from serving.scheduling.adaptive.scheduler import AdaptiveScheduler
from serving.scheduling.interface import (
    Action,
    ActionResult,
    ActionType,
    Submitted,
    WarmupMeasured,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import ModelId, StageTimes
from tuner.errors import TunerError
from tuner.evaluation.simulation.closed_form import Workload, interpolate, per_request
from tuner.evaluation.simulation.profile import CostProfile
from tuner.launching import apply
from tuner.values.configuration import Value

PERIOD_S = 0.1
SLOTS = 2
"""Number of batches that a replica may hold: one running and one buffered."""
MIN_S = 0.4
"""Minimum virtual time: four periods of the quota."""
MAX_REQUESTS = 4_000
WARMUP = 0.25
"""Share of the responses that are discarded as warm-up."""
INTO_GATEWAY = 0.6
"""Share of a request's gateway cost that precedes its batch; the rest follows."""
_TINY_S = 1e-12


class _Processor:
    __slots__ = ("budget_s", "left_s", "quota", "refill_s", "speed", "waiting", "what")

    def __init__(self, *, quota: float = math.inf, phase_s: float = 0.0) -> None:
        self.speed = 1.0
        self.left_s = 0.0
        self.what: object = None
        self.waiting: collections.deque[tuple[object, float, float]] = collections.deque()
        self.quota = quota
        self.budget_s = quota
        self.refill_s = math.inf
        if quota < math.inf:  # as if running since the period began
            self.refill_s = phase_s
            self.budget_s = max(0.0, quota * PERIOD_S - (PERIOD_S - phase_s))

    def give(self, what: object, cpu_s: float, speed: float = 1.0) -> None:
        if self.what is None:
            self.what, self.left_s, self.speed = what, max(cpu_s, _TINY_S), speed
        else:
            self.waiting.append((what, max(cpu_s, _TINY_S), speed))

    def finish(self) -> object:
        what, self.what = self.what, None
        if self.waiting:
            self.give(*self.waiting.popleft())
        return what

    @property
    def wanted_cores(self) -> float:
        """Number of cores that it could use now."""
        return self.speed if self.what is not None and self.budget_s > _TINY_S else 0.0


class _Engine:
    def __init__(
        self, profile: CostProfile, load: Workload, candidate: Mapping[str, Value]
    ) -> None:
        self._load = load
        given = apply.to_settings(candidate)
        changes = {name: value for name, value in given.items() if value is not None}
        settings = ServingSettings().with_changes(changes)
        count, threads = settings.replica.count, settings.replica.threads
        self._costs = profile.of(threads)
        quota = settings.replica.cpu or math.inf
        self._client, self._gateway = _Processor(), _Processor()
        phases = np.random.default_rng(0).uniform(0, PERIOD_S, count)
        self._replicas = [_Processor(quota=quota, phase_s=float(phase)) for phase in phases]
        self._parts = [self._client, self._gateway, *self._replicas]
        model = ModelId("simulated", "1")
        self._model = model
        self._scheduler = AdaptiveScheduler(model, settings)
        self._now_s = 0.0
        self._wake_s: float | None = None
        self._next_id = 0
        self._begun_s: dict[int, float] = {}
        self._took_s: list[float] = []
        self._items_left: dict[int, int] = {}
        self._gateway_s, self._client_s = per_request(self._costs, 1)
        for worker in range(count):
            self._scheduler.on(WorkerUp(worker, SLOTS), 0.0)
        for action in self._scheduler.plan(0.0).actions:
            if action.kind is ActionType.LOAD:
                self._scheduler.on(ActionResult(action.id, action.worker, True, None), 0.0)
        sizes = {cost.size: cost.service_s for cost in self._costs}
        self._scheduler.on(WarmupMeasured(sizes, settings.replica.cpu, threads), 0.0)

    def run(self) -> list[float]:
        """Return the latencies in seconds, in order of completion."""
        for _ in range(self._load.concurrency):
            self._client.give("send", self._client_s)
        steps = 0
        while self._now_s < MIN_S or len(self._took_s) < 4 * self._load.concurrency:
            if len(self._took_s) >= MAX_REQUESTS:
                break
            steps += 1
            if steps > 40 * MAX_REQUESTS or not self._step():
                break
        return self._took_s

    def _step(self) -> bool:
        wanted = [part.wanted_cores for part in self._parts]
        total = sum(wanted)
        share = min(1.0, self._load.cores / total) if total else 1.0
        step_s = math.inf if self._wake_s is None else max(0.0, self._wake_s - self._now_s)
        for part, rate in zip(self._parts, wanted, strict=True):
            if rate:
                step_s = min(step_s, part.left_s / (rate * share))
                if part.quota < math.inf:
                    step_s = min(step_s, part.budget_s / (rate * share))
            if part.refill_s < math.inf and (part.what is not None or part.budget_s <= _TINY_S):
                step_s = min(step_s, part.refill_s - self._now_s)
        if step_s == math.inf:
            return False
        self._now_s += max(step_s, 0.0)
        for part, rate in zip(self._parts, wanted, strict=True):
            if rate:
                spent_s = rate * share * step_s
                part.left_s -= spent_s
                part.budget_s -= spent_s
            if part.refill_s <= self._now_s + _TINY_S:
                part.budget_s = part.quota * PERIOD_S
                behind = math.floor((self._now_s + _TINY_S - part.refill_s) / PERIOD_S) + 1
                part.refill_s += behind * PERIOD_S
        for part, rate in zip(self._parts, wanted, strict=True):
            if rate and part.left_s <= _TINY_S:
                self._on_finished(part)
        if self._wake_s is not None and self._wake_s <= self._now_s + _TINY_S:
            self._plan()
        return True

    def _on_finished(self, part: _Processor) -> None:
        what = part.finish()
        if part is self._client:
            if isinstance(what, int):
                self._took_s.append(self._now_s - self._begun_s.pop(what))
            id_ = self._next_id = self._next_id + 1
            self._begun_s[id_] = self._now_s
            self._gateway.give(("in", id_), INTO_GATEWAY * self._gateway_s)
        elif part is self._gateway:
            assert isinstance(what, tuple)
            kind, id_ = what
            if kind == "in":
                items = self._load.client_batch
                self._items_left[id_] = items
                event = Submitted(id_, self._model, items, self._now_s + 30.0)
                self._scheduler.on(event, self._now_s)
                self._plan()
            else:
                self._client.give(id_, self._client_s)
        else:
            assert isinstance(what, Action)
            self._ran(what)

    def _ran(self, action: Action) -> None:
        items = sum(stop - start for _, start, stop in action.parts)
        service_s, _ = interpolate(self._costs, items)
        times = StageTimes(queue_s=0.0, input_s=0.0, exec_s=service_s, output_s=0.0)
        self._scheduler.on(ActionResult(action.id, action.worker, True, times), self._now_s)
        for id_, start, stop in action.parts:
            self._items_left[id_] -= stop - start
            if not self._items_left[id_]:
                del self._items_left[id_]
                self._gateway.give(("out", id_), (1 - INTO_GATEWAY) * self._gateway_s)
        self._plan()

    def _plan(self) -> None:
        plan = self._scheduler.plan(self._now_s)
        self._wake_s = plan.wake_at_s
        if self._wake_s is not None and self._wake_s <= self._now_s:
            self._wake_s = self._now_s + 1e-6
        for refusal in plan.refusals:  # a closed loop sends again
            self._items_left.pop(refusal.id, None)
            self._gateway.give(("out", refusal.id), (1 - INTO_GATEWAY) * self._gateway_s)
        for action in plan.actions:
            items = sum(stop - start for _, start, stop in action.parts)
            service_s, cpu_s = interpolate(self._costs, items)
            self._gateway_s, self._client_s = per_request(self._costs, items)
            speed = max(1.0, cpu_s / service_s)
            self._replicas[action.worker].give(action, cpu_s, speed)


def mean_ms(profile: CostProfile, load: Workload, candidate: Mapping[str, Value]) -> float:
    """Predict the mean latency, or raise TunerError if nothing is answered in simulated time."""
    took_s = _Engine(profile, load, candidate).run()
    counted = took_s[int(WARMUP * len(took_s)) :]
    if not counted:
        raise TunerError(f"no request is answered within {MIN_S:g} s of simulated time")
    return 1e3 * float(np.mean(counted))
