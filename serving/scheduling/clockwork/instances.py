"""Models, workers, and the model instances that workers hold or plan to load."""

from __future__ import annotations

import collections
import dataclasses
import enum
import heapq
import math
from typing import NamedTuple

from serving.scheduling.clockwork.backlog import Backlog, LoadReservation
from serving.scheduling.clockwork.durations import Durations, SlidingMaximum
from serving.scheduling.clockwork.model_queue import ModelQueue, PendingRequest, Reservations
from serving.scheduling.clockwork.parameters import Parameters
from serving.scheduling.clockwork.rates import Rate
from serving.scheduling.clockwork.timeline import Timeline
from serving.scheduling.interface import ActionType, ModelUp, WorkerUp

NEVER_S = math.inf
ROUNDING_S = 1e-9
"""Amount of reserved work below which it counts as none."""
FIRST_SOLO_S, MAX_SOLO_S = 1.0, 60.0
"""Initial and maximum time for which requests run alone after an oversized batch."""
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 30.0
"""Initial and maximum time for which a model is not loaded again after a failure."""


class InstanceState(enum.Enum):
    """Progress of loading an instance."""

    PLANNED = "planned"
    LOADING = "loading"
    LOADED = "loaded"


class PoolModel:
    """A model of the pool and its queued requests."""

    def __init__(self, index: int, event: ModelUp, parameters: Parameters) -> None:
        self.index = index
        self.id = event.model
        self.pages = event.pages
        self.profile = event
        """Profile for the next call to `begin`."""
        self.begin(parameters)
        self.measured_at_s = 0.0
        """When the model was last measured or its longest measurements were dropped."""
        self.last_request_s = self.previous_request_s = -NEVER_S
        self.relative_deadline_s = NEVER_S
        self.rate = Rate()
        self.failures = 0
        self.broken_until_s = 0.0
        self.solo_s = self.solo_until_s = 0.0
        """How long, and until when, requests run alone after an oversized batch."""
        self.waiting = ModelQueue()
        self.holdings: list[ModelInstance] = []
        self.is_gone = False
        """Whether the model may no longer be requested, so that workers unload it."""
        self.expiry_s = NEVER_S
        """When the first queued deadline becomes unreachable."""

    def begin(self, parameters: Parameters) -> None:
        """Reset the durations to the profile."""
        told = self.profile
        batch_s = {
            size: took_s
            for size, took_s in told.batch_s.items()
            if size == min(told.batch_s) or took_s <= parameters.max_exec_s
        }
        self.durations = Durations(
            batch_s,
            most=parameters.max_items,
            duration_margin=parameters.duration_margin,
            pads=told.pads,
        )
        self.load = SlidingMaximum(told.load_s, parameters.duration_margin)

    def note_oversized_batch(self, now_s: float) -> None:
        """Run new requests alone for a while, or for twice as long if this happens again soon."""
        if now_s < self.solo_until_s:
            return
        is_again = now_s < self.solo_until_s + self.solo_s
        self.solo_s = min(MAX_SOLO_S, 2.0 * self.solo_s) if is_again else FIRST_SOLO_S
        self.solo_until_s = now_s + self.solo_s

    def broke(self, now_s: float, *, is_sure: bool) -> None:
        """Record a failed load; if not `is_sure` (the worker was lost), forgive the first one."""
        self.failures += 1
        if not is_sure and self.failures == 1:
            return
        backoff_s = FIRST_BACKOFF_S * 2.0 ** min(self.failures - 1, 16)
        self.broken_until_s = now_s + min(MAX_BACKOFF_S, backoff_s)


class PoolWorker:
    """A worker with its memory, executors and reservations."""

    def __init__(self, event: WorkerUp, result_latency: SlidingMaximum) -> None:
        self.id = event.worker
        self.free_pages: float = math.inf if event.pages is None else event.pages
        self.evictable_pages = 0
        self.exec = Timeline(result_latency)
        self.load = Timeline(result_latency) if event.concurrent_loads else self.exec
        self.instances: dict[int, ModelInstance] = {}
        """Model instances by model index, least recently used first."""
        self.heap: list[tuple[float, int, ModelInstance]] = []
        """Loaded models with queued requests, by first reserved bucket."""
        self.backlog = Backlog()
        self.longest = SlidingMaximum(0.0, 0.0)
        """Longest recent batch duration: the time for which a running batch may block work."""
        self.planned: collections.deque[ModelInstance] = collections.deque()
        self.planned_s = 0.0
        self.planned_pages = 0
        self.issued: dict[int, IssuedAction] = {}
        self.draining = False
        self.ahead_again_s = 0.0
        """When the worker may prefetch again if loads and batches share its executor."""
        self.next_check_s = NEVER_S
        self.paid_back_at_s = 0.0
        """When spare time will have made up for all swaps, including cancelled ones."""

    @property
    def committed_work(self) -> tuple[float, int]:
        """Seconds of reserved work, and the number of models."""
        return self.backlog.total_s, len(self.instances)

    def next_start_s(self, now_s: float) -> float:
        """Return when the next batch must start, and remove stale heap entries."""
        heap = self.heap
        while heap and (heap[0][2].key_s != heap[0][0] or heap[0][2].has_left(now_s)):
            key_s, _, holding = heapq.heappop(heap)
            if holding.key_s == key_s:
                holding.key_s = NEVER_S
        return heap[0][2].starts_s if heap else NEVER_S

    @property
    def concurrent_loads(self) -> bool:
        """Whether the worker can load models while it runs a batch."""
        return self.load is not self.exec


