"""HTTP of the inference port: one lean protocol object per connection, no task per request.

A connection has one request in flight; pipelined ones wait here. This module handles order of
responses, keep-alive and flow control; `Routes` handle requests. A request that arrives complete
behind a cached head skips the parser; `reader` reads the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from serving.api.http.head_cache import HeadCache
from serving.api.http.messages import (
    CLOSE,
    JSON_TYPE,
    KEEP_ALIVE,
    REASONS,
    EarlyResponse,
    RequestHead,
    Response,
    ending,
    error_response,
    json_response,
)
from serving.api.http.reader import RequestReader
from serving.api.transport.buffered_bytes import LARGE_BYTES, BufferedBytes
from serving.api.transport.connection_limiter import TEXT, ConnectionLimiter, acknowledged_bytes
from serving.api.transport.incremental import IncrementalRunner
from serving.api.transport.slow_clients import SlowClientDetector
from serving.errors import InvalidRequest, ServingError
from serving.values import Buffer

log = logging.getLogger(__name__)

_PIPELINED = 64
"""Pipelined requests per connection before reading stops."""
_PIPELINED_BYTES = 1024 * 1024
"""Likewise for bytes of heads and bodies."""
_TURN = 16
"""Requests answered without a replica, before a connection must let others have their turn."""
_TURN_BYTES = 1024
"""Body and response bytes that count as one more request, even if rejected."""
_TURN_READ = 32 * 1024
"""Received bytes that count as one more request."""
_TURN_PARTS = 64
"""Headers and body pieces that count as one more request."""


_NOTHING = memoryview(b"")

_FULL_BODY = b'{"error":"%b"}' % TEXT.encode()
_FULL = b"HTTP/1.1 503 Service Unavailable\r\n%b%b" % (
    CLOSE,
    ending(JSON_TYPE + b"Retry-After: 1\r\n", len(_FULL_BODY)) + _FULL_BODY,
)
"""Response to a connection over the limit."""

_UNREADABLE = RequestHead(
    method="",
    path="",
    inference_header_bytes=None,
    content_encoding="",
    keep_alive=False,
    http_1_0=False,
)
"""Head of an unreadable request; the response closes the connection."""


class ResponseWriter(Protocol):
    """Response writer; exactly one method is called, once."""

    def respond(self, response: Response) -> None:
        """Send a response."""
        ...

    def respond_with(self, head: bytes, body: Buffer) -> None:
        """Send a response.

        Args:
            head: lacks only the connection's own headers; may include the beginning of the body.
            body: the rest, borrowed for the call.
        """
        ...


class Exchange(Protocol):
    """Request in progress; it responds through its `ResponseWriter`."""

    def cancel(self) -> None:
        """Stop: the client disconnected."""
        ...


class Routes(Protocol):
    """Request handler behind a listener."""

    def handle(
        self, head: RequestHead, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response:
        """Return a response, or an exchange that later calls its `ResponseWriter` exactly once.

        Raises:
            ServingError: becomes the response.
        """
        ...


def _nothing(_head: RequestHead) -> Response | None:
    return None


def _in_the_next_turn(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


class HttpListener:
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
        refusal: Callable[[RequestHead], Response | None] = _nothing,
    ) -> None:
        self.routes = routes
        self.refusal = refusal
        """Callback that returns a rejection from the head alone; the body is then dropped."""
        self.max_body_bytes = max_body_bytes
        self.idle_s = idle_s
        """Seconds until an idle connection is closed."""
        self.request_s = request_s
        """Seconds for a request to arrive, else 408."""
        self.door = door or ConnectionLimiter()
        """Connection limiter."""
        self.buffered = buffered or BufferedBytes()
        """Counter of buffered bytes."""
        self.soon: Callable[[Callable[[], None]], None] = _in_the_next_turn
        """Schedules a call in the next turn, behind other clients' requests."""
        self._stalls: SlowClientDetector[HttpConnection] = SlowClientDetector()
        self.slices = IncrementalRunner()
        """Runs connections that used up their turn."""
        self.connections: set[HttpConnection] = set()
        self.heads = HeadCache(max_body_bytes)
        self.draining = False

    def protocol(self) -> HttpConnection:
        """Create a connection for the event loop's server."""
        return HttpConnection(self)

    def drain(self) -> None:
        """Close idle connections now, others after their response."""
        self.draining = True
        for connection in list(self.connections):
            connection.close_if_idle()

    def sweep(self, now_s: float) -> None:
        """Close idle connections, incomplete requests and slow clients."""
        taken = {
            one: so_far
            for one in self.connections
            if (so_far := one.acknowledged_bytes()) is not None
        }
        for connection in self._stalls.find_stalled(taken, now_s):
            self.door.stalled += 1
            connection.abort()
        for connection in list(self.connections):
            connection.sweep(now_s)

    def close(self) -> None:
        """Abort every connection."""
        for connection in list(self.connections):
            connection.abort()


