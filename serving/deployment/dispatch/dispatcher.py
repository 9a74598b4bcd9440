"""Sends a scheduler's actions to replicas and calls every response handler exactly once.

- A handler is registered before the scheduler sees its request, and removed when it is completed;
  later results are dropped.
- The scheduler plans once per turn of the event loop, for all new requests, and once per message.
- One timer is set to the plan's next wake-up.

Knows no HTTP, tensors or processes: a replica is a connection.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping

from serving import wire
from serving.deployment.dispatch.actions import infer_message, load_message, unload_message
from serving.deployment.dispatch.connection import ReplicaConnection
from serving.deployment.dispatch.events import (
    NOT_STARTED,
    ActionEnded,
    BatchDone,
    make_action_ended,
)
from serving.deployment.dispatch.inflight import NO_HANDLER, InflightRequest, RequestFrame
from serving.deployment.dispatch.model_load import (
    LoadReport,
    LoadSpec,
    load_times,
    parse_load_report,
)
from serving.deployment.dispatch.rejection_errors import error_for
from serving.deployment.dispatch.worker import ConnectedReplica
from serving.errors import (
    InferenceFailed,
    InvalidRequest,
    ModelLoadFailed,
    ModelMissing,
    NotReady,
    RequestTooLarge,
    ServingError,
    SplitTooLarge,
)
from serving.response_handler import (
    BatchInfo,
    ResponseHandler,
    deliver_error,
    deliver_result,
    fail_handler,
)
from serving.scheduling.interface import (
    Action,
    ActionResult,
    ActionType,
    Cancelled,
    ModelDown,
    ModelUp,
    Profiled,
    Rejection,
    Scheduler,
    SettingsChanged,
    WorkerDown,
    WorkerDraining,
    WorkerUp,
)
from serving.settings import ServingSettings
from serving.system.log_rate_limit import LogRateLimiter
from serving.system.timer import Timer
from serving.values import ModelId, Signature, StageTimes

log = logging.getLogger(__name__)

SLOTS = 2
"""Batches per worker: one running, one buffered, to hide the gateway's latency."""

_LATE_LOOK_S = 10.0
"""Later deadlines are not compared with the clock."""

_LOG_EVERY_S = 1.0


