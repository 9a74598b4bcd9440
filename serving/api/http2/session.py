"""Server side of one HTTP/2 connection: bytes in, events and bytes out (RFC 9113).

    receive(bytes) -> events      RequestReady (whole), StreamReset (by the client), BodyOverLimit
    go_on() -> events             new turn for unread input (`has_more`)
    respond(stream, ...)          fields, data, trailers
    take() -> pieces              to send now

`opens` classifies each head: read whole, respond at once, or stream messages both ways:

    receive(bytes) -> events      StreamOpened, then MessageReady, or StreamReset
    message(stream)               next client message
    begin, send, end              response fields, message, trailers

No socket, no clock. Client input never raises: a stream error, such as a malformed head (8.1.1),
resets the stream; a connection error sends GOAWAY and sets `closed`.

Bounds on what a client can make the server hold:

- `MAX_STREAMS` requests, each with a window of `WINDOW_BYTES`;
- unfinished bodies of `BUDGET_BYTES`; beyond that only the first that grew continues. A body
  without space in `buffered`, shared by all connections, is dropped;
- unread messages of a streaming request: a window and one message;
- heads of `MAX_HEAD_BYTES` with CONTINUATION; large fields count like a body;
- unsent responses of `BUFFERED_BYTES` (`outgoing`); `give_up` resets stalled ones;
- `TURN` units of work per turn, for fairness between connections;
- `PATIENCE` frames without progress (PING, SETTINGS, RST_STREAM, empty frames) between calls of
  `refresh`.
"""

from __future__ import annotations

from serving.api.http2 import frames
from serving.api.http2.events import (
    BodyOverLimit,
    Event,
    Mark,
    MessageReady,
    NoBufferSpace,
    Opens,
    RequestReady,
    StreamOpened,
    StreamReset,
)
from serving.api.http2.fields import MAX_LIST_BYTES, BadBlock, FieldReader, HeaderFields
from serving.api.http2.frames import ErrorCode, FrameType, Setting
from serving.api.http2.message_reader import MessageReader
from serving.api.http2.outgoing import BadWindow, Outgoing
from serving.api.transport.buffered_bytes import BufferedBytes
from serving.api.transport.slow_clients import SlowClientDetector
from serving.values import Buffer

MAX_STREAMS = 512
WINDOW_BYTES = 256 * 1024
CONNECTION_WINDOW_BYTES = 2**30
"""No bound: stream windows limit."""
BUDGET_BYTES = 64 * 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024
PATIENCE = 10_000
TURN = 256
"""Frames per turn, some microseconds each.

A head costs one more per `_HEAD_UNIT` bytes, a request per `_BODY_UNIT`, as every value may be
parsed.
"""
_HEAD_UNIT = 32
_BODY_UNIT = 256
_DATA_UNIT = 2048
"""DATA bytes that cost one more, as the event loop reads megabytes at once."""

_LARGE_FIELDS = 2048
"""Size from which fields count as held; smaller ones are mostly shared."""

_MAX_TEXT = 200
"""Limit on GOAWAY's text, which may quote the client."""
_UPDATE_BYTES = WINDOW_BYTES // 2
"""Used bytes at which a window is refilled."""


class _Stream:
    """A request coming in or a response going out."""

    __slots__ = (
        "body",
        "body_bytes",
        "ended",
        "fields",
        "fields_bytes",
        "is_answered",
        "refused",
        "series",
        "to_come",
        "used",
    )

    def __init__(self, fields: HeaderFields) -> None:
        self.fields = fields
        self.fields_bytes = 0
        """Size of `fields` counted in `BufferedBytes`."""
        self.body = bytearray()
        """Body so far; not a list, as pieces may have two bytes."""
        self.body_bytes = 0
        self.used = 0
        """Window bytes used and not given back."""
        self.ended = False
        """Whether the client sent its last frame."""
        self.is_answered = False
        """Whether the response is being sent."""
        self.refused = False
        """Whether the rest is dropped: body too large, or no space."""
        self.series: MessageReader | None = None
        """Messages of a streaming request."""
        self.to_come = fields.length
        """Body bytes to come, if the length is known."""

    @property
    def waits(self) -> bool:
        """Whether the request awaits the end of its response."""
        is_known = self.ended or self.series is not None
        return is_known and not self.refused and not self.is_answered


