"""Execution of one batch by one model, from the entries of INFER to one outcome per request.

Exceptions of the model, and outputs that break the contract, become outcomes. `preprocess` counts
as input time, `postprocess` as output time. A failing group is halved and rerun, so that a request
which makes the model raise fails alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from serving import wire
from serving.errors import InferenceFailed, InvalidRequest
from serving.models import LoadedModel, cuda
from serving.replica import output_frames
from serving.replica.collation import Collator, Failure, RequestGroup
from serving.replica.padding import Padding
from serving.system.log_rate_limit import LogRateLimiter
from serving.values import Buffer, Tensor
from serving.wire import ActionStatus

log = logging.getLogger(__name__)

MAX_ERROR_CHARACTERS = 500
_MAX_CULPRITS = 3
"""Number of requests that may fail alone, without any success, before the model is blamed."""
_LOG_EVERY_S = 1.0


Outcome = tuple[int, int, list[Buffer]]
"""Outcome of a request: status, size of its frame in bytes, and the frame (tensors or text)."""

_UNSET: Outcome = (ActionStatus.BROKEN_CONTRACT, 0, [])


class BatchResults:
    """Outcomes of a batch's requests, in order."""

    __slots__ = ("block", "each")

    def __init__(self, count: int) -> None:
        self.each: list[Outcome] = [_UNSET] * count
        """Outcome of each request; unset if there is a block."""
        self.block: output_frames.FrameBlock | None = None
        """All outcomes together, set only if all requests succeeded."""

    def one_by_one(self) -> list[Outcome]:
        """Return the outcome of each request, even if there is a block."""
        if self.block is None:
            return self.each
        size, requests, data = self.block
        view = memoryview(data)
        return [(0, size, [view[at * size : (at + 1) * size]]) for at in range(requests)]