class Dispatcher:
    """Runs a pool: one scheduler and its workers.

    All methods must run on the event loop's thread.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        on_batch: Callable[[BatchDone], None],
        on_action: Callable[[ActionEnded], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without requests or workers.

        `on_batch` is called with each completed batch, `on_action` with each ended action; `clock`
        is monotonic.
        """
        self._scheduler = scheduler
        self._on_batch = on_batch
        self._on_action = on_action
        self._numbers: dict[ModelId, int] = {}
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._alarm = Timer(self._loop, self._pump)
        self._jobs: dict[int, InflightRequest] = {}
        self._unfinished: dict[ModelId, int] = {}
        self._workers: dict[int, ConnectedReplica] = {}
        self._refusals: dict[ModelId, dict[str, int]] = {}
        self._axes: dict[ModelId, dict[str, int]] = {}
        """Models whose items are not rows of all tensors -> item axis per output."""
        self._retired: set[ModelId] = set()
        self._last_id = 0
        self._current_batch: tuple[float, StageTimes] | None = None
        self._pumping = False
        self._unsent: list[tuple[Action, ServingError]] = []
        self._told = LogRateLimiter(_LOG_EVERY_S)

    # Requests

    def current_batch(self) -> BatchInfo | None:
        """Batch whose responses are being delivered."""
        return None if self._current_batch is None else BatchInfo(*self._current_batch)

    @property
    def inflight_count(self) -> int:
        """In-flight requests."""
        return len(self._jobs)

    @property
    def waiting_items(self) -> int:
        """Queued items."""
        return self._scheduler.waiting_items

    def inflight_count_of(self, model: ModelId) -> int:
        """In-flight requests of a model."""
        return self._unfinished.get(model, 0)

    def waiting_of(self, model: ModelId) -> int:
        """Queued items of a model."""
        return self._scheduler.waiting_of(model)

    def refusals_of(self, model: ModelId) -> Mapping[str, int]:
        """A model's rejections by the scheduler, by reason."""
        return self._refusals.get(model, {})

    def submit(
        self,
        request: RequestFrame,
        handler: ResponseHandler,
        model: ModelId,
        deadline_s: float,
        now_s: float,
        priority: int = 0,
        flow: str = "",
    ) -> InflightRequest:
        """Submit a request; its handler is called once, after this returns."""
        self._last_id = id_ = self._last_id + 1
        self._jobs[id_] = job = InflightRequest(
            self, id_, model, request, handler, now_s, deadline_s, priority, flow
        )
        self._unfinished[model] = self._unfinished.get(model, 0) + 1
        self._scheduler.on(job, now_s)
        if not self._pumping:  # `_pump_soon`, inlined for speed
            self._pumping = True
            self._loop.call_soon(self._pump)
        return job

    def cancel(self, id_: int) -> None:
        """Cancel a request, whose handler is not called; ignore unknown ids."""
        job = self._jobs.pop(id_, None)
        if job is not None:
            self._unfinished[job.model] -= 1
            job.release()
            self._scheduler.on(Cancelled(id_), self._clock())
            self._pump_soon()

    def model_up(self, event: ModelUp) -> None:
        """Announce a model that may be requested, and loaded by any worker."""
        self._forget_retired()
        self._retired.discard(event.model)
        self._scheduler.on(event, self._clock())

    def number_of(self, model: ModelId) -> int:
        """Wire id of a model."""
        return self._numbers.setdefault(model, len(self._numbers) + 1)

    def has_numbered(self, model: ModelId) -> bool:
        """Whether replicas were told to load a model."""
        return model in self._numbers

    def set_item_axes(self, model: ModelId, signature: Signature) -> None:
        """Set the item axes of a model, for split requests."""
        if all(spec.item_axis == 0 for spec in (*signature.inputs, *signature.outputs)):
            self._axes.pop(model, None)
        else:
            self._axes[model] = {spec.name: spec.item_axis or 0 for spec in signature.outputs}

    def update_profile(self, event: Profiled) -> None:
        """Apply a new profile."""
        self._scheduler.on(event, self._clock())
        self._pump()

    def model_down(self, model: ModelId) -> None:
        """Remove a model and reject its requests."""
        self._scheduler.on(ModelDown(model), self._clock())
        self._pump()
        self._retired.add(model)
        self._forget_retired()

    def _forget_retired(self) -> None:
        for model in [one for one in self._retired if not self.inflight_count_of(one)]:
            self._retired.discard(model)
            self._unfinished.pop(model, None)
            self._refusals.pop(model, None)
            self._axes.pop(model, None)

    def settings_changed(self, settings: ServingSettings, *, keep_learned: bool) -> None:
        """Pass new settings to the scheduler."""
        self._scheduler.on(SettingsChanged(settings, keep_learned), self._clock())
        self._pump()

    # Workers

    def worker_up(
        self,
        connection: ReplicaConnection,
        *,
        wanted: Callable[[ModelId], LoadSpec],
        on_loaded: Callable[[ModelId, LoadReport | ServingError], None],
        on_connection_lost: Callable[[str | None], None],
        pages: int | None = None,
    ) -> None:
        """Add a connected replica.

        Args:
            wanted: returns how to load a model.
            on_loaded: called after each load.
            on_connection_lost: called with the replica's fault, if any.
            pages: memory for models; None: no limit.
        """
        self._workers[connection.worker] = ConnectedReplica(
            connection, wanted, on_loaded, on_connection_lost
        )
        self._scheduler.on(WorkerUp(connection.worker, SLOTS, pages), self._clock())
        self._pump()

    def worker_draining(self, worker: int) -> None:
        """Give a worker nothing new; its reservations move elsewhere."""
        self._scheduler.on(WorkerDraining(worker), self._clock())
        self._pump_soon()

    def worker_down(self, worker: int, reason: str) -> None:
        """Remove a worker; its requests are retried elsewhere or rejected."""
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
        """A worker's unfinished actions."""
        known = self._workers.get(worker)
        return len(known.sent) if known else 0

    def loaded_models(self) -> dict[int, frozenset[ModelId]]:
        """Loaded models per worker."""
        return {worker: frozenset(known.loaded) for worker, known in self._workers.items()}

    def is_loading(self, worker: int) -> bool:
        """Whether a worker's current action is a load."""
        known = self._workers.get(worker)
        return known is not None and known.is_loading

    def oldest_sent_s(self, worker: int) -> float | None:
        """See `ConnectedReplica.oldest_sent_s`."""
        known = self._workers.get(worker)
        return None if known is None else known.oldest_sent_s

    def connection_lost(self, worker: int, fault: str | None) -> None:
        """Handle a lost connection.

        Its actions wait for `worker_down`, which knows the reason.
        """
        known = self._workers.get(worker)
        if known is not None:
            self.worker_draining(worker)
            known.on_connection_lost(fault)

    def _out_of_step(self, worker: int, fault: str) -> None:
        """Replace a replica whose models differ from the scheduler's state.

        The scheduler sees a lost worker, which ends requests that fail twice.
        """
        fault = f"its memory is inconsistent: {fault}"
        log.error("a replica is replaced", extra={"worker": worker, "error": fault})
        self.connection_lost(worker, fault)

    def close(self, label: str) -> None:
        """Reject remaining requests and forget all workers."""
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            self._unfinished[job.model] -= 1
            deliver_error(job.release(), NotReady(f"{label} is no longer served; send it again"))
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
        if action.kind is ActionType.INFER:
            try:
                message = infer_message(
                    action,
                    self._jobs,
                    self.number_of(action.model),
                    has_rows=action.model not in self._axes,
                )
            except (wire.WireError, SplitTooLarge) as error:
                self._unsent.append((action, error))
                return
            known.sent[action.id] = (action, now_s)
            known.connection.send(message)
            return
        known.sent[action.id] = (action, now_s)
        if action.kind is ActionType.LOAD:
            wanted = known.wanted(action.model)
            known.labels[action.id] = wanted.spec.label
            known.connection.send([load_message(action, wanted, self.number_of(action.model))])
        else:
            known.connection.send([unload_message(action, self.number_of(action.model))])

    def _take_back(self, now_s: float) -> None:
        """Run members of too large batches solo; reject one that is too large alone."""
        unsent, self._unsent = self._unsent, []
        for action, why in unsent:
            untold = self._told.allow(now_s)
            if untold is not None:
                extra = {"error": str(why), "untold": untold}
                log.info("a batch is too large for a message", extra=extra)
            if len(action.parts) == 1:
                is_told = isinstance(why, SplitTooLarge)
                error = why if is_told else RequestTooLarge(wire.DEFAULT_MAX_MESSAGE_BYTES)
                self._give_up(action.parts[0][0], error, now_s)
            self._scheduler.on(
                ActionResult(action.id, action.worker, False, None, too_large=True), now_s
            )
        self._pump_soon()

    # Messages of replicas

    def on_message(self, worker: int, kind: wire.MessageType, body: memoryview) -> None:
        """Handle a replica's message."""
        if kind is wire.MessageType.RESULT:
            self._result(worker, wire.parse_result(body))
        elif kind is wire.MessageType.LOADED:
            self._on_loaded(worker, body)
        elif kind is wire.MessageType.UNLOADED:
            self._on_unloaded(worker, body)
        else:
            raise wire.WireError(f"message {kind.name} is not expected from a replica")

    def _on_loaded(self, worker: int, body: memoryview) -> None:
        message = wire.parse_loaded(body)
        known = self._workers.get(worker)
        sent = known.sent.pop(message.action_id, None) if known is not None else None
        if known is None or sent is None:
            return
        action, sent_s = sent
        model, label = action.model, known.labels.pop(action.id, "")
        known.last_result_s = self._clock()
        if message.status == wire.ActionStatus.NO_ROOM and action.latest_s < math.inf:
            self._report_action(action, message.status, None)
            self._out_of_step(worker, "it has no room for a model within its budget")
            return
        ok = message.status == wire.ActionStatus.OK
        times = load_times(message.detail, sent_s)
        if times is None and message.status != wire.ActionStatus.TOO_LATE:
            times = StageTimes(0.0, 0.0, self._clock() - sent_s, 0.0)
        self._scheduler.on(ActionResult(action.id, worker, ok, times), self._clock())
        if ok:
            known.loaded.add(model)
        self._report_action(action, message.status, times)
        if message.status in NOT_STARTED and action.latest_s < math.inf:
            pass  # not the model's fault: retried
        elif ok:
            loaded = parse_load_report(message.detail)
            self.set_item_axes(model, loaded.signature)
            known.on_loaded(model, loaded)
        else:
            kind = ModelMissing if message.detail.get("is_missing") is True else ModelLoadFailed
            known.on_loaded(model, kind(label, str(message.detail.get("error"))))
        self._pump()

    def _on_unloaded(self, worker: int, body: memoryview) -> None:
        message = wire.parse_unloaded(body)
        known = self._workers.get(worker)
        sent = known.sent.pop(message.action_id, None) if known is not None else None
        if known is None or sent is None:
            return
        action = sent[0]
        ok = message.status == wire.ActionStatus.OK
        known.loaded.discard(action.model)
        self._report_action(action, message.status, None)
        self._scheduler.on(ActionResult(message.action_id, worker, ok, None), self._clock())
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
        assert known is not None
        known.last_result_s = now_s = self._clock()
        if self._on_action is not None:
            self._report_action(action, message.status, times)
        if message.status == wire.ActionStatus.UNKNOWN_MODEL:
            self._out_of_step(worker, "it does not hold a model that it had loaded")
            return
        too_large = message.status == wire.ActionStatus.TOO_LARGE and len(action.parts) > 1
        if too_large or message.status in NOT_STARTED:  # the scheduler decides
            ran = None if message.status in NOT_STARTED else times
            self._scheduler.on(ActionResult(action.id, worker, False, ran, too_large), now_s)
            self._pump()
            return
        self._scheduler.on(ActionResult(action.id, worker, True, times), now_s)
        self._pump()
        self._current_batch = (sent_s, times)
        try:
            self._deliver(action, message, sent_s, times, now_s, known.connection.max_message_bytes)
        finally:
            self._current_batch = None

    def _deliver(
        self,
        action: Action,
        message: wire.ResultMessage,
        sent_s: float,
        times: StageTimes,
        now_s: float,
        most: int,
    ) -> None:
        jobs, clock = self._jobs, self._clock
        items = parts = late = answered = 0
        waited_s = 0.0
        soon_s = now_s + _LATE_LOOK_S
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
                answered += 1
                handler, job.handler = job.handler, NO_HANDLER  # as `release`
                try:  # `handler.on_result`, inlined for speed
                    handler.on_result(frame)
                except Exception as error:
                    fail_handler(handler, error)
                if job.deadline_s < soon_s and clock() > job.deadline_s:
                    late += 1
            elif self._join(id_, job, start, stop, frame, most) and clock() > job.deadline_s:
                late += 1
        if answered:
            self._unfinished[action.model] -= answered
        self._on_batch(BatchDone(action.worker, action.model, items, times, parts, waited_s, late))

    def _report_action(self, action: Action, status: int, times: StageTimes | None) -> None:
        if self._on_action is not None:
            self._on_action(make_action_ended(action, status, times))

    def _join(
        self,
        id_: int,
        job: InflightRequest,
        start: int,
        stop: int,
        frame: memoryview,
        max_bytes: int,
    ) -> bool:
        """Store a part's response; return whether it completed the request."""
        split = job.split
        assert split is not None, "it was cut when the part was sent"
        if split.response_bytes + len(frame) > max_bytes:
            text = f"too large for one message: the answers to the request's parts, at most {max_bytes} bytes fit"
            self._give_up(id_, InferenceFailed(text), self._clock())
            return False
        if not split.add_part(start, stop, frame):
            return False
        del self._jobs[id_]
        self._unfinished[job.model] -= 1
        try:
            joined = split.join_response(self._axes.get(job.model, {}))
        except wire.WireError as error:
            deliver_error(job.release(), error)
        else:
            deliver_result(job.release(), joined)
        return True

    def _fail(self, id_: int, status: int, frame: memoryview) -> None:
        text = bytes(frame).decode("utf-8", "replace")
        bad_input = status == wire.ActionStatus.INVALID_INPUT
        error: ServingError = InvalidRequest(text) if bad_input else InferenceFailed(text)
        self._give_up(id_, error, self._clock())

    def _give_up(self, id_: int, error: ServingError, now_s: float) -> None:
        job = self._jobs.pop(id_, None)
        if job is not None:
            self._unfinished[job.model] -= 1
            self._scheduler.on(Cancelled(id_), now_s)
            self._pump_soon()
            deliver_error(job.release(), error)

    def _refuse(self, refusal: Rejection) -> None:
        job = self._jobs.pop(refusal.id, None)
        if job is None:
            return
        self._unfinished[job.model] -= 1
        counts = self._refusals.setdefault(job.model, {})
        reason = refusal.reason.value
        counts[reason] = counts.get(reason, 0) + 1
        deliver_error(job.release(), error_for(refusal))
