"""The query port's HTTP: a lean protocol object per connection, no task per request.

In: bytes of HTTP/1.1 or 1.0; out: bytes. The connection is itself the waiter of its one request in
flight; what a client pipelines behind it waits here, in order. What the requests mean is
`serving.protocol.routes`'s affair; this file knows the order of answers, keep-alive and flow control.

Clients repeat the heads of their requests, byte for byte or but for what means nothing here: a request that
arrives whole behind a head that is known skips the parser. All others are read by `http_reader`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from serving.errors import InvalidRequest, ServingError
from serving.protocol.door import TEXT, Door, taken
from serving.protocol.held import LARGE_BYTES, Held
from serving.protocol.http_messages import (
    CLOSE,
    JSON_TYPE,
    KEEP_ALIVE,
    REASONS,
    Head,
    Response,
    ending,
    error_response,
    json_response,
)
from serving.protocol.http_reader import Refused, RequestReader
from serving.protocol.known_heads import KnownHeads
from serving.protocol.slices import Slices
from serving.protocol.stalls import Stalls
from serving.values import Buffer

log = logging.getLogger(__name__)

_PIPELINED = 64
"""Requests that may wait on one connection before reading from it stops."""
_PIPELINED_BYTES = 1024 * 1024
"""Bytes of their heads and bodies that may."""
_TURN = 16
"""Requests that are answered at once, without a replica, before a connection lets others have their turn."""
_TURN_BYTES = 1024
"""Of their bodies and answers, those that count as one more: a body may be read before it is refused."""
_TURN_READ = 32 * 1024
"""Bytes from a client that count as one more: a loop reads megabytes of one connection before the next."""
_TURN_PARTS = 64
"""Fields and pieces of bodies that count as one more."""


_NOTHING = memoryview(b"")

_FULL_BODY = b'{"error":"%b"}' % TEXT.encode()
_FULL = b"HTTP/1.1 503 Service Unavailable\r\n%b%b" % (
    CLOSE,
    ending(JSON_TYPE + b"Retry-After: 1\r\n", len(_FULL_BODY)) + _FULL_BODY,
)
"""To a client whose connection is one too many."""

_UNREADABLE = Head(
    method="",
    path="",
    inference_header_bytes=None,
    content_encoding="",
    keep_alive=False,
    http_1_0=False,
)
"""Stands for the head of what cannot be read: the answer closes the connection."""


class Channel(Protocol):
    """Where a request is answered: one of the two is called, once."""

    def respond(self, response: Response) -> None:
        """Send an answer."""
        ...

    def respond_with(self, head: bytes, body: Buffer) -> None:
        """Send an answer whose head is complete but for what the connection adds to it.

        Args:
            head: from the status line on; it may hold the beginning of the body.
            body: the rest of the body, borrowed for the call.
        """
        ...


class Exchange(Protocol):
    """A request that is being worked on; it answers through the connection that it was given."""

    def cancel(self) -> None:
        """The client went away."""
        ...


class Routes(Protocol):
    """What stands behind a listener."""

    def handle(self, head: Head, body: bytes, connection: Channel) -> Exchange | Response:
        """Answer at once, or return what will call `connection.respond` later, exactly once.

        Raises:
            ServingError: answered with its status and text.
        """
        ...


def _nothing(_head: Head) -> Response | None:
    return None


def _in_the_next_turn(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


class Listener:
    """State that all connections of one port share."""

    def __init__(
        self,
        routes: Routes,
        *,
        max_body_bytes: int,
        idle_s: float,
        request_s: float,
        door: Door | None = None,
        held: Held | None = None,
        refusal: Callable[[Head], Response | None] = _nothing,
    ) -> None:
        self.routes = routes
        self.refusal = refusal
        """What answers a request by its head alone: its body is not waited for, nor held."""
        self.max_body_bytes = max_body_bytes
        self.idle_s = idle_s
        """A connection without a request is closed after this long."""
        self.request_s = request_s
        """A request that has not arrived whole after this long is answered 408."""
        self.door = door or Door()
        """Lets connections in."""
        self.held = held or Held()
        """Counts what requests hold."""
        self.soon: Callable[[Callable[[], None]], None] = _in_the_next_turn
        """Calls it in the loop's next turn: what other clients have sent by then is not behind it."""
        self._stalls: Stalls[Connection] = Stalls()
        self.slices = Slices()
        """Connections that have had their turn, and more to do."""
        self.connections: set[Connection] = set()
        self.heads = KnownHeads(max_body_bytes)
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
        """Close what has been idle or incomplete for too long, and whose client does not take its answers."""
        taken = {one: so_far for one in self.connections if (so_far := one.taken()) is not None}
        for connection in self._stalls.over(taken, now_s):
            self.door.stalled += 1
            connection.abort()
        for connection in list(self.connections):
            connection.sweep(now_s)

    def close(self) -> None:
        """Close every connection now."""
        for connection in list(self.connections):
            connection.abort()


