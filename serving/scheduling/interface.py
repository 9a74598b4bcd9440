"""The interface between a scheduler and its caller: events in, plans out.

1. A scheduler does no I/O; times never decrease.
2. `on` does bounded work and never scans the queue.
3. Every request ends exactly once: all its parts have a successful `ActionResult`, or it is
   rejected once, or it was cancelled. Later results are ignored.
4. A worker gets batches of a model only after its `LOAD` has succeeded, only `UNLOAD` while it
   drains, nothing once it is down, and never more unfinished actions than it has slots, or than
   keep a far one busy.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from serving.settings import ServingSettings
from serving.values import ModelId, StageTimes

MAX_LOSSES = 1
"""Number of losses of workers that a request survives."""
BACKGROUND = 2**31
"""Priority of requests that are served only in spare time."""


class Submitted:
    """A new request for one or more items; ids increase, and all times use one clock."""

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
        """Priority within the flow: 1 is the most urgent, 0 means the default."""
        self.flow = flow
        self.bytes = size_bytes
        """Number of bytes sent to a worker for this request."""


class Cancelled(NamedTuple):
    """The client has abandoned the request."""

    id: int


class ModelUp(NamedTuple):
    """A model that may be requested, and that any worker may load."""

    model: ModelId
    pages: int
    load_s: float
    batch_s: Mapping[int, float]
    """Batch size in items -> seconds."""
    pads: bool = False
    """Whether batches are padded to the next size in `batch_s`."""


class Profiled(NamedTuple):
    """A new profile of a model; requests stay queued."""

    model: ModelId
    load_s: float
    batch_s: Mapping[int, float]


class ModelDown(NamedTuple):
    """A model will no longer be requested."""

    model: ModelId


class WorkerUp(NamedTuple):
    """A new worker, with at most `slots` unfinished actions: one runs, the others wait.

    A worker on another machine may have more, to run while messages are on the way.
    """

    worker: int
    slots: int
    pages: int | None = None
    loaded: tuple[ModelId, ...] = ()
    concurrent_loads: bool = False
    """Whether it can load models while batches run."""
    way_s: float = 0.0
    """Seconds that a message takes to the worker, or back."""


class WorkerDraining(NamedTuple):
    """The worker gets no new work."""

    worker: int


class WorkersDown(NamedTuple):
    """Workers are gone, and all their actions and models with them.

    Those that end for one cause, such as the replicas of a machine, are told together: for their
    requests it is one loss.
    """

    workers: tuple[int, ...]
    reason: str


class ActionResult:
    """The end of an action; `ok` is False if a load failed or an INFER did not run."""

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
        """Whether a batch or its responses did not fit a message; its requests then run alone."""


class WarmupMeasured(NamedTuple):
    """Batch times that a worker's warm-up measured on real sample inputs."""

    batch_s: Mapping[int, float]
    """Batch size in items -> seconds for inputs, execution and outputs."""
    cpu: float | None = None
    threads: int = 1


class SettingsChanged(NamedTuple):
    """New settings; learned state is dropped unless `keep_learned` is set."""

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
    | WorkersDown
    | ActionResult
    | WarmupMeasured
    | SettingsChanged
)


class ActionType(enum.Enum):
    """The kinds of command for a worker."""

    LOAD = "load"
    INFER = "infer"
    UNLOAD = "unload"


Part = tuple[int, int, int]
"""Items [start, stop) of a request, as (request id, start, stop)."""


class Action:
    """A command to a worker, to be started within its window."""

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
    """Reasons why a request is not executed."""

    QUEUE_FULL = "queue full"
    TOO_MANY_ITEMS = "more items than may be queued"
    DEADLINE_IN_QUEUE = "deadline passed in the queue"
    DEADLINE_UNREACHABLE = "deadline unreachable"
    """Admitted, but no longer able to meet its deadline."""
    DEADLINE_IN_REPLICA = "deadline passed in a replica"
    CANNOT_FINISH = "cannot finish before its deadline"
    CANNOT_LOAD = "its model cannot be loaded in time"
    WORKER_LOST = "worker lost"
    NOT_STARTED = "not started by its worker"


class Rejection(NamedTuple):
    """A request will not be executed, or not completely."""

    id: int
    reason: RejectionReason
    detail: str


class Plan:
    """Actions to take now, in order, and when to plan again (None: at the next event)."""

    __slots__ = ("actions", "refusals", "wake_at_s")

    def __init__(
        self, actions: list[Action], refusals: list[Rejection], wake_at_s: float | None
    ) -> None:
        self.actions = actions
        self.refusals = refusals
        self.wake_at_s = wake_at_s


class Scheduler(Protocol):
    """Decides which request runs when and where."""

    def on(self, event: Event, now_s: float) -> None:
        """Take note of an event."""
        ...

    def plan(self, now_s: float) -> Plan:
        """Return what to do now; call this after events and at `wake_at_s`."""
        ...

    def waiting_of(self, model: ModelId) -> int:
        """Return the number of a model's queued items, or 0 if the model is unknown."""
        ...
