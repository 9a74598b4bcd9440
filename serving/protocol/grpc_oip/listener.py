"""The gRPC port: connections between sockets and routes, no task per call.

In: bytes of HTTP/2 with prior knowledge (no TLS); out: bytes. What a connection may do is decided by
`serving.protocol.http2.session`, what a call means by `serving.protocol.grpc_oip.routes`; this file
moves bytes, keeps the calls in flight, and ends what is idle.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import cast

from serving.errors import BodyTooLarge, DeadlineExceeded, ServingError
from serving.protocol.access import REFUSAL, Token
from serving.protocol.door import TEXT, Door, taken
from serving.protocol.grpc_oip import calls
from serving.protocol.grpc_oip.calls import Call, Code, Refused
from serving.protocol.grpc_oip.routes import HEALTH, Exchange, Routes
from serving.protocol.http2 import frames
from serving.protocol.http2.outgoing import HELD_BYTES, Full
from serving.protocol.http2.session import Gone, Request, Session
from serving.protocol.stalls import Stalls
from serving.values import Buffer

log = logging.getLogger(__name__)

_FULL = frames.settings({}) + frames.goaway(0, frames.ErrorCode.ENHANCE_YOUR_CALM, TEXT)
"""To a client whose connection is one too many."""
_JOINED_BYTES = 64 * 1024
"""Up to here one copy costs less than many small pieces."""


class Listener:
    """State that all connections of the port share."""

    def __init__(
        self,
        routes: Routes,
        *,
        max_body_bytes: int,
        idle_s: float,
        request_s: float,
        token: Token | None = None,
        door: Door | None = None,
    ) -> None:
        self.routes = routes
        self.door = door or Door()
        """Lets connections in."""
        self._stalls: Stalls[Connection] = Stalls()
        self.token = token
        """What calls must bring, but for those that ask for health; None: nothing."""
        self.max_body_bytes = max_body_bytes
        """Largest message."""
        self.idle_s = idle_s
        """A connection that says nothing for this long, with no call in flight, is closed."""
        self.request_s = request_s
        """A call whose message has not arrived whole after this long is ended."""
        self.connections: set[Connection] = set()
        self.draining = False

    def protocol(self) -> Connection:
        """Factory for the event loop's server."""
        return Connection(self)

    def drain(self) -> None:
        """No new calls; connections close when theirs are answered."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain()

    def sweep(self, now_s: float) -> None:
        """End what has been idle or incomplete for too long, and what its client does not take."""
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


class _Reply:
    """The answer of one call."""

    __slots__ = ("_connection", "_stream")

    def __init__(self, connection: Connection, stream: int) -> None:
        self._connection = connection
        self._stream = stream

    def send(self, pieces: Sequence[Buffer]) -> None:
        self._connection.answer(self._stream, pieces)

    def refuse(self, error: ServingError) -> None:
        self._connection.refuse(self._stream, calls.error_block(error))


class Connection(asyncio.Protocol):
    """One client connection: its session, and the calls that are being worked on."""

    __slots__ = (
        "_blocked",
        "_exchanges",
        "_flushing",
        "_heard_s",
        "_listener",
        "_loop",
        "_marks",
        "_session",
        "_transport",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._session = Session(max_body_bytes=listener.max_body_bytes + calls.PREFIX_BYTES)
        self._transport: asyncio.Transport | None = None
        self._exchanges: dict[int, Exchange] = {}
        self._flushing = False
        """What is to be sent is sent at the end of this turn of the loop."""
        self._blocked = False
        """The client does not read what it asked for."""
        self._heard_s = time.monotonic()
        self._marks: deque[tuple[float, int]] = deque()
        """At each sweep: when, and the newest call."""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        client = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        if self._listener.door.enter(client, _FULL):
            self._transport = client
            self._listener.connections.add(self)
            self._flush()

    def connection_lost(self, _error: Exception | None) -> None:
        """The client is gone; its work is dropped."""
        self._transport = None
        self._listener.connections.discard(self)
        self._listener.door.leave()
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            exchange.cancel()

    def pause_writing(self) -> None:
        """The client does not read its answers: nothing more is taken from it."""
        self._blocked = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._blocked = False
        if self._transport is not None:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self._heard_s = time.monotonic()
        for event in self._session.receive(data):
            if type(event) is Request:
                self._request(event)
            elif type(event) is Gone:
                exchange = self._exchanges.pop(event.stream, None)
                if exchange is not None:
                    exchange.cancel()
            else:
                error = BodyTooLarge(self._listener.max_body_bytes)
                self._session.respond_short(event.stream, calls.error_block(error))
        self._flush()

    # Calls

    def _request(self, request: Request) -> None:
        stream, fields, body = request
        call: Call | bytes | None = fields.meaning
        if call is None:
            call = fields.meaning = self._call_of(fields.pairs)
        if type(call) is bytes:
            self._session.respond_short(stream, call)
            return
        assert isinstance(call, Call)
        try:
            found = self._listener.routes.handle(call, calls.message_of(body), _Reply(self, stream))
        except ServingError as error:
            self._session.respond_short(stream, calls.error_block(error))
        except Refused as refused:
            self._session.respond_short(stream, calls.refusal(refused.code, refused.text))
        except Exception:
            log.exception("a call met a fault of the server")
            text = "internal error; the server's log has the reason"
            self._session.respond_short(stream, calls.refusal(Code.INTERNAL, text))
        else:
            if type(found) is bytes:
                self._respond(stream, (found,))
            else:
                self._exchanges[stream] = cast("Exchange", found)

    def _call_of(self, pairs: tuple[tuple[bytes, bytes], ...]) -> Call | bytes:
        call = calls.call_of(pairs)
        token = self._listener.token
        if token is None or isinstance(call, bytes) or call.service == HEALTH:
            return call
        if token.allows(dict(pairs).get(b"authorization", b"")):
            return call
        return calls.refusal(Code.UNAUTHENTICATED, REFUSAL)

    def answer(self, stream: int, pieces: Sequence[Buffer]) -> None:
        """The message that answers a call."""
        if self._exchanges.pop(stream, None) is not None:
            self._respond(stream, pieces)
            self._flush_soon()

    def refuse(self, stream: int, block: bytes) -> None:
        """The status that answers a call."""
        if self._exchanges.pop(stream, None) is not None:
            self._session.respond_short(stream, block)
            self._flush_soon()

    def _respond(self, stream: int, pieces: Sequence[Buffer]) -> None:
        data = b"".join((calls.prefix(sum(map(len, pieces))), *pieces))
        try:
            transport = self._transport
            if self._blocked and transport and transport.get_write_buffer_size() > HELD_BYTES:
                raise Full
            self._session.respond(stream, calls.HEAD, data, calls.OK_TRAILERS)
        except Full:
            text = f"over {HELD_BYTES} bytes of answers wait for this client to take them"
            self._session.respond_short(stream, calls.refusal(Code.RESOURCE_EXHAUSTED, text))

    def _flush_soon(self) -> None:
        """Answers of one batch leave in one piece."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is None:
            return
        pieces = self._session.take()
        if sum(map(len, pieces)) > _JOINED_BYTES:
            self._transport.writelines(pieces)
        elif pieces:
            self._transport.write(b"".join(pieces))
        if self._session.closed or (self._listener.draining and not self._session.streams):
            self._transport.close()

    # Ends

    def taken(self) -> int | None:
        """Bytes that the client has taken so far, where more wait for it; see `door.taken`."""
        return taken(self._transport)

    def drain(self) -> None:
        """No new calls on this connection; it closes with the last answer."""
        self._session.go_away()
        self._flush()

    def sweep(self, now_s: float) -> None:
        """End calls that do not arrive, and the connection when nobody is there any more."""
        session = self._session
        session.refresh()
        self._listener.door.stalled += session.give_up(now_s)
        self._marks.append((now_s, session.last_stream))
        while self._marks and self._marks[0][0] <= now_s - self._listener.request_s:
            _, last_stream = self._marks.popleft()
            for stream in session.late(last_stream):
                block = calls.error_block(DeadlineExceeded("client's hands"))
                session.respond_short(stream, block)
        is_idle = now_s - self._heard_s >= self._listener.idle_s and not session.waiting
        if is_idle and self.taken() is None:
            if self._transport is not None and self._transport.is_closing():
                self._transport.abort()  # a client that does not end TLS
                return
            session.go_away()
            self._flush()
            if self._transport is not None:
                self._transport.close()
            return
        self._flush()

    def abort(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()