class Execution:
    """Loaded model that runs batches."""

    def __init__(
        self, model: LoadedModel, *, padding: Padding | None = None, quiet: bool = False
    ) -> None:
        """If `quiet`, do not log exceptions of the model."""
        self._model = model
        self._padding = padding
        self.signature = model.signature
        self._quiet = quiet
        self._told = LogRateLimiter(_LOG_EVERY_S)
        self._predict_batch: Any = (
            model.predict_batch
        )  # its output is checked against the signature
        self._preprocess = getattr(model, "preprocess", None)
        self._postprocess = getattr(model, "postprocess", None)
        self._collator = Collator(model.signature, padding)
        self.has_broken_gpu = False
        """Whether a batch has made the GPU unusable for this process."""

    def quiet(self) -> Execution:
        """Return a copy that does not log exceptions of the model."""
        return Execution(self._model, padding=self._padding, quiet=True)

    def together(self, entries: Sequence[wire.InferEntry]) -> list[tuple[Tensor, ...]]:
        """Run requests in one call; return their outputs.

        Raises InvalidRequest if the requests do not fit, BrokenContract if the outputs are not one
        per item, and whatever the model raises.
        """
        groups, failures = self._collator.groups(entries)
        if failures or len(groups) != 1:
            raise InvalidRequest(next(iter(failures.values())).text if failures else "they differ")
        inputs: Any = groups[0].inputs()
        if self._preprocess is not None:
            inputs = self._preprocess(inputs)
        outputs = self._predict_batch(inputs)
        if self._postprocess is not None:
            outputs = self._postprocess(outputs)
        frames = output_frames.frames(groups[0], outputs, self.signature, padding=self._padding)
        assert not isinstance(frames, output_frames.FrameBlock)
        return [tuple(wire.decode_frame(memoryview(b"".join(frame)))) for _, frame in frames]

    def run(
        self, message: wire.InferMessage, started_ns: int
    ) -> tuple[BatchResults, wire.ReplicaTimes]:
        """Run a batch whose action began at `started_ns`; return its outcomes and times."""
        outcomes = BatchResults(len(message.entries))
        block = self._collator.block(message)
        if block is not None:
            groups = [block]
        else:
            groups, failures = self._collator.groups(message.entries)
            for index, failure in failures.items():
                outcomes.each[index] = failure_outcome(failure)
        input_ns = time.monotonic_ns() - started_ns
        exec_ns = output_ns = 0
        for number, group in enumerate(groups, 1):
            times = self._run_group(group, outcomes, is_last=number == len(groups))
            input_ns += times[0]
            exec_ns += times[1]
            output_ns += times[2]
        return outcomes, wire.ReplicaTimes(started_ns, input_ns, exec_ns, output_ns)

    def _run_group(
        self, group: RequestGroup, outcomes: BatchResults, *, is_last: bool
    ) -> tuple[int, int, int]:
        """Run a group and set its outcomes; return nanoseconds of input, execution and output.

        If several requests failed alone and none has succeeded, the model is at fault, and the
        other requests fail without a run. Outputs are copied before the next call, as a model may
        reuse its arrays.
        """
        input_ns = exec_ns = output_ns = 0
        waiting = [group]
        culprits = 0
        has_succeeded = False
        while waiting:
            part = waiting.pop()
            times, failure = self._run_part(part, outcomes, copies=bool(waiting) or not is_last)
            input_ns += times[0]
            exec_ns += times[1]
            output_ns += times[2]
            if failure is None:
                has_succeeded = True
                continue
            is_useful = not self.has_broken_gpu and (has_succeeded or culprits < _MAX_CULPRITS)
            if len(part.indexes) > 1 and is_useful:
                first, second = part.halves()
                waiting += [second, first]
                continue
            culprits += 1
            outcome = failure_outcome(failure)
            for index in part.indexes:
                outcomes.each[index] = outcome
        return input_ns, exec_ns, output_ns

    def _run_part(
        self, group: RequestGroup, outcomes: BatchResults, *, copies: bool
    ) -> tuple[tuple[int, int, int], Failure | None]:
        failure = None
        began_ns = called_ns = returned_ns = time.monotonic_ns()
        try:
            inputs: Any = group.inputs()  # of any type after `preprocess`
            if self._preprocess is not None:
                inputs = self._preprocess(inputs)
            called_ns = returned_ns = time.monotonic_ns()
            try:
                outputs = self._predict_batch(inputs)
            finally:
                returned_ns = time.monotonic_ns()
            if self._postprocess is not None:
                outputs = self._postprocess(outputs)
            is_whole = len(group.indexes) == len(outcomes.each)
            frames = output_frames.frames(
                group, outputs, self.signature, as_block=is_whole, padding=self._padding
            )
        except (Exception, SystemExit) as error:  # a model may raise anything
            items = sum(group.counts)
            failure = _failure(error, items=items)
            is_fault = failure.status == ActionStatus.MODEL_RAISED
            if is_fault and cuda.is_context_broken():
                self.has_broken_gpu = True
            if is_fault and len(group.indexes) == 1 and not self._quiet:
                self._tell(error, items)
        else:
            if isinstance(frames, output_frames.FrameBlock):
                outcomes.block = frames
            else:
                for index, (size, frame) in zip(group.indexes, frames, strict=True):
                    pieces: list[Buffer] = [bytes(piece) for piece in frame] if copies else frame
                    outcomes.each[index] = (0, size, pieces)
        ended_ns = time.monotonic_ns()
        return (called_ns - began_ns, returned_ns - called_ns, ended_ns - returned_ns), failure

    def _tell(self, error: BaseException, items: int) -> None:
        untold = self._told.allow(time.monotonic())
        if untold is not None:
            log.warning(
                "the model raised", extra={"items": items, "untold": untold}, exc_info=error
            )


def failure_outcome(failure: Failure) -> Outcome:
    """Return the outcome of a failed request."""
    text = failure.text.encode("utf-8", "replace")
    return failure.status, len(text), [text]


def error_text(error: BaseException) -> str:
    """Return `Name: first line` of an exception, truncated."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text[:MAX_ERROR_CHARACTERS]


def _failure(error: BaseException, *, items: int) -> Failure:
    if isinstance(error, InvalidRequest):
        return Failure(ActionStatus.INVALID_INPUT, str(error)[:MAX_ERROR_CHARACTERS])
    if isinstance(error, output_frames.BrokenContract | InferenceFailed):
        return Failure(ActionStatus.BROKEN_CONTRACT, str(error)[:MAX_ERROR_CHARACTERS])
    if isinstance(error, MemoryError):
        text = f"MemoryError: no memory for a batch of {items} items; raise replica.memory_mb"
        if isinstance(error, cuda.GpuMemoryFull):
            text = (
                f"MemoryError: no GPU memory for a batch of {items} items; lower "
                "batching.max_size or replica.count, or send fewer items"
            )
        return Failure(ActionStatus.OUT_OF_MEMORY, text)
    return Failure(ActionStatus.MODEL_RAISED, error_text(error))
