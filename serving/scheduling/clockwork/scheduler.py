r"""The clockwork scheduler: nothing starts that cannot finish in time.

One controller decides everything for a pool of workers and the many models that may run on them: which model
is in which worker's memory, and which batch starts when. A worker does what it is told, in its window or not
at all. So the controller can tell, from what actions took before, when a worker will be free, and by which
time a request would be answered; what cannot be in time is refused when it comes, and what becomes hopeless
while it waits, the moment it does (Gujarati et al., Serving DNNs like Clockwork, OSDI'20, sections 4 and 5).

    request --fits a worker's promises?--> waits, by deadline --largest batch in time--> INFER, in a window
            \--its model is in no memory--> LOAD, if that is in time --^

A batch is given to a worker only `ahead` before the worker is free, so that it is chosen late. Of the models
in a worker's memory the one whose largest possible batch must start first has the next turn. Work is promised
when a request is admitted (`backlog`), so that one that was admitted is hardly ever lost to a later one; the
paper admits all and drops in the queue.

Everything is incremental: an event costs a few steps of heaps and of a fixed number of buckets, however much
waits. The same events give the same plans.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection
from typing import Self

from serving.scheduling.clockwork.durations import Window
from serving.scheduling.clockwork.holdings import (
    NEVER_S,
    Holding,
    Model,
    Parameters,
    Sent,
    State,
    Worker,
)
from serving.scheduling.clockwork.timeline import Timeline
from serving.scheduling.clockwork.waiting import Chosen, Entry
from serving.scheduling.seam import (
    BACKGROUND,
    Action,
    Cancelled,
    Event,
    Kind,
    ModelDown,
    ModelUp,
    Part,
    Plan,
    Profiled,
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

STEP = 0.01
"""By how much one request that was admitted and dropped raises the reserve: a hundredth of a request's time."""
MOST_DROPPED = 3e-5
"""Share of the admitted that may be dropped: where it is more, the reserve grows (Robbins and Monro, Annals of
Mathematical Statistics 22, 1951)."""
FIRST_RESERVE, LARGEST_RESERVE = 0.2, 0.5
AHEAD_SHARE = 0.05
"""Of an executor's time that loads for nobody who waits may take where batches need it, too."""
DOUBTED_AFTER_S = 0.25
"""A model that is refused and was not measured for so long is predicted anew, step by step."""
ROUNDING_S = 1e-9
"""Less promised work is none."""
MOST_LOSSES = 1
"""Lost workers that a request survives."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0
"""How long a model that could not be loaded is not tried again, the first time and at most."""


class ClockworkScheduler:
    """Controller of one pool."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._models: dict[ModelId, Model] = {}
        self._workers: dict[int, Worker] = {}
        self._entries: dict[int, tuple[Entry, Model]] = {}
        self._expiry: list[tuple[float, int, Model]] = []
        """When the first of a model's requests becomes hopeless."""
        self._dues: list[tuple[float, int, Worker]] = []
        """When the first request of a batch with a worker is too late: its deadline, the action, the worker."""
        self._looks: list[tuple[float, int]] = []
        self._dirty: dict[int, Worker] = {}
        self._refusals: list[Refusal] = []
        self._actions: list[Action] = []
        self._numbers = itertools.count(1)
        self._indices = itertools.count()
        """Of models: never given twice, as workers hold those that are gone."""
        self._last_action = 0
        self._back = Window(parameters.lag_s, 0.0)
        """What passes between an action's end and its result."""
        self._waiting_items = 0
        self._now_s = 0.0
        """The last time that it was told."""
        self._reserve = FIRST_RESERVE
        """Share of a request's time that is kept free when it is admitted, as drops have taught."""

    @classmethod
    def of(cls, settings: ServingSettings) -> Self:
        """As settings have it."""
        return cls(Parameters.of(settings))

    @property
    def waiting_items(self) -> int:
        """Items in the queue."""
        return self._waiting_items

    def waiting_of(self, model: ModelId) -> int:
        """Those of a model."""
        known = self._models.get(model)
        return 0 if known is None else len(known.waiting)

    def models(self) -> Collection[Model]:
        """All models, to look at."""
        return self._models.values()

    def workers(self) -> Collection[Worker]:
        """All workers, to look at."""
        return self._workers.values()

    # Events

    def on(self, event: Event, now_s: float) -> None:
        """Take note of an event."""
        self._now_s = now_s
        if type(event) is Submitted:
            self._submitted(event, now_s)
        elif type(event) is Result:
            self._result(event, now_s)
        else:
            match event:
                case Cancelled():
                    self._cancelled(event)
                case ModelUp():
                    index = next(self._indices)
                    self._models[event.model] = Model(index, event, self._parameters)
                case Profiled():
                    self._profiled(event)
                case ModelDown():
                    self._model_down(event)
                case WorkerUp():
                    self._worker_up(event, now_s)
                case WorkerDraining():
                    if event.worker in self._workers:
                        self._workers[event.worker].draining = True
                case WorkerDown():
                    self._worker_down(event, now_s)
                case SettingsChanged():
                    self._changed(event)

    def plan(self, now_s: float) -> Plan:
        """What is to be done now."""
        self._now_s = now_s
        self._expire(now_s)
        looks = self._looks
        while looks and looks[0][0] <= now_s:
            look_s, number = heapq.heappop(looks)
            worker = self._workers.get(number)
            if worker is not None and worker.look_s == look_s:
                worker.look_s = NEVER_S
                self._dirty[number] = worker
        while self._dirty:
            _, worker = self._dirty.popitem()
            if not worker.draining:
                self._loads(worker, now_s)
                self._infers(worker, now_s)
        actions, self._actions = self._actions, []
        refusals, self._refusals = self._refusals, []
        return Plan(actions, refusals, self._wake_at_s())

    def _wake_at_s(self) -> float | None:
        """When time alone changes something; what is out of date in the heaps is forgotten."""
        wake_s = self._looks[0][0] if self._looks else NEVER_S
        expiry, dues = self._expiry, self._dues
        while expiry and expiry[0][2].expiry_s != expiry[0][0]:
            heapq.heappop(expiry)
        if expiry and expiry[0][0] < wake_s:
            wake_s = expiry[0][0]
        while dues and dues[0][1] not in dues[0][2].sent:
            heapq.heappop(dues)
        if dues and dues[0][0] < wake_s:
            wake_s = dues[0][0]
        return None if wake_s == NEVER_S else wake_s

    # Requests

    def _submitted(self, event: Submitted, now_s: float) -> None:
        model = self._models.get(event.model)
        parameters = self._parameters
        if model is None:
            self._refusals.append(Refusal(event.id, Reason.CANNOT_LOAD, ""))
            return
        if event.priority >= BACKGROUND and self._waiting_items:
            self._refusals.append(Refusal(event.id, Reason.CANNOT_FINISH, ""))
            return
        if self._waiting_items + event.items > parameters.most_waiting:
            self._refusals.append(
                Refusal(event.id, Reason.QUEUE_FULL, str(parameters.most_waiting))
            )
            return
        buffer_s = parameters.buffer_share * (event.deadline_s - now_s)
        deadline_s = event.deadline_s - buffer_s - self._back.worth_s
        entry = Entry(event.id, event.items, deadline_s, event.deadline_s)
        model.asked_before_s, model.asked_s = model.asked_s, now_s
        reason = self._place(model, entry, event.items, now_s)
        if reason is None:
            self._entries[event.id] = (entry, model)
            return
        self._refusals.append(Refusal(event.id, reason, ""))
        self._foresee(model, deadline_s, event.items, now_s)
        if now_s - model.told_s > DOUBTED_AFTER_S:
            self._doubt(model, now_s)

    def _doubt(self, model: Model, now_s: float) -> None:
        """A model is refused, and nothing of it was measured for a while.

        What is predicted may rest on a stall that is long over; where it alone refuses, nothing would ever tell.
        So the longest measurements are forgotten, one at a time, until a request is admitted and measured.
        """
        model.told_s = now_s
        model.load.doubt()
        self._back.doubt()
        holders = [holding.worker for holding in model.holdings]
        for worker in holders or self._workers.values():
            worker.longest.doubt()
        if model.durations.doubt() and model.waiting.entries:
            self._watch(model)
            self._offer(model)

    def _place(self, model: Model, entry: Entry, items: int, now_s: float) -> Reason | None:
        """Promise items of a request to a worker and let them wait; why not, where none can keep the promise."""
        durations, deadline_s = model.durations, entry.deadline_s
        more_s, waiting = durations.more_s, model.waiting
        there = len(waiting.entries)
        if items == 1:
            work_s = more_s[there % len(more_s)]
        else:
            work_s = sum(more_s[(there + each) % len(more_s)] for each in range(items))
        least_s = durations.worth_s[0]
        start_s, soon_s = now_s + self._parameters.lag_s, now_s + self._parameters.ahead_s
        reserve_s = self._reserve * (deadline_s - now_s)
        chosen: Worker | None = None
        chosen_s = NEVER_S
        for holding in model.holdings:
            worker = holding.worker
            if worker.draining:
                continue
            free_s = max(worker.exec.free_s(now_s), start_s)
            is_loaded = holding.state is State.LOADED
            begin_s = free_s if is_loaded else max(free_s, holding.ready_s)
            if begin_s + least_s > deadline_s:
                continue
            is_next = is_loaded and free_s < soon_s and worker.backlog.total_s < ROUNDING_S
            if not is_next:  # else it begins at once, and nothing holds it up
                free_s += worker.longest.worth_s + reserve_s
            if not worker.backlog.fits(deadline_s, work_s, free_s=free_s, now_s=now_s):
                continue
            done_s = begin_s + worker.backlog.total_s
            if done_s < chosen_s:
                chosen, chosen_s = worker, done_s
        if chosen is None:
            chosen = self._planned_load(model, deadline_s, work_s, now_s)
        if chosen is not None:
            self._charge(entry, model, chosen, work_s)
        elif not self._is_alone() or now_s + model.load.worth_s + least_s > deadline_s:
            return Reason.CANNOT_FINISH if model.holdings else Reason.CANNOT_LOAD
        self._waiting_items += items
        if waiting.push(entry, items):
            self._watch(model)
        self._offer(model)
        return None

    def _is_alone(self) -> bool:
        """Whether there is no worker: one may come, so that a request with time waits for it."""
        return all(worker.draining for worker in self._workers.values())

    def _watch(self, model: Model) -> None:
        """Be there when the first that waits becomes hopeless."""
        at_s = model.waiting.deadlines_s[0] - model.durations.worth_s[0]
        if at_s != model.expiry_s:
            model.expiry_s = at_s
            heapq.heappush(self._expiry, (at_s, next(self._numbers), model))

    def _offer(self, model: Model) -> None:
        """A model's queue has grown: its place with the workers that hold it."""
        waiting, durations = model.waiting, model.durations
        count = len(waiting.entries)
        place = 0
        for size in durations.sizes[1:]:
            if size > count:
                break
            place += 1
        key_s = waiting.deadlines_s[0] - durations.worth_s[place]
        for holding in model.holdings:
            if holding.state is State.LOADED:
                worker = holding.worker
                if holding.is_idle:
                    holding.is_idle = False
                    worker.idle_pages -= model.pages
                if key_s < holding.key_s:
                    holding.key_s = key_s
                    heapq.heappush(worker.heap, (key_s, next(self._numbers), holding))
                self._dirty[worker.id] = worker

    def _cancelled(self, event: Cancelled) -> None:
        found = self._entries.pop(event.id, None)
        if found is None:
            return
        entry, model = found
        self._unwait(entry, model)

    def _unwait(self, entry: Entry, model: Model) -> None:
        """What of an entry waits is forgotten."""
        if entry.waits:
            self._waiting_items -= entry.waits
            model.waiting.remove(entry)
            self._uncharge(entry, model)
            if model.waiting.entries:
                self._recharge(model)
                self._watch(model)
            self._settle(model)

    def _charge(self, entry: Entry, model: Model, worker: Worker, work_s: float) -> None:
        """A worker promises the work of an entry."""
        self._uncharge(entry, model)
        entry.charged = worker.backlog
        entry.cost_s = work_s
        entry.is_near = worker.backlog.add(entry.deadline_s, work_s)
        model.charged_s += work_s

    def _uncharge(self, entry: Entry, model: Model) -> None:
        backlog = entry.charged
        if backlog is not None:
            backlog.remove(entry.deadline_s, entry.cost_s, is_near=entry.is_near)
            entry.charged = None
            model.charged_s -= entry.cost_s

    def _recharge(self, model: Model) -> None:
        """Those that are left cost what they cost together: their batch lost members, or did not come about."""
        waiting = model.waiting
        left_s = model.durations.quickest_s(len(waiting.entries)) - model.charged_s
        first = waiting.entries[0]
        if first.charged is None:
            if model.holdings:
                self._charge(first, model, model.holdings[0].worker, left_s)
        elif abs(left_s) > 1e-6:
            first.charged.remove(first.deadline_s, -left_s, is_near=first.is_near)
            first.cost_s += left_s
            model.charged_s += left_s

    def _settle(self, model: Model) -> None:
        """A model's queue may have run empty: those that hold it may give it up."""
        if model.waiting.entries:
            return
        for holding in tuple(model.holdings):
            if holding.state is State.LOADED and not holding.busy and not holding.is_idle:
                holding.is_idle = True
                holding.worker.idle_pages += model.pages
                if model.is_gone:
                    self._evict(holding, self._now_s)

    def _refuse(self, entry: Entry, model: Model, reason: Reason, detail: str = "") -> None:
        if self._entries.pop(entry.id, None) is None:
            return
        self._unwait(entry, model)
        self._refusals.append(Refusal(entry.id, reason, detail))

    def _expire(self, now_s: float) -> None:
        """Refuse what has become hopeless, and what is too late with a worker."""
        expiry = self._expiry
        while expiry and expiry[0][0] < now_s:
            at_s, _, model = heapq.heappop(expiry)
            if at_s == model.expiry_s:
                model.expiry_s = NEVER_S
                self._drop(model, now_s)
        dues = self._dues
        while dues and dues[0][0] <= now_s:
            _, number, worker = heapq.heappop(dues)
            sent = worker.sent.get(number)
            if sent is None:
                continue
            next_s = NEVER_S
            for entry, _ in sent.items:
                if entry.due_s <= now_s:
                    self._refuse(entry, sent.holding.model, Reason.DEADLINE_IN_REPLICA)
                else:
                    next_s = min(next_s, entry.due_s)
            if next_s < NEVER_S:
                heapq.heappush(dues, (next_s, number, worker))

    def _drop(self, model: Model, start_s: float) -> None:
        """Refuse those of a model's requests that could not be in time if they started then."""
        waiting, least_s = model.waiting, model.durations.worth_s[0]
        for entry in waiting.hopeless(start_s + least_s):
            self._waiting_items -= entry.waits
            entry.waits = 0
            self._uncharge(entry, model)
            if self._entries.pop(entry.id, None) is None:
                continue
            self._refusals.append(Refusal(entry.id, Reason.DEADLINE_IN_QUEUE, ""))
            self._reserve = min(LARGEST_RESERVE, self._reserve + STEP)
        if waiting.entries:
            self._recharge(model)
            self._watch(model)
        else:
            self._settle(model)

    # Loading

    def _planned_load(
        self, model: Model, deadline_s: float, work_s: float, now_s: float
    ) -> Worker | None:
        """Plan to load a model where it is ready first, if that is in time."""
        if model.is_gone or now_s < model.broken_until_s:
            return None
        load_s, least_s = model.load.worth_s, model.durations.worth_s[0]
        start_s = now_s + self._parameters.lag_s
        # When it is loaded, the worker may have been given batches for `ahead`.
        reserve_s = self._reserve * (deadline_s - now_s)
        latest_s = deadline_s - least_s - self._back.worth_s - self._parameters.ahead_s - reserve_s
        chosen: Worker | None = None
        chosen_s = NEVER_S
        for worker in self._workers.values():
            if worker.draining or model.index in worker.held:
                continue
            free_s = max(worker.load.free_s(now_s), start_s)
            ready_s = free_s + worker.planned_s + load_s
            if ready_s + worker.longest.worth_s > latest_s or ready_s >= chosen_s:
                continue
            if worker.free_pages + worker.idle_pages < worker.planned_pages + model.pages:
                continue
            exec_s = max(worker.exec.free_s(now_s), start_s) + reserve_s
            extra_s = work_s if worker.loads_apart else work_s + load_s
            if not worker.backlog.fits(deadline_s, extra_s, free_s=exec_s, now_s=now_s):
                continue
            chosen, chosen_s = worker, ready_s
        if chosen is None:
            return None
        self._plan_load(chosen, model, chosen_s)
        return chosen

    def _foresee(self, model: Model, deadline_s: float, items: int, now_s: float) -> None:
        """A model was asked for in vain: load it for those who will ask next, where nobody else needs the time.

        Only where the request would have been in time, had it been loaded there. What is in memory gives way
        if it was asked for less often of late (the time of the last request but one decides: O'Neil et al.,
        "The LRU-K Page Replacement Algorithm", SIGMOD 1993). Where loads and batches share an executor, it must
        have nothing to do, and such loads may take `AHEAD_SHARE` of its time: nobody can tell who comes meanwhile.
        """
        if model.is_gone or now_s < model.broken_until_s:
            return
        if any(holding.state is not State.LOADED for holding in model.holdings):
            return
        work_s, start_s = model.durations.quickest_s(items), now_s + self._parameters.lag_s
        chosen: Worker | None = None
        for worker in self._workers.values():
            if worker.draining or worker.planned or model.index in worker.held or len(worker.load):
                continue
            if not worker.loads_apart and (
                now_s < worker.ahead_again_s or worker.backlog.total_s > ROUNDING_S
            ):
                continue
            free_s = max(worker.exec.free_s(now_s), start_s)
            if worker.backlog.total_s > ROUNDING_S:
                free_s += worker.longest.worth_s
            if not worker.backlog.fits(deadline_s, work_s, free_s=free_s, now_s=now_s):
                continue
            if worker.free_pages < model.pages and not _gives_way(worker, model):
                continue
            if chosen is None or worker.load_of < chosen.load_of:
                chosen = worker
        if chosen is not None:
            load_s = model.load.worth_s
            begin_s = max(chosen.load.free_s(now_s), start_s)
            chosen.ahead_again_s = begin_s + load_s / AHEAD_SHARE
            self._plan_load(chosen, model, begin_s + load_s).is_ahead = True

    def _is_free_for(self, holding: Holding, free_s: float, now_s: float) -> bool:
        """Whether a load for nobody who waits still takes time that nobody needs."""
        worker, load_s = holding.worker, holding.model.load.worth_s
        if not holding.is_ahead or holding.model.is_gone:
            return False
        return worker.loads_apart or worker.backlog.fits(
            free_s + load_s, load_s, free_s=free_s, now_s=now_s
        )

    def _plan_load(self, worker: Worker, model: Model, ready_s: float) -> Holding:
        holding = Holding(model, worker, State.PLANNED, ready_s + self._back.worth_s)
        model.holdings.append(holding)
        worker.held[model.index] = holding
        worker.planned.append(holding)
        holding.planned_s = model.load.worth_s
        worker.planned_s += holding.planned_s
        worker.planned_pages += model.pages
        self._dirty[worker.id] = worker
        return holding

    def _loads(self, worker: Worker, now_s: float) -> None:
        """Give the worker the loads that it could begin soon."""
        while worker.planned:
            free_s = self._start_s(worker, worker.load, now_s)
            if free_s is None:
                return
            holding = worker.planned.popleft()
            model = holding.model
            worker.planned_s -= holding.planned_s
            worker.planned_pages -= model.pages
            if not worker.planned:
                worker.planned_s = 0.0
            if len(model.holdings) == 1:
                self._drop(model, free_s + model.load.worth_s + self._back.worth_s)
            is_wanted = bool(model.waiting.entries) or self._is_free_for(holding, free_s, now_s)
            if not is_wanted or not self._make_room(worker, model.pages, now_s):
                self._lost(holding, now_s)
                continue
            worker.free_pages -= model.pages
            holding.state = State.LOADING
            latest_s = free_s + self._parameters.window_s
            if model.waiting.entries:  # as long as it is of use to anybody who waits
                left_s = model.waiting.deadlines_s[-1] - model.durations.worth_s[0]
                latest_s = max(latest_s, left_s - model.load.worth_s)
            action = self._send(Kind.LOAD, holding, [], [], now_s, latest_s, model.load.worth_s)
            holding.ready_s = worker.load.add(action, free_s, model.load.worth_s)
            holding.ready_s += self._back.worth_s

    def _make_room(self, worker: Worker, pages: int, now_s: float) -> bool:
        """Evict what was not used for longest, until so many pages are free."""
        if worker.free_pages >= pages:
            return True
        if worker.free_pages + worker.idle_pages < pages:
            return False
        for holding in tuple(worker.held.values()):
            if not holding.is_idle:
                continue
            self._evict(holding, now_s)
            if worker.free_pages >= pages:
                return True
        return False

    def _evict(self, holding: Holding, now_s: float) -> None:
        worker, model = holding.worker, holding.model
        holding.is_idle = False
        worker.idle_pages -= model.pages
        worker.free_pages += model.pages
        del worker.held[model.index]
        model.holdings.remove(holding)
        holding.key_s = NEVER_S
        self._send(Kind.UNLOAD, holding, [], [], now_s, NEVER_S, 0.0)

    def _lost(self, holding: Holding, now_s: float) -> None:
        """A model will not be on a worker: who waits for it waits elsewhere, or not at all."""
        model = holding.model
        model.holdings.remove(holding)
        del holding.worker.held[model.index]
        if not model.holdings:
            self._replace(model, now_s)

    def _replace(self, model: Model, now_s: float) -> None:
        """All that waits for a model is promised anew, as if it had just come; what no worker promises, is refused."""
        waiting = model.waiting
        entries = dict.fromkeys(waiting.take(0, len(waiting.entries)))
        for entry in entries:
            count, entry.waits = entry.waits, 0
            self._waiting_items -= count
            self._uncharge(entry, model)
            self._return(entry, model, count, now_s)
        self._settle(model)

    def _return(self, entry: Entry, model: Model, count: int, now_s: float) -> None:
        """Items that left the queue, and were not run, wait again; or the request is refused."""
        if entry.id not in self._entries:
            return
        before = entry.waits
        if before:  # promised together with those that still wait
            self._waiting_items -= before
            model.waiting.remove(entry)
            self._uncharge(entry, model)
        is_lost = model.is_gone and not model.holdings
        reason = Reason.CANNOT_LOAD if is_lost else self._place(model, entry, before + count, now_s)
        if reason is not None:
            self._refuse(entry, model, reason)

    def _unrun(self, sent: Sent, now_s: float) -> None:
        """A batch was not run: its items wait again."""
        counts: dict[Entry, int] = {}
        for entry, item in sent.items:
            entry.returned.append(item)
            counts[entry] = counts.get(entry, 0) + 1
        for entry, count in counts.items():
            self._return(entry, sent.holding.model, count, now_s)

    # Batches

    def _infers(self, worker: Worker, now_s: float) -> None:
        """Give the worker batches that it could begin soon."""
        while worker.heap:
            start_s = self._start_s(worker, worker.exec, now_s)
            if start_s is None:
                return
            found = self._next(worker, start_s)
            if found is None:
                return
            self._infer(worker, *found, start_s, now_s)

    def _next(self, worker: Worker, start_s: float) -> tuple[Holding, Chosen] | None:
        """The model whose batch must start first, were it to start then, and the batch."""
        heap = worker.heap
        while heap:
            key_s, _, holding = heap[0]
            if holding.key_s != key_s:
                heapq.heappop(heap)  # it has another place now
                continue
            model = holding.model
            chosen = model.waiting.choose(start_s, model.durations.sizes, model.durations.worth_s)
            if chosen is None:
                heapq.heappop(heap)
                holding.key_s = NEVER_S
                if len(model.holdings) == 1:
                    self._drop(model, start_s)
                continue
            if chosen.latest_s > key_s:
                holding.key_s = chosen.latest_s
                heapq.heapreplace(heap, (chosen.latest_s, next(self._numbers), holding))
                continue
            return holding, chosen
        return None

    def _infer(
        self, worker: Worker, holding: Holding, chosen: Chosen, start_s: float, now_s: float
    ) -> None:
        """Give the worker a batch."""
        model = holding.model
        durations, waiting = model.durations, model.waiting
        deadline_s = waiting.deadlines_s[chosen.first]
        entries = waiting.take(chosen.first, durations.sizes[chosen.place])
        self._waiting_items -= len(entries)
        parts: list[Part] = []
        items: list[tuple[Entry, int]] = []
        for entry in entries:
            item = entry.give()
            items.append((entry, item))
            if parts and parts[-1][0] == entry.id and parts[-1][2] == item:
                parts[-1] = (entry.id, parts[-1][1], item + 1)
            else:
                parts.append((entry.id, item, item + 1))
                self._uncharge(entry, model)
        due_s = min(entry.due_s for entry in entries)
        took_s = durations.worth_s[chosen.place]
        latest_s = min(start_s + self._parameters.window_s, deadline_s - took_s)
        action = self._send(Kind.INFER, holding, items, parts, now_s, latest_s, took_s)
        worker.exec.add(action, start_s, took_s)
        worker.longest.observe(took_s)
        heapq.heappush(self._dues, (due_s, action, worker))
        holding.busy += 1
        worker.held[model.index] = worker.held.pop(model.index)
        holding.key_s = NEVER_S
        if waiting.entries:
            self._recharge(model)
            if chosen.first == 0:
                self._watch(model)
            self._offer(model)
        else:
            self._settle(model)

    def _send(
        self,
        kind: Kind,
        holding: Holding,
        items: list[tuple[Entry, int]],
        parts: list[Part],
        now_s: float,
        latest_s: float,
        expected_s: float,
    ) -> int:
        """Put an action into the plan; returns its number."""
        self._last_action = number = self._last_action + 1
        worker, model = holding.worker, holding.model
        worker.sent[number] = Sent(kind, holding, items, now_s)
        self._actions.append(
            Action(number, kind, worker.id, model.id, parts, 0.0, latest_s, expected_s)
        )
        return number

    def _start_s(self, worker: Worker, executor: Timeline, now_s: float) -> float | None:
        """When an executor could begin what it is given now; None: not soon, and it is looked at again then."""
        parameters = self._parameters
        start_s = max(executor.free_s(now_s), now_s + parameters.lag_s)
        if start_s < now_s + parameters.ahead_s:
            return start_s
        self._look(worker, start_s - parameters.ahead_s)
        return None

    def _look(self, worker: Worker, at_s: float) -> None:
        """Look at a worker again at a time."""
        if at_s < worker.look_s:
            worker.look_s = at_s
            heapq.heappush(self._looks, (at_s, worker.id))

    # Results

    def _result(self, event: Result, now_s: float) -> None:
        worker = self._workers.get(event.worker)
        sent = worker.sent.pop(event.action, None) if worker is not None else None
        if worker is None or sent is None:
            return
        self._dirty[worker.id] = worker
        holding, times = sent.holding, event.times
        took_s, end_s = 0.0, now_s
        if times is not None:
            took_s = times.input_s + times.exec_s + times.output_s
            end_s = min(now_s, sent.sent_s + times.queue_s + took_s)
            self._back.observe(now_s - end_s)
        if sent.kind is Kind.INFER:
            worker.exec.ended(event.action, end_s)
            self._inferred(sent, event.ok, took_s, now_s)
        elif sent.kind is Kind.LOAD:
            worker.load.ended(event.action, end_s)
            holding.model.told_s = now_s
            if event.ok:
                holding.model.failures = 0
                if times is not None:
                    holding.model.load.observe(took_s)
                holding.state = State.LOADED
                if holding.model.waiting.entries:
                    self._offer(holding.model)
                else:
                    self._settle(holding.model)
            else:
                worker.free_pages += holding.model.pages
                if times is not None:  # it was begun
                    _broke(holding.model, now_s, is_sure=True)
                self._lost(holding, now_s)

    def _inferred(self, sent: Sent, ok: bool, took_s: float, now_s: float) -> None:
        holding = sent.holding
        model = holding.model
        holding.busy -= 1
        model.told_s = now_s
        if ok:
            model.durations.observe(len(sent.items), took_s)
            self._reserve = max(0.0, self._reserve - STEP * MOST_DROPPED * len(sent.items))
            entries = self._entries
            for entry, _ in sent.items:
                entry.open_items -= 1
                if not entry.open_items:
                    entries.pop(entry.id, None)
        else:
            self._unrun(sent, now_s)
        self._settle(model)

    # Workers and models

    def _worker_up(self, event: WorkerUp, now_s: float) -> None:
        worker = self._workers[event.worker] = Worker(event, self._parameters)
        for name in event.loaded:
            model = self._models.get(name)
            if model is None:
                continue
            worker.free_pages -= model.pages
            holding = Holding(model, worker, State.LOADED, now_s)
            worker.held[model.index] = holding
            model.holdings.append(holding)
            if model.waiting.entries:
                self._offer(model)
            else:
                self._settle(model)
        self._dirty[worker.id] = worker
        for model in self._models.values():
            if model.waiting.entries and not model.holdings:  # there was nobody to promise them
                self._replace(model, now_s)

    def _worker_down(self, event: WorkerDown, now_s: float) -> None:
        worker = self._workers.pop(event.worker, None)
        if worker is None:
            return
        self._dirty.pop(worker.id, None)
        for holding in worker.held.values():
            holding.model.holdings.remove(holding)
            holding.key_s = NEVER_S
        for sent in worker.sent.values():
            if sent.kind is Kind.LOAD:
                _broke(sent.holding.model, now_s, is_sure=False)
            elif sent.kind is Kind.INFER:
                for entry in dict.fromkeys(entry for entry, _ in sent.items):
                    entry.losses += 1
                    if entry.losses > MOST_LOSSES:
                        self._refuse(entry, sent.holding.model, Reason.WORKER_LOST, event.reason)
                self._unrun(sent, now_s)
        for holding in worker.held.values():
            self._replace(holding.model, now_s)

    def _changed(self, event: SettingsChanged) -> None:
        """Other parameters; what is known of models begins anew with their profiles where it must."""
        before, self._parameters = self._parameters, Parameters.of(event.settings)
        if event.keep_learnt and self._parameters == before:
            return
        self._reserve = FIRST_RESERVE
        for model in self._models.values():
            self._begin(model)

    def _profiled(self, event: Profiled) -> None:
        """What was known of a model's actions is forgotten for a new profile."""
        model = self._models.get(event.model)
        if model is not None:
            model.told(event)
            self._begin(model)

    def _begin(self, model: Model) -> None:
        """A model's actions take what its profile tells, and who waits for it is looked at anew."""
        model.begin(self._parameters)
        if model.waiting.entries:
            self._watch(model)
            self._offer(model)

    def _model_down(self, event: ModelDown) -> None:
        model = self._models.pop(event.model, None)
        if model is None:
            return
        model.is_gone = True
        for entry in dict.fromkeys(model.waiting.entries):
            self._refuse(entry, model, Reason.CANNOT_LOAD)
        for holding in tuple(model.holdings):
            if holding.is_idle:
                self._evict(holding, self._now_s)


def _gives_way(worker: Worker, model: Model) -> bool:
    """Whether what is evicted next makes room for a model, and was all asked for less often of late."""
    pages = worker.free_pages
    if pages + worker.idle_pages < model.pages:
        return False
    for holding in worker.held.values():
        if not holding.is_idle:
            continue
        if holding.model.asked_before_s >= model.asked_before_s:
            return False
        pages += holding.model.pages
        if pages >= model.pages:
            return True
    return False


def _broke(model: Model, now_s: float, *, is_sure: bool) -> None:
    """A load was begun and has failed: the file will hardly be better at once.

    Where its worker was lost with it, that may have been another's fault, the first time.
    """
    model.failures += 1
    if not is_sure and model.failures == 1:
        return
    backoff_s = FIRST_BACKOFF_S * 2.0 ** min(model.failures - 1, 16)
    model.broken_until_s = now_s + min(LONGEST_BACKOFF_S, backoff_s)
