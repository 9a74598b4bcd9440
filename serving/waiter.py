"""Whoever waits for an answer, and the one way to answer: exactly once, with an answer or with the reason why not.

Shared by the protocols, the cache and the dispatcher; all calls are made in the event loop's thread.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol, runtime_checkable

from serving.errors import PredictionFailed, ServingError
from serving.values import StageTimes

log = logging.getLogger(__name__)


class Waiter(Protocol):
    """One of the two is called, once."""

    def answer(self, frame: memoryview) -> None:
        """The outputs, as a tensors frame of the replica wire; the view is only borrowed for the call.

        Raises:
            ServingError: the frame is no answer to this request; `refuse` follows.
        """
        ...

    def refuse(self, error: ServingError) -> None:
        """No answer, and why."""
        ...


class Ticket(Protocol):
    """A request that was taken."""

    def cancel(self) -> None:
        """Nobody waits for it any more: the waiter will not be called."""
        ...


class Batch(NamedTuple):
    """The batch that a request was answered with."""

    sent_s: float
    """When it was sent to its replica, on the monotonic clock."""
    times: StageTimes
    """In the replica."""


@runtime_checkable
class Timed(Protocol):
    """A ticket, or what holds one, that knows the batch of its request."""

    def batch(self) -> Batch | None:
        """The batch; to be asked while the waiter is answered. None: there was none, as for a kept answer."""
        ...


def answer(waiter: Waiter, frame: memoryview) -> None:
    """Answer, or say why the frame is none: one bad answer must not touch the others that came with it."""
    try:
        waiter.answer(frame)
    except Exception as error:
        spoilt(waiter, error)


def spoilt(waiter: Waiter, error: Exception) -> None:
    """Refuse, for this was raised when it was answered."""
    if not isinstance(error, ServingError):
        log.error("an answer met a fault of the server", exc_info=error)
        error = PredictionFailed("internal error; the server's log has the reason")
    refuse(waiter, error)


def refuse(waiter: Waiter, error: ServingError) -> None:
    """Refuse; what goes wrong with one must not touch the others that are refused with it."""
    try:
        waiter.refuse(error)
    except Exception:
        log.exception("a refusal met a fault of the server")
