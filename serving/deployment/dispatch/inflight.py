"""An in-flight request: its frame, its response handler and its handle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from serving.errors import ServingError
from serving.response_handler import BatchInfo, ResponseHandler
from serving.scheduling.interface import Submitted
from serving.values import Buffer, ModelId
from serving.wire.parts import SplitRequest


class RequestFrame(Protocol):
    """A request, whose wire frame is in pieces."""

    @property
    def frame(self) -> Sequence[Buffer]:
        """Pieces of the frame."""
        ...

    @property
    def frame_bytes(self) -> int:
        """Total length of the pieces in bytes."""
        ...

    @property
    def encoding(self) -> int:
        """Encoding of the frame, as a number of the wire format."""
        ...

    @property
    def items(self) -> int:
        """Number of items along the batch axis."""
        ...


class Canceller(Protocol):
    """The part of the dispatcher that a request handle needs."""

    def cancel(self, id_: int) -> None:
        """Cancel a request."""
        ...

    def current_batch(self) -> BatchInfo | None:
        """Return the batch whose responses are being delivered, if any."""
        ...


class _NoHandler:
    def on_result(self, frame: memoryview) -> None: ...

    def on_error(self, error: ServingError) -> None: ...


NO_HANDLER = _NoHandler()


class InflightRequest(Submitted):
    """An in-flight request, its handle, and the scheduler's `Submitted` event in one object.

    A finished request drops its handler; otherwise a reference cycle would leave its buffers to
    the garbage collector, which stops the server for milliseconds.
    """

    __slots__ = ("_dispatcher", "arrived_s", "handler", "request", "split")

    def __init__(
        self,
        dispatcher: Canceller,
        id_: int,
        model: ModelId,
        request: RequestFrame,
        handler: ResponseHandler,
        arrived_s: float,
        deadline_s: float,
        priority: int,
        flow: str,
    ) -> None:
        self.id = id_  # sets `Submitted`'s attributes without a call
        self.model = model
        self.items = request.items
        self.deadline_s = deadline_s
        self.priority = priority
        self.flow = flow
        self.bytes = request.frame_bytes
        self._dispatcher = dispatcher
        self.request = request
        self.handler: ResponseHandler = handler
        self.arrived_s = arrived_s
        self.split: SplitRequest | None = None

    def release(self) -> ResponseHandler:
        """Return the handler, dropping it and the parts."""
        handler = self.handler
        self.handler = NO_HANDLER
        self.split = None
        return handler

    def cancel(self) -> None:
        """Cancel the request, unless finished, so that its handler is not called."""
        self._dispatcher.cancel(self.id)

    def batch(self) -> BatchInfo | None:
        """Return the batch of the response that is being delivered."""
        return self._dispatcher.current_batch()
