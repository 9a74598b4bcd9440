"""gRPC port: HTTP/2 connections with prior knowledge, without a task per call.

`http2.session` limits connections; `grpc.routes` handles calls.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterator, Sequence
from typing import cast

from serving.api.grpc import calls
from serving.api.grpc.calls import Code, GrpcCall
from serving.api.grpc.routes import HEALTH, GrpcRoutes
from serving.api.grpc.streams import InferStream
from serving.api.http.access import REFUSAL, Token
from serving.api.http.exchange import Exchange
from serving.api.http.messages import as_serving_error
from serving.api.http2 import frames
from serving.api.http2.events import (
    Event,
    MessageReady,
    RequestReady,
    RequestRefused,
    StreamOpened,
    StreamReset,
)
from serving.api.http2.fields import HeaderFields
from serving.api.http2.outgoing import BUFFERED_BYTES, SendBufferFull
from serving.api.http2.session import Session
from serving.api.transport.buffered_bytes import LARGE_BYTES, BufferedBytes
from serving.api.transport.compression import CompressionThreads
from serving.api.transport.connection_limiter import TEXT, ConnectionLimiter
from serving.api.transport.listener import Connection, Listener
from serving.errors import DeadlineExceeded, ServingError
from serving.values import Buffer

_FULL = frames.settings({}) + frames.goaway(0, frames.ErrorCode.ENHANCE_YOUR_CALM, TEXT)
"""Reply to a connection over the limit."""
_PING_S = 30.0
"""Silence after which a client with open streams is no longer pinged, but disconnected."""
_JOINED_BYTES = 64 * 1024
"""Size up to which small pieces are joined, which is cheaper."""


class GrpcListener(Listener):
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
        super().__init__(_FULL, idle_s=idle_s, request_s=request_s, door=door, buffered=buffered)
        self.routes = routes
        self.coding = CompressionThreads(max_body_bytes=max_body_bytes, min_bytes=gzip_min_bytes)
        self.token = token
        """Token required for all calls except health checks."""
        self.max_body_bytes = max_body_bytes
        """Limit on a message's size."""

    def protocol(self) -> GrpcConnection:
        """Create a connection for the event loop's server."""
        return GrpcConnection(self)

    def close(self) -> None:
        """Abort every connection."""
        super().close()
        self.coding.close()


class _ResponseWriter:
    __slots__ = ("_connection", "_encoding", "_stream")

    def __init__(self, connection: GrpcConnection, stream: int, encoding: str | None) -> None:
        self._connection = connection
        self._stream = stream
        self._encoding = encoding

    def send(self, pieces: Sequence[Buffer]) -> None:
        self._connection.send_response(self._stream, pieces, self._encoding)

    def reject(self, error: ServingError) -> None:
        self._connection.send_rejection(self._stream, error)


