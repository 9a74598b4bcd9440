"""One request on its way: what is sent of it, who waits for it, and the ticket of whoever submitted it.

Sends nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from serving.errors import ServingError
from serving.replica.parts import Split
from serving.scheduling.seam import Submitted
from serving.values import Buffer, ModelId
from serving.waiter import Batch, Waiter


class Request(Protocol):
    """What is sent: a frame of the replica wire, in pieces."""

    @property
    def frame(self) -> Sequence[Buffer]:
        """The pieces."""
        ...

    @property
    def frame_bytes(self) -> int:
        """Their length."""
        ...

    @property
    def encoding(self) -> int:
        """How the frame is written."""
        ...

    @property
    def items(self) -> int:
        """Items along the batch axis."""
        ...


class Dispatching(Protocol):
    """Who has a request on its way, as its ticket knows it."""

    def cancel(self, id_: int) -> None:
        """Nobody waits for the request any more."""
        ...

    def answering(self) -> Batch | None:
        """The batch whose requests are being answered."""
        ...


class _Nobody:
    """Waits for a request that is finished."""

    def answer(self, frame: memoryview) -> None:
        """Is not called."""

    def refuse(self, error: ServingError) -> None:
        """Is not called."""


NOBODY = _Nobody()


class Job(Submitted):
    """One request on its way, and who waits for the answer; the ticket of whoever submitted it.

    It is itself what the scheduler is told of the request: one object for both.

    A waiter mostly holds its ticket. So a finished job lets go of its waiter: a cycle for each request would
    leave its buffers to the garbage collector, which then stops the server for milliseconds, thousands of
    requests at a time.
    """

    __slots__ = ("_dispatcher", "arrived_s", "request", "split", "waiter")

    def __init__(
        self,
        dispatcher: Dispatching,
        id_: int,
        model: ModelId,
        request: Request,
        waiter: Waiter,
        arrived_s: float,
        deadline_s: float,
        priority: int,
        flow: str,
    ) -> None:
        self.id = id_  # all of `Submitted`, without another call for each request
        self.model = model
        self.items = request.items
        self.deadline_s = deadline_s
        self.priority = priority
        self.flow = flow
        self.bytes = request.frame_bytes
        self._dispatcher = dispatcher
        self.request = request
        self.waiter: Waiter = waiter
        self.arrived_s = arrived_s
        self.split: Split | None = None
        """Where it is run in parts, what is known of these."""

    def release(self) -> Waiter:
        """The waiter, of which the job knows no more, as of its parts."""
        waiter = self.waiter
        self.waiter = NOBODY
        self.split = None
        return waiter

    def cancel(self) -> None:
        """Nobody waits for it any more: the waiter will not be called. One that is finished stays so."""
        self._dispatcher.cancel(self.id)

    def batch(self) -> Batch | None:
        """See `waiter.Timed`."""
        return self._dispatcher.answering()
