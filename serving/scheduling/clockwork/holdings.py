"""What the clockwork controller knows: models, workers, which model is where, and what each worker was given.

State without decisions, which other modules make. Pure; times are in seconds on the controller's clock.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import heapq
import math
from typing import NamedTuple, Self

from serving.scheduling.clockwork.backlog import Backlog
from serving.scheduling.clockwork.durations import Durations, Window
from serving.scheduling.clockwork.rates import Rate, Reserve
from serving.scheduling.clockwork.shares import Shares
from serving.scheduling.clockwork.timeline import Timeline
from serving.scheduling.clockwork.waiting import Entry, Promises, Waiting
from serving.scheduling.seam import Kind, ModelUp, Profiled, WorkerUp
from serving.settings import ServingSettings
from serving.values import ModelId

NEVER_S = math.inf
ROUNDING_S = 1e-9
"""Less promised work is none."""
PATIENCE_RECOVERS = 0.01
"""Share by which a patience grows towards that of who asks next."""
AHEAD_OF_PATIENCE = 0.1
"""A worker is given its next action no earlier than this share of the time that the least patient can wait."""
FIRST_APART_S, LONGEST_APART_S = 1.0, 60.0
"""For how long requests of a model go alone, after some that were too large together, the first time and at most."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0
"""How long a model that could not be loaded is not tried again, the first time and at most."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What the controller may be told."""

    ahead_s: float = 0.010
    """A worker is given its next action when it will be free within this. Default 10 ms, Clockwork's: longer than
    a message and a plan take; a longer one decides earlier, with fewer requests to choose from."""
    window_s: float = 0.010
    """An action that has not started this long after it was expected to is not started any more. Default 10 ms,
    Clockwork's."""
    guard: float = 0.0
    """Share by which an action may exceed the longest of the last ten. Default 0, as on an accelerator of one's
    own; cores that are shared need more."""
    buffer_share: float = 0.05
    """Share of a request's time that is planned to be left over. Default 5 %, Clockwork's 5 ms of 100 ms; as a
    share, short objectives can be met as well."""
    most_items: int = 16
    """Items of the largest batch."""
    most_waiting: int = 1_000_000
    """Items that may wait."""
    most_exec_s: float = 0.025
    """Batches of more than one item that take longer are not made: they would hold up all others. Default 25 ms,
    Clockwork's."""
    lag_s: float = 0.0005
    """What a message takes, until it was measured."""

    @classmethod
    def of(cls, settings: ServingSettings) -> Self:
        """As settings have them."""
        clockwork = settings.clockwork
        return cls(
            ahead_s=1e-3 * clockwork.ahead_ms,
            window_s=1e-3 * clockwork.window_ms,
            guard=clockwork.guard,
            buffer_share=clockwork.buffer,
            most_items=settings.batching.max_size,
            most_waiting=settings.scheduling.queue_capacity,
            most_exec_s=1e-3 * clockwork.max_exec_ms,
        )


class State(enum.Enum):
    """Of a model on a worker."""

    PLANNED = "planned"
    """It will be loaded; the worker was not told yet."""
    LOADING = "loading"
    LOADED = "loaded"


