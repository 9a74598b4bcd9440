"""Our server with a bare FIFO in place of the clockwork scheduler: what `pool_real.py` compares with.

    python benchmarks/peers/serve_fifo.py [arguments of python -m serving]

The same gateway, replicas, budget and wire. Requests are run one by one in the order in which they came, each as a
batch of its own; a model that is not in memory is loaded when its turn comes, and the least recently used ones are
unloaded for it. Nobody is refused, no deadline is looked at. A worker has one action beside the one that it runs, so
that it does not idle for a message.
"""

from __future__ import annotations

import collections
import math
import sys

from serving.app.command import main
from serving.scheduling.clockwork.scheduler import ClockworkScheduler
from serving.scheduling.interface import (
    Action,
    ActionResult,
    ActionType,
    Cancelled,
    Event,
    ModelDown,
    ModelUp,
    Plan,
    Rejection,
    RejectionReason,
    Submitted,
    WorkerDraining,
    WorkersDown,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import ModelId

MOST_SENT = 2
"""Batches with a worker."""


class Worker:
    """What a worker holds and was given."""

    def __init__(self, event: WorkerUp) -> None:
        self.id = event.worker
        self.free: float = math.inf if event.pages is None else event.pages
        self.held: collections.OrderedDict[ModelId, int] = collections.OrderedDict()
        """Pages, the least recently used first."""
        self.sent: dict[int, tuple[Submitted | None, ModelId]] = {}
        """Unfinished loads and batches; of a batch its request."""
        self.draining = False

    @property
    def batches(self) -> int:
        """Those that it has not answered."""
        return sum(request is not None for request, _ in self.sent.values())


class Fifo:
    """First come, first served."""

    def __init__(self, _settings: ServingSettings) -> None:
        self._models: dict[ModelId, int] = {}
        self._workers: dict[int, Worker] = {}
        self._waiting: collections.OrderedDict[int, Submitted] = collections.OrderedDict()
        self._refusals: list[Rejection] = []
        self._last = 0

    def waiting_of(self, model: ModelId) -> int:
        """Items of a model in the queue."""
        return sum(one.items for one in self._waiting.values() if one.model == model)

    def on(self, event: Event, now_s: float) -> None:  # noqa: ARG002
        """Take note of an event."""
        match event:
            case Submitted():
                self._waiting[event.id] = event
            case Cancelled():
                self._waiting.pop(event.id, None)
            case ModelUp():
                self._models[event.model] = event.pages
            case ModelDown():
                self._models.pop(event.model, None)
            case WorkerUp():
                self._workers[event.worker] = Worker(event)
            case WorkerDraining():
                self._workers[event.worker].draining = True
            case WorkersDown():
                self._lost(event)
            case ActionResult():
                self._result(event)
            case _:
                pass

    def _lost(self, event: WorkersDown) -> None:
        gone = [self._workers.pop(id_) for id_ in event.workers if id_ in self._workers]
        for request, _ in (sent for worker in gone for sent in worker.sent.values()):
            if request is not None:
                self._refusals.append(
                    Rejection(request.id, RejectionReason.WORKER_LOST, event.reason)
                )

    def _result(self, event: ActionResult) -> None:
        worker = self._workers.get(event.worker)
        if worker is None or event.action not in worker.sent:
            return
        request, model = worker.sent.pop(event.action)
        if event.ok:
            return
        if request is not None:
            self._refusals.append(Rejection(request.id, RejectionReason.NOT_STARTED, ""))
        else:
            worker.free += worker.held.pop(model, 0)

    def plan(self, now_s: float) -> Plan:  # noqa: ARG002
        """The next ones, for workers that have a place."""
        actions: list[Action] = []
        while self._waiting:
            able = [
                one
                for one in self._workers.values()
                if not one.draining and one.batches < MOST_SENT
            ]
            if not able:
                break
            _, request = self._waiting.popitem(last=False)
            if request.model not in self._models:
                self._refusals.append(Rejection(request.id, RejectionReason.CANNOT_LOAD, ""))
                continue
            holding = [one for one in able if request.model in one.held]
            worker = min(holding or able, key=lambda one: len(one.sent))
            self._give(worker, request, actions)
        refusals, self._refusals = self._refusals, []
        return Plan(actions, refusals, None)

    def _give(self, worker: Worker, request: Submitted, actions: list[Action]) -> None:
        model = request.model
        if model not in worker.held:
            pages = self._models[model]
            while worker.free < pages:
                old, freed = worker.held.popitem(last=False)
                worker.free += freed
                actions.append(self._action(ActionType.UNLOAD, worker, old))
            worker.free -= pages
            worker.held[model] = pages
            actions.append(self._action(ActionType.LOAD, worker, model))
            worker.sent[self._last] = None, model
        worker.held.move_to_end(model)
        actions.append(self._action(ActionType.INFER, worker, model, request))
        worker.sent[self._last] = request, model

    def _action(
        self, kind: ActionType, worker: Worker, model: ModelId, request: Submitted | None = None
    ) -> Action:
        self._last += 1
        parts = [] if request is None else [(request.id, 0, request.items)]
        return Action(self._last, kind, worker.id, model, parts, 0.0, math.inf, 0.0)


if __name__ == "__main__":
    ClockworkScheduler.of = staticmethod(Fifo)
    sys.exit(main(sys.argv[1:]))
