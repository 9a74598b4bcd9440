"""One inference over gRPC, whatever its service: the waiter of the engine and the exchange of a connection.

In: the outputs of a model, or an error. Out: one answer of the call. It must not know the messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from serving.errors import ServingError
from serving.values import Buffer
from serving.waiter import Ticket

Asked = TypeVar("Asked")
"""What a codec must know of a request to write its answer."""


class Reply(Protocol):
    """The one answer of a call: one of the two is called, once."""

    def send(self, pieces: Sequence[Buffer]) -> None:
        """The message of the answer; its pieces are only borrowed for the call."""
        ...

    def refuse(self, error: ServingError) -> None:
        """No answer, and why."""
        ...


class InFlight(Generic[Asked]):
    """One inference under way."""

    __slots__ = ("_asked", "_done", "_reply", "_started_s", "_write", "ticket")

    def __init__(
        self,
        reply: Reply,
        write: Callable[[memoryview, Asked], Sequence[Buffer]],
        asked: Asked,
        started_s: float,
        done: Callable[[int, float], None],
    ) -> None:
        """Keep what is given.

        Args:
            reply: what answers the call.
            write: the codec's message for a tensors frame, in pieces.
            asked: of the request, for `write`.
            started_s: when the call came, on the monotonic clock.
            done: counts a status and its seconds.
        """
        self._reply = reply
        self._write = write
        self._asked = asked
        self._started_s = started_s
        self._done = done
        self.ticket: Ticket

    def answer(self, frame: memoryview) -> None:
        """The engine has the outputs."""
        self._reply.send(self._write(frame, self._asked))
        self._done(200, time.monotonic() - self._started_s)

    def refuse(self, error: ServingError) -> None:
        """The engine has none."""
        self._reply.refuse(error)
        self._done(error.status, time.monotonic() - self._started_s)

    def cancel(self) -> None:
        """The client went away."""
        self.ticket.cancel()
        self._done(499, time.monotonic() - self._started_s)