class Connection(asyncio.Protocol):
    """One client connection: the order of its answers, and flow control."""

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

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._client: str | None = None
        """Whose it is, as the door counts."""
        self._exchange: Exchange | None = None
        self._waiting = False
        """A request is being answered."""
        self._asked = _UNREADABLE
        """Head of that request."""
        self._held_bytes = 0
        """Of that request, as they are counted."""
        self._pipelined: deque[tuple[Head, bytes] | Response] = deque()
        self._pipelined_bytes = 0
        """Of heads and bodies among them."""
        self._since_s = time.monotonic()
        """When the connection was last seen at work, or began, or failed."""
        self._worked = False
        """An answer was written since the last sweep: which notes the time, for a clock costs more than a flag."""
        self._last_head: Head | None = None
        self._last_raw = b""
        """The last request's head and its bytes: the next one's, mostly."""
        self._last_bytes = 0
        """Bytes of the last request, head and body."""
        self._reader: RequestReader | None = None
        """For requests that are not recognised; None until the first of them."""
        self._overfull = False
        """More is pipelined than may wait."""
        self._taking_up = False
        self._turn = _TURN
        """What is left of it."""
        self._is_later = False
        """It has had its turn; reading stops until it has caught up."""
        self._rest = _NOTHING
        """What has come and was not read."""
        self._unsent_bytes = 0
        """Bytes of answers that `held` counts while the client does not read."""
        self._blocked = False
        """More answers wait for the client than it reads."""
        self._failed = False
        """What the client sends cannot be read any further."""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        client = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._client = self._listener.door.enter(client, _FULL)
        if self._client is not None:
            self._transport = client
            self._listener.connections.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """The client is gone; its work is dropped."""
        self._transport = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._leave(_NOTHING)
        self._listener.connections.discard(self)
        self._listener.door.leave(self._client or "")
        self._forget_pipelined()
        self._let_go()
        self._count_unsent(0)
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
            self._count_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client reads again."""
        self._blocked = False
        self._count_unsent(0)
        self._resume()
        self._next()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
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
                    held=self._listener.held,
                    on_head=self._begun,
                    on_request=self._take,
                )
            reader.begin(raw_head)
        self._read(reader, memoryview(data))
        self._turn -= len(data) // _TURN_READ
        if self._turn <= 0:
            self._later()

    def _read(self, reader: RequestReader, data: memoryview) -> None:
        """Read on, until a turn's requests were answered or as many wait as may."""
        position = 0
        try:
            while position < len(data) and self._turn > 0 and not self._overfull:
                piece = data[position : position + reader.most_bytes]
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
        """So much of what has come is not read.

        Raises:
            TooMuchHeld: there is no room for it.
        """
        self._listener.held.free(len(self._rest))
        self._rest = _NOTHING
        self._listener.held.take(len(rest))
        if 2 * len(rest) < len(cast("bytes", rest.obj)):  # a view keeps the whole
            rest = memoryview(bytes(rest))
        self._rest = rest

    def _later(self) -> None:
        """Others have their turn before this goes on."""
        transport = self._transport
        if not self._is_later and transport is not None and not transport.is_closing():
            self._is_later = True
            transport.pause_reading()
            self._listener.slices.begin(self._turns(), self._caught_up)

    def _turns(self) -> Iterator[bytes]:
        """A turn at each step, while there is something to do that does not wait for others."""
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
            log.error("a connection met a fault of the server", exc_info=outcome)
            self.abort()
        elif self._listener.draining:
            self.close_if_idle()
        self._resume()

    def _resume(self) -> None:
        """Read on, first what has come already."""
        if self._transport is None or self._is_later or not self._may_read:
            return
        if self._rest:
            self._later()
        else:
            self._transport.resume_reading()

    def _begun(self, head: Head, waits: bool) -> Response | None:
        """A head is there: what refuses it; a client that waits to be told so may send the body of another."""
        refusal = self._listener.refusal(head)
        if refusal is None and waits and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return refusal

    # Requests in order

    def _take(self, head: Head, body: bytes) -> None:
        if self._waiting or self._pipelined or self._blocked or self._turn <= 0:
            size = head.own_bytes + len(body)
            if not self._listener.held.has_taken(size):
                self._fail(self._listener.held.refusal())
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

    def _handle(self, head: Head, body: bytes) -> None:
        self._waiting = True
        self._asked = head
        try:
            if len(body) >= LARGE_BYTES:
                self._listener.held.take(len(body))
                self._held_bytes = len(body)
            outcome = (head.handle or self._listener.routes.handle)(head, body, self)
        except ServingError as error:
            outcome = error_response(error)
        except Exception:
            log.exception("a request met a fault of the server")
            outcome = json_response(
                500, {"error": "internal error; the server's log has the reason"}
            )
        if isinstance(outcome, Response):
            self.respond(outcome)
            self._turn -= 1 + (len(body) + len(outcome.body)) // _TURN_BYTES
            if self._turn <= 0:
                self._later()
        elif self._waiting:
            self._exchange = outcome

    def respond(self, response: Response) -> None:
        """Send the answer of the request in flight, then go on with what was pipelined behind it."""
        status, fields, body = response
        reason = REASONS.get(status, "Unknown").encode()
        head = b"HTTP/1.1 %d %b\r\n%b" % (status, reason, ending(fields, len(body)))
        self.respond_with(head, body)

    def respond_with(self, head: bytes, body: Buffer) -> None:
        """As `respond`; see `Channel.respond_with`."""
        self._exchange = None
        self._waiting = False
        if self._held_bytes:
            self._let_go()
        transport = self._transport
        if transport is None:
            return
        asked = self._asked
        inserted, closes = asked.inserted, not asked.keep_alive
        if self._listener.draining and not closes:
            inserted, closes = CLOSE + inserted.removeprefix(KEEP_ALIVE), True
        if inserted:
            head = head.replace(b"\r\n", b"\r\n" + inserted, 1)
        if asked.method == "HEAD":
            head, body = head[: head.index(b"\r\n\r\n") + 4], b""
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

    def _next(self) -> None:
        """Take up what was pipelined, until one is in flight or nothing is left. Does not nest."""
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
                self._listener.held.free(size)
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
        """The request in flight is not held any more."""
        self._listener.held.free(self._held_bytes)
        self._held_bytes = 0

    def _count_unsent(self, size: int) -> None:
        """So much of answers waits for the client."""
        self._listener.held.count_unsent(size - self._unsent_bytes)
        self._unsent_bytes = size

    def _forget_pipelined(self) -> None:
        """What waits is not answered any more."""
        self._pipelined.clear()
        self._listener.held.free(self._pipelined_bytes)
        self._pipelined_bytes = 0

    def _fail(self, error: ServingError) -> None:
        """The stream cannot be read any further: answer what came before, then the error, then close."""
        transport = self._transport
        if self._failed or transport is None or transport.is_closing():
            return
        self._failed = True
        self._since_s = time.monotonic()
        refused = error.response if isinstance(error, Refused) else error_response(error)
        self._pipelined.append(refused)
        if self._reader is not None:
            self._reader.drop()
        self._leave(_NOTHING)
        transport.pause_reading()
        self._next()

    # Housekeeping

    def taken(self) -> int | None:
        """Bytes that the client has taken so far, where more wait for it; see `door.taken`."""
        return taken(self._transport)

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
        """Close when idle, or when a request does not arrive, for too long."""
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
        elif now_s - self._since_s > self._listener.idle_s and self.taken() is None:
            if self._transport.is_closing():  # a client that does not end TLS
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
