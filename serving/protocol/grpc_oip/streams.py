"""One stream of inferences (`ModelStreamInfer`): many requests at a time, answered in their order.

In: messages as the connection has them; out: answers and errors as messages of the stream, each with the
id of its request. An error of a request ends nothing. At most `MAX_IN_FLIGHT` requests are taken and not
answered, and the last of them alone may go beyond the bytes of the largest message; the client's window holds back
the others, and so it does while the client does not take its answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from serving.errors import DeadlineExceeded, InvalidRequest, NotReady, ServingError
from serving.protocol import varints
from serving.protocol.grpc_exchange import Reply
from serving.protocol.grpc_oip import calls, messages
from serving.protocol.grpc_oip.calls import Call
from serving.protocol.grpc_oip.coding import Coding
from serving.protocol.held import LARGE_BYTES, Held
from serving.values import Buffer

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 128

_INFER_RESPONSE = b"\x12"
"""Field 2 of an answer, `infer_response`, by its tag."""


def _final() -> bytes:
    response = messages.ModelInferResponse()
    response.parameters["triton_final_response"].bool_param = True
    data: bytes = response.SerializeToString()
    return data


_FINAL = _final()
"""Behind an answer it says that no other follows to its request: each model here answers once."""


class Exchange(Protocol):
    """A request that is being worked on."""

    def cancel(self) -> object:
        """Nobody waits for it any more."""
        ...


class Link(Protocol):
    """The connection's side of a stream."""

    @property
    def coding(self) -> Coding:
        """What compresses messages."""
        ...

    @property
    def held(self) -> Held:
        """Counts what requests hold."""
        ...

    def message(self) -> bytes | None:
        """The next message with its prefix, None: there is none yet; raises ServingError for what is none."""
        ...

    def is_over(self) -> bool:
        """Whether the client has ended its side, and all its messages were taken."""
        ...

    def is_blocked(self) -> bool:
        """Whether answers wait for the client to take them."""
        ...

    def send(self, data: bytes, *, is_compressed: bool) -> None:
        """A message to the client."""
        ...

    def end(self, error: ServingError | None) -> None:
        """No more messages: all is well, or why not."""
        ...


Infer = Callable[[Call, memoryview, Reply], Exchange]
"""Begins an inference, or raises ServingError."""


class _Part:
    """One request of a stream, and the reply to it."""

    __slots__ = (
        "answer",
        "counted_bytes",
        "data",
        "exchange",
        "held_bytes",
        "is_compressed",
        "stream",
    )

    def __init__(self, stream: InferStream) -> None:
        self.stream = stream
        self.data: Buffer = b""
        """The request; an error needs its id."""
        self.exchange: Exchange | None = None
        self.answer: bytes | None = None
        self.is_compressed = False
        self.held_bytes = 0
        """Of its request, or of its answer once there is one."""
        self.counted_bytes = 0
        """Of its request, as they are counted over all connections."""

    def send(self, pieces: Sequence[Buffer]) -> None:
        """See `Reply`."""
        size = sum(map(len, pieces)) + len(_FINAL)
        head = _INFER_RESPONSE + varints.one(size)
        self.stream.answered(self, b"".join((head, *pieces, _FINAL)))

    def refuse(self, error: ServingError) -> None:
        """See `Reply`."""
        response = messages.ModelStreamInferResponse(error_message=str(error))
        try:
            request = messages.parsed(messages.ModelInferRequest, self.data)
        except (messages.NotAMessage, InvalidRequest):
            pass  # then it has no id
        else:
            response.infer_response.id = request.id
        self.stream.answered(self, response.SerializeToString())


