"""Sends what a scheduler plans to replicas and completes every waiter exactly once.

In: requests (`Job`) with a waiter each, replicas that come up and go down, messages of the replica
wire. Out: actions on the wire; each waiter's `answer` or `refuse`, once. Rules:

- A waiter is registered before the scheduler hears of its request, and it is taken out of the table
  by whoever completes it; what finds no waiter is late and is dropped.
- The scheduler is asked once per turn of the event loop, however many requests arrived in it, and
  once per message from a replica: a batch is completed in one pass.
- One timer, set to the plan's next wake-up.

Serves any scheduler behind `serving.scheduling.seam`. Knows nothing of HTTP, of tensors' meaning or
of processes: a replica is a connection that carries bytes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from serving.alarm import Alarm
from serving.errors import (
    CannotFinish,
    CannotLoad,
    DeadlineExceeded,
    Hopeless,
    InvalidRequest,
    ModelLoadFailed,
    ModelMissing,
    NotReady,
    Overloaded,
    PredictionFailed,
    ReplicaFailed,
    RequestTooLarge,
    ServingError,
)
from serving.replica import parts as parts_of
from serving.replica import wire
from serving.replica.fingerprint import Identity
from serving.replica.shelf import placed
from serving.scheduling.seam import (
    Action,
    Cancelled,
    Kind,
    ModelDown,
    ModelUp,
    Profiled,
    Reason,
    Refusal,
    Result,
    Scheduler,
    SettingsChanged,
    Submitted,
    WorkerDown,
    WorkerDraining,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.values import Buffer, ModelCard, ModelId, Signature, StageTimes
from serving.waiter import Batch, Waiter, answer, refuse, spoilt

log = logging.getLogger(__name__)
Number = TypeVar("Number", int, float)

SLOTS = 2
"""Batches with one worker: one running, one buffered, so that it never idles for a gateway round trip."""

_MOST_DIGITS = 7
"""Of a batch's size."""

_NO_ACTION = 0
"""The number of an action that no scheduler gives."""
_NOT_STARTED = (
    wire.ActionStatus.TOO_LATE,
    wire.ActionStatus.UNKNOWN_MODEL,
    wire.ActionStatus.NO_ROOM,
)
"""How an action ends that a replica has not begun."""


class Request(Protocol):
    """What is sent: a frame of the replica wire, in pieces."""

    @property
    def frame(self) -> Sequence[Buffer]:
        """The pieces."""
        ...

    @property
    def frame_bytes(self) -> int:
        """Their length."""
        ...

    @property
    def encoding(self) -> int:
        """How the frame is written."""
        ...

    @property
    def items(self) -> int:
        """Items along the batch axis."""
        ...


class _Nobody:
    """Waits for a request that is finished."""

    def answer(self, frame: memoryview) -> None:
        """Is not called."""

    def refuse(self, error: ServingError) -> None:
        """Is not called."""


_NOBODY = _Nobody()


class Job:
    """One request on its way, and who waits for the answer; the ticket of whoever submitted it.

    A waiter mostly holds its ticket. So a finished job lets go of its waiter: a cycle for each request would
    leave its buffers to the garbage collector, which then stops the server for milliseconds, thousands of
    requests at a time.
    """

    __slots__ = (
        "_dispatcher",
        "_id",
        "answers",
        "arrived_s",
        "due_s",
        "items",
        "model",
        "request",
        "waiter",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        id_: int,
        model: ModelId,
        request: Request,
        waiter: Waiter,
        arrived_s: float,
        due_s: float,
    ) -> None:
        self._dispatcher = dispatcher
        self._id = id_
        self.model = model
        self.request = request
        self.items = request.items
        self.waiter: Waiter = waiter
        self.arrived_s = arrived_s
        self.due_s = due_s
        """Its deadline."""
        self.answers: list[tuple[int, int, bytes]] | None = None
        """Answers of the parts of a split request: items [start, stop) and the frame."""

    def release(self) -> Waiter:
        """The waiter, of which the job knows no more."""
        waiter = self.waiter
        self.waiter = _NOBODY
        return waiter

    def cancel(self) -> None:
        """Nobody waits for it any more: the waiter will not be called. One that is finished stays so."""
        self._dispatcher.cancel(self._id)

    def batch(self) -> Batch | None:
        """See `waiter.Timed`."""
        return self._dispatcher.answering()


