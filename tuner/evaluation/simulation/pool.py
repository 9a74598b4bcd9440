"""Emulated pool: the real scheduler in virtual time, with workers that only simulate work.

    source --request--> scheduler --LOAD, UNLOAD, INFER--> emulated worker
    emulated worker --result--> scheduler --response--> source

A worker runs one action at a time (with `concurrent_loads`, also a load beside a batch), for the
profile's time with jitter. An action that misses its window fails. A run is deterministic if
jitter and message latency are.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from serving.scheduling.interface import (
    Action,
    ActionResult,
    ActionType,
    Event,
    ModelUp,
    RejectionReason,
    Scheduler,
    Submitted,
    WorkerDraining,
    WorkersDown,
    WorkerUp,
)
from serving.values import ModelId, StageTimes

SLOTS = 1_000_000
"""Number of unfinished actions that a worker may hold."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedModel:
    """Costs of a model on a worker."""

    id: ModelId
    pages: int
    load_s: float
    batch_s: Mapping[int, float]
    """Mapping from items to seconds; other sizes are padded to the next one."""

    def took_s(self, items: int) -> float:
        """Return the seconds that a batch takes."""
        return self.batch_s[min(size for size in self.batch_s if size >= items)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedRequest:
    """Request to the pool."""

    at_s: float
    model: int
    objective_s: float
    """Deadline relative to `at_s`."""
    items: int = 1
    client: int = -1
    """Index of the client that waits for the response, or -1 if none does."""
    stream: int = 0
    flow: str = ""


class ArrivalSource(Protocol):
    """Source of requests."""

    def __iter__(self) -> Iterator[EmulatedRequest]:
        """Yield the initial requests in order of time."""

    def next_request(self, request: EmulatedRequest, now_s: float) -> EmulatedRequest | None:
        """Return a client's next request after a response or rejection."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Event that affects a worker."""

    at_s: float
    worker: int
    kind: Literal["dies", "drains", "returns", "slows"]
    """Kind of event; a draining worker finishes its actions but gets no more until it restarts."""
    factor: float = 1.0
    """Factor by which all later durations grow, for `slows`."""


@dataclasses.dataclass(slots=True)
class EmulatedOutcome:
    """Outcome of a request."""

    request: EmulatedRequest
    done_s: float = math.nan
    """Time of the response or rejection, or NaN if there was none."""
    refused: RejectionReason | None = None
    batch: int = 0
    left: int = 0

    @property
    def in_time(self) -> bool:
        """Whether the request was answered by its deadline."""
        deadline_s = self.request.at_s + self.request.objective_s
        return self.refused is None and self.done_s <= deadline_s


class EmulatedWorker:
    """Worker with the progress of its executors and its loaded models."""

    def __init__(self, number: int, *, pages: int | None, concurrent_loads: bool) -> None:
        self.number = number
        self.pages = pages
        self.concurrent_loads = concurrent_loads
        self.is_up = True
        self.is_draining = False
        self.factor = 1.0
        self.life = 0
        """Number of deaths so far; actions from an earlier life yield no result."""
        self.free_s = {ActionType.INFER: 0.0, ActionType.LOAD: 0.0}
        self.held: dict[ModelId, int] = {}
        """Mapping from loaded model to its pages; may be set before the run."""
        self.busy_s: dict[ActionType, float] = dict.fromkeys(ActionType, 0.0)
        self.counts: collections.Counter[ActionType] = collections.Counter()
        self.batches: collections.Counter[int] = collections.Counter()
        self.too_late = 0
        self.max_pages = 0

    def executor(self, kind: ActionType) -> ActionType:
        """Return an action's executor; loads and batches share one unless `concurrent_loads`."""
        return kind if self.concurrent_loads else ActionType.INFER


class EmulatedPool:
    """Pool for a single run."""

    def __init__(
        self,
        scheduler: Scheduler,
        models: Sequence[EmulatedModel],
        workers: Sequence[EmulatedWorker],
        *,
        jitter: Callable[[], float],
        message_latency_s: Callable[[], float],
    ) -> None:
        """Announce models and workers, numbered by position, to the scheduler.

        `jitter` draws a factor for each action, `message_latency_s` the latency of each message.
        """
        self._scheduler = scheduler
        self._models = models
        self._by_id = {model.id: model for model in models}
        self.workers = workers
        self._jitter, self._message_latency_s = jitter, message_latency_s
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self._done: list[EmulatedOutcome] = []
        self.outcomes: list[EmulatedOutcome] = []
        self.planning_s = 0.0
        """CPU time of the scheduler in this run."""
        for model in models:
            event = ModelUp(model.id, model.pages, model.load_s, model.batch_s, pads=True)
            scheduler.on(event, 0.0)
        for worker in workers:
            self._up(worker, 0.0)

    def run(self, traffic: ArrivalSource, faults: Sequence[Fault] = ()) -> list[EmulatedOutcome]:
        """Run the workload until no events remain."""
        self.planning_s = 0.0
        for fault in faults:
            self._later(fault.at_s, functools.partial(self._befall, fault))
        coming = iter(traffic)
        upcoming = next(coming, None)
        wake_s: float | None = None
        while True:
            now_s = self._next_s(upcoming, wake_s)
            if now_s == math.inf:
                return self.outcomes
            self._done = []
            if self._events and self._events[0][0] <= now_s:
                _, _, act = heapq.heappop(self._events)
                act(now_s)
            elif upcoming is not None and upcoming.at_s <= now_s:
                self._submit(upcoming, now_s)
                upcoming = next(coming, None)
            wake_s = self._plan(now_s)
            for outcome in self._done:
                if outcome.request.client >= 0:
                    following = traffic.next_request(outcome.request, now_s)
                    if following is not None:
                        act = functools.partial(self._submit, following)
                        self._later(following.at_s, act)

    def _next_s(self, upcoming: EmulatedRequest | None, wake_s: float | None) -> float:
        now_s = math.inf if upcoming is None else upcoming.at_s
        if self._events:
            now_s = min(now_s, self._events[0][0])
        # Wake the scheduler just after the time it asked for, so that its condition holds.
        return now_s if wake_s is None else min(now_s, wake_s + 1e-9)

    def _later(self, at_s: float, act: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, act))

    def _submit(self, request: EmulatedRequest, now_s: float) -> None:
        id_ = len(self.outcomes)
        self.outcomes.append(EmulatedOutcome(request, left=request.items))
        model = self._models[request.model].id
        deadline_s = request.at_s + request.objective_s
        event = Submitted(id_, model, request.items, deadline_s, flow=request.flow)
        self._report(event, now_s)

    def _plan(self, now_s: float) -> float | None:
        began_s = time.perf_counter()
        plan = self._scheduler.plan(now_s)
        self.planning_s += time.perf_counter() - began_s
        for action in plan.actions:
            self._take(action, now_s)
        for refusal in plan.refusals:
            outcome = self.outcomes[refusal.id]
            if outcome.refused is not None or not outcome.left:
                raise AssertionError(f"request {refusal.id} is refused after its end")
            outcome.refused = refusal.reason
            outcome.done_s = now_s
            self._done.append(outcome)
        return plan.wake_at_s

    def _report(self, event: Event, now_s: float) -> None:
        began_s = time.perf_counter()
        self._scheduler.on(event, now_s)
        self.planning_s += time.perf_counter() - began_s

    def _up(self, worker: EmulatedWorker, now_s: float) -> None:
        event = WorkerUp(
            worker.number, SLOTS, worker.pages, tuple(worker.held), worker.concurrent_loads
        )
        self._report(event, now_s)

    def _befall(self, fault: Fault, now_s: float) -> None:
        worker = self.workers[fault.worker]
        if fault.kind == "slows":
            worker.factor = fault.factor
        elif fault.kind == "drains" and worker.is_up:
            worker.is_draining = True
            self._report(WorkerDraining(worker.number), now_s)
        elif fault.kind == "dies" and worker.is_up:
            worker.is_up = worker.is_draining = False
            worker.life += 1
            worker.held.clear()
            self._report(WorkersDown((worker.number,), "killed"), now_s)
        elif fault.kind == "returns" and not worker.is_up:
            worker.is_up = True
            worker.free_s = dict.fromkeys(worker.free_s, now_s)
            self._up(worker, now_s)

    def _take(self, action: Action, now_s: float) -> None:
        worker = self.workers[action.worker]
        model = self._by_id[action.model]
        if not worker.is_up:
            raise AssertionError(f"action {action.id} for worker {worker.number}, which is down")
        if worker.is_draining and action.kind is not ActionType.UNLOAD:
            raise AssertionError(f"action {action.id} for worker {worker.number}, which drains")
        here_s = now_s + self._message_latency_s()
        if action.kind is ActionType.UNLOAD:
            del worker.held[action.model]
            self._answer(action, worker, here_s, StageTimes(0.0, 0.0, 0.0, 0.0))
            return
        executor = worker.executor(action.kind)
        start_s = max(here_s, worker.free_s[executor], action.earliest_s)
        if start_s > action.latest_s:
            worker.too_late += 1
            self._answer(action, worker, start_s, None)
            return
        if action.kind is ActionType.LOAD:
            took_s = model.load_s
            worker.held[action.model] = model.pages
            worker.max_pages = max(worker.max_pages, sum(worker.held.values()))
        else:
            items = sum(stop - start for _, start, stop in action.parts)
            if action.model not in worker.held:
                raise AssertionError(f"action {action.id} runs a model that is not loaded")
            took_s = model.took_s(items)
            worker.batches[items] += 1
        took_s *= worker.factor * self._jitter()
        worker.busy_s[action.kind] += took_s
        worker.counts[action.kind] += 1
        worker.free_s[executor] = start_s + took_s
        times = StageTimes(start_s - now_s, 0.0, took_s, 0.0)
        self._answer(action, worker, start_s + took_s, times)

    def _answer(
        self, action: Action, worker: EmulatedWorker, at_s: float, times: StageTimes | None
    ) -> None:
        result = ActionResult(action.id, worker.number, times is not None, times)
        act = functools.partial(self._result, result, action, worker.life)
        self._later(at_s + self._message_latency_s(), act)

    def _result(self, event: ActionResult, action: Action, life: int, now_s: float) -> None:
        if life != self.workers[event.worker].life:
            return
        self._report(event, now_s)
        if action.kind is not ActionType.INFER or not event.ok:
            return
        items = sum(stop - start for _, start, stop in action.parts)
        for id_, start, stop in action.parts:
            outcome = self.outcomes[id_]
            if outcome.refused is not None:
                continue
            outcome.left -= stop - start
            outcome.batch = items
            if not outcome.left:
                outcome.done_s = now_s
                self._done.append(outcome)
