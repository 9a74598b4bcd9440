"""The adaptive scheduler, which forms batches by deadline as workers have room.

Several flows or priorities need a `FairQueue`; otherwise a `DeadlineQueue` is cheaper. A flow is an
application, or all large requests that name neither flow nor priority. If the queue is full, the
newcomer or the last request of the fullest flow is rejected.

Each worker loads the model when it comes up; actions may start at any time. A request is rejected
at its deadline, wherever it is. When a worker is lost, each request of its running batch is run
once more, alone, so that a request that crashes workers harms no others.

Deadline order is Clipper's (NSDI'17, section 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from serving.scheduling.adaptive.batch_planner import COPIED, BatchPlanner, RunningBatch
from serving.scheduling.adaptive.batch_times import BatchTimeEstimator
from serving.scheduling.adaptive.queue import DeadlineQueue, QueuedRequest
from serving.scheduling.adaptive.sizing import POLICIES
from serving.scheduling.adaptive.workers import ROUTING, AdaptiveWorker
from serving.scheduling.interface import (
    MAX_LOSSES,
    Action,
    ActionResult,
    ActionType,
    Cancelled,
    Event,
    Part,
    Plan,
    Rejection,
    RejectionReason,
    SettingsChanged,
    Submitted,
    WarmupMeasured,
    WorkerDraining,
    WorkersDown,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import ModelId

_LARGE_BYTES = 1 << 20
"""Size from which an item is large, since copying it takes as long as a small model's batch.
In fair queueing, an item costs 1 plus the number of times that it contains this size."""

_LARGE = "\0large"
"""Flow of large requests without a flow name; clients cannot use its name."""

_MIXED = -1
"""Level of a queue that holds several levels or flows."""


class AdaptiveScheduler(BatchPlanner):
    """Scheduler of one model's pool."""

    def __init__(self, model: ModelId, settings: ServingSettings) -> None:
        super().__init__(settings)
        self._model = model
        self._flow = ""
        self._level = _MIXED
        self._loads: dict[int, AdaptiveWorker] = {}
        self._to_load: list[AdaptiveWorker] = []
        self._last_action = 0
        self._batching = settings.batching
        self._warmed: Mapping[int, float] = {}
        self._warmed_under: tuple[float | None, int] = (None, 1)
        self._configure(settings)

    def _configure(self, settings: ServingSettings) -> None:
        self._capacity = settings.scheduling.queue_capacity
        self._default_priority = settings.scheduling.default_priority

    def waiting_of(self, model: ModelId) -> int:
        """Return the number of queued items, or 0 for any other model."""
        return self._queue.items if model == self._model else 0

    def on(self, event: Event, now_s: float) -> None:
        """Take note of an event."""
        if not isinstance(event, Submitted):
            self._take_note(event, now_s)
            return
        # The only event per request: handled here to save a call.
        id_, items, flow = event.id, event.items, event.flow
        level = event.priority or self._default_priority
        cost = 1
        if event.bytes >= _LARGE_BYTES:
            cost += event.bytes // (items * _LARGE_BYTES)
            if cost > 1:
                self._has_large = True
                if not flow and level == self._default_priority:
                    flow = _LARGE
        queue = self._queue
        if level != self._level or flow != self._flow:
            queue = self._queue_for(flow, level)
        is_full = queue.items + items > self._capacity
        if is_full and (queue is self._plain or items > self._capacity):
            fits = items <= self._capacity
            reason = RejectionReason.QUEUE_FULL if fits else RejectionReason.TOO_MANY_ITEMS
            self._refusals.append(Rejection(id_, reason, str(self._capacity)))
            return
        entry = self._entries[id_] = QueuedRequest(
            id_, items, event.deadline_s, now_s, level, flow, cost
        )
        queue.push(entry)
        if is_full:
            self._make_room(entry)
        if self._sizing.watches_arrivals:
            self._sizing.record_arrival(now_s)

    def _take_note(self, event: Event, now_s: float) -> None:
        match event:
            case ActionResult():
                self._result(event, now_s)
            case Cancelled():
                self._leave(event.id)
            case WorkerUp():
                worker = AdaptiveWorker(event.worker, event.slots, event.way_s)
                self._workers[event.worker] = worker
                self._to_load.append(worker)
            case WorkerDraining():
                if event.worker in self._workers:
                    self._workers[event.worker].draining = True
            case WorkersDown():
                self._down(event)
            case WarmupMeasured():
                self._warm(event)
            case SettingsChanged():
                self._on_settings_changed(event)

    def plan(self, now_s: float) -> Plan:
        """Return model loads, rejections, and batches for workers with room."""
        actions = [self._load(worker) for worker in self._to_load]
        self._to_load.clear()
        self._expire(now_s)
        due_s = math.inf
        while self._queue.items:
            worker = self._next_worker(now_s)
            due_s = math.inf if worker is None else self._due_s(worker, now_s)
            if worker is None or due_s > now_s:
                break
            action = self._infer(worker, now_s)
            if action is not None:
                actions.append(action)
        refusals, self._refusals = self._refusals, []
        return Plan(actions, refusals, self._wake_at_s(due_s))

    def _queue_for(self, flow: str, level: int) -> DeadlineQueue:
        """Return the queue for a flow and level, after moving queued requests there if needed."""
        if not self._queue.items:
            if self._queue is self._fair:
                self._fair.drain()
                self._queue = self._plain
            self._flow = flow
            self._level = level
        elif self._queue is self._plain:
            self._fair.adopt(self._plain.drain())
            self._queue = self._fair
            self._level = _MIXED
        return self._queue

    def _make_room(self, newcomer: QueuedRequest) -> None:
        while self._fair.items > self._capacity and not newcomer.left:
            last = self._fair.last(newcomer.flow, self._capacity)
            if last is None:
                return
            self._refuse(last, RejectionReason.QUEUE_FULL, str(self._capacity))

    def _warm(self, event: WarmupMeasured) -> None:
        under = event.cpu, event.threads
        is_replacement = under == self._warmed_under and set(event.batch_s) == {1}
        kept = self._warmed if is_replacement else {}
        self._warmed = {**kept, **event.batch_s}  # a replacement's warm-up runs single items
        self._warmed_under = under
        self.profile.seed(event.batch_s)

    def _on_settings_changed(self, event: SettingsChanged) -> None:
        batching, replica = event.settings.batching, event.settings.replica
        if not event.keep_learned:  # as after a restart with its warm-up
            self.profile = BatchTimeEstimator()
            if self._warmed_under == (replica.cpu, replica.threads):
                self.profile.seed(self._warmed)
        if not event.keep_learned or batching != self._batching:
            self._sizing = POLICIES[batching.policy](batching)
        self._batching = batching
        self._choose = ROUTING[event.settings.routing.policy]
        self._configure(event.settings)

    def _result(self, event: ActionResult, now_s: float) -> None:
        batch = self._batches.pop(event.action, None)
        if batch is None:
            loaded = self._loads.pop(event.action, None)
            if loaded is not None and event.ok:
                loaded.loaded = True
            return
        if event.too_large and event.times is None:
            batch.worker.withdraw(batch.expected_s)
        else:
            batch.worker.finish(batch.expected_s, now_s)
        if not event.ok:
            if event.too_large:
                for entry, _ in batch.entries:
                    entry.is_solo = True
            else:
                self._suspect(batch.entries, RejectionReason.NOT_STARTED, "")
            self._give_back(batch.entries)
            return
        if event.times is not None and batch.profile is self.profile:
            took_s = event.times.input_s + event.times.exec_s + event.times.output_s
            self.profile.observe(batch.items, took_s)
            self._sizing.ran(batch.items, took_s, batch.filled)
        for entry, _ in batch.entries:
            entry.outstanding -= 1
            if not entry.outstanding and not entry.spans:
                self._entries.pop(entry.id, None)

    def _down(self, event: WorkersDown) -> None:
        gone = {id_: self._workers.pop(id_) for id_ in event.workers if id_ in self._workers}
        self._to_load = [worker for worker in self._to_load if worker.id not in gone]
        self._loads = {id_: worker for id_, worker in self._loads.items() if worker.id not in gone}
        held = {id_: batch for id_, batch in self._batches.items() if batch.worker.id in gone}
        running: dict[int, RunningBatch] = {}
        for id_, batch in held.items():
            del self._batches[id_]
            running.setdefault(batch.worker.id, batch)
        suspects = [pair for batch in running.values() for pair in batch.entries]
        self._suspect(suspects, RejectionReason.WORKER_LOST, event.reason)
        self._give_back([pair for batch in held.values() for pair in batch.entries])

    def _suspect(
        self, parts: list[tuple[QueuedRequest, Part]], reason: RejectionReason, detail: str
    ) -> None:
        """Rerun each request alone if their batch may have broken the worker."""
        for entry in dict.fromkeys(entry for entry, _ in parts if not entry.left):
            entry.attempts += 1
            entry.is_solo = True
            if entry.attempts > MAX_LOSSES:
                self._refuse(entry, reason, detail)

    def _give_back(self, parts: list[tuple[QueuedRequest, Part]]) -> None:
        for entry, part in reversed(parts):
            entry.outstanding -= 1
            if entry.left:
                continue
            queue = self._queue
            if entry.level != self._level or entry.flow != self._flow:
                queue = self._queue_for(entry.flow, entry.level)
            queue.give_back(entry, part)

    def _expire(self, now_s: float) -> None:
        while (head := self._queue.head()) is not None and head.deadline_s <= now_s:
            where = (
                RejectionReason.DEADLINE_IN_REPLICA
                if head.outstanding
                else RejectionReason.DEADLINE_IN_QUEUE
            )
            self._refuse(head, where, "")
        for batch in self._batches.values():
            if batch.deadline_s <= now_s:
                later = math.inf
                for entry, _ in batch.entries:
                    if entry.left:
                        continue
                    if entry.deadline_s <= now_s:
                        self._refuse(entry, RejectionReason.DEADLINE_IN_REPLICA, "")
                    else:
                        later = min(later, entry.deadline_s)
                batch.deadline_s = later

    def _wake_at_s(self, due_s: float) -> float | None:
        wake_s = math.inf
        for batch in self._batches.values():
            if batch.deadline_s < wake_s:  # noqa: PLR1730  `min` is a call for each
                wake_s = batch.deadline_s
        head = self._queue.head()
        if head is not None:
            wake_s = min(wake_s, head.deadline_s, due_s)
        return None if wake_s == math.inf else wake_s

    def _action(
        self, kind: ActionType, worker: AdaptiveWorker, parts: list[Part], expected_s: float
    ) -> Action:
        self._last_action = id_ = self._last_action + 1
        return Action(id_, kind, worker.id, self._model, parts, 0.0, math.inf, expected_s)

    def _load(self, worker: AdaptiveWorker) -> Action:
        action = self._action(ActionType.LOAD, worker, [], 0.0)
        self._loads[action.id] = worker
        return action

    def _infer(self, worker: AdaptiveWorker, now_s: float) -> Action | None:
        """Return a batch for a worker, or None if a request was rejected instead."""
        size = self._cap_to_measured(self._size_for(worker, now_s), now_s)
        if not size:
            return None
        budget = self._budget(size) if self._has_large else COPIED
        if self._queue is self._plain:
            entries = self._plain.take(size, budget)
        else:
            entries = self._fair_batch(size, budget, worker.starts_s(now_s))
        items = 0
        for entry, (_, start, stop) in entries:
            entry.outstanding += 1
            items += stop - start
        expected_s = self.profile.estimate_s(items)
        parts = [part for _, part in entries]
        action = self._action(ActionType.INFER, worker, parts, expected_s)
        worker.take(expected_s, now_s)
        worker.last_turn = action.id
        wanted = self._sizing.size
        is_cut = size < wanted or self._has_large or entries[-1][0].is_solo
        filled = max(items, 0 if is_cut or not self._queue.items else wanted)
        self._batches[action.id] = RunningBatch(
            worker, entries, items, expected_s, filled=filled, profile=self.profile
        )
        return action