class Model:
    """A model of the pool, and the requests that wait for it."""

    __slots__ = (
        "_told",
        "apart_s",
        "apart_until_s",
        "asked_before_s",
        "asked_s",
        "broken_until_s",
        "durations",
        "expiry_s",
        "failures",
        "holdings",
        "id",
        "index",
        "is_gone",
        "load",
        "pages",
        "patience_s",
        "rate",
        "told_s",
        "waiting",
    )

    def __init__(self, index: int, event: ModelUp, parameters: Parameters) -> None:
        self.index = index
        self.id = event.model
        self.pages = event.pages
        self._told = event
        self.begin(parameters)
        self.told_s = 0.0
        """When an action of it was measured, or its measurements were doubted."""
        self.asked_s = self.asked_before_s = -NEVER_S
        """When it was asked for last, and the time before."""
        self.patience_s = NEVER_S
        """How long those who ask for it of late can wait, the least patient ones."""
        self.rate = Rate()
        """Items that it was asked for."""
        self.failures = 0
        """Loads in a row that have failed."""
        self.broken_until_s = 0.0
        """Until when it is not loaded again."""
        self.apart_s = self.apart_until_s = 0.0
        """For how long, and until when its requests go alone: of late some were too large for a message together."""
        self.waiting = Waiting()
        self.holdings: list[Holding] = []
        self.is_gone = False
        """Whether nobody may ask for it any more: workers give it up as soon as they can."""
        self.expiry_s = NEVER_S
        """When the first that waits becomes hopeless, as far as it is watched."""

    def asked(self, now_s: float, *, within_s: float, items: int) -> None:
        """It was asked for so many items by somebody who can wait so long."""
        self.asked_before_s, self.asked_s = self.asked_s, now_s
        self.rate.add(items, now_s)
        if within_s >= self.durations.worth_s[0]:  # else nobody could have helped
            self.patience_s = _patience_s(self.patience_s, within_s)

    def told(self, event: Profiled) -> None:
        """It has another profile, which counts from the next `begin` on."""
        self._told = self._told._replace(load_s=event.load_s, batch_s=event.batch_s)

    def begin(self, parameters: Parameters) -> None:
        """Know of its actions what its profile tells."""
        told = self._told
        batch_s = {
            size: took_s
            for size, took_s in told.batch_s.items()
            if size == min(told.batch_s) or took_s <= parameters.most_exec_s
        }
        self.durations = Durations(
            batch_s, most=parameters.most_items, guard=parameters.guard, pads=told.pads
        )
        self.load = Window(told.load_s, parameters.guard)

    def were_too_large(self, now_s: float) -> None:
        """Requests of it were too large for a message together: those that come go alone, too, for a while.

        For twice as long each time that it is so again soon after.
        """
        if now_s < self.apart_until_s:
            return
        is_again = now_s < self.apart_until_s + self.apart_s
        self.apart_s = min(LONGEST_APART_S, 2.0 * self.apart_s) if is_again else FIRST_APART_S
        self.apart_until_s = now_s + self.apart_s

    def broke(self, now_s: float, *, is_sure: bool) -> None:
        """A load was begun and has failed: the file will hardly be better at once.

        Where its worker was lost with it, that may have been another's fault, the first time.
        """
        self.failures += 1
        if not is_sure and self.failures == 1:
            return
        backoff_s = FIRST_BACKOFF_S * 2.0 ** min(self.failures - 1, 16)
        self.broken_until_s = now_s + min(LONGEST_BACKOFF_S, backoff_s)


class Worker:
    """A worker, as far as the controller knows."""

    __slots__ = (
        "ahead_again_s",
        "backlog",
        "draining",
        "exec",
        "free_pages",
        "heap",
        "held",
        "id",
        "idle_pages",
        "load",
        "longest",
        "look_s",
        "paid_s",
        "planned",
        "planned_pages",
        "planned_s",
        "sent",
    )

    def __init__(self, event: WorkerUp, back: Window) -> None:
        """Nothing is promised.

        Args:
            event: what is told of it.
            back: what passes between an action's end and its result.
        """
        self.id = event.worker
        self.free_pages: float = math.inf if event.pages is None else event.pages
        self.idle_pages = 0
        """Of models that may be evicted."""
        self.exec = Timeline(back)
        self.load = Timeline(back) if event.loads_apart else self.exec
        self.held: dict[int, Holding] = {}
        """By the model's index, the least recently used first."""
        self.heap: list[tuple[float, int, Holding]] = []
        """Loaded models for which requests wait, by the first cell of what is promised of them."""
        self.backlog = Backlog()
        self.longest = Window(0.0, 0.0)
        """Of the last batches: so long one that has begun, or whose later members came along with it, may hold up
        what is due earlier."""
        self.planned: collections.deque[Holding] = collections.deque()
        """Loads that it was not told yet, with their time and memory."""
        self.planned_s = 0.0
        self.planned_pages = 0
        self.sent: dict[int, Sent] = {}
        self.draining = False
        self.ahead_again_s = 0.0
        """When it may load for nobody who waits again, where a load takes the time of batches."""
        self.look_s = NEVER_S
        """When it is to be looked at again."""
        self.paid_s = 0.0
        """When there will have been time to spare for all swaps that were planned. Also for those that are off: others
        were promised less for them."""

    @property
    def load_of(self) -> tuple[float, int]:
        """How much it has to do: promised work, then models."""
        return self.backlog.total_s, len(self.held)

    def turn_s(self, now_s: float) -> float:
        """When the batch must start that has the next turn; what is out of date in the heap is forgotten."""
        heap = self.heap
        while heap and (heap[0][2].key_s != heap[0][0] or heap[0][2].has_left(now_s)):
            key_s, _, holding = heapq.heappop(heap)
            if holding.key_s == key_s:
                holding.key_s = NEVER_S
        return heap[0][2].starts_s if heap else NEVER_S

    @property
    def loads_apart(self) -> bool:
        """Whether it loads while it runs a batch."""
        return self.load is not self.exec


