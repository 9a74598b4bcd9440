"""The interface between a scheduler and its caller: events in, plans out.

1. A scheduler does no I/O; times never decrease.
2. `on` does bounded work: no scan of the queue.
3. Every id ends exactly once: all its parts have an ok `ActionResult`, or it is in one `Rejection`,
   or it was cancelled. Later results are ignored.
4. A worker gets nothing before its `LOAD` has succeeded, only `UNLOAD` while it drains, nothing
   once it is down, and never more unfinished actions than slots.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from serving.settings import ServingSettings
from serving.values import ModelId, StageTimes

MAX_LOSSES = 1
"""Lost workers that a request survives."""
BACKGROUND = 2**31
"""Priority of work for spare time only."""


class Submitted:
    """A new request of one item or more, with an increasing id; times share one clock."""

    # A named tuple takes longer to create, which counts per request or batch.
    __slots__ = ("bytes", "deadline_s", "flow", "id", "items", "model", "priority")

    def __init__(
        self,
        id_: int,
        model: ModelId,
        items: int,
        deadline_s: float,
        priority: int = 0,
        flow: str = "",
        size_bytes: int = 0,
    ) -> None:
        self.id = id_
        self.model = model
        self.items = items
        self.deadline_s = deadline_s
        self.priority = priority
        """Within the flow: 1 is the most urgent, 0 the default."""
        self.flow = flow
        self.bytes = size_bytes
        """Sent to a worker for it."""


class Cancelled(NamedTuple):
    """The client has abandoned the request."""

    id: int


class ModelUp(NamedTuple):
    """A model that may be requested, and loaded by any worker."""

    model: ModelId
    pages: int
    load_s: float
    batch_s: Mapping[int, float]
    """Items -> seconds of a batch."""
    pads: bool = False
    """Whether other sizes are padded to the next larger one."""


class Profiled(NamedTuple):
    """A new profile of a model; requests stay queued."""

    model: ModelId
    load_s: float
    batch_s: Mapping[int, float]


class ModelDown(NamedTuple):
    """A model will not be requested any more."""

    model: ModelId


class WorkerUp(NamedTuple):
    """A worker with `slots` unfinished actions: one runs, the others are buffered."""

    worker: int
    slots: int
    pages: int | None = None
    loaded: tuple[ModelId, ...] = ()
    concurrent_loads: bool = False
    """Whether loads run beside batches."""


class WorkerDraining(NamedTuple):
    """The worker gets nothing new."""

    worker: int


class WorkerDown(NamedTuple):
    """A worker is gone with all its actions and models."""

    worker: int
    reason: str


class ActionResult:
    """The end of an action; not `ok` if a load failed, or an INFER did not run."""

    __slots__ = ("action", "ok", "times", "too_large", "worker")

    def __init__(
        self,
        action: int,
        worker: int,
        ok: bool,
        times: StageTimes | None,
        too_large: bool = False,
    ) -> None:
        self.action = action
        self.worker = worker
        self.ok = ok
        self.times = times
        self.too_large = too_large
        """Whether an INFER or its responses exceeded one message: its requests then run alone."""


class WarmupMeasured(NamedTuple):
    """Batch times of a worker's warm-up on real sample inputs."""

    batch_s: Mapping[int, float]
    """Items -> seconds of inputs, execution and outputs."""
    cpu: float | None = None
    threads: int = 1


class SettingsChanged(NamedTuple):
    """New settings; learned state is dropped unless `keep_learned`."""

    settings: ServingSettings
    keep_learned: bool


Event = (
    Submitted
    | Cancelled
    | ModelUp
    | Profiled
    | ModelDown
    | WorkerUp
    | WorkerDraining
    | WorkerDown
    | ActionResult
    | WarmupMeasured
    | SettingsChanged
)


class ActionType(enum.Enum):
    """What a worker is told to do."""

    LOAD = "load"
    INFER = "infer"
    UNLOAD = "unload"


Part = tuple[int, int, int]
"""Items [start, stop) of one request: (id, start, stop)."""


class Action:
    """A command to a worker, to start within its window."""

    __slots__ = ("earliest_s", "expected_s", "id", "kind", "latest_s", "model", "parts", "worker")

    def __init__(
        self,
        id_: int,
        kind: ActionType,
        worker: int,
        model: ModelId,
        parts: list[Part],
        earliest_s: float,
        latest_s: float,
        expected_s: float,
    ) -> None:
        self.id = id_
        self.kind = kind
        self.worker = worker
        self.model = model
        self.parts = parts
        self.earliest_s = earliest_s
        self.latest_s = latest_s
        self.expected_s = expected_s


class RejectionReason(enum.Enum):
    """Why a request is not executed."""

    QUEUE_FULL = "queue full"
    TOO_MANY_ITEMS = "more items than may be queued"
    DEADLINE_IN_QUEUE = "deadline passed in the queue"
    DEADLINE_UNREACHABLE = "deadline unreachable"
    """Admitted, but unable to meet its deadline."""
    DEADLINE_IN_REPLICA = "deadline passed in a replica"
    CANNOT_FINISH = "cannot finish before its deadline"
    CANNOT_LOAD = "its model cannot be loaded in time"
    WORKER_LOST = "worker lost"
    NOT_STARTED = "not started by its worker"


class Rejection(NamedTuple):
    """The request will not be executed any further."""

    id: int
    reason: RejectionReason
    detail: str


class Plan:
    """What to do now, in order, and when `plan` would tell something new (None: after an event)."""

    __slots__ = ("actions", "refusals", "wake_at_s")

    def __init__(
        self, actions: list[Action], refusals: list[Rejection], wake_at_s: float | None
    ) -> None:
        self.actions = actions
        self.refusals = refusals
        self.wake_at_s = wake_at_s


class Scheduler(Protocol):
    """Decides what runs when and where."""

    def on(self, event: Event, now_s: float) -> None:
        """Take note of an event."""
        ...

    def plan(self, now_s: float) -> Plan:
        """Return what to do; called after events and at `wake_at_s`."""
        ...

    def waiting_of(self, model: ModelId) -> int:
        """Return the queued items of a model, for metrics; 0 if unknown."""
        ...
