"""gRPC port: HTTP/2 connections with prior knowledge, without tasks.

`http2.session` limits connections; `grpc.routes` handles calls.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import cast

from serving.api.grpc import calls
from serving.api.grpc.calls import Code, GrpcCall
from serving.api.grpc.message_compression import MessageCompression
from serving.api.grpc.routes import HEALTH, GrpcRoutes
from serving.api.grpc.streams import InferStream, StreamExchange
from serving.api.http.access import REFUSAL, Token
from serving.api.http2 import frames
from serving.api.http2.events import (
    Event,
    Mark,
    MessageReady,
    NoBufferSpace,
    RequestReady,
    StreamOpened,
    StreamReset,
)
from serving.api.http2.fields import HeaderFields
from serving.api.http2.message_reader import MessageTooLong, MessageTruncated
from serving.api.http2.outgoing import BUFFERED_BYTES, SendBufferFull
from serving.api.http2.session import Session
from serving.api.transport.buffered_bytes import LARGE_BYTES, BufferedBytes
from serving.api.transport.connection_limiter import TEXT, ConnectionLimiter, acknowledged_bytes
from serving.api.transport.incremental import IncrementalRunner
from serving.api.transport.slow_clients import SlowClientDetector
from serving.errors import BodyTooLarge, DeadlineExceeded, InvalidRequest, ServingError
from serving.values import Buffer

log = logging.getLogger(__name__)

_FULL = frames.settings({}) + frames.goaway(0, frames.ErrorCode.ENHANCE_YOUR_CALM, TEXT)
"""Reply to a connection over the limit."""
_PING_S = 30.0
"""How long to ping a stream's silent client: several sweeps."""
_JOINED_BYTES = 64 * 1024
"""Size up to which joining is cheaper than sending small pieces."""