class InferStream:
    """A stream that is open."""

    def __init__(self, call: Call, link: Link, infer: Infer) -> None:
        """Nothing is taken yet.

        Args:
            call: what the stream's fields say; its deadline is that of all its requests.
            link: the connection's side.
            infer: begins an inference.
        """
        self._call = call
        self._link = link
        self._infer = infer
        self._parts: deque[_Part] = deque()
        """Taken and not sent, in their order."""
        self._held_bytes = 0
        """Of all of them."""
        self._is_open = True
        self._is_draining = False
        self._is_woken = False
        self._until_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        if call.timeout_s is not None:
            self._until_s = time.monotonic() + call.timeout_s
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(call.timeout_s, self.end, DeadlineExceeded("stream"))

    # What the connection says

    def arrived(self) -> None:
        """There may be messages, or room for answers, or no more of either."""
        while self._is_open:
            self._send()
            if self._is_draining or not self._has_room():
                break
            try:
                message = self._link.message()
                if message is None:
                    break
                self._take(message)
            except ServingError as error:
                self.end(error)  # it is no message: where the next one begins is not known
        if self._is_open and not self._parts:
            if self._link.is_over():
                self.end(None)
            elif self._is_draining:
                self.end(NotReady("the server stops; send the next requests elsewhere"))

    def _soon(self) -> None:
        """An answer is there: the answers of one batch leave together, and whoever brings them is done with them."""
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_woken = False
        self.arrived()

    def drain(self) -> None:
        """No more requests; it ends when those that were taken are answered."""
        self._is_draining = True
        self.arrived()

    def end(self, error: ServingError | None) -> None:
        """It is over, whatever is under way."""
        if self._is_open:
            self.cancel()
            self._link.end(error)

    def cancel(self) -> None:
        """The client went away."""
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        parts, self._parts = self._parts, deque()
        for part in parts:
            self._let_go(part)
            if part.exchange is not None:
                part.exchange.cancel()

    # Requests

    def _has_room(self) -> bool:
        return (
            len(self._parts) < MAX_IN_FLIGHT
            and self._held_bytes < self._link.coding.max_body_bytes
            and not self._link.is_blocked()
        )

    def _hold(self, part: _Part, size: int) -> None:
        self._held_bytes += size - part.held_bytes
        part.held_bytes = size

    def _let_go(self, part: _Part) -> None:
        """A request has its answer, or needs none."""
        if part.counted_bytes:
            self._link.held.free(part.counted_bytes)
            part.counted_bytes = 0

    def _take(self, message: bytes) -> None:
        encoding = self._call.encoding if message[0] else None
        data = calls.message_of(message, is_compressed=encoding is not None)
        part = _Part(self)
        self._parts.append(part)
        if encoding is None:
            self._hold(part, len(data))
            self._begin(part, data)
            return
        self._hold(part, self._link.coding.most_bytes(len(data)))
        work = self._link.coding.decompressed(encoding, data)
        part.exchange = work
        work.add_done_callback(lambda done: self._decompressed(part, done))

    def _decompressed(self, part: _Part, work: asyncio.Future[bytes]) -> None:
        if work.cancelled():
            return
        part.exchange = None
        error = work.exception()
        if error is None:
            data = memoryview(work.result())
            self._hold(part, len(data))
            self._begin(part, data)
            self._soon()  # there may be room for others
        else:
            _refuse(part, error)

    def _begin(self, part: _Part, data: memoryview) -> None:
        part.data = data
        call = self._call
        if self._until_s is not None:
            call = call._replace(timeout_s=self._until_s - time.monotonic())
        try:
            if len(data) >= LARGE_BYTES:
                self._link.held.take(len(data))
                part.counted_bytes = len(data)
            part.exchange = self._infer(call, data, part)
        except Exception as error:
            _refuse(part, error)

    # Answers

    def answered(self, part: _Part, data: bytes) -> None:
        """A request has its answer; it leaves when those before it have left."""
        part.exchange, part.data = None, b""
        self._let_go(part)
        self._hold(part, len(data))
        encoding = self._call.answers_in
        if encoding is not None and self._link.coding.is_long(len(data)):
            work = self._link.coding.compressed(encoding, data)
            part.exchange = work
            work.add_done_callback(lambda done: self._compressed(part, done))
            return
        part.answer = data
        self._soon()

    def _compressed(self, part: _Part, work: asyncio.Future[bytes]) -> None:
        if not work.cancelled():
            part.exchange = None
            part.answer, part.is_compressed = work.result(), True
            self._hold(part, len(part.answer))
            self._soon()

    def _send(self) -> None:
        while self._parts and self._parts[0].answer is not None:
            part = self._parts.popleft()
            assert part.answer is not None
            self._hold(part, 0)
            self._link.send(part.answer, is_compressed=part.is_compressed)


def _refuse(part: _Part, error: BaseException) -> None:
    """Answer a request that could not be taken."""
    if not isinstance(error, ServingError):
        log.error("a request of a stream met a fault of the server", exc_info=error)
        error = ServingError("internal error; the server's log has the reason")
    part.refuse(error)
