"""Dispatcher of a scheduler's actions to replicas, and of their responses to response handlers.

The scheduler plans once per turn of the event loop, for all new requests, and once per message from
a replica. One timer is set to the plan's next wake-up. Replicas are seen only as connections.
"""

from __future__ import annotations

import collections
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable

from serving import wire
from serving.deployment.dispatch.actions import infer_message, load_message, unload_message
from serving.deployment.dispatch.connection import ReplicaConnection
from serving.deployment.dispatch.model_load import load_times, parse_load_report
from serving.deployment.dispatch.request_table import BatchDone, RequestTable
from serving.errors import (
    ModelLoadFailed,
    ModelMissing,
    ReplicaStartFailed,
    RequestTooLarge,
    ServingError,
    SplitTooLarge,
)
from serving.scheduling.interface import (
    Action,
    ActionResult,
    ActionType,
    ModelDown,
    ModelUp,
    Profiled,
    Scheduler,
    SettingsChanged,
    WorkerDraining,
    WorkersDown,
    WorkerUp,
)
from serving.system.log_rate_limit import LogRateLimiter
from serving.system.timer import Timer
from serving.values import ModelId, StageTimes

log = logging.getLogger(__name__)

SLOTS = 2
"""Maximum number of batches per worker: one running, and one buffered to hide latency."""

_NOT_STARTED = (
    wire.ActionStatus.TOO_LATE,
    wire.ActionStatus.UNKNOWN_MODEL,
    wire.ActionStatus.NO_ROOM,
)

_LOG_EVERY_S = 1.0