class Holding:
    """A model in a worker's memory, or on its way there."""

    __slots__ = (
        "busy",
        "charge",
        "is_ahead",
        "is_idle",
        "key_s",
        "leave",
        "model",
        "planned_s",
        "promises",
        "ready_s",
        "state",
        "swap",
        "worker",
    )

    def __init__(self, model: Model, worker: Worker, state: State, ready_s: float) -> None:
        self.model = model
        self.worker = worker
        self.state = state
        self.ready_s = ready_s
        """When it will be loaded, as far as is planned."""
        self.planned_s = 0.0
        """Seconds that were planned for its load."""
        self.charge: Charge | None = None
        """The time of its planned load, where batches need the same and somebody waits for it."""
        self.key_s = NEVER_S
        """The first cell of what is promised of it: its place in the worker's heap; never: it has none."""
        self.promises = Promises(worker.id, worker.backlog)
        self.busy = 0
        """Batches with the worker."""
        self.is_ahead = False
        """Whether it is loaded for nobody who waits."""
        self.is_idle = False
        """Whether it may be evicted: then it is counted in the worker's idle pages."""
        self.swap: Swap | None = None
        """Of one that is planned: whose memory it is to have."""
        self.leave: Leave | None = None
        """That it will give its memory to another one."""

    @property
    def is_counted_on(self) -> bool:
        """Of an idle one: whether its memory is needed for the loads that are planned."""
        worker = self.worker
        left = worker.free_pages + worker.idle_pages - self.model.pages
        return left < worker.planned_pages

    def has_left(self, now_s: float) -> bool:
        """Whether its memory is another's by then, and it owes nothing: who waits for it, waits for its return."""
        leave = self.leave
        return leave is not None and not self.promises.owes and leave.at_s <= now_s

    def load_before_s(self, cell_s: float) -> float:
        """What its load takes of the time of batches that is not promised up to a cell."""
        if self.state is not State.PLANNED or self.swap is not None or self.worker.loads_apart:
            return 0.0
        charge = self.charge
        return 0.0 if charge is not None and charge.cell_s <= cell_s else self.planned_s

    @property
    def first_s(self) -> float:
        """The first cell of what is promised of it; where another worker has promised all, the first deadline."""
        cells_s = self.promises.cells_s
        return cells_s[0] if cells_s else self.model.waiting.deadlines_s[0]

    @property
    def starts_s(self) -> float:
        """When the first of what waits for it must start."""
        bundles, waiting = self.promises.bundles, self.model.waiting
        if bundles:
            return bundles[0].until_s - bundles[0].cost_s
        if not waiting.entries:
            return NEVER_S
        return waiting.deadlines_s[0] - self.model.durations.worth_s[0]


class Charge(NamedTuple):
    """Work in a worker's backlog that is nobody's request."""

    backlog: Backlog
    cell_s: float
    work_s: float

    @classmethod
    def of(cls, backlog: Backlog, cell_s: float, until_s: float, work_s: float) -> Self:
        """Put it there."""
        backlog.add(cell_s, until_s, work_s)
        return cls(backlog, cell_s, work_s)

    def take_back(self) -> None:
        """It is done, or will not be."""
        self.backlog.remove(self.cell_s, self.work_s)


