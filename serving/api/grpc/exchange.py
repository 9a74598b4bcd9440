"""One inference over gRPC: response handler for the engine, and exchange for a connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from serving.api.transport.incremental import IncrementalJob, IncrementalRunner
from serving.errors import ServingError
from serving.response_handler import RequestHandle, fail_handler
from serving.values import Buffer

Asked = TypeVar("Asked")


class GrpcResponseWriter(Protocol):
    """Response writer of a call; exactly one of its methods is called, once."""

    def send(self, pieces: Sequence[Buffer]) -> None:
        """Send the message, whose pieces may be reused once this returns."""
        ...

    def reject(self, error: ServingError) -> None:
        """Send an error."""
        ...


class GrpcResponseHandler(Generic[Asked]):
    """Response handler of one inference."""

    __slots__ = (
        "_asked",
        "_done",
        "_reply",
        "_slices",
        "_slow",
        "_started_s",
        "_steps",
        "_write",
        "ticket",
    )

    def __init__(
        self,
        reply: GrpcResponseWriter,
        write: Callable[[memoryview, Asked], Sequence[Buffer]],
        asked: Asked,
        started_s: float,
        done: Callable[[int, float], None],
        *,
        steps: Callable[[memoryview, Asked], Iterator[bytes] | None] | None = None,
        slices: IncrementalRunner | None = None,
    ) -> None:
        """Store the request.

        `write` encodes a tensors frame for `asked`, unless `steps` returns steps that do so, which
        `slices` then runs. `done` receives the status and the seconds.
        """
        self._reply = reply
        self._write = write
        self._asked = asked
        self._started_s = started_s
        self._done = done
        self._steps = steps
        self._slices = slices
        self._slow: IncrementalJob | None = None
        self.ticket: RequestHandle

    def on_result(self, frame: memoryview) -> None:
        """Send the outputs."""
        if self._steps is not None and self._slices is not None:
            steps = self._steps(frame, self._asked)
            if steps is not None:
                self._slow = self._slices.begin(steps, self._on_written)
                return
        self._send(self._write(frame, self._asked))

    def _on_written(self, outcome: list[bytes] | Exception) -> None:
        self._slow = None
        if isinstance(outcome, Exception):
            fail_handler(self, outcome)
        else:
            self._send([b"".join(outcome)])

    def _send(self, pieces: Sequence[Buffer]) -> None:
        self._reply.send(pieces)
        self._done(200, time.monotonic() - self._started_s)

    def on_error(self, error: ServingError) -> None:
        """Send an error."""
        self._reply.reject(error)
        self._done(error.status, time.monotonic() - self._started_s)

    def cancel(self) -> None:
        """Stop, because the client disconnected."""
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        self.ticket.cancel()
        self._done(499, time.monotonic() - self._started_s)
