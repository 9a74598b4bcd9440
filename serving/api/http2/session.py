"""Server side of one HTTP/2 connection: bytes in, events and bytes out (RFC 9113).

    receive(bytes) -> events      RequestReady, StreamReset (by the client), RequestRefused
    go_on() -> events             the same, in a new turn for unread input (`has_more`)
    take() -> pieces              pieces to send now

`opens` classifies each head: the request is read whole, answered at once, or streamed both ways,
with the events StreamOpened and MessageReady. `responder` has the methods that respond.

A session has no socket and no clock. Client input never raises an exception: a stream error, such
as a malformed head (8.1.1), resets the stream; a connection error sends GOAWAY and sets `closed`.
The memory that a client can occupy is bounded here and in `frame_reader`, `fields`, `incoming` and
`outgoing`.
"""

from __future__ import annotations

from serving.api.http2 import frames
from serving.api.http2.events import (
    Event,
    MessageReady,
    Opens,
    RequestReady,
    RequestRefused,
    StreamOpened,
    StreamReset,
)
from serving.api.http2.fields import MAX_LIST_BYTES, FieldReader, HeaderFields
from serving.api.http2.frame_reader import TURN, FrameReader, strip_padding
from serving.api.http2.frames import ErrorCode, FrameType, Http2Error, Setting
from serving.api.http2.incoming import PREFIX_BYTES, WINDOW_BYTES, Stream
from serving.api.http2.responder import Responder
from serving.api.transport.buffered_bytes import BufferedBytes
from serving.errors import BodyTooLarge, ServingError

MAX_STREAMS = 512
CONNECTION_WINDOW_BYTES = 2**30
"""Never exhausted, because the smaller windows of streams are exhausted first."""
_HEAD_UNIT = 32
"""Number of bytes of a head that cost one more unit of a turn, since every value may be parsed."""
_BODY_UNIT = 256
"""Number of bytes of a whole request that cost one more unit."""
_DATA_UNIT = 2048
"""Number of bytes of DATA that cost one more unit, since the event loop reads megabytes at once."""
_LARGE_FIELDS = 2048
"""Size from which fields count as buffered; smaller ones are mostly shared."""
_MAX_TEXT = 200


_HELLO = frames.settings(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        Setting.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
        Setting.MAX_HEADER_LIST_SIZE: MAX_LIST_BYTES,
    }
) + frames.window_update(0, CONNECTION_WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES)


def _whole(_fields: HeaderFields) -> bytes | bool:
    return False