class BatchDone:
    """What is known of a batch that came back."""

    __slots__ = ("items", "late", "model", "parts", "times", "waited_s", "worker")

    def __init__(
        self,
        worker: int,
        model: ModelId,
        items: int,
        times: StageTimes,
        parts: int,
        waited_s: float,
        late: int,
    ) -> None:
        self.worker = worker
        self.model = model
        self.items = items
        self.times = times
        self.parts = parts
        """Requests in it, whole or in part, whose clients still wait."""
        self.waited_s = waited_s
        """Of these together, from their arrival until the batch was sent."""
        self.late = late
        """Those of them whose answer left after their deadline."""


class ActionEnded(NamedTuple):
    """What became of something that a replica was to do."""

    kind: Kind
    outcome: str
    """`ok`, `failed`, `lost` (with its replica), or why it was not begun: `too_late` (its window had closed),
    `no_room`, `unknown_model`."""
    expected_s: float
    """As the scheduler had predicted."""
    took_s: float | None
    """In the replica; None: it was not begun, or nothing was to be measured."""


class Wanted(NamedTuple):
    """What a replica is to load, and how."""

    card: ModelCard
    """The model version."""
    threads: int
    """What the model may use inside one operator."""
    max_items: int = 1
    """Items of the largest batch that it is warmed up with."""
    warmup_s: float = 0.0
    """Time for that; 0: it is not warmed up."""
    device: str = "auto"
    """Where it shall run: `accelerator.device`."""
    weights: pathlib.Path | None = None
    """Of the variant that it is to load; None: the card's."""
    root: pathlib.Path | None = None
    """Below which the replica finds the model's files, by their paths; None: where they are."""
    pages: int = 0
    """Memory that is counted for it."""
    budget: int | None = None
    """Pages of all models in the replica together, at most; None: no limit."""
    prepared: pathlib.Path | None = None
    """Folder of a form of the model that is loaded instead where it is there; None: it has none."""
    prepares: bool = False
    """Whether the form is to be made first."""
    identity: Identity | None = None
    """Of the model's files, as they were when it was deployed; None: unknown."""


class Loaded(NamedTuple):
    """What a replica says of a model that it has loaded."""

    signature: Signature
    load_s: float | None
    """Seconds that loading took, the warm-up included; None: it does not say."""
    warmup: Mapping[str, Any]
    """What was run before the first request, as docs/replica-wire.md has it; empty: it does not say."""
    device: str | None
    """Where it runs, `cpu` or `cuda`; None: it does not say."""
    memory_bytes: int | None = None
    """By how much the process has grown; None: it does not say."""

    @property
    def batch_s(self) -> dict[int, float]:
        """Items -> seconds of a batch in the warm-up; what makes no sense is left out, as any language may tell it."""
        return {
            items: seconds
            for items, seconds in self._by_size("batch_s").items()
            if isinstance(seconds, float) and 0.0 < seconds < math.inf
        }

    @property
    def stages_s(self) -> dict[int, tuple[float, float, float]]:
        """Items -> seconds of the same batch's inputs, model and outputs; empty where that is not told."""
        return {
            items: (stages[0], stages[1], stages[2])
            for items, stages in self._by_size("stages_s").items()
            if isinstance(stages, list)
            and len(stages) == 3
            and all(isinstance(each_s, float) and 0.0 <= each_s < math.inf for each_s in stages)
        }

    def _by_size(self, name: str) -> dict[int, Any]:
        """What the warm-up tells batch by batch, of sizes that make sense."""
        told = self.warmup.get(name)
        return {
            int(items): value
            for items, value in (told.items() if isinstance(told, dict) else ())
            if isinstance(items, str)
            and items.isdecimal()
            and len(items) <= _MOST_DIGITS
            and int(items) > 0
        }

    @property
    def warmed_s(self) -> float:
        """Seconds of the load that went into the warm-up."""
        return _number(self.warmup, "warmup_s", float) or 0.0


