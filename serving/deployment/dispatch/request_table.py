"""Table of in-flight requests, which calls each response handler exactly once.

A handler is registered before the scheduler sees its request, and removed when the request is
completed; later results are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from serving import wire
from serving.deployment.dispatch.inflight import NO_HANDLER, InflightRequest, RequestFrame
from serving.errors import (
    CannotFinish,
    CannotLoad,
    DeadlineExceeded,
    DeadlineTooShort,
    DeadlineUnreachable,
    InferenceFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    ReplicaFailed,
    ServingError,
    TooManyItems,
)
from serving.response_handler import (
    BatchInfo,
    ResponseHandler,
    deliver_error,
    deliver_result,
    fail_handler,
)
from serving.scheduling.interface import Action, Cancelled, Rejection, RejectionReason, Scheduler
from serving.values import ModelId, Signature, StageTimes

_LATE_LOOK_S = 10.0
"""Time until a deadline above which the deadline is not compared with the clock."""


class BatchDone:
    """A completed batch, for metrics."""

    __slots__ = ("items", "late", "model", "parts", "times", "waited_s")

    def __init__(
        self,
        model: ModelId,
        items: int,
        times: StageTimes,
        parts: int,
        waited_s: float,
        late: int,
    ) -> None:
        self.model = model
        self.items = items
        self.times = times
        self.parts = parts
        """Number of its requests, whole or in part, that were still in flight."""
        self.waited_s = waited_s
        self.late = late


class RequestTable:
    """One scheduler's in-flight requests."""

    def __init__(
        self,
        scheduler: Scheduler,
        on_batch: Callable[[BatchDone], None],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._on_batch = on_batch
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._jobs: dict[int, InflightRequest] = {}
        self._unfinished: dict[ModelId, int] = {}
        self._refusals: dict[ModelId, dict[str, int]] = {}
        self._axes: dict[ModelId, dict[str, int]] = {}
        """Item axes of outputs, for models whose items are not rows of all tensors."""
        self._last_id = 0
        self._current_batch: tuple[float, StageTimes] | None = None
        self._pumping = False

    def _pump(self) -> None:
        raise NotImplementedError

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def current_batch(self) -> BatchInfo | None:
        """See `Canceller.current_batch`."""
        return None if self._current_batch is None else BatchInfo(*self._current_batch)

    def inflight_count_of(self, model: ModelId) -> int:
        """Return the number of a model's in-flight requests."""
        return self._unfinished.get(model, 0)

    def refusals_of(self, model: ModelId) -> Mapping[str, int]:
        """Return how many of a model's requests the scheduler rejected, by reason."""
        return self._refusals.get(model, {})

    def set_item_axes(self, model: ModelId, signature: Signature) -> None:
        """Set a model's item axes, by which responses to split requests are joined."""
        if all(spec.item_axis == 0 for spec in (*signature.inputs, *signature.outputs)):
            self._axes.pop(model, None)
        else:
            self._axes[model] = {spec.name: spec.item_axis or 0 for spec in signature.outputs}

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
        """Submit a request; its handler is called once, after this method has returned."""
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
        """Cancel a request, so that its handler is not called; ignore unknown ids."""
        self._withdraw(id_, self._clock())

    def _take(self, id_: int) -> InflightRequest | None:
        job = self._jobs.pop(id_, None)
        if job is not None:
            self._unfinished[job.model] -= 1
        return job

    def _withdraw(self, id_: int, now_s: float) -> ResponseHandler | None:
        job = self._take(id_)
        if job is None:
            return None
        self._scheduler.on(Cancelled(id_), now_s)
        self._pump_soon()
        return job.release()

    def _give_up(self, id_: int, error: ServingError, now_s: float) -> None:
        handler = self._withdraw(id_, now_s)
        if handler is not None:
            deliver_error(handler, error)

    def _refuse(self, refusal: Rejection) -> None:
        job = self._take(refusal.id)
        if job is None:
            return
        counts = self._refusals.setdefault(job.model, {})
        reason = refusal.reason.value
        counts[reason] = counts.get(reason, 0) + 1
        deliver_error(job.release(), error_for(refusal))

    def _reject_all(self, label: str) -> None:
        for id_ in tuple(self._jobs):
            job = self._take(id_)
            if job is not None:
                error = NotReady(f"{label} is no longer served; send it again")
                deliver_error(job.release(), error)

    def _deliver(
        self,
        action: Action,
        message: wire.ResultMessage,
        sent_s: float,
        times: StageTimes,
        now_s: float,
        max_bytes: int,
    ) -> None:
        """Deliver a batch's responses; `max_bytes` limits the joined parts of a response."""
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
            elif self._join(job, start, stop, frame, max_bytes) and clock() > job.deadline_s:
                late += 1
        if answered:
            self._unfinished[action.model] -= answered
        self._on_batch(BatchDone(action.model, items, times, parts, waited_s, late))

    def _fail(self, id_: int, status: int, frame: memoryview) -> None:
        text = bytes(frame).decode("utf-8", "replace")
        bad_input = status == wire.ActionStatus.INVALID_INPUT
        error: ServingError = InvalidRequest(text) if bad_input else InferenceFailed(text)
        self._give_up(id_, error, self._clock())

    def _join(
        self, job: InflightRequest, start: int, stop: int, frame: memoryview, max_bytes: int
    ) -> bool:
        """Store a part's response; return whether it completed the request."""
        split = job.split
        assert split is not None, "it was cut when the part was sent"
        if split.response_bytes + len(frame) > max_bytes:
            text = f"too large for one message: the answers to the request's parts, at most {max_bytes} bytes fit"
            self._give_up(job.id, InferenceFailed(text), self._clock())
            return False
        if not split.add_part(start, stop, frame):
            return False
        self._take(job.id)
        try:
            joined = split.join_response(self._axes.get(job.model, {}))
        except wire.WireError as error:
            deliver_error(job.release(), error)
        else:
            deliver_result(job.release(), joined)
        return True


def error_for(refusal: Rejection) -> ServingError:
    """Return the error that reports a rejection to the client."""
    match refusal.reason:
        case RejectionReason.QUEUE_FULL:
            return Overloaded(int(refusal.detail), retry_after_s=1.0)
        case RejectionReason.TOO_MANY_ITEMS:
            return TooManyItems(int(refusal.detail))
        case RejectionReason.DEADLINE_UNREACHABLE:
            return DeadlineUnreachable()
        case RejectionReason.DEADLINE_IN_QUEUE:
            return DeadlineExceeded("queue")
        case RejectionReason.DEADLINE_IN_REPLICA:
            return DeadlineExceeded("replica")
        case RejectionReason.CANNOT_FINISH if refusal.detail:
            return DeadlineTooShort(float(refusal.detail))
        case RejectionReason.CANNOT_FINISH:
            return CannotFinish(retry_after_s=1.0)
        case RejectionReason.CANNOT_LOAD:
            return CannotLoad(retry_after_s=1.0)
        case RejectionReason.WORKER_LOST:
            return ReplicaFailed(refusal.detail)
        case RejectionReason.NOT_STARTED:
            return InferenceFailed("two replicas did not start the batch that held the request")