class Session(Responder):
    """Server side of one connection."""

    def __init__(
        self, *, max_body_bytes: int, opens: Opens = _whole, buffered: BufferedBytes | None = None
    ) -> None:
        self._buffered = buffered or BufferedBytes()
        super().__init__(max_body_bytes, self._buffered)
        self.closed = False
        """Whether reading has ended; the owner closes once `take` is empty."""
        self.has_more = False
        """Whether a turn ended with unread input."""
        self._max_body_bytes = max_body_bytes
        self._opens = opens
        self.input = FrameReader()
        self._fields = FieldReader()
        self._last_stream = 0
        self._received = 0
        """Number of bytes of the connection's window used and not yet returned."""
        self._going_away = False
        self._write(_HELLO)

    # For the owner

    def ping(self) -> None:
        """Send a PING to check that the client is alive."""
        self._write(frames.frame(FrameType.PING, 0, 0, bytes(8)))

    def go_away(self) -> None:
        """Stop accepting requests."""
        if not self._going_away:
            self._going_away = True
            self._write(frames.goaway(self._last_stream, ErrorCode.NO_ERROR))

    def close(self) -> None:
        """End the session and free its buffers."""
        self.closed = True
        self.has_more = False
        self.input = FrameReader()
        self.incoming.close()

    # Frames

    def go_on(self) -> list[Event]:
        """Process unread input in a new turn."""
        self.input.turn = TURN
        self.has_more = False
        return self.receive(b"")

    def receive(self, data: bytes) -> list[Event]:
        """Process the client's bytes, split anywhere."""
        if self.closed:
            return []
        reader = self.input
        try:
            reader.feed(data, self.now_s)
            while (frame := reader.next()) is not None:
                kind, flags, stream, payload = frame
                match kind:
                    case FrameType.DATA:
                        self._data(flags, stream, payload)
                    case FrameType.HEADERS:
                        self._head(flags, stream, payload)
                    case FrameType.WINDOW_UPDATE:
                        self._window_update(stream, payload)
                    case FrameType.RST_STREAM:
                        self._reset(stream, payload)
                    case FrameType.SETTINGS:
                        self._settings(flags, stream, payload)
                    case FrameType.PING:
                        self._ping(flags, stream, payload)
                    case FrameType.PUSH_PROMISE:
                        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
                    case _:
                        reader.bear()
            self.has_more = reader.turn <= 0
        except Http2Error as error:
            self._fail(error)
        events, self._events = self._events, []
        return events

    def _fail(self, error: Http2Error) -> None:
        self._write(frames.goaway(self._last_stream, error.code, error.text[:_MAX_TEXT]))
        for stream, known in self._streams.items():
            if known.waits:
                self._events.append(StreamReset(stream))
            self.outgoing.close_stream(stream)
        self.close()

    # Heads

    def _head(self, flags: int, stream: int, block: bytes) -> None:
        self.input.turn -= len(block) // _HEAD_UNIT
        fields = self._fields.read(block)
        if not stream & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a client opens no stream {stream}")
        if stream <= self._last_stream:
            self._client_trailers(flags, stream, fields)
            return
        if self._going_away:
            self.input.bear()
            return  # the client knows from GOAWAY that this stream is ignored
        self._last_stream = stream
        is_whole = bool(flags & frames.END_STREAM)
        if not fields.is_request or (is_whole and fields.length):
            self.input.bear()
            self._write(frames.reset(stream, ErrorCode.PROTOCOL_ERROR))
            return
        if len(self._streams) >= MAX_STREAMS:
            self.input.bear()
            self._write(frames.reset(stream, ErrorCode.REFUSED_STREAM))
            return
        known = self._streams[stream] = Stream(fields, self.now_s)
        self.outgoing.open_stream(stream)
        opens = self._opens(fields)
        if isinstance(opens, bytes):
            known.ended = is_whole
            self.respond_short(stream, opens)
            return
        if fields.held_bytes >= _LARGE_FIELDS and not self.incoming.hold_fields(known):
            known.ended = is_whole
            self._refuse(stream, known, self._buffered.refusal())
            return
        if opens:
            known.is_series = True
            self._events.append(StreamOpened(stream, fields))
        if is_whole:
            self._complete_request(stream, known)

    def _client_trailers(self, flags: int, stream: int, fields: HeaderFields) -> None:
        known = self._streams.get(stream)
        self.input.bear()
        are_trailers = flags & frames.END_STREAM and fields.are_trailers
        if known is None:
            if not are_trailers:
                raise Http2Error(ErrorCode.STREAM_CLOSED, f"a head of stream {stream}, not open")
            return  # the response or reset came before the client's end
        if known.ended:
            self._reset_stream(stream, known, ErrorCode.STREAM_CLOSED)
        elif known.to_come or not are_trailers:
            self._reset_stream(stream, known, ErrorCode.PROTOCOL_ERROR)
        else:
            self._complete_request(stream, known)

    # Bodies

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        self.input.turn -= size // _DATA_UNIT
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
            payload = strip_padding(payload)
            size = len(payload)
        if known.to_come is not None:
            known.to_come -= size
            if known.to_come < 0 or (known.to_come and flags & frames.END_STREAM):
                self._reset_stream(stream, known, ErrorCode.PROTOCOL_ERROR)
                return
        if (
            len(known.body) + size > self._max_body_bytes
            and not known.is_series
            and not known.refused
        ):
            self.incoming.release(stream, known)
            self._refuse(stream, known, BodyTooLarge(self._max_body_bytes - PREFIX_BYTES))
        if flags & frames.END_STREAM:
            self._complete_request(stream, known, payload)
        else:
            self._more(stream, known, payload)

    def _stray_data(self, stream: int, known: Stream | None) -> None:
        self._check_opened(stream, "data")
        self.input.bear()
        if known is not None:
            self._reset_stream(stream, known, ErrorCode.STREAM_CLOSED)

    def _check_opened(self, stream: int, what: str) -> None:
        if not stream or (stream > self._last_stream and not self._going_away):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} of stream {stream}, not open")

    def _more(self, stream: int, known: Stream, payload: bytes) -> None:
        if not payload and not known.ended:
            self.input.bear()
        if known.refused:
            return
        if not self.incoming.add(stream, known, payload, self.now_s):
            self._refuse(stream, known, self._buffered.refusal())
        elif known.is_series:
            self._events.append(MessageReady(stream))

    def _refuse(self, stream: int, known: Stream, error: ServingError) -> None:
        known.refused = True
        self._events.append(RequestRefused(stream, error))

    def _complete_request(self, stream: int, known: Stream, last: bytes = b"") -> None:
        known.ended = True
        if known.is_series:
            self._more(stream, known, last)
        elif not known.refused:
            if known.body:
                last = b"".join((known.body, last))
            self.incoming.release(stream, known)
            self.input.turn -= len(last) // _BODY_UNIT
            self._events.append(RequestReady(stream, known.fields, last))

    # Other frames

    def _window_update(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE does not have 4 bytes")
        more = frames.U32.unpack(payload)[0] & 0x7FFFFFFF
        if not stream:
            if not more:
                text = "the connection's window grows by nothing"
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, text)
            self._on_drained(self.outgoing.grown_connection(more))
            return
        known = self._streams.get(stream)
        if known is None:
            self._check_opened(stream, "a window")
            return  # its response is complete
        if not more:
            self._reset_stream(stream, known, ErrorCode.PROTOCOL_ERROR)
            return
        try:
            if self.outgoing.grow_window(stream, more):
                self._on_drained([stream])
        except Http2Error as error:
            self._reset_stream(stream, known, error.code)

    def _reset(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM does not have 4 bytes")
        self._check_opened(stream, "reset")
        self.input.bear()
        known = self._streams.get(stream)
        if known is not None:
            self._drop(stream, known)

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"SETTINGS of stream {stream}")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "malformed SETTINGS")
        if flags & frames.ACK:
            return
        self.input.bear()
        # Only the last value of a repeated setting counts, so a frame full of them costs no more
        # than one.
        values = dict(frames.SETTING.iter_unpack(payload))
        if values.get(Setting.ENABLE_PUSH, 0) > 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        size = values.get(Setting.MAX_FRAME_SIZE, frames.DEFAULT_FRAME_BYTES)
        if not frames.DEFAULT_FRAME_BYTES <= size <= frames.MAX_FRAME_BYTES:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frames of {size} bytes")
        if Setting.MAX_FRAME_SIZE in values:
            self.outgoing.set_frame_bytes(size)
        window = values.get(Setting.INITIAL_WINDOW_SIZE)
        if window is not None:
            if window > frames.MAX_WINDOW_BYTES:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {window} bytes")
            self._on_drained(self.outgoing.set_initial_window(window))
        self._write(frames.SETTINGS_ACK)

    def _ping(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"PING of stream {stream}")
        if len(payload) != 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "malformed PING")
        if not flags & frames.ACK:
            self.input.bear()
            self._write(frames.frame(FrameType.PING, frames.ACK, 0, payload))

    def _reset_stream(self, stream: int, known: Stream, code: ErrorCode) -> None:
        self.input.bear()
        self._write(frames.reset(stream, code))
        self._drop(stream, known)
