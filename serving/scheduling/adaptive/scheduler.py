"""The adaptive scheduler: sized batches, earliest deadline first, bound to workers late.

A free worker takes a batch once the policy's size is queued, the oldest item has waited its time,
or the most urgent has used half of its spare time. A busy worker's buffer is filled halfway through
its expected time, or at once with a full batch. The most urgent deadline bounds a batch, copying
one of large items. A request that can no longer finish in time is rejected before it is sent.

Several flows or priorities need a `FairQueue`; else a `DeadlineQueue` is cheaper. A flow is an
application, or all large requests that name neither flow nor priority. A full queue rejects the
newcomer or the last request of the fullest flow.

Each worker loads the model when it comes up; windows are open. A passed deadline rejects a request
wherever it is. When a worker is lost, the requests of its running batch are retried once, solo, so
that one that crashes workers takes no others with it.

Deadline order is Clipper's (NSDI'17, section 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from serving.scheduling.adaptive.batch_times import BatchTimeEstimator
from serving.scheduling.adaptive.fair_queue import FairQueue
from serving.scheduling.adaptive.queue import DeadlineQueue, QueuedRequest
from serving.scheduling.adaptive.shedding import AMPLE, MAX_OTHERS, BatchShares, Shedding
from serving.scheduling.adaptive.sizing import POLICIES, Sizing
from serving.scheduling.adaptive.workers import ROUTING, AdaptiveWorker, least_loaded
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
    WorkerDown,
    WorkerDraining,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import ModelId

_LONG_S = 0.001
"""Remaining time below which a worker's buffer is filled at once: a timer would cost more."""
_HELD = 0.5
"""Share of the worker's expected time for which a batch for its buffer is held.
Requests that come meanwhile join it; the rest covers the transfer on busy cores."""

_WAITS = 0.5
"""Share of its spare time that the most urgent request waits; the rest covers profile errors."""

_LARGE_BYTES = 1 << 20
"""Size from which an item is large: copying it takes as long as a small model's batch.
Among flows it costs one, and one more for each so many bytes."""

_COPIED = 16
"""Most cost (about MiB) of a batch's large items, unless it runs longer than their copying.
On an H100, 4.7 MiB images through a ResNet-18 ran 1.5 times as fast singly as in batches of 32."""
_COPIED_S = 0.0015
"""Expected seconds per MiB copied to a replica, joined and copied back; part of a batch's time."""

_LARGE = "\0large"
"""Flow of large requests that name none; clients cannot name it."""

_MIXED = -1
"""Level of a queue of several levels or flows."""


class _RunningBatch:
    """An INFER action with a worker."""

    __slots__ = ("deadline_s", "entries", "expected_s", "filled", "items", "profile", "worker")

    def __init__(
        self,
        worker: AdaptiveWorker,
        entries: list[tuple[QueuedRequest, Part]],
        items: int,
        expected_s: float,
        *,
        filled: int,
        profile: BatchTimeEstimator,
    ) -> None:
        self.worker = worker
        self.filled = filled
        """Items, or the policy's size if the next request did not fit."""
        self.profile = profile
        """Profile of the settings it ran under; under others it is not observed."""
        self.entries = entries
        self.items = items
        self.expected_s = expected_s
        deadline_s = math.inf
        for entry, _ in entries:
            if entry.deadline_s < deadline_s:  # noqa: PLR1730  `min` is a call for each
                deadline_s = entry.deadline_s
        self.deadline_s = deadline_s