class Connection(asyncio.Protocol):
    """The gateway's end of one replica's socket."""

    def __init__(self, dispatcher: Dispatcher, worker: int) -> None:
        self.worker = worker
        self._dispatcher = dispatcher
        self._parser = wire.Parser(max_message_bytes=wire.MAX_RESULT_BYTES)
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()
        """Set when everything that the replica sent has been read, and its end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is in the loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """Bytes from the replica; garbage ends the connection, and with it the replica."""
        try:
            for kind, body in self._parser.feed(data):
                self._dispatcher.received(self.worker, kind, body)
        except wire.WireError as error:
            log.error("garbage from a replica", extra={"worker": self.worker, "error": str(error)})
            self._dispatcher.broken(self.worker, f"garbage on its socket: {error}")

    def connection_lost(self, _error: Exception | None) -> None:
        """The replica closed the socket, which it only does when it ends."""
        self._transport = None
        self.ended.set()
        self._dispatcher.broken(self.worker, None)

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue one message."""
        if self._transport is not None:
            self._transport.writelines(buffers)

    def close(self) -> None:
        """End the connection without waiting for what is unsent."""
        if self._transport is not None:
            self._transport.abort()


class _Worker:
    __slots__ = (
        "connection",
        "heard_s",
        "holds",
        "labels",
        "on_broken",
        "on_loaded",
        "sent",
        "wanted",
    )

    def __init__(
        self,
        connection: Connection,
        wanted: Callable[[ModelId], Wanted],
        on_loaded: Callable[[ModelId, Loaded | ServingError], None],
        on_broken: Callable[[str | None], None],
    ) -> None:
        self.connection = connection
        self.wanted = wanted
        self.on_loaded = on_loaded
        self.on_broken = on_broken
        self.holds: set[ModelId] = set()
        """What it has in memory."""
        self.heard_s = 0.0
        """When its last result came."""
        self.labels: dict[int, str] = {}
        """What loads that it has are of, for people."""
        self.sent: dict[int, tuple[Action, float]] = {}
        """Unfinished actions and when they were sent."""