class Swap:
    """A load that waits for the memory of others."""

    __slots__ = ("charge", "due_s", "gives", "pages", "start_s")

    def __init__(self, gives: list[Holding], start_s: float, due_s: float, pages: int) -> None:
        self.gives = gives
        """Those that give their memory."""
        self.start_s = start_s
        """When it begins at the latest."""
        self.due_s = due_s
        """When it has ended."""
        self.pages = pages
        """Free ones that are kept for it."""
        self.charge: Charge | None = None
        """Its time, where batches need the same."""


class Leave:
    """A model's last time in a worker's memory."""

    __slots__ = ("at_s", "to")

    def __init__(self, to: Holding, at_s: float) -> None:
        self.to = to
        """Whose load has its memory."""
        self.at_s = at_s
        """By when all is done that it was promised for."""


class Sent:
    """An action with a worker."""

    __slots__ = ("holding", "items", "kind", "sent_s")

    def __init__(
        self, kind: Kind, holding: Holding, items: list[tuple[Entry, int]], sent_s: float
    ) -> None:
        self.kind = kind
        self.holding = holding
        self.items = items
        """Of a batch: the entry of each item, and which of its items it is."""
        self.sent_s = sent_s


class Pool:
    """All of it, and what is known of no model or worker alone."""

    __slots__ = (
        "ahead_s",
        "back",
        "began_s",
        "models",
        "now_s",
        "parameters",
        "patience_s",
        "reserve",
        "shares",
        "work",
        "workers",
    )

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.models: dict[ModelId, Model] = {}
        self.workers: dict[int, Worker] = {}
        self.back = Window(parameters.lag_s, 0.0)
        """What passes between an action's end and its result."""
        self.reserve = Reserve()
        self.shares = Shares()
        self.now_s = 0.0
        """The last time that the controller was told."""
        self.began_s = NEVER_S
        """When the first request came."""
        self.patience_s = NEVER_S
        """How long those who ask of late can wait, the least patient ones."""
        self.ahead_s = parameters.ahead_s
        """How long before a worker is free it is given its next action. A batch that is given early is one without
        those who come meanwhile: where some can wait for a few batches only, it is later, though not later than
        messages allow."""
        self.work = Rate()
        """Seconds of executors that requests have asked for, in the largest batches."""

    def asked(self, model: Model, items: int, within_s: float) -> None:
        """A request for so many items of a model has come, which can wait so long."""
        if self.began_s == NEVER_S:
            self.began_s = self.now_s
        self.work.add(items * model.durations.item_s, self.now_s)
        if within_s >= model.durations.worth_s[0]:
            self.patience_s = _patience_s(self.patience_s, within_s)
        parameters = self.parameters
        least_s = parameters.lag_s + self.back.worth_s
        self.ahead_s = min(parameters.ahead_s, max(least_s, AHEAD_OF_PATIENCE * self.patience_s))
        model.asked(self.now_s, within_s=within_s, items=items)

    def rate_of(self, model: Model) -> float:
        """Items that a model is asked for in a second."""
        return model.rate.per_s(self.now_s, self.began_s)

    def work_of(self, model: Model) -> float:
        """Share of an executor's time that this takes, in the largest batches."""
        return self.rate_of(model) * model.durations.item_s

    @property
    def spare(self) -> float:
        """Share of an executor's time for which nobody asks."""
        count = max(1, sum(not worker.draining for worker in self.workers.values()))
        asked = self.work.per_s(self.now_s, self.began_s, count)  # at first, for all of it
        return max(0.0, 1.0 - asked / count)


def _patience_s(before_s: float, within_s: float) -> float:
    """Of the least patient ones, now that one came who can wait so long."""
    if within_s < before_s:
        return within_s
    return before_s + PATIENCE_RECOVERS * (within_s - before_s)