class AdaptiveScheduler:
    """Scheduler of one model's pool."""

    def __init__(self, model: ModelId, settings: ServingSettings) -> None:
        self._model = model
        self._plain = DeadlineQueue()
        self._fair = FairQueue()
        self._queue: DeadlineQueue = self._plain
        """The one of both that is in use."""
        self._flow = ""
        self._level = _MIXED
        """Level of all requests in the plain queue."""
        self._has_large = False
        """Whether a large request ever came; before, none is searched for."""
        self._entries: dict[int, QueuedRequest] = {}
        self._workers: dict[int, AdaptiveWorker] = {}
        self._batches: dict[int, _RunningBatch] = {}
        self._loads: dict[int, AdaptiveWorker] = {}
        self._to_load: list[AdaptiveWorker] = []
        self._refusals: list[Rejection] = []
        self._last_action = 0
        self._batching = settings.batching
        self._sizing: Sizing = POLICIES[settings.batching.policy](settings.batching)
        self.profile = BatchTimeEstimator()
        """Batch times by size."""
        self._warmed: Mapping[int, float] = {}
        """Batch times of warm-ups under `_warmed_under`."""
        self._warmed_under: tuple[float | None, int] = (None, 1)
        """Cores and threads."""
        self._configure(settings)

    def _configure(self, settings: ServingSettings) -> None:
        self._capacity = settings.scheduling.queue_capacity
        self._default_priority = settings.scheduling.default_priority
        self._choose = ROUTING[settings.routing.policy]

    @property
    def waiting_items(self) -> int:
        """Queued items."""
        return self._queue.items

    def waiting_of(self, model: ModelId) -> int:
        """Return all queued items if the model is this one, else 0."""
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
                worker = AdaptiveWorker(event.worker, event.slots)
                self._workers[event.worker] = worker
                self._to_load.append(worker)
            case WorkerDraining():
                if event.worker in self._workers:
                    self._workers[event.worker].draining = True
            case WorkerDown():
                self._down(event)
            case WarmupMeasured():
                self._warm(event)
            case SettingsChanged():
                self._on_settings_changed(event)

    def plan(self, now_s: float) -> Plan:
        """Load models, reject late requests, give batches to free workers."""
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
        """Return the queue for such a request, after moving queued ones there."""
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
        """Reject requests of a full queue, perhaps the newcomer."""
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
                self._suspect(batch, RejectionReason.NOT_STARTED, "")
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

    def _leave(self, id_: int) -> None:
        entry = self._entries.pop(id_, None)
        if entry is not None:
            self._queue.discard(entry)

    def _refuse(self, entry: QueuedRequest, reason: RejectionReason, detail: str) -> None:
        self._refusals.append(Rejection(entry.id, reason, detail))
        self._leave(entry.id)

    def _down(self, event: WorkerDown) -> None:
        worker = self._workers.pop(event.worker, None)
        if worker is None:
            return
        if worker in self._to_load:
            self._to_load.remove(worker)
        self._loads = {id_: other for id_, other in self._loads.items() if other is not worker}
        held = {id_: batch for id_, batch in self._batches.items() if batch.worker is worker}
        for number, (id_, batch) in enumerate(held.items()):
            del self._batches[id_]
            if number == 0:
                self._suspect(batch, RejectionReason.WORKER_LOST, event.reason)
        self._give_back([pair for batch in held.values() for pair in batch.entries])

    def _suspect(self, batch: _RunningBatch, reason: RejectionReason, detail: str) -> None:
        """Make each request of a lost worker's batch run solo, once.

        Later batches were not started, so they are not suspected.
        """
        for entry in dict.fromkeys(entry for entry, _ in batch.entries if not entry.left):
            entry.attempts += 1
            entry.is_solo = True
            if entry.attempts > MAX_LOSSES:
                self._refuse(entry, reason, detail)

    def _give_back(self, parts: list[tuple[QueuedRequest, Part]]) -> None:
        """Queue parts again that a worker did not execute."""
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

    def _next_worker(self, now_s: float) -> AdaptiveWorker | None:
        """Return the worker for the next batch; None to wait for another one.

        If the chosen one is busy for too long for the most urgent request, another takes it.
        """
        workers = self._workers.values()
        worker = self._choose(workers, now_s)
        if worker is None or not worker.unfinished:
            return worker
        head = self._queue.head()
        if head is None:
            return worker
        start, stop = head.spans[-1]
        latest_s = head.deadline_s - self.profile.estimate_s(min(self._sizing.size, stop - start))
        if worker.free_s(now_s) <= latest_s:
            return worker
        other = least_loaded(workers, now_s)
        if other is not None and other.free_s(now_s) <= latest_s:
            return other
        others_s = self._starts_of_others_s(worker, now_s)
        return None if others_s and min(others_s) <= latest_s else worker

    def _due_s(self, worker: AdaptiveWorker, now_s: float) -> float:
        """Return when this worker gets the next batch; up to `now_s` means at once."""
        items = self._queue.items
        if items >= self._sizing.size:
            return now_s
        if self._has_large:
            first = self._queue.first()
            if first is not None and first.cost > 1 and items * first.cost >= _COPIED:
                return now_s  # no others could join
        due_s = now_s
        wait_s = self._sizing.wait_s(items)
        if wait_s > 0.0:
            oldest_s, head = self._queue.oldest_arrival_s(), self._queue.head()
            if oldest_s is not None and head is not None:
                spare_s = head.deadline_s - head.arrived_s - self.profile.estimate_s(items)
                due_s = min(oldest_s + wait_s, head.arrived_s + _WAITS * spare_s)
        if worker.unfinished and worker.expected_s >= _LONG_S and not self._has_idle():
            due_s = max(due_s, worker.since_s + _HELD * worker.expected_s)
        return due_s

    def _starts_of_others_s(self, worker: AdaptiveWorker, now_s: float) -> list[float]:
        return [
            other.free_s(now_s)
            for other in self._workers.values()
            if other is not worker and other.loaded and not other.draining
        ]

    def _has_idle(self) -> bool:
        return any(worker.free and not worker.unfinished for worker in self._workers.values())

    def _wake_at_s(self, due_s: float) -> float | None:
        """Return the first of all deadlines and, if a request is queued, the next batch's time."""
        wake_s = math.inf
        for batch in self._batches.values():
            if batch.deadline_s < wake_s:  # noqa: PLR1730  `min` is a call for each
                wake_s = batch.deadline_s
        head = self._queue.head()
        if head is not None:
            wake_s = min(wake_s, head.deadline_s, due_s)
        return None if wake_s == math.inf else wake_s

    def _next_action(self) -> int:
        self._last_action += 1
        return self._last_action

    def _load(self, worker: AdaptiveWorker) -> Action:
        action = self._next_action()
        self._loads[action] = worker
        return Action(action, ActionType.LOAD, worker.id, self._model, [], 0.0, math.inf, 0.0)

    def _infer(self, worker: AdaptiveWorker, now_s: float) -> Action | None:
        """Return a batch for a worker; None if a request was rejected instead."""
        size = self._cap_to_measured(self._size_for(worker, now_s), now_s)
        if not size:
            return None
        action = self._next_action()
        budget = self._budget(size) if self._has_large else _COPIED
        if self._queue is self._plain:
            entries = self._plain.take(size, budget)
        else:
            entries = self._fair_batch(size, budget, worker.starts_s(now_s))
        items = 0
        for entry, (_, start, stop) in entries:
            entry.outstanding += 1
            items += stop - start
        expected_s = self.profile.estimate_s(items)
        worker.take(expected_s, now_s)
        worker.last_turn = action
        wanted = self._sizing.size
        is_cut = size < wanted or self._has_large or entries[-1][0].is_solo
        filled = max(items, 0 if is_cut or not self._queue.items else wanted)
        self._batches[action] = _RunningBatch(
            worker, entries, items, expected_s, filled=filled, profile=self.profile
        )
        parts = [part for _, part in entries]
        return Action(
            action, ActionType.INFER, worker.id, self._model, parts, 0.0, math.inf, expected_s
        )

    def _budget(self, size: int) -> int:
        """Return the most cost of large items in the next batch: what is copied while it runs."""
        budget = _COPIED
        head = self._queue.first()
        if head is not None and head.cost > 1:
            for items in range(min(size, self._queue.items), budget // head.cost, -1):
                cost = items * head.cost
                if cost * _COPIED_S <= self.profile.estimate_s(items):
                    return cost
        return budget

    def _fair_batch(
        self, size: int, budget: int, starts_s: float
    ) -> list[tuple[QueuedRequest, Part]]:
        def most(deadline_s: float) -> int:
            return self.profile.largest(deadline_s - starts_s, size)

        return self._fair.take(size, budget, most)

    def _size_for(self, worker: AdaptiveWorker, now_s: float) -> int:
        """Return the most items of the next batch; 0 if the head was rejected as too late."""
        size = self._sizing.size
        head = self._queue.first()
        if head is None:
            return 0
        starts_s = worker.starts_s(now_s)
        full_s = self.profile.estimate_s(size)
        left_s = head.deadline_s - starts_s
        soonest = head if self._queue is self._plain else self._fair.head()
        if soonest is not None and soonest.deadline_s - starts_s < AMPLE * full_s:
            self._shed(size, worker, now_s)
            head = self._queue.first()
            if head is None:
                return 0
            left_s = head.deadline_s - starts_s
        if head.waiting_items > size and self._work_s(head) > left_s and worker.unfinished:
            self._refuse(head, RejectionReason.CANNOT_FINISH, "")
            return 0
        if full_s <= left_s:
            return size
        start, stop = head.spans[-1]
        own = min(size, stop - start)
        if self.profile.estimate_s(own) <= left_s:
            return max(own, self.profile.largest(left_s, size))
        # The estimate may be wrong: an idle worker tries the last request.
        if not worker.unfinished and self._queue.items == stop - start:
            return own
        self._refuse(head, RejectionReason.CANNOT_FINISH, "")
        return 0

    def _cap_to_measured(self, size: int, now_s: float) -> int:
        """Return `size`, or the largest measured size while another batch tries a larger one.

        Otherwise every slot would try the unknown size before the first result.
        """
        known = self.profile.max_measured
        if size <= known or not known:
            return size
        is_tried = any(
            batch.items > known and not batch.worker.hangs(now_s)
            for batch in self._batches.values()
        )
        return known if is_tried else size

    def _work_s(self, entry: QueuedRequest) -> float:
        """Return the least time for the rest of a request, with all workers at the best size."""
        measured = self.profile.estimates_s().items()
        each_s = min([took_s / items for items, took_s in measured], default=0.0)
        return each_s * entry.waiting_items / max(1, len(self._workers))

    def _shed(self, size: int, worker: AdaptiveWorker, now_s: float) -> None:
        """Reject requests that would shrink batches; never all."""
        others_s = self._starts_of_others_s(worker, now_s)
        is_plain = self._queue is self._plain
        flows = [] if is_plain else self._fair.waiting_flows()
        first = self._queue.first()
        if flows and self._has_large and first is not None:
            flows = [flow for flow in flows if flow.is_large == (first.cost > 1)]
        shedding = Shedding(
            self.profile,
            None if is_plain else BatchShares([flow.items for flow in flows]),
            size=size,
            waiting=self._queue.items if is_plain else sum([flow.items for flow in flows]),
            starts_s=worker.starts_s(now_s),
            others_s=sorted(others_s)[:MAX_OTHERS],
        )
        backlogs = [self._plain.upcoming] if is_plain else [flow.upcoming for flow in flows]
        for upcoming in backlogs:
            for entry in shedding.given_up(upcoming):
                self._refuse(entry, RejectionReason.CANNOT_FINISH, "")
