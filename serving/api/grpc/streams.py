"""One `ModelStreamInfer` stream: many requests in flight, responses in order.

An error carries its request's id and does not end the stream. At `MAX_IN_FLIGHT` requests, or
when they reach the size limit, the flow-control window holds back the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from serving.api.grpc import calls, messages
from serving.api.grpc.calls import GrpcCall
from serving.api.grpc.exchange import GrpcResponseWriter
from serving.api.http.exchange import Exchange
from serving.api.http.messages import as_serving_error
from serving.api.http2.session import Session
from serving.api.parsing import varints
from serving.api.transport.buffered_bytes import LARGE_BYTES, BufferedBytes
from serving.api.transport.compression import CompressionThreads
from serving.errors import DeadlineExceeded, InvalidRequest, NotReady, ServingError
from serving.values import Buffer

MAX_IN_FLIGHT = 128

_INFER_RESPONSE = b"\x12"
"""Tag of field 2 of a response, `infer_response`."""


def _final() -> bytes:
    response = messages.ModelInferResponse()
    response.parameters["triton_final_response"].bool_param = True
    data: bytes = response.SerializeToString()
    return data


_FINAL = _final()


class StreamConnection(Protocol):
    """Interface of a stream's connection, which identifies the stream by a number."""

    coding: CompressionThreads
    buffered: BufferedBytes
    session: Session

    def message(self, stream: int) -> bytes | None:
        """Return the next message with its prefix, if any, or raise ServingError."""
        ...

    def send(self, stream: int, data: bytes, *, is_compressed: bool) -> None:
        """Send a message."""
        ...

    def end(self, stream: int, error: ServingError | None) -> None:
        """End a stream, with an error or successfully."""
        ...


Infer = Callable[[GrpcCall, memoryview, GrpcResponseWriter], Exchange]
"""Function that starts an inference, or raises ServingError."""


class _StreamRequest:
    __slots__ = (
        "counted_bytes",
        "data",
        "exchange",
        "held_bytes",
        "is_compressed",
        "response",
        "stream",
    )

    def __init__(self, stream: InferStream) -> None:
        self.stream = stream
        self.data: Buffer = b""
        self.exchange: Exchange | None = None
        self.response: bytes | None = None
        self.is_compressed = False
        self.held_bytes = 0
        self.counted_bytes = 0

    def send(self, pieces: Sequence[Buffer]) -> None:
        size = sum(map(len, pieces)) + len(_FINAL)
        head = _INFER_RESPONSE + varints.one(size)
        self.stream.add_response(self, b"".join((head, *pieces, _FINAL)))

    def reject(self, error: ServingError) -> None:
        response = messages.ModelStreamInferResponse(error_message=str(error))
        try:
            request = messages.parse(messages.ModelInferRequest, self.data)
        except InvalidRequest:
            pass  # no id
        else:
            response.infer_response.id = request.id
        self.stream.add_response(self, response.SerializeToString())


class InferStream:
    """One stream of a client, with its requests in flight."""

    def __init__(
        self, call: GrpcCall, number: int, connection: StreamConnection, infer: Infer
    ) -> None:
        self._call = call
        self._number = number
        self._connection = connection
        self._coding = connection.coding
        self._infer = infer
        self._parts: deque[_StreamRequest] = deque()
        self._held_bytes = 0
        self._is_open = True
        self._is_draining = False
        self._is_woken = False
        self._until_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        if call.timeout_s is not None:
            self._until_s = time.monotonic() + call.timeout_s
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(call.timeout_s, self.end, DeadlineExceeded("stream"))

    # Called by the connection

    def process_messages(self) -> None:
        """Take incoming messages and send finished responses."""
        while self._is_open:
            self._send()
            if self._is_draining or not self._has_room():
                break
            try:
                message = self._connection.message(self._number)
                if message is None:
                    break
                self._take(message)
            except ServingError as error:
                self.end(error)  # the start of the next message is unknown
        if self._is_open and not self._parts:
            if self._connection.session.is_over(self._number):
                self.end(None)
            elif self._is_draining:
                self.end(NotReady("the server is stopping; send the next requests elsewhere"))

    def _soon(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_woken = False
        self.process_messages()

    def drain(self) -> None:
        """Stop taking requests."""
        self._is_draining = True
        self.process_messages()

    def end(self, error: ServingError | None) -> None:
        """End the stream and cancel its requests."""
        if self._is_open:
            self.cancel()
            self._connection.end(self._number, error)

    def cancel(self) -> None:
        """Cancel all pending requests, without responding."""
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
            and self._held_bytes < self._coding.max_body_bytes
            and not self._connection.session.outgoing.waits(self._number)
        )

    def _hold(self, part: _StreamRequest, size: int) -> None:
        self._held_bytes += size - part.held_bytes
        part.held_bytes = size

    def _let_go(self, part: _StreamRequest) -> None:
        if part.counted_bytes:
            self._connection.buffered.free(part.counted_bytes)
            part.counted_bytes = 0

    def _take(self, message: bytes) -> None:
        encoding = self._call.encoding if message[0] else None
        data = calls.message_of(message, is_compressed=encoding is not None)
        part = _StreamRequest(self)
        self._parts.append(part)
        if encoding is None:
            self._hold(part, len(data))
            self._begin(part, data)
            return
        self._hold(part, self._coding.max_bytes(len(data)))
        work = self._coding.decompress(encoding, data)
        part.exchange = work
        work.add_done_callback(lambda done: self._on_decompressed(part, done))

    def _on_decompressed(self, part: _StreamRequest, work: asyncio.Future[bytes]) -> None:
        if work.cancelled():
            return
        part.exchange = None
        error = work.exception()
        if error is None:
            data = memoryview(work.result())
            self._hold(part, len(data))
            self._begin(part, data)
            self._soon()  # other requests may fit now
        else:
            part.reject(as_serving_error(error))

    def _begin(self, part: _StreamRequest, data: memoryview) -> None:
        part.data = data
        call = self._call
        if self._until_s is not None:
            call = call._replace(timeout_s=self._until_s - time.monotonic())
        try:
            if len(data) >= LARGE_BYTES:
                self._connection.buffered.take(len(data))
                part.counted_bytes = len(data)
            part.exchange = self._infer(call, data, part)
        except Exception as error:
            part.reject(as_serving_error(error))

    # Responses

    def add_response(self, part: _StreamRequest, data: bytes) -> None:
        """Store a response until all earlier responses are sent."""
        part.exchange, part.data = None, b""
        self._let_go(part)
        self._hold(part, len(data))
        encoding = self._call.response_encoding
        if encoding is not None and self._coding.is_long(len(data)):
            work = self._coding.compress(encoding, data)
            part.exchange = work
            work.add_done_callback(lambda done: self._on_compressed(part, done))
            return
        part.response = data
        self._soon()

    def _on_compressed(self, part: _StreamRequest, work: asyncio.Future[bytes]) -> None:
        if not work.cancelled():
            part.exchange = None
            part.response, part.is_compressed = work.result(), True
            self._hold(part, len(part.response))
            self._soon()

    def _send(self) -> None:
        while self._parts and self._parts[0].response is not None:
            part = self._parts.popleft()
            assert part.response is not None
            self._hold(part, 0)
            self._connection.send(self._number, part.response, is_compressed=part.is_compressed)