class GrpcListener:
    """State shared by all connections of the port."""

    def __init__(
        self,
        routes: GrpcRoutes,
        *,
        max_body_bytes: int,
        idle_s: float,
        request_s: float,
        token: Token | None = None,
        door: ConnectionLimiter | None = None,
        buffered: BufferedBytes | None = None,
        gzip_min_bytes: int | None = None,
    ) -> None:
        self.routes = routes
        self.coding = MessageCompression(max_body_bytes=max_body_bytes, min_bytes=gzip_min_bytes)
        self.door = door or ConnectionLimiter()
        """Limits connections."""
        self.buffered = buffered or BufferedBytes()
        """Counts buffered request bytes."""
        self._stalls: SlowClientDetector[GrpcConnection] = SlowClientDetector()
        self.slices = IncrementalRunner()
        """Connections with unread input after their turn."""
        self.token = token
        """Token for all calls but health checks."""
        self.max_body_bytes = max_body_bytes
        """Limit on a message."""
        self.idle_s = idle_s
        """Silence until a connection without calls is closed, or one with streams is pinged."""
        self.request_s = request_s
        """Time in which a call's message must arrive."""
        self.connections: set[GrpcConnection] = set()
        self.draining = False

    def protocol(self) -> GrpcConnection:
        """Create a connection; for the event loop's server."""
        return GrpcConnection(self)

    def drain(self) -> None:
        """Accept no new calls; connections close after their last response."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain()

    def sweep(self, now_s: float) -> None:
        """End idle, incomplete and stalled work."""
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
        """Close all connections now."""
        for connection in list(self.connections):
            connection.abort()
        self.coding.close()


class _ResponseWriter:
    __slots__ = ("_connection", "_stream")

    def __init__(self, connection: GrpcConnection, stream: int) -> None:
        self._connection = connection
        self._stream = stream

    def send(self, pieces: Sequence[Buffer]) -> None:
        self._connection.send_response(self._stream, pieces)

    def reject(self, error: ServingError) -> None:
        self._connection.send_rejection(self._stream, calls.error_block(error))


class _CompressedResponseWriter(_ResponseWriter):
    __slots__ = ("_encoding",)

    def __init__(self, connection: GrpcConnection, stream: int, encoding: str) -> None:
        super().__init__(connection, stream)
        self._encoding = encoding

    def send(self, pieces: Sequence[Buffer]) -> None:
        self._connection.send_compressed(self._stream, self._encoding, pieces)


class _StreamTransport:
    __slots__ = ("_connection", "_stream", "buffered", "coding")

    def __init__(
        self,
        connection: GrpcConnection,
        stream: int,
        coding: MessageCompression,
        buffered: BufferedBytes,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self.coding = coding
        self.buffered = buffered

    def message(self) -> bytes | None:
        return self._connection.message(self._stream)

    def is_over(self) -> bool:
        return self._connection.session.is_over(self._stream)

    def is_blocked(self) -> bool:
        return self._connection.session.waits_for_client(self._stream)

    def send(self, data: bytes, *, is_compressed: bool) -> None:
        self._connection.send(self._stream, data, is_compressed=is_compressed)

    def end(self, error: ServingError | None) -> None:
        self._connection.end(self._stream, error)


class GrpcConnection(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        "_blocked",
        "_client",
        "_exchanges",
        "_flushing",
        "_heard_s",
        "_held",
        "_is_later",
        "_listener",
        "_loop",
        "_marks",
        "_streams",
        "_transport",
        "_unsent_bytes",
        "session",
    )

    def __init__(self, listener: GrpcListener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self.session = Session(
            max_body_bytes=listener.max_body_bytes + calls.PREFIX_BYTES,
            opens=self._opens,
            buffered=listener.buffered,
        )
        self._transport: asyncio.Transport | None = None
        self._client: str | None = None
        """Client as counted by the connection limiter."""
        self._exchanges: dict[int, StreamExchange] = {}
        self._held: dict[int, int] = {}
        """Sizes of large requests."""
        self._streams: dict[int, InferStream] = {}
        self._flushing = False
        """Whether a flush is due after this loop iteration."""
        self._unsent_bytes = 0
        """Response bytes counted in `buffered`."""
        self._blocked = False
        """Whether the client does not read responses."""
        self._is_later = False
        """Whether reading pauses until input is processed."""
        self._heard_s = time.monotonic()
        self._marks: deque[tuple[float, Mark]] = deque()
        """Time and session mark of each sweep."""

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the client, or reject it."""
        client = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._client = self._listener.door.acquire(client, _FULL)
        if self._client is not None:
            self._transport = client
            self._listener.connections.add(self)
            self._flush()

    def connection_lost(self, _error: Exception | None) -> None:
        """Cancel the client's work."""
        self._transport = None
        self._listener.connections.discard(self)
        self._listener.door.release(self._client or "")
        self.session.close()
        self._count_unsent()
        self._listener.buffered.free(sum(self._held.values()))
        self._held.clear()
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            exchange.cancel()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.cancel()

    def pause_writing(self) -> None:
        """Stop reading from a slow client."""
        self._blocked = True
        if self._transport is not None:
            self._transport.pause_reading()
            self._count_unsent()

    def resume_writing(self) -> None:
        """Resume reading."""
        self._blocked = False
        self._count_unsent()
        self._resume()

    def data_received(self, data: bytes) -> None:
        """Process bytes from the client."""
        self._heard_s = time.monotonic()
        self._handle_events(self.session.receive(data))
        if self.session.has_more and not self._is_later and self._transport is not None:
            self._is_later = True
            self._transport.pause_reading()
            self._listener.slices.begin(self._turns(), self._caught_up)

    def _turns(self) -> Iterator[bytes]:
        """Take one turn per step."""
        while self.session.has_more:
            self._handle_events(self.session.go_on())
            yield b""

    def _caught_up(self, outcome: list[bytes] | Exception) -> None:
        self._is_later = False
        if isinstance(outcome, Exception):
            log.error("a connection hit a server error", exc_info=outcome)
            self.abort()
        self._resume()

    def _resume(self) -> None:
        if self._transport is not None and not self._is_later and not self._blocked:
            self._transport.resume_reading()

    def _handle_events(self, events: list[Event]) -> None:
        for event in events:
            if type(event) is RequestReady:
                self._request(event)
            elif type(event) is MessageReady:
                open_stream = self._streams.get(event.stream)
                if open_stream is not None:
                    open_stream.process_messages()
            elif type(event) is StreamReset:
                self._gone(event.stream)
            elif type(event) is StreamOpened:
                self._open(event)
            elif type(event) is NoBufferSpace:
                self._late(event.stream, self._listener.buffered.refusal())
            else:
                error = BodyTooLarge(self._listener.max_body_bytes)
                self.session.respond_short(event.stream, calls.error_block(error))
        self._flush()

    def _gone(self, stream: int) -> None:
        """Cancel a call or stream."""
        exchange = self._exchanges.pop(stream, None) or self._streams.pop(stream, None)
        if exchange is not None:
            exchange.cancel()
        self._let_go(stream)

    def _hold(self, stream: int, data: Buffer) -> None:
        """Count a large request, as received or decompressed.

        Raises:
            BufferFull: no buffer space.
        """
        size = len(data)
        if size >= LARGE_BYTES:
            self._listener.buffered.take(size)
            self._held[stream] = self._held.get(stream, 0) + size

    def _let_go(self, stream: int) -> None:
        """Free a request's buffer space."""
        if self._held:
            self._listener.buffered.free(self._held.pop(stream, 0))

    # Calls

    def _opens(self, fields: HeaderFields) -> bytes | bool:
        """Classify a head (`http2.events.Opens`), once for equal ones."""
        call: GrpcCall | bytes | None = fields.meaning
        if call is None:
            call = fields.meaning = self._call_of(fields.pairs)
        return call if isinstance(call, bytes) else call.is_stream

    def _call_of(self, pairs: tuple[tuple[bytes, bytes], ...]) -> GrpcCall | bytes:
        call = calls.call_of(pairs)
        if isinstance(call, bytes):
            return call
        token = self._listener.token
        is_open = token is None or call.service == HEALTH
        if token is not None and not (
            is_open or token.allows(dict(pairs).get(b"authorization", b""))
        ):
            return calls.refusal(Code.UNAUTHENTICATED, REFUSAL)
        try:
            is_stream = self._listener.routes.is_stream(call)
        except ServingError as error:
            return calls.error_block(error)
        return call._replace(is_stream=True) if is_stream else call

    def _request(self, request: RequestReady) -> None:
        stream, fields, body = request
        call: GrpcCall = fields.meaning
        try:
            self._hold(stream, body)
            if call.encoding is None:
                self._handle(stream, call, calls.message_of(body), _ResponseWriter(self, stream))
            else:
                self._handle_encoded(stream, call, call.encoding, body)
        except Exception as error:
            self._refuse(stream, error)

    def _handle(
        self, stream: int, call: GrpcCall, data: memoryview, reply: _ResponseWriter
    ) -> None:
        found = self._listener.routes.handle(call, data, reply)
        if type(found) is bytes:
            self._let_go(stream)
            self._respond(stream, (found,))
        else:
            self._exchanges[stream] = cast("StreamExchange", found)

    def _refuse(self, stream: int, error: BaseException) -> None:
        """Reject a call."""
        if not isinstance(error, ServingError):
            log.error("a call hit a server error", exc_info=error)
            error = ServingError("internal error; the server's log has the reason")
        self._let_go(stream)
        self.session.respond_short(stream, calls.error_block(error))

    # Calls whose messages may be compressed

    def _handle_encoded(self, stream: int, call: GrpcCall, encoding: str, body: bytes) -> None:
        is_compressed = body[:1] == b"\x01"
        data = calls.message_of(body, is_compressed=is_compressed)
        if not is_compressed:
            self._handle(stream, call, data, self._coded_reply(stream, call))
            return
        work = self._listener.coding.decompress(encoding, data)
        self._exchanges[stream] = work
        work.add_done_callback(lambda done: self._on_decompressed(stream, call, done))

    def _coded_reply(self, stream: int, call: GrpcCall) -> _ResponseWriter:
        encoding = call.response_encoding
        return (
            _ResponseWriter(self, stream)
            if encoding is None
            else _CompressedResponseWriter(self, stream, encoding)
        )

    def _on_decompressed(self, stream: int, call: GrpcCall, work: asyncio.Future[bytes]) -> None:
        if self._exchanges.get(stream) is not work:
            return  # the call was cancelled
        del self._exchanges[stream]
        # Not raised: a raised error holds its frames, and this frame the error and the message.
        error = work.exception()
        try:
            if error is None:
                data = work.result()
                self._hold(stream, data)
                self._handle(stream, call, memoryview(data), self._coded_reply(stream, call))
            else:
                self._refuse(stream, error)
        except Exception as refused:
            self._refuse(stream, refused)
        self._flush_soon()

    def send_compressed(self, stream: int, encoding: str, pieces: Sequence[Buffer]) -> None:
        """Send a call's response, compressed if long."""
        coding = self._listener.coding
        if stream not in self._exchanges or not coding.is_long(sum(map(len, pieces))):
            self.send_response(stream, pieces)
            return
        work = coding.compress(encoding, b"".join(pieces))
        self._exchanges[stream] = work
        work.add_done_callback(lambda done: self._on_compressed(stream, encoding, done))

    def _on_compressed(self, stream: int, encoding: str, work: asyncio.Future[bytes]) -> None:
        if self._exchanges.get(stream) is work:
            del self._exchanges[stream]
            self._let_go(stream)
            self._respond(stream, (work.result(),), encoding)
            self._flush_soon()

    # Streams

    def _open(self, opened: StreamOpened) -> None:
        stream, fields = opened
        call: GrpcCall = fields.meaning
        self.session.begin(stream, calls.head(call.response_encoding))
        link = _StreamTransport(self, stream, self._listener.coding, self._listener.buffered)
        self._streams[stream] = self._listener.routes.open(call, link)

    def message(self, stream: int) -> bytes | None:
        """Return a stream's next message."""
        try:
            message = self.session.message(stream)
        except MessageTooLong:
            raise BodyTooLarge(self._listener.max_body_bytes) from None
        except MessageTruncated:
            raise InvalidRequest("the stream ends within a message") from None
        if message is not None:
            self._flush_soon()  # the client's window may have grown
        return message

    def send(self, stream: int, data: bytes, *, is_compressed: bool) -> None:
        """Send a stream's message, or reset a slow client's stream."""
        whole = calls.prefix(len(data), is_compressed=is_compressed) + data
        try:
            self._check_room()
            self.session.send(stream, whole)
        except SendBufferFull:
            self.session.reset(stream)
            self._loop.call_soon(self._gone, stream)
        self._flush_soon()

    def end(self, stream: int, error: ServingError | None) -> None:
        """End a stream's response."""
        self._streams.pop(stream, None)
        self.session.end(stream, calls.trailers(error))
        self._flush_soon()

    # Responses

    def send_response(self, stream: int, pieces: Sequence[Buffer]) -> None:
        """Send a call's response."""
        if self._exchanges.pop(stream, None) is not None:
            self._let_go(stream)
            self._respond(stream, pieces)
            self._flush_soon()

    def send_rejection(self, stream: int, block: bytes) -> None:
        """Send a header-only response."""
        if self._exchanges.pop(stream, None) is not None:
            self._let_go(stream)
            self.session.respond_short(stream, block)
            self._flush_soon()

    def _respond(self, stream: int, pieces: Sequence[Buffer], encoding: str | None = None) -> None:
        size = sum(map(len, pieces))
        prefix = calls.prefix(size, is_compressed=encoding is not None)
        head = calls.head(encoding)
        try:
            self._check_room()
            self.session.respond(stream, head, b"".join((prefix, *pieces)), calls.OK_TRAILERS)
        except SendBufferFull:
            text = f"over {BUFFERED_BYTES} bytes of responses are waiting for this client"
            self.session.respond_short(stream, calls.refusal(Code.RESOURCE_EXHAUSTED, text))

    def _check_room(self) -> None:
        transport = self._transport
        if self._blocked and transport and transport.get_write_buffer_size() > BUFFERED_BYTES:
            raise SendBufferFull

    def _flush_soon(self) -> None:
        """Flush after this loop iteration, to join a batch's responses."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is None:
            return
        pieces = self.session.take()
        if sum(map(len, pieces)) > _JOINED_BYTES:
            self._transport.writelines(pieces)
        elif pieces:
            self._transport.write(b"".join(pieces))
        self._count_unsent()
        if self.session.closed or (self._listener.draining and not self.session.streams):
            self._transport.close()

    def _count_unsent(self) -> None:
        """Update the count of unsent bytes."""
        size = 0
        if self._transport is not None:
            size = self.session.unsent_bytes
            if self._blocked:  # both count the bytes of partly sent responses
                size = max(size, self._transport.get_write_buffer_size())
        if size != self._unsent_bytes:
            self._listener.buffered.count_unsent(size - self._unsent_bytes)
            self._unsent_bytes = size

    # Ends

    def acknowledged_bytes(self) -> int | None:
        """Bytes taken by a client with more waiting (`acknowledged_bytes`)."""
        return acknowledged_bytes(self._transport)

    def drain(self) -> None:
        """Accept no new work; close after the last response."""
        self.session.go_away()
        for stream in list(self._streams.values()):
            stream.drain()
        self._flush()

    def sweep(self, now_s: float) -> None:
        """End late calls and dead connections."""
        session = self.session
        session.refresh()
        for stream in session.give_up(now_s):
            self._listener.door.stalled += 1
            self._gone(stream)
        self._marks.append((now_s, session.mark()))
        while self._marks and self._marks[0][0] <= now_s - self._listener.request_s:
            _, mark = self._marks.popleft()
            for stream in session.late(mark):
                self._listener.door.late += 1
                self._late(stream, DeadlineExceeded("client's hands"))
            if session.is_stuck(mark):
                self._listener.door.late += 1
                self._leave()
                return
        silent_s = now_s - self._heard_s - self._listener.idle_s
        if silent_s >= 0 and not session.waiting and self.acknowledged_bytes() is None:
            if self._transport is not None and self._transport.is_closing():
                self._transport.abort()  # the client does not end TLS
                return
            if session.has_series and silent_s < _PING_S:
                session.ping()
            else:
                self._leave()
                return
        self._flush()

    def _late(self, stream: int, error: ServingError) -> None:
        """End a late call or stream."""
        open_stream = self._streams.get(stream)
        if open_stream is not None:
            open_stream.end(error)
        else:
            self.session.respond_short(stream, calls.error_block(error))

    def _leave(self) -> None:
        """Close an abandoned connection."""
        self.session.go_away()
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()
