"""Response handlers, each of which is called exactly once, on the event loop's thread."""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol, runtime_checkable

from serving.errors import InferenceFailed, ServingError
from serving.values import StageTimes

log = logging.getLogger(__name__)


class ResponseHandler(Protocol):
    """Receiver of one response: only one of its two methods is called."""

    def on_result(self, frame: memoryview) -> None:
        """Receive the outputs as a tensors frame, which is valid only during the call.

        Raises:
            ServingError: the frame does not answer this request; `on_error` then gets the error.
        """
        ...

    def on_error(self, error: ServingError) -> None:
        """Receive the error."""
        ...


class RequestHandle(Protocol):
    """Handle of a submitted request."""

    def cancel(self) -> None:
        """Cancel the request, so that its handler will not be called."""
        ...


class BatchInfo(NamedTuple):
    """The batch in which a request ran."""

    sent_s: float
    """Time at which the batch was sent, on the monotonic clock."""
    times: StageTimes


@runtime_checkable
class HasBatch(Protocol):
    """Object that knows the batch of its request."""

    def batch(self) -> BatchInfo | None:
        """Return the batch (None for a cached response); call only from the response handler."""
        ...


def deliver_result(handler: ResponseHandler, frame: memoryview) -> None:
    """Pass a result to its handler; if the handler raises, pass it the error."""
    try:
        handler.on_result(frame)
    except Exception as error:
        fail_handler(handler, error)


def fail_handler(handler: ResponseHandler, error: Exception) -> None:
    """Pass a handler the error that its result caused."""
    if not isinstance(error, ServingError):
        log.error("a response hit a server error", exc_info=error)
        error = InferenceFailed("internal error; the server's log has the reason")
    deliver_error(handler, error)


def deliver_error(handler: ResponseHandler, error: ServingError) -> None:
    """Pass an error to its handler; log any exception that the handler raises."""
    try:
        handler.on_error(error)
    except Exception:
        log.exception("a rejection hit a server error")