class Dispatcher:
    """Runs one pool: one scheduler and its workers.

    All methods belong to the event loop's thread.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        on_batch: Callable[[BatchDone], None],
        on_action: Callable[[ActionEnded], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing waits yet.

        Args:
            scheduler: what decides.
            on_batch: called with each batch that came back.
            on_action: called with each action that ended; None: nobody asks.
            clock: the monotonic one.
        """
        self._scheduler = scheduler
        self._on_batch = on_batch
        self._on_action = on_action
        self._numbers: dict[ModelId, int] = {}
        """Of the models on the wire."""
        self._last_number = 0
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._loop, self._pump)
        self._jobs: dict[int, Job] = {}
        self._unfinished: dict[ModelId, int] = {}
        """Model -> its requests without an answer."""
        self._workers: dict[int, _Worker] = {}
        self._refusals: dict[ModelId, dict[str, int]] = {}
        self._retired: set[ModelId] = set()
        """Of these, models that are down, and had requests without an answer when they went."""
        self._last_id = 0
        self._answering: tuple[float, StageTimes] | None = None
        """The batch whose requests are being answered: when it was sent, and its times in the replica."""
        self._pumping = False
        self._unsent: list[tuple[Action, str]] = []
        """Batches of this turn that are too large for a message, and what was said of them."""

    # Requests

    def answering(self) -> Batch | None:
        """The batch whose requests are being answered."""
        return None if self._answering is None else Batch(*self._answering)

    @property
    def unfinished(self) -> int:
        """Requests without an answer."""
        return len(self._jobs)

    @property
    def waiting_items(self) -> int:
        """Items in the queue."""
        return self._scheduler.waiting_items

    def unfinished_of(self, model: ModelId) -> int:
        """Requests of a model without an answer."""
        return self._unfinished.get(model, 0)

    def waiting_of(self, model: ModelId) -> int:
        """Items of a model in the queue."""
        return self._scheduler.waiting_of(model)

    def refusals_of(self, model: ModelId) -> Mapping[str, int]:
        """Requests of a model that the scheduler has refused, by reason."""
        return self._refusals.get(model, {})

    def submit(
        self,
        request: Request,
        waiter: Waiter,
        model: ModelId,
        deadline_s: float,
        now_s: float,
        priority: int = 0,
        flow: str = "",
    ) -> Job:
        """Take a request; its waiter will be called once, not before this returns.

        Priority and flow are those of `seam.Submitted`.
        """
        self._last_id = id_ = self._last_id + 1
        self._jobs[id_] = job = Job(self, id_, model, request, waiter, now_s, deadline_s)
        self._unfinished[model] = self._unfinished.get(model, 0) + 1
        submitted = Submitted(id_, model, job.items, deadline_s, priority, flow)
        self._scheduler.on(submitted, now_s)
        if not self._pumping:  # `_pump_soon`, without a call of Python's for every request
            self._pumping = True
            self._loop.call_soon(self._pump)
        return job

    def cancel(self, id_: int) -> None:
        """Nobody waits any more: the waiter will not be called. Unknown ids are ignored."""
        job = self._jobs.pop(id_, None)
        if job is not None:
            self._unfinished[job.model] -= 1
            job.release()
            self._scheduler.on(Cancelled(id_), self._clock())
            self._pump_soon()

    def model_up(self, event: ModelUp) -> None:
        """A model may be asked for, and loaded by any worker."""
        self._forget_retired()
        self._retired.discard(event.model)
        self._scheduler.on(event, self._clock())

    def reserve_number(self, number: int, model: ModelId | None = None) -> bool:
        """A replica calls a model by this number since before this dispatcher was there, and no other may have it.

        Args:
            number: on the wire.
            model: what it is here; None: nothing.

        Returns:
            Whether the model is called so here, too: not where it has another number already.
        """
        self._last_number = max(self._last_number, number)
        return model is not None and self._numbers.setdefault(model, number) == number

    def was_loaded(self, model: ModelId) -> bool:
        """Whether replicas have been told to load it, and may still hold it, or be told to unload it."""
        return model in self._numbers

    def profiled(self, event: Profiled) -> None:
        """A model was measured anew."""
        self._scheduler.on(event, self._clock())
        self._pump()

    def model_down(self, model: ModelId) -> None:
        """A model will not be asked for any more; who waits for it is refused."""
        self._scheduler.on(ModelDown(model), self._clock())
        self._pump()
        self._retired.add(model)
        self._forget_retired()

    def _forget_retired(self) -> None:
        """Models that are down and have nothing left to answer."""
        for model in [one for one in self._retired if not self.unfinished_of(one)]:
            self._retired.discard(model)
            self._unfinished.pop(model, None)
            self._refusals.pop(model, None)

    def settings_changed(self, settings: ServingSettings, *, keep_learnt: bool) -> None:
        """New settings for the scheduler, from now on."""
        self._scheduler.on(SettingsChanged(settings, keep_learnt), self._clock())
        self._pump()

    # Workers

    def worker_up(
        self,
        connection: Connection,
        *,
        wanted: Callable[[ModelId], Wanted],
        on_loaded: Callable[[ModelId, Loaded | ServingError], None],
        on_broken: Callable[[str | None], None],
        pages: int | None = None,
        loaded: Sequence[ModelId] = (),
        unwanted: Sequence[int] = (),
    ) -> None:
        """A replica is connected; the scheduler will have it load models.

        Args:
            connection: its socket.
            wanted: how a model is to be loaded there.
            on_loaded: called after each load with what the replica says of the model, or with why it could not
                be loaded.
            on_broken: called when the connection breaks, with what the replica did wrong, if it did.
            pages: memory for models there; None: as many as there are.
            loaded: models that it holds already.
            unwanted: numbers of others that it holds, too, and is to unload first.
        """
        known = _Worker(connection, wanted, on_loaded, on_broken)
        known.holds.update(loaded)
        self._workers[connection.worker] = known
        for number in unwanted:  # no scheduler has planned it, so no answer is waited for
            connection.send([wire.encode_unload(_NO_ACTION, model=number)])
        up = WorkerUp(connection.worker, SLOTS, pages, tuple(loaded))
        self._scheduler.on(up, self._clock())
        self._pump()

    def worker_draining(self, worker: int) -> None:
        """The worker gets nothing new."""
        self._scheduler.on(WorkerDraining(worker), self._clock())

    def worker_down(self, worker: int, reason: str) -> None:
        """The worker is gone; what it held is given to another one, or refused."""
        known = self._workers.pop(worker, None)
        if known is None:
            return
        known.connection.close()
        if self._on_action is not None:
            for action, _ in known.sent.values():
                self._on_action(ActionEnded(action.kind, "lost", action.expected_s, None))
        self._scheduler.on(WorkerDown(worker, reason), self._clock())
        self._pump()

    def holds(self, worker: int) -> int:
        """Unfinished actions of a worker."""
        known = self._workers.get(worker)
        return len(known.sent) if known else 0

    def held(self) -> dict[int, frozenset[ModelId]]:
        """What is in the memory of each worker."""
        return {worker: frozenset(known.holds) for worker, known in self._workers.items()}

    def is_loading(self, worker: int) -> bool:
        """Whether what the worker is at is a load."""
        known = self._workers.get(worker)
        if known is None or not known.sent:
            return False
        return next(iter(known.sent.values()))[0].kind is Kind.LOAD

    def oldest_sent_s(self, worker: int) -> float | None:
        """Since when the worker has been at its oldest unfinished action: a buffered one waits its turn."""
        known = self._workers.get(worker)
        if known is None or not known.sent:
            return None
        return max(known.heard_s, next(iter(known.sent.values()))[1])

    def broken(self, worker: int, fault: str | None) -> None:
        """A connection cannot be used any more, by the replica's fault or because it ended.

        What the worker holds waits for `worker_down`, which knows the reason; what it does not hold yet
        must not get there: it could not be sent, and would lose one of its two lives.
        """
        known = self._workers.get(worker)
        if known is not None:
            self.worker_draining(worker)
            known.on_broken(fault)

    def _out_of_step(self, worker: int, fault: str) -> None:
        """What a replica holds is not what the scheduler knows: it is replaced, and others run what it was given.

        To try again would be answered the same way. The scheduler is not told how the action ended: that it is
        lost with its worker ends the requests that fail so twice.
        """
        fault = f"its memory is out of step: {fault}"
        log.error("a replica is replaced", extra={"worker": worker, "error": fault})
        self.broken(worker, fault)

    def close(self, label: str) -> None:
        """Refuse whoever still waits, saying what is not served any more, and forget the workers."""
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            self._unfinished[job.model] -= 1
            refuse(job.release(), NotReady(f"{label} is not served any more; send it again"))
        for known in self._workers.values():
            known.connection.close()
        self._workers.clear()
        self._alarm.close()

    # The turn

    def _pump(self) -> None:
        self._pumping = False
        now_s = self._clock()
        plan = self._scheduler.plan(now_s)
        for action in plan.actions:
            self._send(action, now_s)
        for refusal in plan.refusals:
            self._refuse(refusal)
        if self._unsent:
            self._take_back(now_s)
        self._alarm.set(plan.wake_at_s)

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _send(self, action: Action, now_s: float) -> None:
        known = self._workers[action.worker]
        if action.kind is Kind.INFER:
            try:
                message = self._infer_message(action)
            except wire.WireError as error:
                self._unsent.append((action, str(error)))
                return
            known.sent[action.id] = (action, now_s)
            known.connection.send(message)
            return
        known.sent[action.id] = (action, now_s)
        if action.kind is Kind.LOAD:
            wanted = known.wanted(action.model)
            known.labels[action.id] = wanted.card.label
            known.connection.send([self._load_message(action, wanted)])
        else:
            earliest_ns, latest_ns = _window_ns(action)
            unload = wire.encode_unload(
                action.id,
                model=self.number(action.model),
                earliest_ns=earliest_ns,
                latest_ns=latest_ns,
            )
            known.connection.send([unload])

    def _take_back(self, now_s: float) -> None:
        """Of batches that are too large the members go alone, and one that is too large alone is refused."""
        unsent, self._unsent = self._unsent, []
        for action, text in unsent:
            log.info("a batch is too large for a message", extra={"error": text})
            if len(action.parts) == 1:
                error = RequestTooLarge(wire.DEFAULT_MAX_MESSAGE_BYTES)
                self._give_up(action.parts[0][0], error, now_s)
            self._scheduler.on(Result(action.id, action.worker, False, None, too_large=True), now_s)
        self._pump_soon()

    def number(self, model: ModelId) -> int:
        """What a model is called on the wire."""
        number = self._numbers.get(model)
        if number is None:
            number = self._numbers[model] = self._last_number = self._last_number + 1
        return number

    def _load_message(self, action: Action, wanted: Wanted) -> bytes:
        card = wanted.card
        weights = _found(wanted.weights or card.path, wanted.root)
        samples = _found(card.sample, wanted.root)
        known = wanted.identity
        stamps = known.stamps if known else {}
        earliest_ns, latest_ns = _window_ns(action)
        return wire.encode_load(
            action.id,
            model=self.number(action.model),
            name=card.name,
            version=card.version,
            kind=card.kind,
            path=weights,
            threads=wanted.threads,
            samples=samples,
            max_items=wanted.max_items,
            warmup_s=wanted.warmup_s,
            device=wanted.device,
            pages=wanted.pages,
            budget=wanted.budget,
            prepared=None if wanted.prepared is None else str(wanted.prepared),
            prepares=wanted.prepares,
            digest=known.digest if known else None,
            stamps={str(placed(path, wanted.root)): one for path, one in stamps.items()},
            earliest_ns=earliest_ns,
            latest_ns=latest_ns,
        )

    def _infer_message(self, action: Action) -> list[Buffer]:
        frames: list[tuple[int, int, int, int]] = []
        message: list[Buffer] = [b""]
        jobs = self._jobs
        for id_, start, stop in action.parts:
            job = jobs[id_]
            request = job.request
            if stop - start != job.items:
                buffers = parts_of.cut(request.frame, request.encoding, start, stop)
                if buffers is not None:
                    frames.append((sum(map(len, buffers)), request.encoding, 0, 0))
                    message += buffers
                    continue
                frames.append((request.frame_bytes, request.encoding, start, stop))
            else:
                frames.append((request.frame_bytes, request.encoding, 0, 0))
            message += request.frame
        message[0] = wire.infer_head(
            action.id, self._numbers[action.model], *_window_ns(action), frames
        )
        return message

    # Messages of replicas

    def received(self, worker: int, kind: wire.MessageType, body: memoryview) -> None:
        """One message from a replica."""
        if kind is wire.MessageType.RESULT:
            self._result(worker, wire.parse_result(body))
        elif kind is wire.MessageType.LOADED:
            self._loaded(worker, body)
        elif kind is wire.MessageType.UNLOADED:
            self._unloaded(worker, body)
        else:
            raise wire.WireError(f"message {kind.name} is not expected from a replica")

    def _loaded(self, worker: int, body: memoryview) -> None:
        message = wire.parse_loaded(body)
        known = self._workers.get(worker)
        sent = known.sent.pop(message.action_id, None) if known is not None else None
        if known is None or sent is None:
            return
        action, sent_s = sent
        model, label = action.model, known.labels.pop(action.id, "")
        known.heard_s = self._clock()
        if message.status == wire.ActionStatus.NO_ROOM and action.latest_s < math.inf:
            self._ended(action, message.status, None)
            self._out_of_step(worker, "it has no room for a model within its budget")
            return
        ok = message.status == wire.ActionStatus.OK
        times = _load_times(message.detail, sent_s)
        if times is None and message.status != wire.ActionStatus.TOO_LATE:
            times = StageTimes(0.0, 0.0, self._clock() - sent_s, 0.0)
        self._scheduler.on(Result(action.id, worker, ok, times), self._clock())
        if ok:
            known.holds.add(model)
        self._ended(action, message.status, times)
        if message.status in _NOT_STARTED and action.latest_s < math.inf:
            pass  # it is no fault of the model, and will be tried again
        elif ok:
            known.on_loaded(model, _what_was_loaded(message.detail))
        else:
            kind = ModelMissing if message.detail.get("is_missing") is True else ModelLoadFailed
            known.on_loaded(model, kind(label, str(message.detail.get("error"))))
        self._pump()

    def _unloaded(self, worker: int, body: memoryview) -> None:
        message = wire.parse_unloaded(body)
        known = self._workers.get(worker)
        sent = known.sent.pop(message.action_id, None) if known is not None else None
        if known is None or sent is None:
            return
        action = sent[0]
        ok = message.status == wire.ActionStatus.OK
        known.holds.discard(action.model)
        self._ended(action, message.status, None)
        self._scheduler.on(Result(message.action_id, worker, ok, None), self._clock())
        self._pump()

    def _result(self, worker: int, message: wire.ResultMessage) -> None:
        known = self._workers.get(worker)
        sent = known.sent.pop(message.action_id, None) if known is not None else None
        if sent is None:
            return
        action, sent_s = sent
        if len(message.entries) != len(action.parts):
            raise wire.WireError(
                f"{len(message.entries)} answers for {len(action.parts)} requests of a batch"
            )
        took = message.times
        times = StageTimes(
            max(0.0, took.started_ns * 1e-9 - sent_s),
            took.input_ns * 1e-9,
            took.exec_ns * 1e-9,
            took.output_ns * 1e-9,
        )
        assert known is not None  # it held the action
        clock = self._clock
        known.heard_s = now_s = clock()
        if self._on_action is not None:
            self._ended(action, message.status, times)
        if message.status == wire.ActionStatus.UNKNOWN_MODEL:
            self._out_of_step(worker, "it does not hold a model that it had loaded")
            return
        too_large = message.status == wire.ActionStatus.TOO_LARGE and len(action.parts) > 1
        if too_large or message.status in _NOT_STARTED:  # the scheduler says what follows
            self._scheduler.on(Result(action.id, worker, False, times, too_large), now_s)
            self._pump()
            return
        self._scheduler.on(Result(action.id, worker, True, times), now_s)
        self._pump()
        self._answering = (sent_s, times)
        jobs = self._jobs
        items = parts = late = 0
        waited_s = 0.0
        for (id_, start, stop), (status, frame) in zip(action.parts, message.entries, strict=True):
            items += stop - start
            job = jobs.get(id_)
            if job is None:
                continue
            parts += 1
            waited_s += sent_s - job.arrived_s
            if status:
                self._fail(id_, status, frame)
            elif stop - start == job.items:
                del jobs[id_]
                self._unfinished[action.model] -= 1
                waiter = job.release()
                try:  # `waiter.answer`, without a call of Python's for every request
                    waiter.answer(frame)
                except Exception as error:
                    spoilt(waiter, error)
                if clock() > job.due_s:
                    late += 1
            elif self._join(id_, job, start, stop, frame) and clock() > job.due_s:
                late += 1
        self._answering = None
        self._on_batch(BatchDone(worker, action.model, items, times, parts, waited_s, late))

    def _ended(self, action: Action, status: int, times: StageTimes | None) -> None:
        """Tell who asks what became of an action."""
        if self._on_action is None:
            return
        outcome = "ok" if status == wire.ActionStatus.OK else "failed"
        took_s = None if times is None else times.input_s + times.exec_s + times.output_s
        if status in _NOT_STARTED:
            outcome, took_s = wire.ActionStatus(status).name.lower(), None
        self._on_action(ActionEnded(action.kind, outcome, action.expected_s, took_s))

    def _join(self, id_: int, job: Job, start: int, stop: int, frame: memoryview) -> bool:
        """Keep the answer of a part; returns whether it was the last one, and the request is answered."""
        if job.answers is None:
            job.answers = []
        job.answers.append((start, stop, bytes(frame)))
        if sum(end - begin for begin, end, _ in job.answers) < job.items:
            return False
        del self._jobs[id_]
        self._unfinished[job.model] -= 1
        try:
            joined = parts_of.join([answer for _, _, answer in sorted(job.answers)])
        except wire.WireError as error:
            refuse(job.release(), error)
        else:
            answer(job.release(), joined)
        return True

    def _fail(self, id_: int, status: int, frame: memoryview) -> None:
        text = bytes(frame).decode("utf-8", "replace")
        bad_input = status == wire.ActionStatus.INVALID_INPUT
        error: ServingError = InvalidRequest(text) if bad_input else PredictionFailed(text)
        self._give_up(id_, error, self._clock())

    def _give_up(self, id_: int, error: ServingError, now_s: float) -> None:
        """A request is refused, whatever of it still waits, if it has no end yet."""
        job = self._jobs.pop(id_, None)
        if job is not None:
            self._unfinished[job.model] -= 1
            self._scheduler.on(Cancelled(id_), now_s)
            self._pump_soon()
            refuse(job.release(), error)

    def _refuse(self, refusal: Refusal) -> None:
        job = self._jobs.pop(refusal.id, None)
        if job is None:
            return
        self._unfinished[job.model] -= 1
        counts = self._refusals.setdefault(job.model, {})
        reason = refusal.reason.value
        counts[reason] = counts.get(reason, 0) + 1
        refuse(job.release(), _error_of(refusal))


