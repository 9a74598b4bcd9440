"""The query port's HTTP: a lean protocol object per connection on httptools, no task per request.

In: bytes of HTTP/1.1 or 1.0; out: bytes. The connection is itself the waiter of its one request in
flight; what a client pipelines behind it waits here, in order. What the requests mean is
`serving.protocol.routes`'s affair; this file knows methods, lengths, keep-alive and limits.

Clients on kept-alive connections repeat the head of their requests byte for byte. A head that
httptools has read once, with a plain Content-Length, is remembered with what it means, and a
request that arrives whole behind such a head skips the parser.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from typing import Any, NamedTuple, Protocol, cast

import httptools

from serving.errors import BodyTooLarge, InvalidRequest, ServingError
from serving.values import Buffer

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Largest request head; more is answered 431."""
_CACHED_HEADS = 512
_CACHED_HEAD_BYTES = 2048
CLOSE = b"Connection: close\r\n"
KEEP_ALIVE = b"Connection: keep-alive\r\n"
_PIPELINED = 64
"""Requests that may wait on one connection before reading from it stops."""

REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class Head:
    """What a request's head says. Equal heads of kept-alive connections share one."""

    __slots__ = (
        "connection_field",
        "content_encoding",
        "content_length",
        "inference_header_bytes",
        "keep_alive",
        "meaning",
        "method",
        "path",
    )

    def __init__(
        self,
        *,
        method: str,
        path: str,
        content_length: int | None,
        inference_header_bytes: int | None,
        content_encoding: str,
        keep_alive: bool,
        http_1_0: bool,
    ) -> None:
        self.method = method
        self.path = path
        self.content_length = content_length
        self.inference_header_bytes = inference_header_bytes
        self.content_encoding = content_encoding
        self.keep_alive = keep_alive
        self.connection_field = CLOSE if not keep_alive else KEEP_ALIVE if http_1_0 else b""
        """What the answer says of the connection: nothing, where HTTP/1.1 implies it."""
        self.meaning: Any = None
        """Room for the routes to keep what the head means to them."""


class Response(NamedTuple):
    """Status, head fields beside the length, and body."""

    status: int
    fields: bytes
    body: bytes


class Exchange(Protocol):
    """A request that is being worked on; it answers through the connection that it was given."""

    def cancel(self) -> None:
        """The client went away."""
        ...


class Routes(Protocol):
    """What stands behind a listener."""

    def handle(self, head: Head, body: bytes, connection: Connection) -> Exchange | Response:
        """Answer at once, or return what will call `connection.respond` later, exactly once.

        Raises:
            ServingError: answered with its status and text.
        """
        ...


def ending(fields: bytes, body_bytes: int) -> bytes:
    """The end of a head: its own fields, the length, and the empty line."""
    return b"%bContent-Length: %d\r\n\r\n" % (fields, body_bytes)


JSON_TYPE = b"Content-Type: application/json\r\n"


def json_response(status: int, data: object) -> Response:
    """A response with a JSON body."""
    return Response(status, JSON_TYPE, json.dumps(data, separators=(",", ":")).encode())


def error_response(error: ServingError) -> Response:
    """The response for an error: `{"error": text}`, with Retry-After where it says one."""
    response = json_response(error.status, {"error": str(error)})
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        retry = b"Retry-After: %d\r\n" % max(1, round(retry_after_s))
        return response._replace(fields=response.fields + retry)
    return response


class Listener:
    """State that all connections of one port share."""

    def __init__(
        self, routes: Routes, *, max_body_bytes: int, idle_s: float, request_s: float
    ) -> None:
        self.routes = routes
        self.max_body_bytes = max_body_bytes
        self.idle_s = idle_s
        """A connection without a request is closed after this long."""
        self.request_s = request_s
        """A request that has not arrived whole after this long is answered 408."""
        self.connections: set[Connection] = set()
        self.heads: dict[bytes, Head] = {}
        self.draining = False

    def protocol(self) -> Connection:
        """Factory for the event loop's server."""
        return Connection(self)

    def drain(self) -> None:
        """Close idle connections, and the others after their answer."""
        self.draining = True
        for connection in list(self.connections):
            connection.close_if_idle()

    def sweep(self, now_s: float) -> None:
        """Close what has been idle or incomplete for too long."""
        for connection in list(self.connections):
            connection.sweep(now_s)

    def close(self) -> None:
        """Close every connection now."""
        for connection in list(self.connections):
            connection.abort()


