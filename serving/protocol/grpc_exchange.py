"""One inference over gRPC, whatever its service: the waiter of the engine and the exchange of a connection.

In: the outputs of a model, or an error. Out: one answer of the call. It must not know the messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from serving.errors import ServingError
from serving.protocol.slices import Slices, Slow
from serving.values import Buffer
from serving.waiter import Ticket, spoilt

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
        reply: Reply,
        write: Callable[[memoryview, Asked], Sequence[Buffer]],
        asked: Asked,
        started_s: float,
        done: Callable[[int, float], None],
        *,
        steps: Callable[[memoryview, Asked], Iterator[bytes] | None] | None = None,
        slices: Slices | None = None,
    ) -> None:
        """Keep what is given.

        Args:
            reply: what answers the call.
            write: the codec's message for a tensors frame, in pieces.
            asked: of the request, for `write`.
            started_s: when the call came, on the monotonic clock.
            done: counts a status and its seconds.
            steps: the same message in pieces, each of which is soon made, where the whole is not; None: it always is.
            slices: where these are made.
        """
        self._reply = reply
        self._write = write
        self._asked = asked
        self._started_s = started_s
        self._done = done
        self._steps = steps
        self._slices = slices
        self._slow: Slow | None = None
        self.ticket: Ticket

    def answer(self, frame: memoryview) -> None:
        """The engine has the outputs."""
        if self._steps is not None and self._slices is not None:
            steps = self._steps(frame, self._asked)
            if steps is not None:
                self._slow = self._slices.begin(steps, self._written)
                return
        self._send(self._write(frame, self._asked))

    def _written(self, outcome: list[bytes] | Exception) -> None:
        self._slow = None
        if isinstance(outcome, Exception):
            spoilt(self, outcome)
        else:
            self._send([b"".join(outcome)])

    def _send(self, pieces: Sequence[Buffer]) -> None:
        self._reply.send(pieces)
        self._done(200, time.monotonic() - self._started_s)

    def refuse(self, error: ServingError) -> None:
        """The engine has none."""
        self._reply.refuse(error)
        self._done(error.status, time.monotonic() - self._started_s)

    def cancel(self) -> None:
        """The client went away."""
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        self.ticket.cancel()
        self._done(499, time.monotonic() - self._started_s)