def _window_ns(action: Action) -> tuple[int, int]:
    """The action's window on the wire: nanoseconds of CLOCK_MONOTONIC, 0 where it is open."""
    latest_ns = 0 if action.latest_s == math.inf else int(action.latest_s * 1e9)
    return int(action.earliest_s * 1e9), latest_ns


def _found(path: pathlib.Path | None, root: pathlib.Path | None) -> str | None:
    """A path of this machine as the wire has it."""
    return None if path is None else str(placed(path, root))


def _what_was_loaded(detail: Mapping[str, Any]) -> Loaded:
    try:
        signature = Signature.from_json(detail["signature"])
    except (KeyError, TypeError, ValueError) as error:
        raise wire.WireError(f"LOADED holds no signature: {error!r}") from error
    warmup, device = detail.get("warmup"), detail.get("device")
    return Loaded(
        signature,
        _number(detail, "load_s", float),
        warmup if isinstance(warmup, dict) else {},
        device if isinstance(device, str) else None,
        _number(detail, "memory_bytes", int),
    )


def _load_times(detail: Mapping[str, Any], sent_s: float) -> StageTimes | None:
    """When a replica began to load, and how long it took; None where it does not say."""
    started_ns, load_s = _number(detail, "started_ns", int), _number(detail, "load_s", float)
    if started_ns is None or load_s is None:
        return None
    return StageTimes(max(0.0, started_ns * 1e-9 - sent_s), 0.0, load_s, 0.0)


def _number(detail: Mapping[str, Any], name: str, kind: type[Number]) -> Number | None:
    """One that a replica tells, which may be in any language; None where it is missing or makes no sense."""
    value = detail.get(name)
    if kind is float and type(value) is int:
        value = float(value)
    is_one = isinstance(value, kind) and not isinstance(value, bool) and 0 <= value < math.inf
    return value if is_one else None


def _error_of(refusal: Refusal) -> ServingError:
    match refusal.reason:
        case Reason.QUEUE_FULL:
            return Overloaded(int(refusal.detail), retry_after_s=1.0)
        case Reason.HOPELESS:
            return Hopeless()
        case Reason.DEADLINE_IN_QUEUE:
            return DeadlineExceeded("queue")
        case Reason.DEADLINE_IN_REPLICA:
            return DeadlineExceeded("replica")
        case Reason.CANNOT_FINISH:
            return CannotFinish(retry_after_s=1.0)
        case Reason.CANNOT_LOAD:
            return CannotLoad(retry_after_s=1.0)
        case Reason.WORKER_LOST:
            return ReplicaFailed(refusal.detail)
        case Reason.NOT_STARTED:
            return PredictionFailed("two replicas did not start the batch that held the request")