class GrpcConnection(Connection):
    """One client connection: its calls and streams."""

    def __init__(self, listener: GrpcListener) -> None:
        super().__init__(listener)
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self.coding = listener.coding
        self.buffered = listener.buffered
        self.session = Session(
            max_body_bytes=listener.max_body_bytes + calls.PREFIX_BYTES,
            opens=self._opens,
            buffered=listener.buffered,
        )
        self._exchanges: dict[int, Exchange] = {}
        self._held: dict[int, int] = {}
        self._streams: dict[int, InferStream] = {}
        self._flushing = False
        """Whether a flush is due after this loop iteration."""
        self._heard_s = time.monotonic()

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or reject a new connection, and greet it."""
        super().connection_made(transport)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the client's work."""
        super().connection_lost(error)
        self.session.close()
        self.buffered.free(sum(self._held.values()))
        self._held.clear()
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            exchange.cancel()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.cancel()

    def data_received(self, data: bytes) -> None:
        """Process bytes from the client."""
        self._heard_s = self.session.now_s = time.monotonic()
        self._handle_events(self.session.receive(data))
        if self.session.has_more:
            self._later()

    def _turns(self) -> Iterator[bytes]:
        while self.session.has_more:
            self.session.now_s = time.monotonic()
            self._handle_events(self.session.go_on())
            yield b""

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
            elif type(event) is RequestRefused:
                self._end_early(event.stream, event.error)
        self._flush()

    def _gone(self, stream: int) -> None:
        exchange = self._exchanges.pop(stream, None) or self._streams.pop(stream, None)
        if exchange is not None:
            exchange.cancel()
        self._let_go(stream)

    def _hold(self, stream: int, data: Buffer) -> None:
        """Count a large request as buffered, or raise BufferFull."""
        size = len(data)
        if size >= LARGE_BYTES:
            self.buffered.take(size)
            self._held[stream] = self._held.get(stream, 0) + size

    def _let_go(self, stream: int) -> None:
        if self._held:
            self.buffered.free(self._held.pop(stream, 0))

    # Calls

    def _opens(self, fields: HeaderFields) -> bytes | bool:
        """Classify a head (see `http2.events.Opens`), once for identical heads."""
        call: GrpcCall | bytes | None = fields.meaning
        if call is None:
            call = fields.meaning = self._call_of(fields.pairs)
        return call if isinstance(call, bytes) else call.is_stream

    def _call_of(self, pairs: tuple[tuple[bytes, bytes], ...]) -> GrpcCall | bytes:
        call = calls.call_of(pairs)
        if isinstance(call, bytes):
            return call
        token = self._listener.token
        given = dict(pairs).get(b"authorization", b"")
        if token is not None and call.service != HEALTH and not token.allows(given):
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
            if call.encoding is None or body[:1] != b"\x01":
                self._handle(stream, call, calls.message_of(body))
            else:
                data = calls.message_of(body, is_compressed=True)
                work = self.coding.decompress(call.encoding, data)
                self._exchanges[stream] = work
                work.add_done_callback(functools.partial(self._on_decompressed, stream, call))
        except Exception as error:
            self._refuse(stream, error)

    def _handle(self, stream: int, call: GrpcCall, data: memoryview) -> None:
        reply = _ResponseWriter(self, stream, call.response_encoding)
        found = self._listener.routes.handle(call, data, reply)
        if type(found) is bytes:
            self._let_go(stream)
            self._respond(stream, (found,))
        else:
            self._exchanges[stream] = cast("Exchange", found)

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
                self._handle(stream, call, memoryview(data))
            else:
                self._refuse(stream, error)
        except Exception as refused:
            self._refuse(stream, refused)
        self._flush_soon()

    def _refuse(self, stream: int, error: BaseException) -> None:
        self._let_go(stream)
        self.session.respond_short(stream, calls.error_block(as_serving_error(error)))

    # Streams

    def _open(self, opened: StreamOpened) -> None:
        stream, fields = opened
        call: GrpcCall = fields.meaning
        self.session.begin(stream, calls.head(call.response_encoding))
        self._streams[stream] = InferStream(call, stream, self, self._listener.routes.infer)

    def message(self, stream: int) -> bytes | None:
        """Return a stream's next message."""
        self.session.now_s = time.monotonic()
        message = self.session.message(stream)
        if message is not None:
            self._flush_soon()  # the client's window may have grown
        return message

    def send(self, stream: int, data: bytes, *, is_compressed: bool) -> None:
        """Send a message on a stream, or reset the stream if its client is slow."""
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

    def send_response(self, stream: int, pieces: Sequence[Buffer], encoding: str | None) -> None:
        """Send a call's response, compressed if long."""
        if self._exchanges.pop(stream, None) is None:
            return
        if encoding is not None and self.coding.is_long(sum(map(len, pieces))):
            work = self.coding.compress(encoding, b"".join(pieces))
            self._exchanges[stream] = work
            work.add_done_callback(functools.partial(self._on_compressed, stream, encoding))
            return
        self._let_go(stream)
        self._respond(stream, pieces)
        self._flush_soon()

    def _on_compressed(self, stream: int, encoding: str, work: asyncio.Future[bytes]) -> None:
        if self._exchanges.get(stream) is work:
            del self._exchanges[stream]
            self._let_go(stream)
            self._respond(stream, (work.result(),), encoding)
            self._flush_soon()

    def send_rejection(self, stream: int, error: ServingError) -> None:
        """Send an error as a call's response."""
        if self._exchanges.pop(stream, None) is not None:
            self._let_go(stream)
            self.session.respond_short(stream, calls.error_block(error))
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

    def _queued_bytes(self) -> int:
        return self.session.outgoing.held_bytes

    # Ends

    def drain(self) -> None:
        """Stop accepting work, and close after the last response."""
        self.session.go_away()
        for stream in list(self._streams.values()):
            stream.drain()
        self._flush()

    def sweep(self, now_s: float) -> None:
        """End late calls and dead connections."""
        session = self.session
        session.input.refresh()
        for stream in session.give_up(now_s):
            self._listener.door.stalled += 1
            self._gone(stream)
        before_s = now_s - self._listener.request_s
        for stream in session.incoming.late(before_s):
            self._listener.door.late += 1
            self._end_early(stream, DeadlineExceeded("client's hands"))
        if session.input.is_stuck(before_s):
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

    def _end_early(self, stream: int, error: ServingError) -> None:
        open_stream = self._streams.get(stream)
        if open_stream is not None:
            open_stream.end(error)
        else:
            self.session.respond_short(stream, calls.error_block(error))

    def _leave(self) -> None:
        self.session.go_away()
        self._flush()
        if self._transport is not None:
            self._transport.close()
