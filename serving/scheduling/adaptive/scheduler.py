"""The adaptive scheduler: fixed size and timeout, earliest deadline first, late binding.

A worker with a free slot takes a batch as soon as `batching.max_size` items wait or the oldest has
waited `batching.timeout_us` (0: at once). Each model's pool has one queue; each worker loads the
model once, when it comes up, and windows are open. A request whose deadline passes is refused
wherever it is; the parts of a lost worker are given to another worker once.

The seam's rules are in `serving.scheduling.seam`. Deadline order is Clipper's (NSDI'17, section
4.3).
"""

from __future__ import annotations

import math

from serving.scheduling.adaptive.queue import DeadlineQueue, Entry
from serving.scheduling.adaptive.workers import ROUTING, Worker
from serving.scheduling.seam import (
    Action,
    Cancelled,
    Event,
    Kind,
    Part,
    Plan,
    Reason,
    Refusal,
    Result,
    SettingsChanged,
    Submitted,
    WorkerDown,
    WorkerDraining,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import ModelId

MAX_LOSSES = 1
"""Lost workers that a request survives: it is given to another replica once."""


class _Batch:
    """One INFER action with a worker."""

    __slots__ = ("deadline_s", "entries", "worker")

    def __init__(self, worker: Worker, entries: list[tuple[Entry, Part]]) -> None:
        self.worker = worker
        self.entries = entries
        self.deadline_s = min(entry.deadline_s for entry, _ in entries)


class AdaptiveScheduler:
    """Scheduler of one model's pool."""

    def __init__(self, model: ModelId, settings: ServingSettings) -> None:
        self._model = model
        self._queue = DeadlineQueue()
        self._entries: dict[int, Entry] = {}
        self._workers: dict[int, Worker] = {}
        self._batches: dict[int, _Batch] = {}
        self._loads: dict[int, Worker] = {}
        self._to_load: list[Worker] = []
        self._refusals: list[Refusal] = []
        self._last_action = 0
        self._configure(settings)

    def _configure(self, settings: ServingSettings) -> None:
        self._max_size = settings.batching.max_size
        self._timeout_s = settings.batching.timeout_us * 1e-6
        self._capacity = settings.scheduling.queue_capacity
        self._choose = ROUTING[settings.routing.policy]

    @property
    def waiting_items(self) -> int:
        """Items in the queue."""
        return self._queue.items

    def on(self, event: Event, now_s: float) -> None:
        """Take note of an event."""
        if type(event) is Submitted:  # the one event per request; the others come per batch or less
            self._submitted(event, now_s)
            return
        match event:
            case Result():
                self._result(event)
            case Cancelled():
                self._leave(event.id)
            case WorkerUp():
                worker = Worker(event.worker, event.slots)
                self._workers[event.worker] = worker
                self._to_load.append(worker)
            case WorkerDraining():
                if event.worker in self._workers:
                    self._workers[event.worker].draining = True
            case WorkerDown():
                self._down(event)
            case SettingsChanged():
                self._configure(event.settings)

    def plan(self, now_s: float) -> Plan:
        """Load what came up, refuse what is too late, give batches to free workers."""
        actions = [self._load(worker) for worker in self._to_load]
        self._to_load.clear()
        self._expire(now_s)
        queue = self._queue
        while queue.items and self._due(now_s):
            worker = self._choose(self._workers.values())
            if worker is None:
                break
            actions.append(self._infer(worker))
        refusals, self._refusals = self._refusals, []
        return Plan(actions, refusals, self._wake_at_s(now_s))

    def _submitted(self, event: Submitted, now_s: float) -> None:
        if self._queue.items >= self._capacity:
            self._refusals.append(Refusal(event.id, Reason.QUEUE_FULL, str(self._capacity)))
            return
        entry = Entry(event.id, event.items, event.deadline_s, now_s)
        self._entries[event.id] = entry
        self._queue.push(entry)

    def _result(self, event: Result) -> None:
        batch = self._batches.pop(event.action, None)
        if batch is None:
            loaded = self._loads.pop(event.action, None)
            if loaded is not None and event.ok:
                loaded.loaded = True
            return
        batch.worker.unfinished -= 1
        if not event.ok:
            self._take_back(batch.entries, Reason.NOT_STARTED, "")
            return
        for entry, _ in batch.entries:
            entry.outstanding -= 1
            if not entry.outstanding and not entry.spans:
                self._entries.pop(entry.id, None)

    def _leave(self, id_: int) -> None:
        entry = self._entries.pop(id_, None)
        if entry is not None:
            self._queue.discard(entry)

    def _refuse(self, entry: Entry, reason: Reason, detail: str) -> None:
        self._refusals.append(Refusal(entry.id, reason, detail))
        self._leave(entry.id)

    def _down(self, event: WorkerDown) -> None:
        worker = self._workers.pop(event.worker, None)
        if worker is None:
            return
        if worker in self._to_load:
            self._to_load.remove(worker)
        self._loads = {id_: other for id_, other in self._loads.items() if other is not worker}
        held = {id_: batch for id_, batch in self._batches.items() if batch.worker is worker}
        for id_ in held:
            del self._batches[id_]
        parts = [pair for batch in held.values() for pair in batch.entries]
        self._take_back(parts, Reason.WORKER_LOST, event.reason)

    def _take_back(self, parts: list[tuple[Entry, Part]], reason: Reason, detail: str) -> None:
        """Parts that a worker had and did not execute wait again, once."""
        for entry in dict.fromkeys(entry for entry, _ in parts if not entry.left):
            entry.attempts += 1
            if entry.attempts > MAX_LOSSES:
                self._refuse(entry, reason, detail)
        for entry, part in reversed(parts):
            entry.outstanding -= 1
            if not entry.left:
                self._queue.give_back(entry, part)

    def _expire(self, now_s: float) -> None:
        while (head := self._queue.head()) is not None and head.deadline_s <= now_s:
            where = Reason.DEADLINE_IN_REPLICA if head.outstanding else Reason.DEADLINE_IN_QUEUE
            self._refuse(head, where, "")
        for batch in self._batches.values():
            if batch.deadline_s <= now_s:
                later = math.inf
                for entry, _ in batch.entries:
                    if entry.left:
                        continue
                    if entry.deadline_s <= now_s:
                        self._refuse(entry, Reason.DEADLINE_IN_REPLICA, "")
                    else:
                        later = min(later, entry.deadline_s)
                batch.deadline_s = later

    def _due(self, now_s: float) -> bool:
        if self._timeout_s == 0.0 or self._queue.items >= self._max_size:
            return True
        oldest_s = self._queue.oldest_arrival_s()
        return oldest_s is not None and oldest_s + self._timeout_s <= now_s

    def _wake_at_s(self, now_s: float) -> float | None:
        wake_s = min((batch.deadline_s for batch in self._batches.values()), default=math.inf)
        head = self._queue.head()
        if head is not None:
            wake_s = min(wake_s, head.deadline_s)
            if self._timeout_s and not self._due(now_s) and self._choose(self._workers.values()):
                oldest_s = self._queue.oldest_arrival_s()
                if oldest_s is not None:
                    wake_s = min(wake_s, oldest_s + self._timeout_s)
        return None if wake_s == math.inf else wake_s

    def _next_action(self) -> int:
        self._last_action += 1
        return self._last_action

    def _load(self, worker: Worker) -> Action:
        action = self._next_action()
        self._loads[action] = worker
        return Action(action, Kind.LOAD, worker.id, self._model, (), 0.0, math.inf, 0.0)

    def _infer(self, worker: Worker) -> Action:
        action = self._next_action()
        entries = self._queue.take(self._max_size)
        for entry, _ in entries:
            entry.outstanding += 1
        worker.unfinished += 1
        worker.last_turn = action
        self._batches[action] = _Batch(worker, entries)
        parts = tuple([part for _, part in entries])
        return Action(action, Kind.INFER, worker.id, self._model, parts, 0.0, math.inf, 0.0)
