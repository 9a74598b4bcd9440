"""The seam between a scheduler and everything that runs it: events in, plans out.

Rule 1. A scheduler is sans-IO: `on(event, now_s)` tells it what happened, `plan(now_s)` asks what
to do. It sees ids, item counts, deadlines and times; never payloads, futures, sockets or clocks.
Time is an argument and never runs back.

Rule 2. It is incremental: `on` does a bounded amount of work, no scan of the queue per event.

Rule 3. Every submitted id leaves exactly once: its parts are all executed (one `Result` that is ok each), or
it is in one `Refusal`, or it was cancelled. After a refusal or a cancellation its late results are
ignored.

Rule 4. A worker gets nothing before its `LOAD` has succeeded, nothing but an `UNLOAD` while it drains, nothing
after it went down, and never more unfinished actions than its slots.

Rule 5. `wake_at_s` is the next time at which `plan` would give something new although no event
arrives.

The same object runs in production, in virtual-time tests and in a simulator. Where a request is
split, its parts are ranges of items: (id, start, stop).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from serving.settings import ServingSettings
from serving.values import ModelId, StageTimes

MOST_LOSSES = 1
"""Lost workers that a request survives: it is given to another one once."""
BACKGROUND = 2**31
"""A priority below every one that a request can have: what is of use only where there is time left."""


class Submitted:
    """A request waits. `items` >= 1; `deadline_s` on the clock of `now_s`; ids grow."""

    # No named tuple, which takes longer to make: here and in what there is for each batch.
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
        """1 is the most urgent, 0 the default of the settings. It orders the requests of one flow."""
        self.flow = flow
        """Whose request it is: flows share the workers evenly while they compete for them."""
        self.bytes = size_bytes
        """That are sent to a worker for it."""


class Cancelled(NamedTuple):
    """Nobody waits for the request any more."""

    id: int


class ModelUp(NamedTuple):
    """A model may be asked for, and loaded by any worker of the pool."""

    model: ModelId
    pages: int
    """Memory that it takes in a worker."""
    load_s: float
    """Seconds of a LOAD, as a profile has it."""
    batch_s: Mapping[int, float]
    """Items -> seconds of a batch."""
    pads: bool = False
    """Whether a batch of another size takes as long as the next larger one of these."""


class Profiled(NamedTuple):
    """A model was measured anew: its actions will take other times, as workers have other limits.

    Who waits for it goes on to wait. A model that is not known is none.
    """

    model: ModelId
    load_s: float
    """Seconds of a LOAD."""
    batch_s: Mapping[int, float]
    """Items -> seconds of a batch."""


class ModelDown(NamedTuple):
    """A model will not be asked for any more."""

    model: ModelId


class WorkerUp(NamedTuple):
    """A worker can take actions; it may hold `slots` unfinished ones (one running, the others buffered)."""

    worker: int
    slots: int
    pages: int | None = None
    """Memory for models; None: as many as there are."""
    loaded: tuple[ModelId, ...] = ()
    """Models that it holds already: it was here before the scheduler was."""
    loads_apart: bool = False
    """Whether it can load a model while it runs a batch; not where both need the same core."""


class WorkerDraining(NamedTuple):
    """The worker finishes what it has and gets nothing new."""

    worker: int


class WorkerDown(NamedTuple):
    """The worker is gone with all that it held."""

    worker: int
    reason: str


class Result:
    """An action ended.

    `ok` is False when the action as a whole failed: a LOAD that could not load, an action whose window
    had closed before it could start. The parts of such an INFER were not executed.
    """

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
        """An INFER that is not ok, since its parts, or their answers, are too large for one message. That is nobody's
        fault: each of its requests waits again, and from then on goes alone, in actions of one part."""


class Warmed(NamedTuple):
    """A worker has run batches of real sample inputs while it loaded."""

    batch_s: Mapping[int, float]
    """Items -> seconds of execution in the worker, inputs and outputs included."""
    cpu: float | None = None
    """Cores that it had, None: no limit; under others batches take other times."""
    threads: int = 1
    """Threads inside one operator."""


class SettingsChanged(NamedTuple):
    """New settings are in force; what was learnt is forgotten unless `keep_learnt`."""

    settings: ServingSettings
    keep_learnt: bool


Event = (
    Submitted
    | Cancelled
    | ModelUp
    | Profiled
    | ModelDown
    | WorkerUp
    | WorkerDraining
    | WorkerDown
    | Result
    | Warmed
    | SettingsChanged
)


class Kind(enum.Enum):
    """What an action does."""

    LOAD = "load"
    INFER = "infer"
    UNLOAD = "unload"


Part = tuple[int, int, int]
"""Items [start, stop) of one request: (id, start, stop)."""


class Action:
    """One thing that a worker shall do, within its window (an open window is 0 to infinity)."""

    __slots__ = ("earliest_s", "expected_s", "id", "kind", "latest_s", "model", "parts", "worker")

    def __init__(
        self,
        id_: int,
        kind: Kind,
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


class Reason(enum.Enum):
    """Why a request is refused."""

    QUEUE_FULL = "queue full"
    TOO_MANY_ITEMS = "more items than may wait"
    DEADLINE_IN_QUEUE = "deadline passed in the queue"
    HOPELESS = "became hopeless while it waited"
    """It was admitted, and cannot be in time any more; its deadline is still to come."""
    DEADLINE_IN_REPLICA = "deadline passed in a replica"
    CANNOT_FINISH = "cannot finish before its deadline"
    CANNOT_LOAD = "its model cannot be loaded in time"
    WORKER_LOST = "worker lost"
    NOT_STARTED = "not started by its worker"


class Refusal(NamedTuple):
    """The request will not be executed (any further)."""

    id: int
    reason: Reason
    detail: str


class Plan:
    """What to do now, in order, and when to ask again at the latest (None: only after an event)."""

    __slots__ = ("actions", "refusals", "wake_at_s")

    def __init__(
        self, actions: list[Action], refusals: list[Refusal], wake_at_s: float | None
    ) -> None:
        self.actions = actions
        self.refusals = refusals
        self.wake_at_s = wake_at_s


class Scheduler(Protocol):
    """Decides when what runs where."""

    def on(self, event: Event, now_s: float) -> None:
        """Take note of an event."""
        ...

    def plan(self, now_s: float) -> Plan:
        """What follows from all events so far; called after events and at `wake_at_s`."""
        ...

    @property
    def waiting_items(self) -> int:
        """Items in the queue, for metrics."""
        ...

    def waiting_of(self, model: ModelId) -> int:
        """Items of a model in the queue, for metrics; 0 where it is not known."""
        ...
