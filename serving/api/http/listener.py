"""HTTP listener of the inference port: one protocol object per connection, no task per request.

A connection has one request in flight; pipelined requests wait here. This module handles the order
of responses, keep-alive and flow control; `Routes` handle requests. A complete request with a
cached head skips the parser; `reader` reads all others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import cast

from serving.api.http.exchange import Exchange, Routes
from serving.api.http.head_cache import HeadCache
from serving.api.http.messages import (
    CLOSE,
    JSON_TYPE,
    KEEP_ALIVE,
    EarlyResponse,
    RequestHead,
    Response,
    error_response,
    head_of,
)
from serving.api.http.pipeline import Pipeline
from serving.api.http.reader import RequestReader
from serving.api.transport.buffered_bytes import LARGE_BYTES, BufferedBytes
from serving.api.transport.connection_limiter import TEXT, ConnectionLimiter
from serving.api.transport.listener import Connection, Listener
from serving.errors import BufferFull, InvalidRequest, ServingError
from serving.values import Buffer

_TURN = 16
"""Number of requests answered without a replica before a connection must yield to others."""
_TURN_BYTES = 1024
"""Number of body and response bytes, rejected requests included, that count as one more request."""
_TURN_READ = 32 * 1024
"""Number of received bytes that count as one more request."""
_TURN_PARTS = 64
"""Number of headers and body pieces that count as one more request."""

_NOTHING = memoryview(b"")
_FULL = Response(503, CLOSE + JSON_TYPE + b"Retry-After: 1\r\n", b'{"error":"%b"}' % TEXT.encode())
"""Response to a connection over the limit."""

_UNREADABLE = RequestHead(method="", path="", keep_alive=False)
"""Head of an unreadable request; the response closes the connection."""


def _in_the_next_turn(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


class HttpListener(Listener):
    """State shared by the connections of one port."""

    def __init__(
        self,
        routes: Routes,
        *,
        max_body_bytes: int,
        idle_s: float,
        request_s: float,
        door: ConnectionLimiter | None = None,
        buffered: BufferedBytes | None = None,
        refusal: Callable[[RequestHead], Response | None] | None = None,
    ) -> None:
        full = head_of(_FULL) + _FULL.body
        super().__init__(full, idle_s=idle_s, request_s=request_s, door=door, buffered=buffered)
        self.routes = routes
        self.refusal = refusal
        """Returns a rejection based on the head alone, if any; the body is then dropped."""
        self.max_body_bytes = max_body_bytes
        self.soon: Callable[[Callable[[], None]], None] = _in_the_next_turn
        """Schedules a call for the next turn, after the requests of other clients."""
        self.heads = HeadCache(max_body_bytes)

    def protocol(self) -> HttpConnection:
        """Create a connection for the event loop's server."""
        return HttpConnection(self)


