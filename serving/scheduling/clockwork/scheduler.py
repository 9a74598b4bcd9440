r"""The clockwork scheduler: nothing starts that cannot finish in time.

One controller decides which model is in which worker's memory and when each batch starts; workers
run an action in its window or not at all. A request is rejected as soon as its deadline is
unreachable (Gujarati et al., Serving DNNs like Clockwork, OSDI'20, sections 4 and 5).

    request -- schedulable? --> queued by deadline -- largest batch in time --> INFER, in a window
            \-- not loaded --> LOAD, if in time --^

Time is reserved on admission, so later requests rarely displace admitted ones; the paper admits
every request and drops late ones from the queue.

    scheduler -> admission -> loading -> swapping -> pool_queue -> eviction -> pool_state
             \-> batches -------------------------/

Each module uses only those to its right. Pure.
"""

from __future__ import annotations

import itertools
from typing import Self

from serving.scheduling.clockwork.admission import Admission
from serving.scheduling.clockwork.batches import Batches
from serving.scheduling.clockwork.eviction import evict, mark_evictable
from serving.scheduling.clockwork.instances import (
    NEVER_S,
    InstanceState,
    ModelInstance,
    PoolModel,
    PoolWorker,
)
from serving.scheduling.clockwork.loading import Loading
from serving.scheduling.clockwork.parameters import Parameters
from serving.scheduling.clockwork.pool_queue import PoolQueue
from serving.scheduling.clockwork.pool_state import PoolState
from serving.scheduling.clockwork.rates import AdmissionMargin
from serving.scheduling.interface import (
    MAX_LOSSES,
    ActionResult,
    ActionType,
    Cancelled,
    Event,
    ModelDown,
    ModelUp,
    Plan,
    Profiled,
    RejectionReason,
    SettingsChanged,
    Submitted,
    WorkerDraining,
    WorkersDown,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import ModelId


class ClockworkScheduler:
    """The controller of a pool."""

    def __init__(self, parameters: Parameters) -> None:
        self._pool = pool = PoolState(parameters)
        self._queue = queue = PoolQueue(pool)
        self._loading = Loading(pool, queue)
        self._admission = Admission(pool, queue, self._loading)
        self._batches = Batches(pool, queue)
        self._indices = itertools.count()
        """Indices of models, never reused because workers may still hold removed models."""

    @classmethod
    def of(cls, settings: ServingSettings) -> Self:
        """Create a scheduler from settings."""
        return cls(Parameters.of(settings))

    def waiting_of(self, model: ModelId) -> int:
        """Return the number of queued items of a model."""
        known = self._pool.models.get(model)
        return 0 if known is None else len(known.waiting)

    def on(self, event: Event, now_s: float) -> None:
        """Take note of an event."""
        self._pool.now_s = now_s
        match event:
            case Submitted():
                self._admission.submit(event, now_s)
            case ActionResult():
                self._result(event, now_s)
            case Cancelled():
                self._queue.cancel(event.id)
            case ModelUp():
                model = PoolModel(next(self._indices), event, self._pool.parameters)
                self._pool.models[event.model] = model
            case Profiled():
                self._on_profiled(event)
            case ModelDown():
                self._model_down(event, now_s)
            case WorkerUp():
                self._worker_up(event, now_s)
            case WorkerDraining():
                self._worker_draining(event, now_s)
            case WorkersDown():
                self._workers_down(event, now_s)
            case SettingsChanged():
                self._on_settings_changed(event)

    def plan(self, now_s: float) -> Plan:
        """Return what to do now."""
        self._pool.now_s = now_s
        self._queue.expire(now_s)
        self._batches.expire(now_s)
        for worker in self._pool.due():
            if worker.draining:
                continue
            while lost := self._loading.give(worker, now_s):
                for model in lost:
                    self._admission.replace(model, now_s)
            self._batches.give(worker)
        actions, self._pool.actions = self._pool.actions, []
        refusals, self._queue.refusals = self._queue.refusals, []
        wake_s = min(self._pool.next_check_s, self._queue.expiry_s(), self._batches.expiry_s())
        return Plan(actions, refusals, None if wake_s == NEVER_S else wake_s)

    def _result(self, event: ActionResult, now_s: float) -> None:
        worker = self._pool.workers.get(event.worker)
        sent = worker.issued.pop(event.action, None) if worker is not None else None
        if worker is None or sent is None:
            return
        self._pool.to_check[worker.id] = worker
        times = event.times
        took_s, end_s = None, now_s
        if times is not None:
            took_s = times.input_s + times.exec_s + times.output_s
            end_s = min(now_s, sent.sent_s + times.queue_s + took_s)
            self._pool.result_latency.observe(now_s - end_s)
        if sent.kind is ActionType.INFER:
            worker.exec.record_end(event.action, end_s)
            model = sent.holding.model
            sent.holding.busy -= 1
            model.measured_at_s = now_s
            if event.ok:
                self._batches.ran(sent, took_s or 0.0)
            else:
                self._admission.unrun(sent, now_s, too_large=event.too_large)
            mark_evictable(self._pool, model)
        elif sent.kind is ActionType.LOAD:
            worker.load.record_end(event.action, end_s)
            for model in self._loading.end_load(sent, now_s, ok=event.ok, took_s=took_s):
                self._admission.replace(model, now_s)

    def _worker_up(self, event: WorkerUp, now_s: float) -> None:
        worker = self._pool.workers[event.worker] = PoolWorker(event, self._pool.result_latency)
        for name in event.loaded:
            model = self._pool.models.get(name)
            if model is None:
                continue
            worker.free_pages -= model.pages
            holding = ModelInstance(model, worker, InstanceState.LOADED, now_s)
            worker.instances[model.index] = holding
            model.holdings.append(holding)
            self._loading.mark_loaded(holding)
        self._pool.to_check[worker.id] = worker
        for model in self._pool.models.values():
            is_nowhere = all(holding.worker.draining for holding in model.holdings)
            if model.waiting.entries and is_nowhere:  # there was no worker
                self._admission.replace(model, now_s)

    def _worker_draining(self, event: WorkerDraining, now_s: float) -> None:
        worker = self._pool.workers.get(event.worker)
        if worker is None or worker.draining:
            return
        worker.draining = True
        models = {holding.model.index: holding.model for holding in worker.instances.values()}
        while worker.planned:
            for model in self._loading.withdraw(worker.planned[0]):
                models[model.index] = model
        for model in models.values():
            if model.waiting.entries:
                self._admission.replace(model, now_s)

    def _workers_down(self, event: WorkersDown, now_s: float) -> None:
        workers = self._pool.workers
        gone = [workers.pop(id_) for id_ in event.workers if id_ in workers]
        models = {
            holding.model.index: holding.model
            for worker in gone
            for holding in worker.instances.values()
        }
        for model in models.values():
            model.holdings = [each for each in model.holdings if each.worker not in gone]
        issued = [sent for worker in gone for sent in worker.issued.values()]
        for worker in gone:
            worker.issued = {}
        batches = [sent for sent in issued if sent.kind is ActionType.INFER]
        for entry, model in {
            entry: sent.holding.model for sent in batches for entry, _ in sent.items
        }.items():
            entry.losses += 1
            if entry.losses > MAX_LOSSES:
                self._queue.reject(entry, model, RejectionReason.WORKER_LOST, event.reason)
        loads = [sent.holding.model for sent in issued if sent.kind is ActionType.LOAD]
        for model in {model.index: model for model in loads}.values():
            model.broke(now_s, is_sure=False)
        for sent in batches:
            self._admission.unrun(sent, now_s)
        for model in models.values():
            self._admission.replace(model, now_s)

    def _on_settings_changed(self, event: SettingsChanged) -> None:
        pool = self._pool
        before, pool.parameters = pool.parameters, Parameters.of(event.settings)
        if event.keep_learned and pool.parameters == before:
            return
        pool.reserve = AdmissionMargin()
        for model in pool.models.values():
            self._begin(model)

    def _on_profiled(self, event: Profiled) -> None:
        model = self._pool.models.get(event.model)
        if model is not None:
            model.profile = model.profile._replace(load_s=event.load_s, batch_s=event.batch_s)
            self._begin(model)

    def _begin(self, model: PoolModel) -> None:
        model.begin(self._pool.parameters)
        if model.waiting.entries:
            self._queue.watch(model)
            self._queue.offer(model)

    def _model_down(self, event: ModelDown, now_s: float) -> None:
        model = self._pool.models.pop(event.model, None)
        if model is None:
            return
        model.is_gone = True
        for entry in dict.fromkeys(model.waiting.entries):
            self._queue.reject(entry, model, RejectionReason.CANNOT_LOAD)
        for holding in tuple(model.holdings):
            if holding.is_idle:
                evict(self._pool, holding)
            elif holding.state is InstanceState.PLANNED and holding in holding.worker.planned:
                for other in self._loading.withdraw(holding):
                    self._admission.replace(other, now_s)