class Connection(asyncio.Protocol):
    """One client connection: the parser's callbacks, the order of answers, and flow control."""

    __slots__ = (
        "_blocked",
        "_body",
        "_body_bytes",
        "_connection_field",
        "_encoding",
        "_exchange",
        "_expect",
        "_failed",
        "_head_began",
        "_head_bytes",
        "_head_fed",
        "_head_open",
        "_inference_header",
        "_length",
        "_listener",
        "_overfull",
        "_parser",
        "_partial",
        "_pipelined",
        "_raw_head",
        "_since_s",
        "_taking_up",
        "_transport",
        "_url",
        "_waiting",
        "_without_body",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._waiting = False
        """A request is being answered."""
        self._connection_field = b""
        self._pipelined: deque[tuple[Head, bytes] | Response] = deque()
        self._since_s = time.monotonic()
        self._raw_head: bytes | None = None
        self._parser: httptools.HttpRequestParser | None = None
        """At work on a request that has not arrived whole; None between requests."""
        self._partial = False
        self._head_open = False
        self._head_began = False
        self._head_fed = 0
        self._overfull = False
        """More is pipelined than may wait."""
        self._without_body = False
        """The request in flight is a HEAD."""
        self._taking_up = False
        self._blocked = False
        """More answers wait for the client than it reads."""
        self._failed = False
        """What the client sends cannot be read any further."""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._listener.connections.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """The client is gone; its work is dropped."""
        self._transport = None
        self._listener.connections.discard(self)
        self._pipelined.clear()
        exchange, self._exchange = self._exchange, None
        if self._waiting and exchange is not None:
            exchange.cancel()
        self._waiting = False

    def eof_received(self) -> None:
        """The client closed its side: as nginx does, this is taken as gone, and its work is dropped."""

    def pause_writing(self) -> None:
        """The client does not read its answers: nothing more is taken from it."""
        self._blocked = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._blocked = False
        if self._transport is not None and not self._overfull and not self._failed:
            self._transport.resume_reading()
        self._next()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._parser is None:
            end = data.find(b"\r\n\r\n") + 4
            raw_head = data[:end]
            head = self._listener.heads.get(raw_head) if end > 3 else None
            if head is not None and end + (head.content_length or 0) == len(data):
                if self._waiting or self._pipelined:
                    self._take(head, data[end:])
                else:
                    self._handle(head, data[end:])
                return
            self._start_parser(raw_head)
        try:
            assert self._parser is not None
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The offer to speak another protocol is not taken up: the request was answered as it is.
            self._parser = None
            rest = data[upgrade.args[0] :]
            if rest:
                self.data_received(rest)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._fail(cause if isinstance(cause, ServingError) else InvalidRequest(str(error)))
        except httptools.HttpParserError as error:
            self._fail(InvalidRequest(f"malformed HTTP request: {error}"))
        else:
            self._fed(len(data))

    def _fed(self, size: int) -> None:
        """After the parser took `size` bytes in order: leave it between requests, bound a head that does not end."""
        if not self._partial:
            self._parser = None
        elif self._head_open:
            # The parser keeps an unfinished field to itself, so what is fed is counted here; the
            # piece in which the head began may hold other requests before it, so only those after
            # it count.
            self._head_fed += size if self._head_began else 0
            self._head_began = True
            if self._head_fed > MAX_HEAD_BYTES:
                self._fail(_HeadTooLarge())

    # httptools callbacks

    def _start_parser(self, raw_head: bytes) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._raw_head = raw_head if 4 < len(raw_head) <= _CACHED_HEAD_BYTES else None
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._head_began = False
        self._head_fed = 0
        self._head_open = True
        self._partial = True
        self._length: int | None = None
        self._inference_header: int | None = None
        self._encoding = ""
        self._expect = False
        self._since_s = time.monotonic()

    def on_message_begin(self) -> None:
        """Parser: a request starts."""
        self._begin()

    def on_url(self, url: bytes) -> None:
        """Parser: (a part of) the target."""
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: one head field."""
        self._count_head(len(name) + len(value))
        key = name.lower()
        if key == b"content-length":
            self._length = _whole_number(value, "Content-Length")
            if self._length > self._listener.max_body_bytes:
                raise BodyTooLarge(self._listener.max_body_bytes)
        elif key == b"inference-header-content-length":
            self._inference_header = _whole_number(value, "Inference-Header-Content-Length")
        elif key == b"content-encoding":
            self._encoding = value.decode("latin-1").strip().lower()
        elif key == b"expect":
            self._expect = value.lower() == b"100-continue"
            self._raw_head = None
        elif key in {b"transfer-encoding", b"upgrade"}:
            self._raw_head = None

    def on_headers_complete(self) -> None:
        """Parser: the head is complete."""
        self._head_open = False
        if self._expect and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Parser: (a part of) the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._listener.max_body_bytes:
            raise BodyTooLarge(self._listener.max_body_bytes)
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Parser: the request is complete."""
        parser = self._parser
        assert parser is not None
        head = Head(
            method=parser.get_method().decode("latin-1"),
            path=self._url.decode("latin-1"),
            content_length=self._length,
            inference_header_bytes=self._inference_header,
            content_encoding=self._encoding,
            keep_alive=parser.should_keep_alive(),
            http_1_0=parser.get_http_version() == "1.0",
        )
        if self._raw_head is not None and self._body_bytes == (self._length or 0):
            heads = self._listener.heads
            if len(heads) >= _CACHED_HEADS:
                heads.clear()
            heads[self._raw_head] = head
        self._raw_head = None
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self._partial = False
        self._take(head, body)

    def _count_head(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLarge

    # Requests in order

    def _take(self, head: Head, body: bytes) -> None:
        if self._waiting or self._pipelined or self._blocked:
            self._pipelined.append((head, body))
            if len(self._pipelined) >= _PIPELINED and not self._overfull and self._transport:
                self._overfull = True
                self._transport.pause_reading()
            return
        self._handle(head, body)

    def _handle(self, head: Head, body: bytes) -> None:
        self._waiting = True
        self._connection_field = head.connection_field
        self._without_body = head.method == "HEAD"
        try:
            outcome = self._listener.routes.handle(head, body, self)
        except ServingError as error:
            outcome = error_response(error)
        except Exception:
            log.exception("a request met a fault of the server")
            outcome = json_response(
                500, {"error": "internal error; the server's log has the reason"}
            )
        if isinstance(outcome, Response):
            self.respond(outcome)
        elif self._waiting:
            self._exchange = outcome

    def respond(self, response: Response) -> None:
        """Send the answer of the request in flight, then go on with what was pipelined behind it."""
        status, fields, body = response
        reason = REASONS.get(status, "Unknown").encode()
        head = b"HTTP/1.1 %d %b\r\n%b" % (status, reason, ending(fields, len(body)))
        self.respond_with(head, body)

    def respond_with(self, head: bytes, body: Buffer) -> None:
        """As `respond`, with a head that is complete but for its Connection field.

        Args:
            head: from the status line on; it may hold the beginning of the body.
            body: the rest of the body.
        """
        self._exchange = None
        self._waiting = False
        transport = self._transport
        if transport is None:
            return
        field = CLOSE if self._listener.draining else self._connection_field
        if field:
            head = head.replace(b"\r\n", b"\r\n" + field, 1)
        if self._without_body:
            head, body = head[: head.index(b"\r\n\r\n") + 4], b""
        transport.write(b"".join((head, body)))
        self._since_s = time.monotonic()
        if field is CLOSE:
            self._pipelined.clear()
            transport.close()
        elif self._pipelined:
            self._next()

    def _next(self) -> None:
        """Take up what was pipelined, until one is in flight or nothing is left. Does not nest."""
        if self._taking_up:
            return
        self._taking_up = True
        while self._pipelined and not self._waiting and not self._blocked:
            if self._transport is None:
                break
            following = self._pipelined.popleft()
            if self._overfull and len(self._pipelined) < _PIPELINED // 2:
                self._overfull = False
                if not self._failed and not self._blocked:
                    self._transport.resume_reading()
            if isinstance(following, Response):
                self._connection_field = CLOSE
                self.respond(following)
            else:
                self._handle(*following)
        self._taking_up = False

    def _fail(self, error: ServingError) -> None:
        """The stream cannot be read any further: answer what came before, then the error, then close."""
        self._failed = True
        self._pipelined.append(error_response(error))
        if self._transport is not None:
            self._transport.pause_reading()
        self._next()

    # Housekeeping

    def close_if_idle(self) -> None:
        """Close unless a request is in flight or arriving."""
        if not self._waiting and self._parser is None and self._transport is not None:
            self._transport.close()

    def sweep(self, now_s: float) -> None:
        """Close when idle, or when a request does not arrive, for too long."""
        if self._waiting or self._transport is None:
            return
        if self._blocked or self._failed:
            if now_s - self._since_s > self._listener.idle_s:
                self._transport.abort()
        elif self._partial:
            if now_s - self._since_s > self._listener.request_s:
                self._fail(_RequestTimeout(self._listener.request_s))
        elif now_s - self._since_s > self._listener.idle_s:
            self._transport.close()

    def abort(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()


class _HeadTooLarge(InvalidRequest):
    status = 431

    def __init__(self) -> None:
        super().__init__(f"the request's head is larger than {MAX_HEAD_BYTES} bytes")


class _RequestTimeout(InvalidRequest):
    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request did not arrive within {seconds:g} s")


def _whole_number(value: bytes, name: str) -> int:
    if not value.isdigit() or len(value) > 18:
        shown = value[:40].decode("latin-1")
        raise InvalidRequest(
            f"Unable to parse {name}, got: {shown!r}, expected a whole number of bytes"
        )
    return int(value)