class HttpConnection(Connection):
    """One client connection, with its order of responses and flow control."""

    def __init__(self, listener: HttpListener) -> None:
        super().__init__(listener)
        self._listener = listener
        self._exchange: Exchange | None = None
        self._waiting = False
        """Whether a request is in flight."""
        self._asked = _UNREADABLE
        self._held_bytes = 0
        self._pipeline = Pipeline(listener.buffered)
        self._since_s = time.monotonic()
        """Time of the connection's start, last activity or failure."""
        self._worked = False
        """Whether a response was written since the last sweep; cheaper than reading the clock."""
        self._last_head: RequestHead | None = None
        self._last_raw = b""
        """Bytes of the last head, which the next request usually repeats."""
        self._last_bytes = 0
        self._reader: RequestReader | None = None
        """Parser, created for the first uncached head."""
        self._taking_up = False
        self._turn = _TURN
        self._rest = _NOTHING
        """Bytes received, but not yet parsed."""
        self._failed = False

    # Transport

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the request in flight and release all counted bytes."""
        super().connection_lost(error)
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._leave(_NOTHING)
        self._pipeline.clear()
        self._let_go()
        exchange, self._exchange = self._exchange, None
        if self._waiting and exchange is not None:
            exchange.cancel()
        self._waiting = False

    def resume_writing(self) -> None:
        """Resume reading, and handle the waiting requests."""
        super().resume_writing()
        self._next()

    def data_received(self, data: bytes) -> None:
        """Process bytes from the client."""
        reader = self._reader
        if reader is None or reader.is_between_requests:
            head = self._last_head
            if (
                head is not None
                and len(data) == self._last_bytes
                and data.startswith(self._last_raw)
            ):
                self._take(head, data[len(self._last_raw) :])
                return
            end = data.find(b"\r\n\r\n") + 4
            raw_head = data[:end]
            head = self._listener.heads.find(raw_head, len(data) - end)
            if head is not None:
                self._last_head, self._last_raw, self._last_bytes = head, raw_head, len(data)
                self._take(head, data[end:])
                return
            if reader is None:
                self._reader = reader = RequestReader(
                    self._listener.heads,
                    max_body_bytes=self._listener.max_body_bytes,
                    buffered=self._listener.buffered,
                    on_head=self._reject_or_continue,
                    on_request=self._take,
                )
            reader.begin(raw_head)
        self._read(reader, memoryview(data))
        self._turn -= len(data) // _TURN_READ
        if self._turn <= 0:
            self._later()

    def _read(self, reader: RequestReader, data: memoryview) -> None:
        position = 0
        try:
            while position < len(data) and self._turn > 0 and not self._pipeline.is_overfull:
                piece = data[position : position + reader.max_bytes]
                position += len(piece)
                reader.feed(piece)
                if reader.parts >= _TURN_PARTS:
                    self._turn -= reader.parts // _TURN_PARTS
                    reader.parts = 0
            if self._rest or position < len(data):
                self._leave(data[position:])
        except ServingError as error:
            self._leave(_NOTHING)
            self._fail(error)

    def _leave(self, rest: memoryview) -> None:
        """Keep unread bytes for later, replacing any kept earlier, or raise BufferFull."""
        self._listener.buffered.free(len(self._rest))
        self._rest = _NOTHING
        self._listener.buffered.take(len(rest))
        if 2 * len(rest) < len(cast("bytes", rest.obj)):  # a view keeps the whole buffer
            rest = memoryview(bytes(rest))
        self._rest = rest

    def _turns(self) -> Iterator[bytes]:
        while self._transport is not None:
            self._turn = _TURN
            self._next()
            rest, reader = self._rest, self._reader
            if rest and reader is not None and self._may_read and self._turn > 0:
                self._read(reader, rest)
            may_answer = self._pipeline.waiting and not self._waiting and not self._blocked
            if not may_answer and not (self._rest and self._may_read):
                return
            yield b""

    @property
    def _may_read(self) -> bool:
        return not self._pipeline.is_overfull and not self._failed and not self._blocked

    def _caught_up(self, outcome: list[bytes] | Exception) -> None:
        self._turn = _TURN
        super()._caught_up(outcome)
        if self._listener.draining:
            self.drain()

    def _resume(self) -> None:
        if not self._may_read:
            return
        if self._rest and self._transport is not None and not self._is_later:
            self._later()
        else:
            super()._resume()

    def _reject_or_continue(self, head: RequestHead, waits: bool) -> Response | None:
        refuse = self._listener.refusal
        refusal = None if refuse is None else refuse(head)
        if refusal is None and waits and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return refusal

    # Requests

    def _take(self, head: RequestHead, body: bytes) -> None:
        if self._waiting or self._pipeline.waiting or self._blocked or self._turn <= 0:
            self._queue(head, body)
        else:
            self._handle(head, body)

    def _queue(self, head: RequestHead, body: bytes) -> None:
        try:
            self._pipeline.add(head, body)
        except BufferFull as error:
            self._fail(error)
            return
        self._turn -= 1
        if self._pipeline.is_overfull and self._transport is not None:
            self._transport.pause_reading()
        if self._turn <= 0:
            self._later()

    def _handle(self, head: RequestHead, body: bytes) -> None:
        self._waiting = True
        self._asked = head
        try:
            if len(body) >= LARGE_BYTES:
                self._listener.buffered.take(len(body))
                self._held_bytes = len(body)
            outcome = (head.handle or self._listener.routes.handle)(head, body, self)
        except Exception as error:
            outcome = error_response(error)
        if type(outcome) is Response:  # `isinstance` takes three times as long here
            self.respond(outcome)
            self._turn -= 1 + (len(body) + len(outcome.body)) // _TURN_BYTES
            if self._turn <= 0:
                self._later()
        elif self._waiting:
            self._exchange = outcome

    def respond(self, response: Response) -> None:
        """Send the response, then continue with pipelined requests."""
        self.respond_with(head_of(response), response.body)

    def respond_with(self, head: bytes, body: Buffer) -> None:
        """Implement `ResponseWriter.respond_with`, and continue as `respond` does."""
        self._exchange = None
        self._waiting = False
        if self._held_bytes:
            self._let_go()
        transport = self._transport
        if transport is None:
            return
        closes = False
        if not self._asked.is_plain or self._listener.draining:
            head, body, closes = self._adapt_response(head, body)
        transport.write(b"".join((head, body)))
        if self._blocked:
            self._count_unsent()
        self._worked = True
        if closes:
            self._pipeline.clear()
            self._leave(_NOTHING)
            transport.close()
        elif self._pipeline.waiting and not self._taking_up:
            self._listener.soon(self._next)

    def _adapt_response(self, head: bytes, body: Buffer) -> tuple[bytes, Buffer, bool]:
        """Return the head and body to send, and whether to close the connection afterwards."""
        asked = self._asked
        inserted, closes = asked.inserted, not asked.keep_alive
        if self._listener.draining and not closes:
            inserted, closes = CLOSE + inserted.removeprefix(KEEP_ALIVE), True
        if inserted:
            head = head.replace(b"\r\n", b"\r\n" + inserted, 1)
        if asked.method == "HEAD":
            head, body = head[: head.index(b"\r\n\r\n") + 4], b""
        return head, body, closes

    def _next(self) -> None:
        """Handle pipelined requests until one is in flight, without recursion."""
        if self._taking_up:
            return
        self._taking_up = True
        while self._pipeline.waiting and not self._waiting and not self._blocked and self._turn > 0:
            if self._transport is None or self._transport.is_closing():
                break
            was_overfull = self._pipeline.is_overfull
            following = self._pipeline.next()
            if was_overfull:
                self._resume()
            if isinstance(following, Response):
                self._asked = _UNREADABLE
                self.respond(following)
            else:
                self._handle(*following)
        self._taking_up = False

    def _let_go(self) -> None:
        self._listener.buffered.free(self._held_bytes)
        self._held_bytes = 0

    def _fail(self, error: ServingError) -> None:
        """Queue an error behind earlier responses; the connection closes after it."""
        transport = self._transport
        if self._failed or transport is None or transport.is_closing():
            return
        self._failed = True
        self._since_s = time.monotonic()
        refused = error.response if isinstance(error, EarlyResponse) else error_response(error)
        self._pipeline.waiting.append(refused)
        if self._reader is not None:
            self._reader.drop()
        self._leave(_NOTHING)
        transport.pause_reading()
        self._next()

    # Housekeeping

    def drain(self) -> None:
        """Close the connection unless a request is in flight or arriving."""
        arriving = self._reader is not None and not self._reader.is_between_requests
        if (
            not self._waiting
            and not self._pipeline.waiting
            and not self._is_later
            and not arriving
            and self._transport is not None
        ):
            self._transport.close()

    def sweep(self, now_s: float) -> None:
        """Close the connection if it has been idle or receiving a request for too long."""
        if self._worked:
            self._worked = False
            self._since_s = now_s
        if self._waiting or self._blocked or self._is_later or self._transport is None:
            return
        if self._failed:
            if now_s - self._since_s > self._listener.idle_s:
                self._transport.abort()
        elif self._reader is not None and not self._reader.is_between_requests:
            if now_s - self._reader.began_s > self._listener.request_s:
                self._listener.door.late += 1
                self._fail(_RequestTimeout(self._listener.request_s))
        elif now_s - self._since_s > self._listener.idle_s and self.acknowledged_bytes() is None:
            if self._transport.is_closing():  # the client does not complete the TLS shutdown
                self._transport.abort()
            else:
                self._transport.close()


class _RequestTimeout(InvalidRequest):
    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request did not arrive within {seconds:g} s")