def _whole(_fields: HeaderFields) -> bytes | bool:
    """Read every request whole."""
    return False


class _Broken(Exception):  # ends the connection; used in this file only
    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class Session:
    """Server side of one connection."""

    def __init__(
        self, *, max_body_bytes: int, opens: Opens = _whole, buffered: BufferedBytes | None = None
    ) -> None:
        """Queue the server's SETTINGS.

        Args:
            max_body_bytes: limit on a body or message.
            opens: classifies heads.
            buffered: counter shared by all connections.
        """
        self.closed = False
        """Whether reading has ended; close once `take` is empty."""
        self.has_more = False
        """Whether a turn ended with input unread."""
        self._turn = TURN
        """Units left in the turn."""
        self._max_body_bytes = max_body_bytes
        self._opens = opens
        self._buffered = buffered or BufferedBytes()
        self._reader = FieldReader()
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        self._buffer = b""
        self._preface = frames.PREFACE
        """Preface bytes to come."""
        self._block: tuple[int, int, list[bytes], int] | None = None
        """Stream, flags, pieces and size of an incomplete head."""
        self._began = 0
        """`_refreshes` when the incomplete frame or preface began."""
        self._block_began = 0
        """`_refreshes` when the incomplete head began."""
        self._settled = False
        self._patience = PATIENCE
        self._refreshes = 0
        self._held_bytes = 0
        """Buffered body bytes."""
        self._fields_bytes = 0
        """Field bytes counted in `BufferedBytes`."""
        self._growing: dict[int, None] = {}
        """Streams that used half their window, in order."""
        self._received = 0
        """Connection window bytes used and not given back."""
        self._going_away = False
        self._events: list[Event] = []
        self._outgoing = Outgoing()
        self._stalls: SlowClientDetector[int] | None = None
        """Progress of waiting responses, if any."""
        self._write = self._outgoing.write
        self._write(
            frames.settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                    Setting.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                    Setting.MAX_HEADER_LIST_SIZE: MAX_LIST_BYTES,
                }
            )
        )
        self._write(frames.window_update(0, CONNECTION_WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES))

    # For the owner

    @property
    def streams(self) -> int:
        """Requests without a whole response."""
        return len(self._streams)

    @property
    def waiting(self) -> bool:
        """Whether a whole request awaits its response."""
        return any(known.waits and known.series is None for known in self._streams.values())

    @property
    def has_series(self) -> bool:
        """Whether a streaming request is open; it may be silent for long."""
        return any(known.series is not None for known in self._streams.values())

    def ping(self) -> None:
        """Check with a PING that the client is alive."""
        self._write(frames.frame(FrameType.PING, 0, 0, bytes(8)))

    def refresh(self) -> None:
        """Renew `PATIENCE`; called every few seconds."""
        self._patience = PATIENCE
        self._refreshes += 1

    def mark(self) -> Mark:
        """Return the current moment."""
        return Mark(self._last_stream, self._refreshes)

    def late(self, mark: Mark) -> list[int]:
        """Return requests, or streams with a message, begun before `mark` and incomplete."""
        return [
            stream
            for stream, known in self._streams.items()
            if (
                stream <= mark.stream and not known.ended
                if known.series is None
                else known.series.held_bytes
                and known.series.lacks
                and known.series.began < mark.refreshes
            )
        ]

    def is_stuck(self, mark: Mark) -> bool:
        """Whether a frame or head begun before `mark` is incomplete."""
        if self._block is not None:
            return self._block_began < mark.refreshes
        return self._is_half_there and self._began < mark.refreshes

    @property
    def _is_half_there(self) -> bool:
        return bool(self._buffer) or 0 < len(self._preface) < len(frames.PREFACE)

    def give_up(self, now_s: float) -> list[int]:
        """Reset and return streams whose client stalled.

        Waiting for the connection's window is no fault while others use it.
        """
        taken = self._outgoing.sent_by_stream()
        if not taken:
            self._stalls = None
            return []
        if self._stalls is None:
            self._stalls = SlowClientDetector()
        over = self._stalls.find_stalled(taken, now_s)
        given_up = [
            stream
            for stream in over
            if stream and (0 in over or not self._outgoing.waits_for_connection(stream))
        ]
        for stream in given_up:
            self.reset(stream)
        return given_up

    def take(self) -> list[Buffer]:
        """Return and clear the pieces to send."""
        return self._outgoing.take()

    @property
    def unsent_bytes(self) -> int:
        """Response bytes waiting for the client's windows."""
        return self._outgoing.held_bytes

    def go_away(self) -> None:
        """Accept no new requests."""
        if not self._going_away:
            self._going_away = True
            self._write(frames.goaway(self._last_stream, ErrorCode.NO_ERROR))

    def close(self) -> None:
        """End the session and free its buffers."""
        self.closed = True
        self.has_more = False
        self._buffer = b""
        self._streams.clear()
        self._growing.clear()
        self._buffered.free(self._held_bytes + self._fields_bytes)
        self._held_bytes = self._fields_bytes = 0

    # Bytes in

    def go_on(self) -> list[Event]:
        """Process unread input in a new turn."""
        self._turn = TURN
        self.has_more = False
        return self.receive(b"")

    def receive(self, data: bytes) -> list[Event]:
        """Process the client's bytes, split anywhere."""
        if self.closed:
            return []
        if not self._is_half_there:
            self._began = self._refreshes
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        try:
            if self._preface:
                data = self._begin(data)
            self._frames(data)
        except _Broken as broken:
            self._fail(broken)
        except BadWindow as error:
            self._fail(_Broken(ErrorCode.FLOW_CONTROL_ERROR, str(error)))
        events, self._events = self._events, []
        return events

    def _begin(self, data: bytes) -> bytes:
        size = min(len(data), len(self._preface))
        if data[:size] != self._preface[:size]:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "the connection does not begin with HTTP/2")
        self._preface = self._preface[size:]
        return data[size:]

    def _frames(self, data: bytes) -> None:
        unpack = frames.HEAD.unpack_from
        position, size = 0, len(data)
        while self._turn > 0 and size - position >= 9:
            self._turn -= 1
            length_and_type, flags, stream = unpack(data, position)
            length = length_and_type >> 8
            if length > frames.DEFAULT_FRAME_BYTES:
                raise _Broken(ErrorCode.FRAME_SIZE_ERROR, f"a frame has {length} bytes")
            end = position + 9 + length
            if end > size:
                break
            self._frame(
                length_and_type & 0xFF, flags, stream & 0x7FFFFFFF, data[position + 9 : end]
            )
            position = end
        if position:
            self._began = self._refreshes
        self._buffer = data[position:] if position else data
        self.has_more = self._turn <= 0 and not self.closed

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and (kind != FrameType.CONTINUATION or stream != self._block[0]):
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "a head is not followed by its continuation")
        if not self._settled and kind != FrameType.SETTINGS:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        match kind:
            case FrameType.DATA:
                self._data(flags, stream, payload)
            case FrameType.HEADERS:
                self._headers(flags, stream, payload)
            case FrameType.CONTINUATION:
                self._continuation(flags, payload)
            case FrameType.WINDOW_UPDATE:
                self._window_update(stream, payload)
            case FrameType.RST_STREAM:
                self._reset(stream, payload)
            case FrameType.SETTINGS:
                self._settings(flags, stream, payload)
            case FrameType.PING:
                self._ping(flags, stream, payload)
            case FrameType.PUSH_PROMISE:
                raise _Broken(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
            case FrameType.PRIORITY | FrameType.GOAWAY:
                self._bear()
            case _:
                self._bear()

    def _bear(self) -> None:
        """Count a frame without progress."""
        self._patience -= 1
        if self._patience < 0:
            raise _Broken(ErrorCode.ENHANCE_YOUR_CALM, "too many frames beside the requests")

    def _fail(self, broken: _Broken) -> None:
        self._write(frames.goaway(self._last_stream, broken.code, broken.text[:_MAX_TEXT]))
        for stream, known in self._streams.items():
            if known.waits:
                self._events.append(StreamReset(stream))
            self._outgoing.close_stream(stream)
        self.close()

    # Heads

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & frames.PADDED:
            payload = _strip_padding(payload)
        if flags & frames.PRIORITY:
            if len(payload) < 5:
                raise _Broken(ErrorCode.FRAME_SIZE_ERROR, "HEADERS is too short for its priority")
            payload = payload[5:]
        if not flags & frames.END_HEADERS:
            self._block = stream, flags, [payload], len(payload)
            self._block_began = self._refreshes
            return
        self._head(flags, stream, payload)

    def _continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "a continuation of no head")
        if not payload:
            self._bear()
        stream, first_flags, pieces, size = self._block
        size += len(payload)
        if size > MAX_HEAD_BYTES:
            raise _Broken(ErrorCode.ENHANCE_YOUR_CALM, f"a head has over {MAX_HEAD_BYTES} bytes")
        pieces.append(payload)
        self._block = stream, first_flags, pieces, size
        if flags & frames.END_HEADERS:
            self._block = None
            self._head(first_flags, stream, b"".join(pieces))

    def _head(self, flags: int, stream: int, block: bytes) -> None:
        self._turn -= len(block) // _HEAD_UNIT
        try:
            fields = self._reader.read(block)
        except BadBlock as error:
            raise _Broken(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        if not stream & 1:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, f"a client opens no stream {stream}")
        if stream <= self._last_stream:
            self._client_trailers(flags, stream, fields)
            return
        if self._going_away:
            self._bear()
            return  # the client knows from GOAWAY that this stream is ignored
        self._last_stream = stream
        is_whole = flags & frames.END_STREAM
        if not fields.is_request or (is_whole and fields.length):
            self._bear()
            self._write(frames.reset(stream, ErrorCode.PROTOCOL_ERROR))
            return
        if len(self._streams) >= MAX_STREAMS:
            self._bear()
            self._write(frames.reset(stream, ErrorCode.REFUSED_STREAM))
            return
        known = self._streams[stream] = _Stream(fields)
        self._outgoing.open_stream(stream)
        opens = self._opens(fields)
        if fields.held_bytes >= _LARGE_FIELDS and not isinstance(opens, bytes):
            if not self._buffered.try_acquire(fields.held_bytes):
                known.ended = bool(is_whole)
                self._give_up(stream, known)
                return
            known.fields_bytes = fields.held_bytes
            self._fields_bytes += fields.held_bytes
        if opens is not False:
            self._open(flags, stream, known, opens)
        elif is_whole:
            self._complete_request(stream, known)

    def _open(self, flags: int, stream: int, known: _Stream, opens: bytes | bool) -> None:
        """Open a streaming request, or send an immediate response."""
        is_last = bool(flags & frames.END_STREAM)
        if isinstance(opens, bytes):
            known.ended = is_last
            self.respond_short(stream, opens)
            return
        known.series = MessageReader(self._max_body_bytes)
        self._events.append(StreamOpened(stream, known.fields))
        if is_last:
            self._complete_request(stream, known)

    def _client_trailers(self, flags: int, stream: int, fields: HeaderFields) -> None:
        known = self._streams.get(stream)
        self._bear()
        are_trailers = flags & frames.END_STREAM and fields.are_trailers
        if known is None:
            if not are_trailers:
                raise _Broken(ErrorCode.STREAM_CLOSED, f"a head of stream {stream}, not open")
            return  # the response or reset came before the client's end
        if known.ended:
            self._reset_stream(stream, known, ErrorCode.STREAM_CLOSED)
        elif known.to_come or not are_trailers:
            self._reset_stream(stream, known, ErrorCode.PROTOCOL_ERROR)
        else:
            self._complete_request(stream, known)

    def _complete_request(self, stream: int, known: _Stream, last: bytes = b"") -> None:
        """Complete a request with the last piece of its body."""
        known.ended = True
        if known.refused:
            return
        if known.series is not None:
            self._more_of_series(stream, known, known.series, last)
            return
        if known.body:
            known.body += last
            last = bytes(known.body)
        self._let_go(stream, known)
        self._turn -= len(last) // _BODY_UNIT
        self._events.append(RequestReady(stream, known.fields, last))

    # Bodies

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        self._turn -= size // _DATA_UNIT
        self._received += size
        if self._received >= CONNECTION_WINDOW_BYTES // 2:
            self._write(frames.window_update(0, self._received))
            self._received = 0
        known = self._streams.get(stream)
        if known is None or known.ended:
            self._stray_data(stream, known)
            return
        known.used += size
        if known.used > WINDOW_BYTES:
            self._reset_stream(stream, known, ErrorCode.FLOW_CONTROL_ERROR)
            return
        if flags & frames.PADDED:
            payload = _strip_padding(payload)
            size = len(payload)
        if known.to_come is not None:
            known.to_come -= size
            if known.to_come < 0 or (known.to_come and flags & frames.END_STREAM):
                self._reset_stream(stream, known, ErrorCode.PROTOCOL_ERROR)
                return
        if known.series is not None:
            if flags & frames.END_STREAM:
                known.ended = True
            elif not payload:
                self._bear()
            self._more_of_series(stream, known, known.series, payload)
            return
        if known.body_bytes + size > self._max_body_bytes and not known.refused:
            self._let_go(stream, known)
            known.refused = True
            self._events.append(BodyOverLimit(stream, known.fields))
        if flags & frames.END_STREAM:
            self._complete_request(stream, known, payload)
        else:
            self._more(stream, known, payload)

    def _stray_data(self, stream: int, known: _Stream | None) -> None:
        """Handle data of no open request."""
        if not stream or (stream > self._last_stream and not self._going_away):
            raise _Broken(ErrorCode.PROTOCOL_ERROR, f"data of stream {stream}, not open")
        self._bear()
        if known is not None:
            self._reset_stream(stream, known, ErrorCode.STREAM_CLOSED)

    def _more(self, stream: int, known: _Stream, payload: bytes) -> None:
        """Append to a body."""
        if not payload:
            self._bear()
        if known.refused:
            return
        if not self._buffered.has_let_in(len(payload)):
            self._let_go(stream, known)
            self._give_up(stream, known)
            return
        known.body += payload
        known.body_bytes += len(payload)
        self._held_bytes += len(payload)
        if known.used >= _UPDATE_BYTES:
            self._growing.setdefault(stream)
            self._grow(stream, known)

    def _give_up(self, stream: int, known: _Stream) -> None:
        """Report a lack of buffer space."""
        known.refused = True
        self._events.append(NoBufferSpace(stream))

    def _grow(self, stream: int, known: _Stream) -> None:
        """Refill a window if there is space or it is first in line."""
        if self._held_bytes <= BUDGET_BYTES or stream == next(iter(self._growing)):
            self._write(frames.window_update(stream, known.used))
            known.used = 0

    def _more_of_series(
        self, stream: int, known: _Stream, series: MessageReader, payload: bytes
    ) -> None:
        """Append to a streaming request; with `known.ended`, end it."""
        if known.refused:
            return
        if not self._buffered.has_let_in(len(payload)):
            self._give_up(stream, known)
            return
        series.add(payload, self._refreshes)
        if known.ended:
            series.end()
        self._held_bytes += len(payload)
        self._events.append(MessageReady(stream))
        self._let_in(stream, known, series)

    def _let_in(self, stream: int, known: _Stream, series: MessageReader) -> None:
        """Refill the window of a streaming request that lacks a complete message."""
        if known.ended or not series.lacks:
            if stream in self._growing:
                self._make_room(stream, 0)
        elif known.used >= _UPDATE_BYTES:
            self._growing.setdefault(stream)
            self._grow(stream, known)

    def _let_go(self, stream: int, known: _Stream) -> None:
        """Free a body and refill waiting streams."""
        held_bytes = known.body_bytes
        if known.series is not None:
            held_bytes = known.series.held_bytes
        known.body = bytearray()
        known.body_bytes = 0
        self._make_room(stream, held_bytes)

    def _make_room(self, stream: int, held_bytes: int) -> None:
        """Free bytes, leave the line, and refill waiting streams."""
        self._held_bytes -= held_bytes
        self._buffered.free(held_bytes)
        self._growing.pop(stream, None)
        for other in list(self._growing):
            waiting = self._streams[other]
            if waiting.used >= _UPDATE_BYTES:
                self._grow(other, waiting)

    # Other frames

    def _window_update(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise _Broken(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has not 4 bytes")
        more = frames.U32.unpack(payload)[0] & 0x7FFFFFFF
        if not stream:
            if not more:
                raise _Broken(ErrorCode.PROTOCOL_ERROR, "the connection's window grows by nothing")
            self._on_drained(self._outgoing.grown_connection(more))
            return
        known = self._streams.get(stream)
        if known is None:
            if stream > self._last_stream and not self._going_away:
                raise _Broken(ErrorCode.PROTOCOL_ERROR, f"a window of stream {stream}, not open")
            return  # its response is complete
        if not more:
            self._reset_stream(stream, known, ErrorCode.PROTOCOL_ERROR)
            return
        try:
            if self._outgoing.grow_window(stream, more):
                self._on_drained([stream])
        except BadWindow:
            self._reset_stream(stream, known, ErrorCode.FLOW_CONTROL_ERROR)

    def _reset(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise _Broken(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has not 4 bytes")
        if not stream or (stream > self._last_stream and not self._going_away):
            raise _Broken(ErrorCode.PROTOCOL_ERROR, f"reset of stream {stream}, not open")
        self._bear()
        known = self._streams.get(stream)
        if known is not None:
            self._drop(stream, known)

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, f"SETTINGS of stream {stream}")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise _Broken(ErrorCode.FRAME_SIZE_ERROR, "malformed SETTINGS")
        self._settled = True
        if flags & frames.ACK:
            return
        self._bear()
        # Only the last value of a repeated setting counts, so a frame full of them costs no more
        # than one.
        values = dict(frames.SETTING.iter_unpack(payload))
        if values.get(Setting.ENABLE_PUSH, 0) > 1:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        size = values.get(Setting.MAX_FRAME_SIZE, frames.DEFAULT_FRAME_BYTES)
        if not frames.DEFAULT_FRAME_BYTES <= size <= frames.MAX_FRAME_BYTES:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, f"frames of {size} bytes")
        if Setting.MAX_FRAME_SIZE in values:
            self._outgoing.set_frame_bytes(size)
        window = values.get(Setting.INITIAL_WINDOW_SIZE)
        if window is not None:
            if window > frames.MAX_WINDOW_BYTES:
                raise _Broken(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {window} bytes")
            self._on_drained(self._outgoing.set_initial_window(window))
        self._write(frames.SETTINGS_ACK)

    def _ping(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, f"PING of stream {stream}")
        if len(payload) != 8:
            raise _Broken(ErrorCode.FRAME_SIZE_ERROR, "malformed PING")
        if not flags & frames.ACK:
            self._bear()
            self._write(frames.ping_ack(payload))

    # Streams that end

    def _reset_stream(self, stream: int, known: _Stream, code: ErrorCode) -> None:
        self._bear()
        self._write(frames.reset(stream, code))
        self._drop(stream, known)

    def _drop(self, stream: int, known: _Stream) -> None:
        if known.waits:
            self._events.append(StreamReset(stream))
        self._forget(stream, known)

    def _forget(self, stream: int, known: _Stream) -> None:
        del self._streams[stream]
        self._outgoing.close_stream(stream)
        if known.fields_bytes:
            self._fields_bytes -= known.fields_bytes
            self._buffered.free(known.fields_bytes)
        if not known.ended or known.series is not None:
            self._let_go(stream, known)

    def _on_drained(self, streams: list[int]) -> None:
        """Handle streams that sent all that waited."""
        for stream in streams:
            known = self._streams[stream]
            if known.is_answered and known.ended:
                self._forget(stream, known)
            elif known.is_answered:
                self._close(stream, known)
            else:
                self._events.append(MessageReady(stream))

    def _close(self, stream: int, known: _Stream) -> None:
        """Close a finished stream; reset it if the request goes on."""
        if not known.ended:
            self._write(frames.reset(stream, ErrorCode.NO_ERROR))
        self._forget(stream, known)

    # Responses

    def respond(self, stream: int, head: bytes, data: bytes, trailers: bytes) -> None:
        """Send a response of header block, data and trailers; ignore unknown streams.

        Raises:
            Full: too many bytes wait; `respond_short` still works.
        """
        known = self._streams.get(stream)
        if known is None:
            return
        known.is_answered = True
        if self._outgoing.send_response(stream, head, data, trailers):
            self._forget(stream, known)

    def respond_short(self, stream: int, head: bytes) -> None:
        """Send a header-only response; reset a request that goes on."""
        known = self._streams.get(stream)
        if known is None:
            return
        flags = frames.END_HEADERS | frames.END_STREAM
        self._write(frames.frame(FrameType.HEADERS, flags, stream, head))
        self._close(stream, known)

    def reset(self, stream: int) -> None:
        """Reset a stream whose client is too slow."""
        known = self._streams.get(stream)
        if known is not None:
            self._write(frames.reset(stream, ErrorCode.ENHANCE_YOUR_CALM))
            self._forget(stream, known)

    # Streaming requests

    def message(self, stream: int) -> bytes | None:
        """Return the next message with its prefix, or None if there is none yet.

        Raises:
            MessageTooLong: the message exceeds the limit.
            MessageTruncated: the stream ended within it.
        """
        known = self._streams.get(stream)
        if known is None or known.series is None:
            return None
        message = known.series.next(self._refreshes)
        if message is not None:
            self._make_room(stream, len(message))
            self._let_in(stream, known, known.series)
        return message

    def is_over(self, stream: int) -> bool:
        """Whether the client ended its stream and all messages were read."""
        known = self._streams.get(stream)
        return known is None or known.series is None or known.series.is_over

    def waits_for_client(self, stream: int) -> bool:
        """Whether a stream has unsent data."""
        return self._outgoing.waits(stream)

    def begin(self, stream: int, head: bytes) -> None:
        """Send the header block of a streaming response."""
        if stream in self._streams:
            self._write(frames.frame(FrameType.HEADERS, frames.END_HEADERS, stream, head))

    def send(self, stream: int, data: bytes) -> None:
        """Send a message of a streaming response.

        Raises:
            Full: too many bytes wait; `reset` still works.
        """
        if stream in self._streams:
            self._outgoing.send(stream, data)

    def end(self, stream: int, trailers: bytes) -> None:
        """End a streaming response with its trailers."""
        known = self._streams.get(stream)
        if known is None:
            return
        known.is_answered = True
        if self._outgoing.end(stream, trailers):
            self._close(stream, known)


def _strip_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise _Broken(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]
