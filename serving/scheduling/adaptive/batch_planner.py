"""Planning of the next batch: which worker gets it, when, and how large it is.

A free worker takes a batch once the policy's size is queued, the oldest item has waited as long as
it may, or the most urgent item has used half of its spare time. A busy worker's buffer is filled
halfway through its expected time, or at once with a full batch. The most urgent deadline limits a
batch's size, as does the time to copy large items. A request that can no longer finish in time is
rejected.
"""

from __future__ import annotations

import math

from serving.scheduling.adaptive.batch_times import BatchTimeEstimator
from serving.scheduling.adaptive.fair_queue import FairQueue
from serving.scheduling.adaptive.queue import DeadlineQueue, QueuedRequest
from serving.scheduling.adaptive.shedding import AMPLE, MAX_OTHERS, BatchShares, Shedding
from serving.scheduling.adaptive.sizing import POLICIES
from serving.scheduling.adaptive.workers import ROUTING, AdaptiveWorker, least_loaded
from serving.scheduling.interface import Part, Rejection, RejectionReason
from serving.settings import ServingSettings

_LONG_S = 0.001
"""Expected time below which a worker's buffer is filled at once, since a timer would cost more."""
_HELD = 0.5
"""Share of the worker's expected time for which a batch for its buffer is held back.
Requests that arrive meanwhile join the batch; the remaining time covers its transfer."""

_WAITS = 0.5
"""Share of its spare time that the most urgent request waits, in case the profile is wrong."""

COPIED = 16
"""Maximum cost (about 1 per MiB) of a batch's large items if copying them outlasts the batch.
On an H100, 4.7 MiB images through a ResNet-18 ran 1.5 times as fast singly as in batches of 32."""
_COPIED_S = 0.0015
"""Expected seconds per MiB to copy to a replica, join and copy back."""


class RunningBatch:
    """A batch given to a worker."""

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
        """Number of items, or the policy's batch size if the next request did not fit."""
        self.profile = profile
        self.entries = entries
        self.items = items
        self.expected_s = expected_s
        deadline_s = math.inf
        for entry, _ in entries:
            if entry.deadline_s < deadline_s:  # noqa: PLR1730  `min` is a call for each
                deadline_s = entry.deadline_s
        self.deadline_s = deadline_s


class BatchPlanner:
    """The queue, workers and batches of one model's pool, and the decisions on its next batch."""

    def __init__(self, settings: ServingSettings) -> None:
        self._plain = DeadlineQueue()
        self._fair = FairQueue()
        self._queue: DeadlineQueue = self._plain
        self._has_large = False
        self._entries: dict[int, QueuedRequest] = {}
        self._workers: dict[int, AdaptiveWorker] = {}
        self._batches: dict[int, RunningBatch] = {}
        self._refusals: list[Rejection] = []
        self._sizing = POLICIES[settings.batching.policy](settings.batching)
        self._choose = ROUTING[settings.routing.policy]
        self.profile = BatchTimeEstimator()

    def _leave(self, id_: int) -> None:
        entry = self._entries.pop(id_, None)
        if entry is not None:
            self._queue.discard(entry)

    def _refuse(self, entry: QueuedRequest, reason: RejectionReason, detail: str) -> None:
        self._refusals.append(Rejection(entry.id, reason, detail))
        self._leave(entry.id)

    def _next_worker(self, now_s: float) -> AdaptiveWorker | None:
        """Return the worker for the next batch, or None if the batch should wait for a busy one."""
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
        """Return when this worker should get the next batch: at once if not after `now_s`."""
        items = self._queue.items
        if items >= self._sizing.size:
            return now_s
        if self._has_large:
            first = self._queue.first()
            if first is not None and first.cost > 1 and items * first.cost >= COPIED:
                return now_s  # no other request could join
        due_s = now_s
        wait_s = self._sizing.wait_s(items)
        if wait_s > 0.0:
            oldest_s, head = self._queue.oldest_arrival_s(), self._queue.head()
            if oldest_s is not None and head is not None:
                spare_s = head.deadline_s - head.arrived_s - self.profile.estimate_s(items)
                due_s = min(oldest_s + wait_s, head.arrived_s + _WAITS * spare_s)
        if worker.unfinished and worker.expected_s >= _LONG_S and not self._has_idle():
            due_s = max(due_s, worker.since_s + _HELD * worker.expected_s - worker.way_s)
        return due_s

    def _starts_of_others_s(self, worker: AdaptiveWorker, now_s: float) -> list[float]:
        return [
            other.free_s(now_s)
            for other in self._workers.values()
            if other is not worker and other.loaded and not other.draining
        ]

    def _has_idle(self) -> bool:
        return any(worker.free and not worker.unfinished for worker in self._workers.values())

    def _budget(self, size: int) -> int:
        """Return the maximum cost of large items in the next batch."""
        budget = COPIED
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
        """Return the maximum number of items in the next batch, or 0 if its head was rejected."""
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
        # The estimate may be too high: an idle worker tries the last request.
        if not worker.unfinished and self._queue.items == stop - start:
            return own
        self._refuse(head, RejectionReason.CANNOT_FINISH, "")
        return 0

    def _cap_to_measured(self, size: int, now_s: float) -> int:
        """Return `size`, or the largest measured size while another batch tries a larger one."""
        known = self.profile.max_measured
        if size <= known or not known:
            return size
        is_tried = any(
            batch.items > known and not batch.worker.hangs(now_s)
            for batch in self._batches.values()
        )
        return known if is_tried else size

    def _work_s(self, entry: QueuedRequest) -> float:
        """Return the minimum time for a request's queued items if all workers ran them."""
        measured = self.profile.estimates_s().items()
        each_s = min([took_s / items for items, took_s in measured], default=0.0)
        return each_s * entry.waiting_items / max(1, len(self._workers))

    def _shed(self, size: int, worker: AdaptiveWorker, now_s: float) -> None:
        """Reject requests that would keep batches small, but never all requests."""
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