@dataclasses.dataclass(slots=True, eq=False)
class ModelInstance:
    """A model that is loaded, or about to be loaded, in a worker's memory."""

    model: PoolModel
    worker: PoolWorker
    state: InstanceState
    ready_s: float
    planned_s: float = 0.0
    charge: LoadReservation | None = None
    """Time reserved for the planned load if requests wait and batches share the executor."""
    key_s: float = NEVER_S
    """First reserved bucket, which orders the worker's heap; `NEVER_S` if there is none."""
    promises: Reservations = dataclasses.field(init=False)
    busy: int = 0
    is_prefetch: bool = False
    is_idle: bool = False
    """Whether it may be evicted and counts among the worker's evictable pages."""
    swap: Swap | None = None
    planned_eviction: PlannedEviction | None = None

    def __post_init__(self) -> None:
        self.promises = Reservations(self.worker.id, self.worker.backlog)

    def use(self) -> None:
        """Mark the instance as in use, so that it is not evicted."""
        if self.is_idle:
            self.is_idle = False
            self.worker.evictable_pages -= self.model.pages

    def forget(self) -> None:
        """Remove the instance; another one may be planned on the same worker already."""
        held, model = self.worker.instances, self.model
        model.holdings.remove(self)
        if held.get(model.index) is not self:
            return
        del held[model.index]
        for other in model.holdings:
            if other.worker is self.worker:
                held[model.index] = other

    @property
    def is_needed_for_loads(self) -> bool:
        """Whether planned loads need the memory of this idle instance."""
        worker = self.worker
        left = worker.free_pages + worker.evictable_pages - self.model.pages
        return left < worker.planned_pages

    def has_left(self, now_s: float) -> bool:
        """Whether it will have been evicted by `now_s` and has no reservations."""
        leave = self.planned_eviction
        return leave is not None and not self.promises.reserved_items and leave.at_s <= now_s

    def load_before_s(self, bucket_s: float) -> float:
        """Return the load time not yet reserved by a bucket; 0 if loads run beside batches."""
        if (
            self.state is not InstanceState.PLANNED
            or self.swap is not None
            or self.worker.concurrent_loads
        ):
            return 0.0
        charge = self.charge
        return 0.0 if charge is not None and charge.bucket_s <= bucket_s else self.planned_s

    @property
    def first_s(self) -> float:
        """First reserved bucket, or the first deadline if this worker reserved no items."""
        buckets_s = self.promises.buckets_s
        return buckets_s[0] if buckets_s else self.model.waiting.deadlines_s[0]

    @property
    def starts_s(self) -> float:
        """When the first queued request must start."""
        bundles, waiting = self.promises.bundles, self.model.waiting
        if bundles:
            return bundles[0].until_s - bundles[0].cost_s
        if not waiting.entries:
            return NEVER_S
        return waiting.deadlines_s[0] - self.model.durations.estimate_s[0]


@dataclasses.dataclass(slots=True, eq=False)
class Swap:
    """A load that replaces other models, which are evicted first."""

    worker: PoolWorker
    start_s: float
    """Latest time at which the swap may start."""
    evicts: list[ModelInstance]
    payback_s: float = 0.0
    """Seconds until spare time has made up for the swap."""
    pages: int = 0
    """Free pages kept for the swap."""
    charge: LoadReservation | None = None
    """Time reserved for the swap if batches share the executor."""


class PlannedEviction(NamedTuple):
    """When an instance is evicted, and which one replaces it."""

    to: ModelInstance
    at_s: float
    """When the evicted instance's reserved work must be done."""


class IssuedAction(NamedTuple):
    """An action given to a worker."""

    kind: ActionType
    holding: ModelInstance
    items: list[tuple[PendingRequest, int]]
    """Entry of each item of a batch, and the item's number in the entry."""
    sent_s: float