class Dispatcher(RequestTable):
    """Dispatcher for one pool, which has a scheduler and its workers.

    Not thread-safe.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        on_batch: Callable[[BatchDone], None],
        on_action: Callable[[str, str, float, float | None], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without requests or workers.

        Args:
            on_batch: called with each completed batch.
            on_action: called at the end of each action with its type, its outcome (`ok`, `failed`,
                `lost` if its replica was, or why it did not start), and its expected and actual
                seconds.
            clock: returns monotonic seconds.
        """
        super().__init__(scheduler, on_batch, clock)
        self._on_action = on_action
        self._numbers: dict[ModelId, int] = collections.defaultdict(itertools.count(1).__next__)
        """Wire ids, never reused because replicas may still hold removed models."""
        self._retired: set[ModelId] = set()
        """Removed models that have unfinished requests or that a replica may hold."""
        try:
            self._alarm = Timer(self._loop, self._pump)
        except OSError as error:  # no descriptor left
            raise ReplicaStartFailed("crash", f"the scheduler cannot start: {error}") from error
        self._workers: dict[int, ReplicaConnection] = {}
        self._unsent: list[tuple[Action, ServingError]] = []
        self._told = LogRateLimiter(_LOG_EVERY_S)

    def waiting_of(self, model: ModelId) -> int:
        """Return the number of queued items of a model."""
        return self._scheduler.waiting_of(model)

    def close(self, label: str) -> None:
        """Reject the remaining requests and forget all workers."""
        self._reject_all(label)
        for replica in self._workers.values():
            replica.close()
        self._workers.clear()
        self._alarm.close()

    # Models

    def model_up(self, event: ModelUp) -> None:
        """Announce a model, which may then be requested and loaded by any worker."""
        self._forget_retired()
        self._retired.discard(event.model)
        self._scheduler.on(event, self._clock())

    def model_down(self, model: ModelId) -> None:
        """Remove a model and reject its requests."""
        self.notify(ModelDown(model))
        self._retired.add(model)
        self._forget_retired()

    def notify(self, event: Profiled | SettingsChanged | ModelDown) -> None:
        """Report a change to the scheduler, and plan again."""
        self._scheduler.on(event, self._clock())
        self._pump()

    def number_of(self, model: ModelId) -> int:
        """Return the wire id of a model, which is assigned at the first call."""
        return self._numbers[model]

    def has_numbered(self, model: ModelId) -> bool:
        """Return whether the model has a wire id, so that actions for it may have been sent."""
        return model in self._numbers

    def _forget_retired(self) -> None:
        held: set[ModelId] = set()
        for replica in self._workers.values():
            held |= replica.loaded
            held.update(action.model for action, _ in replica.sent.values())
        for model in self._retired - held:
            if not self.inflight_count_of(model):
                self._retired.discard(model)
                for facts in (self._numbers, self._unfinished, self._refusals, self._axes):
                    facts.pop(model, None)

    # Workers

    def worker_up(self, replica: ReplicaConnection, pages: int | None = None) -> None:
        """Add a connected replica with memory for `pages` pages; None means no limit."""
        self._workers[replica.worker] = replica
        way_s = replica.clock.error_s
        self._scheduler.on(WorkerUp(replica.worker, SLOTS, pages, way_s=way_s), self._clock())
        self._pump()

    def worker_draining(self, worker: int) -> None:
        """Give a worker no new actions; its reservations move to other workers."""
        self._scheduler.on(WorkerDraining(worker), self._clock())
        self._pump_soon()

    def workers_down(self, workers: Iterable[int], reason: str) -> None:
        """Remove workers; their requests are retried on others or rejected.

        Those that end together, as with their machine, must be given together.
        """
        gone = tuple(worker for worker in workers if worker in self._workers)
        if not gone:
            return
        for worker in gone:
            replica = self._workers.pop(worker)
            if self._on_action is not None:
                for action, _ in replica.sent.values():
                    self._on_action(action.kind.value, "lost", action.expected_s, None)
            replica.close()
        self._scheduler.on(WorkersDown(gone, reason), self._clock())
        self._pump()

    def loaded_models(self) -> dict[int, frozenset[ModelId]]:
        """Return the loaded models of each worker."""
        return {worker: frozenset(replica.loaded) for worker, replica in self._workers.items()}

    def connection_lost(self, replica: ReplicaConnection, fault: str | None) -> None:
        """Handle a lost connection.

        The replica's actions end in `workers_down`, whose caller knows the reason.
        """
        if replica.worker in self._workers:
            self.worker_draining(replica.worker)
            replica.on_lost(fault)

    def _out_of_step(self, replica: ReplicaConnection, fault: str) -> None:
        """Replace a replica that does not hold the models that the scheduler assumes."""
        fault = f"its memory is inconsistent: {fault}"
        log.error("a replica is replaced", extra={"worker": replica.worker, "error": fault})
        self.connection_lost(replica, fault)

    # Planning

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

    def _send(self, action: Action, now_s: float) -> None:
        replica = self._workers[action.worker]
        number = self.number_of(action.model)
        if action.kind is ActionType.INFER:
            try:
                has_rows = action.model not in self._axes
                message = infer_message(
                    action, self._jobs, number, has_rows=has_rows, offset_s=replica.clock.offset_s
                )
            except (wire.WireError, SplitTooLarge) as error:
                self._unsent.append((action, error))
                return
        elif action.kind is ActionType.LOAD:
            wanted = replica.wanted(action.model)
            replica.labels[action.id] = wanted.spec.label
            message = [load_message(action, wanted, number, replica.clock.offset_s)]
        else:
            message = [unload_message(action, number, replica.clock.offset_s)]
        replica.sent[action.id] = (action, now_s)
        replica.send(message)

    def _take_back(self, now_s: float) -> None:
        """Let requests in oversized batches run alone; reject those that are too large alone."""
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

    # Messages from replicas

    def on_message(
        self, replica: ReplicaConnection, kind: wire.MessageType, body: memoryview
    ) -> None:
        """Handle a message from a replica."""
        if kind is wire.MessageType.RESULT:
            self._result(replica, wire.parse_result(body))
        elif kind is wire.MessageType.LOADED:
            self._on_loaded(replica, body)
        elif kind is wire.MessageType.UNLOADED:
            self._on_unloaded(replica, body)
        else:
            raise wire.WireError(f"message {kind.name} is not expected from a replica")

    def _on_loaded(self, replica: ReplicaConnection, body: memoryview) -> None:
        message = wire.parse_loaded(body)
        sent = replica.sent.pop(message.action_id, None)
        if sent is None:
            return
        action, sent_s = sent
        model, label = action.model, replica.labels.pop(action.id, "")
        replica.last_result_s = now_s = self._clock()
        if message.status == wire.ActionStatus.NO_ROOM and action.latest_s < math.inf:
            self._report_action(action, message.status, None)
            self._out_of_step(replica, "it has no room for a model within its budget")
            return
        ok = message.status == wire.ActionStatus.OK
        times = load_times(message.detail, sent_s + replica.clock.offset_s)
        if times is None and message.status != wire.ActionStatus.TOO_LATE:
            times = StageTimes(0.0, 0.0, now_s - sent_s, 0.0)
        self._scheduler.on(ActionResult(action.id, replica.worker, ok, times), now_s)
        if ok:
            replica.loaded.add(model)
        self._report_action(action, message.status, times)
        if message.status in _NOT_STARTED and action.latest_s < math.inf:
            pass  # not the model's fault: retried
        elif ok:
            loaded = parse_load_report(message.detail)
            self.set_item_axes(model, loaded.signature)
            replica.on_loaded(model, loaded)
        else:
            kind = ModelMissing if message.detail.get("is_missing") is True else ModelLoadFailed
            replica.on_loaded(model, kind(label, str(message.detail.get("error"))))
        self._pump()

    def _on_unloaded(self, replica: ReplicaConnection, body: memoryview) -> None:
        message = wire.parse_unloaded(body)
        sent = replica.sent.pop(message.action_id, None)
        if sent is None:
            return
        action = sent[0]
        ok = message.status == wire.ActionStatus.OK
        replica.loaded.discard(action.model)
        self._report_action(action, message.status, None)
        self._scheduler.on(ActionResult(action.id, replica.worker, ok, None), self._clock())
        self._pump()

    def _result(self, replica: ReplicaConnection, message: wire.ResultMessage) -> None:
        sent = replica.sent.pop(message.action_id, None)
        if sent is None:
            return
        action, sent_s = sent
        if len(message.entries) != len(action.parts):
            raise wire.WireError(
                f"{len(message.entries)} answers for {len(action.parts)} requests of a batch"
            )
        took = message.times
        times = StageTimes(
            max(0.0, took.started_ns * 1e-9 - replica.clock.offset_s - sent_s),
            took.input_ns * 1e-9,
            took.exec_ns * 1e-9,
            took.output_ns * 1e-9,
        )
        replica.last_result_s = now_s = self._clock()
        if self._on_action is not None:
            self._report_action(action, message.status, times)
        if message.status == wire.ActionStatus.UNKNOWN_MODEL:
            self._out_of_step(replica, "it does not hold a model that it had loaded")
            return
        too_large = message.status == wire.ActionStatus.TOO_LARGE and len(action.parts) > 1
        if too_large or message.status in _NOT_STARTED:  # the scheduler decides
            ran = None if message.status in _NOT_STARTED else times
            result = ActionResult(action.id, replica.worker, False, ran, too_large)
            self._scheduler.on(result, now_s)
            self._pump()
            return
        replica.has_answered = True
        self._scheduler.on(ActionResult(action.id, replica.worker, True, times), now_s)
        self._pump()
        self._current_batch = (sent_s, times)
        try:
            self._deliver(action, message, sent_s, times, now_s, replica.max_message_bytes)
        finally:
            self._current_batch = None

    def _report_action(self, action: Action, status: int, times: StageTimes | None) -> None:
        if self._on_action is None:
            return
        outcome = "ok" if status == wire.ActionStatus.OK else "failed"
        took_s = None if times is None else times.input_s + times.exec_s + times.output_s
        if status in _NOT_STARTED:
            outcome, took_s = wire.ActionStatus(status).name.lower(), None
        self._on_action(action.kind.value, outcome, action.expected_s, took_s)