class HttpConnection(asyncio.Protocol):
    """One client connection: order of responses and flow control."""

    __slots__ = (
        "_asked",
        "_blocked",
        "_client",
        "_exchange",
        "_failed",
        "_held_bytes",
        "_is_later",
        "_last_bytes",
        "_last_head",
        "_last_raw",
        "_listener",
        "_overfull",
        "_pipelined",
        "_pipelined_bytes",
        "_reader",
        "_rest",
        "_since_s",
        "_taking_up",
        "_transport",
        "_turn",
        "_unsent_bytes",
        "_waiting",
        "_worked",
    )

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._client: str | None = None
        """Key in the connection limiter."""
        self._exchange: Exchange | None = None
        self._waiting = False
        """Whether a request is in flight."""
        self._asked = _UNREADABLE
        """Head of the request in flight."""
        self._held_bytes = 0
        """Counted bytes of the request in flight."""
        self._pipelined: deque[tuple[RequestHead, bytes] | Response] = deque()
        self._pipelined_bytes = 0
        """Bytes of pipelined heads and bodies."""
        self._since_s = time.monotonic()
        """Time of the start, the last activity or the failure."""
        self._worked = False
        """Whether a response was written since the last sweep; cheaper than reading the clock."""
        self._last_head: RequestHead | None = None
        self._last_raw = b""
        """Bytes of the last head; the next request mostly repeats it."""
        self._last_bytes = 0
        """Size of the last request, head and body."""
        self._reader: RequestReader | None = None
        """Parser, created for the first uncached head."""
        self._overfull = False
        """Whether too much is pipelined."""
        self._taking_up = False
        self._turn = _TURN
        """Rest of the turn."""
        self._is_later = False
        """Whether the turn is used up; reading pauses."""
        self._rest = _NOTHING
        """Received, unread bytes."""
        self._unsent_bytes = 0
        """Counted bytes of unread responses."""
        self._blocked = False
        """Whether the client reads too slowly."""
        self._failed = False
        """Whether the stream became unreadable."""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or reject a new connection."""
        client = cast("asyncio.Transport", transport)  # uvloop's class is no subclass
        self._client = self._listener.door.acquire(client, _FULL)
        if self._client is not None:
            self._transport = client
            self._listener.connections.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Cancel the request in flight and release all bytes."""
        self._transport = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._leave(_NOTHING)
        self._listener.connections.discard(self)
        self._listener.door.release(self._client or "")
        self._forget_pipelined()
        self._let_go()
        self._count_unsent(0)
        exchange, self._exchange = self._exchange, None
        if self._waiting and exchange is not None:
            exchange.cancel()
        self._waiting = False

    def eof_received(self) -> None:
        """Treat half-closed as closed, as nginx does."""

    def pause_writing(self) -> None:
        """Stop reading while the client reads too slowly."""
        self._blocked = True
        if self._transport is not None:
            self._transport.pause_reading()
            self._count_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Resume reading."""
        self._blocked = False
        self._count_unsent(0)
        self._resume()
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
        """Parse until the turn is used up or the pipeline is full."""
        position = 0
        try:
            while position < len(data) and self._turn > 0 and not self._overfull:
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
        """Keep unread bytes for later, in place of earlier ones.

        Raises:
            BufferFull: no room.
        """
        self._listener.buffered.free(len(self._rest))
        self._rest = _NOTHING
        self._listener.buffered.take(len(rest))
        if 2 * len(rest) < len(cast("bytes", rest.obj)):  # a view keeps the whole buffer
            rest = memoryview(bytes(rest))
        self._rest = rest

    def _later(self) -> None:
        """Continue after other connections had their turn."""
        transport = self._transport
        if not self._is_later and transport is not None and not transport.is_closing():
            self._is_later = True
            transport.pause_reading()
            self._listener.slices.begin(self._turns(), self._caught_up)

    def _turns(self) -> Iterator[bytes]:
        """Run turns while something can proceed."""
        while self._transport is not None:
            self._turn = _TURN
            self._next()
            rest, reader = self._rest, self._reader
            if rest and reader is not None and self._may_read and self._turn > 0:
                self._read(reader, rest)
            may_answer = self._pipelined and not self._waiting and not self._blocked
            if not may_answer and not (self._rest and self._may_read):
                return
            yield b""

    @property
    def _may_read(self) -> bool:
        return not self._overfull and not self._failed and not self._blocked

    def _caught_up(self, outcome: list[bytes] | Exception) -> None:
        self._is_later = False
        self._turn = _TURN
        if isinstance(outcome, Exception):
            log.error("a connection hit a server error", exc_info=outcome)
            self.abort()
        elif self._listener.draining:
            self.close_if_idle()
        self._resume()

    def _resume(self) -> None:
        """Resume reading, first of bytes already received."""
        if self._transport is None or self._is_later or not self._may_read:
            return
        if self._rest:
            self._later()
        else:
            self._transport.resume_reading()

    def _reject_or_continue(self, head: RequestHead, waits: bool) -> Response | None:
        """Return a rejection, or send 100 Continue if expected."""
        refusal = self._listener.refusal(head)
        if refusal is None and waits and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return refusal

    # Requests

    def _take(self, head: RequestHead, body: bytes) -> None:
        if self._waiting or self._pipelined or self._blocked or self._turn <= 0:
            size = head.own_bytes + len(body)
            if not self._listener.buffered.try_acquire(size):
                self._fail(self._listener.buffered.refusal())
                return
            self._pipelined.append((head, body))
            self._pipelined_bytes += size
            self._turn -= 1
            is_full = (
                len(self._pipelined) >= _PIPELINED or self._pipelined_bytes >= _PIPELINED_BYTES
            )
            if is_full and not self._overfull and self._transport:
                self._overfull = True
                self._transport.pause_reading()
            if self._turn <= 0:
                self._later()
            return
        self._handle(head, body)

    def _handle(self, head: RequestHead, body: bytes) -> None:
        self._waiting = True
        self._asked = head
        try:
            if len(body) >= LARGE_BYTES:
                self._listener.buffered.take(len(body))
                self._held_bytes = len(body)
            outcome = (head.handle or self._listener.routes.handle)(head, body, self)
        except ServingError as error:
            outcome = error_response(error)
        except Exception:
            log.exception("a request hit a server error")
            outcome = json_response(
                500, {"error": "internal error; the server's log has the reason"}
            )
        if type(outcome) is Response:  # `isinstance` takes three times as long here
            self.respond(outcome)
            self._turn -= 1 + (len(body) + len(outcome.body)) // _TURN_BYTES
            if self._turn <= 0:
                self._later()
        elif self._waiting:
            self._exchange = outcome

    def respond(self, response: Response) -> None:
        """Send the response, then continue with pipelined requests."""
        status, fields, body = response
        reason = REASONS.get(status, "Unknown").encode()
        head = b"HTTP/1.1 %d %b\r\n%b" % (status, reason, ending(fields, len(body)))
        self.respond_with(head, body)

    def respond_with(self, head: bytes, body: Buffer) -> None:
        """Implement `ResponseWriter.respond_with`; continue as `respond`."""
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
            self._count_unsent(transport.get_write_buffer_size())
        self._worked = True
        if closes:
            self._forget_pipelined()
            self._leave(_NOTHING)
            transport.close()
        elif self._pipelined and not self._taking_up:
            self._listener.soon(self._next)

    def _adapt_response(self, head: bytes, body: Buffer) -> tuple[bytes, Buffer, bool]:
        """Return what is sent for a response, and whether the connection is closed behind it."""
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
        while self._pipelined and not self._waiting and not self._blocked and self._turn > 0:
            if self._transport is None or self._transport.is_closing():
                break
            following = self._pipelined.popleft()
            if not isinstance(following, Response):
                size = following[0].own_bytes + len(following[1])
                self._pipelined_bytes -= size
                self._listener.buffered.free(size)
            if (
                self._overfull
                and len(self._pipelined) < _PIPELINED // 2
                and self._pipelined_bytes < _PIPELINED_BYTES // 2
            ):
                self._overfull = False
                self._resume()
            if isinstance(following, Response):
                self._asked = _UNREADABLE
                self.respond(following)
            else:
                self._handle(*following)
        self._taking_up = False

    def _let_go(self) -> None:
        """Release the bytes of the request in flight."""
        self._listener.buffered.free(self._held_bytes)
        self._held_bytes = 0

    def _count_unsent(self, size: int) -> None:
        """Update the count of unread response bytes."""
        self._listener.buffered.count_unsent(size - self._unsent_bytes)
        self._unsent_bytes = size

    def _forget_pipelined(self) -> None:
        """Drop pipelined requests."""
        self._pipelined.clear()
        self._listener.buffered.free(self._pipelined_bytes)
        self._pipelined_bytes = 0

    def _fail(self, error: ServingError) -> None:
        """Queue an error behind earlier responses, then close."""
        transport = self._transport
        if self._failed or transport is None or transport.is_closing():
            return
        self._failed = True
        self._since_s = time.monotonic()
        refused = error.response if isinstance(error, EarlyResponse) else error_response(error)
        self._pipelined.append(refused)
        if self._reader is not None:
            self._reader.drop()
        self._leave(_NOTHING)
        transport.pause_reading()
        self._next()

    # Housekeeping

    def acknowledged_bytes(self) -> int | None:
        """Return bytes that the client has read; see `acknowledged_bytes`."""
        return acknowledged_bytes(self._transport)

    def close_if_idle(self) -> None:
        """Close unless a request is in flight or arriving."""
        arriving = self._reader is not None and not self._reader.is_between_requests
        if (
            not self._waiting
            and not self._pipelined
            and not self._is_later
            and not arriving
            and self._transport is not None
        ):
            self._transport.close()

    def sweep(self, now_s: float) -> None:
        """Close after too long idle or arriving."""
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

    def abort(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()


class _RequestTimeout(InvalidRequest):
    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request did not arrive within {seconds:g} s")
