"""Response handlers: each is called exactly once, with a result or an error.

Shared by protocols, cache and dispatcher; all calls are made in the event loop's thread.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol, runtime_checkable

from serving.errors import PredictionFailed, ServingError
from serving.values import StageTimes

log = logging.getLogger(__name__)


class Waiter(Protocol):
    """Response handler: one of the two methods is called, once."""

    def answer(self, frame: memoryview) -> None:
        """Receive the outputs: a tensors frame, borrowed for the call.

        Raises:
            ServingError: the frame does not answer this request; `refuse` follows.
        """
        ...

    def refuse(self, error: ServingError) -> None:
        """Receive the error."""
        ...


class Ticket(Protocol):
    """Handle of a submitted request."""

    def cancel(self) -> None:
        """Cancel: the handler will not be called."""
        ...


class Batch(NamedTuple):
    """The batch in which a request ran."""

    sent_s: float
    """When it was sent to its replica, on the monotonic clock."""
    times: StageTimes
    """Stages in the replica."""


@runtime_checkable
class Timed(Protocol):
    """A ticket, or its holder, that knows its request's batch."""

    def batch(self) -> Batch | None:
        """Return the batch while the handler is called; None without one (a cached response)."""
        ...


def answer(waiter: Waiter, frame: memoryview) -> None:
    """Pass on a result, or the error it causes, so that other handlers are unaffected."""
    try:
        waiter.answer(frame)
    except Exception as error:
        spoilt(waiter, error)


def spoilt(waiter: Waiter, error: Exception) -> None:
    """Fail a handler with the error that its result caused."""
    if not isinstance(error, ServingError):
        log.error("an answer met a fault of the server", exc_info=error)
        error = PredictionFailed("internal error; the server's log has the reason")
    refuse(waiter, error)


def refuse(waiter: Waiter, error: ServingError) -> None:
    """Pass on an error; a fault of the handler is only logged."""
    try:
        waiter.refuse(error)
    except Exception:
        log.exception("a refusal met a fault of the server")
