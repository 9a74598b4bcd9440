"""One connection of HTTP/2, seen from the server: bytes in, requests and bytes out (RFC 9113).

    receive(bytes) -> events      Request (whole, with its body), Gone (the client cancelled), TooLarge;
    go_on() -> events             a new turn: what the last one left (`has_more`)
    respond(stream, ...)          an answer: fields, data, trailers
    take() -> pieces              what is to be sent now

What a head says is asked for when it comes (`opens`): the request is to be read whole, or refused at once,
or its body is a series of messages, and so is its answer:

    receive(bytes) -> events      Opened, then Arrived when there may be something to do, or Gone
    message(stream)               the next message that the client has sent
    begin, send, end              the fields, a message, the trailers of the answer

Pure: no socket, no clock; it never raises for what a client sends. What is wrong with a stream, such as a
malformed head (section 8.1.1), resets the stream; what is wrong with the connection ends it with GOAWAY,
after which `closed` is true and nothing is read any more.

What a client can make it hold is bounded:

- `MAX_STREAMS` requests at a time, each with a window of `WINDOW_BYTES` before it is asked to go on;
- larger bodies are let in while unfinished bodies hold less than `BUDGET_BYTES` together; beyond that
  only the one that began to grow first goes on, so that there is always one that can end; a body for which
  all connections together have no room (`held`) is given up;
- messages of a series that nobody has asked for: a window, and one message beyond;
- a head of at most `MAX_HEAD_BYTES` over all its CONTINUATION frames, whose fields count as a body does where they
  are large;
- answers that the client does not take: one for each of those requests, or what of a series is sent all the
  same, of `HELD_BYTES` together (`outgoing`); `give_up` resets those that it does not take for long;
- `TURN` units of work, until its owner lets it go on: others have their turn before that;
- `PATIENCE` frames that cost the server work but are no part of a request's way (PING, SETTINGS,
  RST_STREAM, empty frames) between two calls of `refresh`, which its owner makes every few seconds.
"""

from __future__ import annotations

from serving.protocol.held import Held
from serving.protocol.http2 import frames
from serving.protocol.http2.events import (
    Arrived,
    Event,
    Gone,
    Mark,
    NoRoom,
    Opened,
    Opens,
    Request,
    TooLarge,
)
from serving.protocol.http2.fields import MAX_LIST_BYTES, BadBlock, FieldReader, Fields
from serving.protocol.http2.frames import ErrorCode, FrameType, Setting
from serving.protocol.http2.outgoing import BadWindow, Outgoing
from serving.protocol.http2.series import Series
from serving.protocol.stalls import Stalls
from serving.values import Buffer

MAX_STREAMS = 512
WINDOW_BYTES = 256 * 1024
CONNECTION_WINDOW_BYTES = 2**30
"""The connection's own window is no bound: those of its streams are."""
BUDGET_BYTES = 64 * 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024
PATIENCE = 10_000
TURN = 256
"""Frames that are read in a turn, some microseconds each. A head costs as many as it has pieces of `_HEAD_UNIT`
bytes more, a request as many as it has of `_BODY_UNIT`, for whoever gets it may read each of its values."""
_HEAD_UNIT = 32
_BODY_UNIT = 256
_DATA_UNIT = 2048
"""Bytes of DATA that count as one more: a loop reads megabytes of one connection before the next."""

_LARGE_FIELDS = 2048
"""Bytes of fields that are counted among what is held, until their stream ends: most are few, and shared."""

_MAX_TEXT = 200
"""Characters of what GOAWAY says: it may quote what the client sent, and must fit a frame."""
_UPDATE_BYTES = WINDOW_BYTES // 2
"""A stream's window is filled up again when this much of it was used."""


class _Stream:
    """A request on its way in, or an answer on its way out."""

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

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.fields_bytes = 0
        """Of these, as they are counted."""
        self.body = bytearray()
        """Of a body in several pieces. Not a list of them: a client may send two bytes at a time."""
        self.body_bytes = 0
        self.used = 0
        """Bytes of our window for it that the client used and that were not given back."""
        self.ended = False
        """The client has sent its last frame."""
        self.is_answered = False
        """Its answer is on its way out."""
        self.refused = False
        """Its body was too large, or there was no room for it; what else comes of it is dropped."""
        self.series: Series | None = None
        """Its body, where that is a series of messages."""
        self.to_come = fields.length
        """Bytes of its body that have not come, where its head tells its length."""

    @property
    def waits(self) -> bool:
        """Whether it is whole, or a series, and its answer has not come, or not come to its end."""
        is_known = self.ended or self.series is not None
        return is_known and not self.refused and not self.is_answered


def _whole(_fields: Fields) -> bytes | bool:
    """Any request is read whole."""
    return False


class _Broken(Exception):  # the connection's end, inside this file only
    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class Session:
    """The server's side of one connection."""

    def __init__(
        self, *, max_body_bytes: int, opens: Opens = _whole, held: Held | None = None
    ) -> None:
        """Nothing has come.

        Args:
            max_body_bytes: longest body, or message of a series.
            opens: reads heads.
            held: counts what all connections hold; None: this one is alone.
        """
        self.closed = False
        """Nothing is read any more; close when `take` gives nothing."""
        self.has_more = False
        """A turn is over, and something may have come that was not read in it."""
        self._turn = TURN
        """What is left of it."""
        self._max_body_bytes = max_body_bytes
        self._opens = opens
        self._held = held or Held()
        self._reader = FieldReader()
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        self._buffer = b""
        self._preface = frames.PREFACE
        """What of the preface has not come yet."""
        self._block: tuple[int, int, list[bytes], int] | None = None
        """Stream, flags, pieces and bytes of a head whose CONTINUATION is to come."""
        self._began = 0
        """Refreshes before what is half there, a frame or the preface, began; and"""
        self._block_began = 0
        """a head whose continuation is to come."""
        self._settled = False
        self._patience = PATIENCE
        self._refreshes = 0
        self._held_bytes = 0
        """Bytes of bodies that have not ended."""
        self._fields_bytes = 0
        """Of fields of its streams, as they are counted."""
        self._growing: dict[int, None] = {}
        """Streams that used half their window, the first first."""
        self._received = 0
        """Bytes of the connection's window that the client used and that were not given back."""
        self._going_away = False
        self._events: list[Event] = []
        self._outgoing = Outgoing()
        self._stalls: Stalls[int] | None = None
        """Of answers that wait for the client; None while there are none."""
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

    # What the owner asks

    @property
    def streams(self) -> int:
        """Requests that have no whole answer yet, also those that are still arriving."""
        return len(self._streams)

    @property
    def waiting(self) -> bool:
        """Whether a request that has arrived whole waits for its answer."""
        return any(known.waits and known.series is None for known in self._streams.values())

    @property
    def has_series(self) -> bool:
        """Whether a series of messages is open: its client may have nothing to say for long."""
        return any(known.series is not None for known in self._streams.values())

    def ping(self) -> None:
        """Ask whether the client is there: it answers."""
        self._write(frames.frame(FrameType.PING, 0, 0, bytes(8)))

    def refresh(self) -> None:
        """Some seconds have passed: the bound on frames that only cost begins anew."""
        self._patience = PATIENCE
        self._refreshes += 1

    def mark(self) -> Mark:
        """Now."""
        return Mark(self._last_stream, self._refreshes)

    def late(self, mark: Mark) -> list[int]:
        """Requests that began before a moment and have not arrived whole, and series with such a message."""
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
        """Whether a frame, or a head, that began before a moment has not come to its end."""
        if self._block is not None:
            return self._block_began < mark.refreshes
        return self._is_half_there and self._began < mark.refreshes

    @property
    def _is_half_there(self) -> bool:
        return bool(self._buffer) or 0 < len(self._preface) < len(frames.PREFACE)

    def give_up(self, now_s: float) -> list[int]:
        """Reset streams whose answers the client has not taken for too long, and name them.

        One that waits for the connection's window is not at fault while others use that.
        """
        taken = self._outgoing.taken()
        if not taken:
            self._stalls = None
            return []
        if self._stalls is None:
            self._stalls = Stalls()
        over = self._stalls.over(taken, now_s)
        given_up = [
            stream
            for stream in over
            if stream and (0 in over or not self._outgoing.waits_for_connection(stream))
        ]
        for stream in given_up:
            self.reset(stream)
        return given_up

    def take(self) -> list[Buffer]:
        """What is to be sent now, in pieces."""
        return self._outgoing.take()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that wait for the client's windows."""
        return self._outgoing.held_bytes

    def go_away(self) -> None:
        """No new requests from now on; those that are there are answered."""
        if not self._going_away:
            self._going_away = True
            self._write(frames.goaway(self._last_stream, ErrorCode.NO_ERROR))

    def close(self) -> None:
        """The connection is over: nothing is held any more."""
        self.closed = True
        self.has_more = False
        self._buffer = b""
        self._streams.clear()
        self._growing.clear()
        self._held.free(self._held_bytes + self._fields_bytes)
        self._held_bytes = self._fields_bytes = 0

    # Bytes in

    def go_on(self) -> list[Event]:
        """What is left of what has come, as far as a new turn goes."""
        self._turn = TURN
        self.has_more = False
        return self.receive(b"")

    def receive(self, data: bytes) -> list[Event]:
        """What the client's bytes mean; they come in any pieces."""
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
        """One more frame that only costs."""
        self._patience -= 1
        if self._patience < 0:
            raise _Broken(ErrorCode.ENHANCE_YOUR_CALM, "too many frames beside the requests")

    def _fail(self, broken: _Broken) -> None:
        self._write(frames.goaway(self._last_stream, broken.code, broken.text[:_MAX_TEXT]))
        for stream, known in self._streams.items():
            if known.waits:
                self._events.append(Gone(stream))
            self._outgoing.closed(stream)
        self.close()

    # Heads

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & frames.PADDED:
            payload = _unpadded(payload)
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
            return  # it was told that this one is not looked at
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
        self._outgoing.opened(stream)
        opens = self._opens(fields)
        if fields.held_bytes >= _LARGE_FIELDS and not isinstance(opens, bytes):
            if not self._held.has_taken(fields.held_bytes):
                known.ended = bool(is_whole)
                self._give_up(stream, known)
                return
            known.fields_bytes = fields.held_bytes
            self._fields_bytes += fields.held_bytes
        if opens is not False:
            self._open(flags, stream, known, opens)
        elif is_whole:
            self._ended(stream, known)

    def _open(self, flags: int, stream: int, known: _Stream, opens: bytes | bool) -> None:
        """A request that is not read whole: a series of messages, or one that is answered at once."""
        is_last = bool(flags & frames.END_STREAM)
        if isinstance(opens, bytes):
            known.ended = is_last
            self.respond_short(stream, opens)
            return
        known.series = Series(self._max_body_bytes)
        self._events.append(Opened(stream, known.fields))
        if is_last:
            self._ended(stream, known)

    def _client_trailers(self, flags: int, stream: int, fields: Fields) -> None:
        known = self._streams.get(stream)
        self._bear()
        are_trailers = flags & frames.END_STREAM and fields.are_trailers
        if known is None:
            if not are_trailers:
                raise _Broken(ErrorCode.STREAM_CLOSED, f"a head of stream {stream}, not open")
            return  # it was answered, or reset, before its client came to its end
        if known.ended:
            self._reset_stream(stream, known, ErrorCode.STREAM_CLOSED)
        elif known.to_come or not are_trailers:
            self._reset_stream(stream, known, ErrorCode.PROTOCOL_ERROR)
        else:
            self._ended(stream, known)

    def _ended(self, stream: int, known: _Stream, last: bytes = b"") -> None:
        """A request is whole with the last piece of its body."""
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
        self._events.append(Request(stream, known.fields, last))

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
            payload = _unpadded(payload)
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
            self._events.append(TooLarge(stream, known.fields))
        if flags & frames.END_STREAM:
            self._ended(stream, known, payload)
        else:
            self._more(stream, known, payload)

    def _stray_data(self, stream: int, known: _Stream | None) -> None:
        """Data that belongs to no request that is arriving."""
        if not stream or (stream > self._last_stream and not self._going_away):
            raise _Broken(ErrorCode.PROTOCOL_ERROR, f"data of stream {stream}, not open")
        self._bear()
        if known is not None:
            self._reset_stream(stream, known, ErrorCode.STREAM_CLOSED)

    def _more(self, stream: int, known: _Stream, payload: bytes) -> None:
        """A part of a body that goes on."""
        if not payload:
            self._bear()
        if known.refused:
            return
        if not self._held.has_let_in(len(payload)):
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
        """There is no room for a head, or for more of a body."""
        known.refused = True
        self._events.append(NoRoom(stream))

    def _grow(self, stream: int, known: _Stream) -> None:
        """Let a body go on, if there is room for it or if it is the first in line."""
        if self._held_bytes <= BUDGET_BYTES or stream == next(iter(self._growing)):
            self._write(frames.window_update(stream, known.used))
            known.used = 0

    def _more_of_series(self, stream: int, known: _Stream, series: Series, payload: bytes) -> None:
        """More of a series of messages, or, with `ended`, its end."""
        if known.refused:
            return
        if not self._held.has_let_in(len(payload)):
            self._give_up(stream, known)
            return
        series.add(payload, self._refreshes)
        if known.ended:
            series.end()
        self._held_bytes += len(payload)
        self._events.append(Arrived(stream))
        self._let_in(stream, known, series)

    def _let_in(self, stream: int, known: _Stream, series: Series) -> None:
        """Let a series go on where it has no message that could be asked for."""
        if known.ended or not series.lacks:
            if stream in self._growing:
                self._make_room(stream, 0)
        elif known.used >= _UPDATE_BYTES:
            self._growing.setdefault(stream)
            self._grow(stream, known)

    def _let_go(self, stream: int, known: _Stream) -> None:
        """A body is not held any more; what waited for its room goes on."""
        held_bytes = known.body_bytes
        if known.series is not None:
            held_bytes = known.series.held_bytes
        known.body = bytearray()
        known.body_bytes = 0
        self._make_room(stream, held_bytes)

    def _make_room(self, stream: int, held_bytes: int) -> None:
        """A stream holds that much less, and does not wait for more."""
        self._held_bytes -= held_bytes
        self._held.free(held_bytes)
        self._growing.pop(stream, None)
        for other in list(self._growing):
            waiting = self._streams[other]
            if waiting.used >= _UPDATE_BYTES:
                self._grow(other, waiting)

    # The rest of what a client says

    def _window_update(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise _Broken(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has not 4 bytes")
        more = frames.U32.unpack(payload)[0] & 0x7FFFFFFF
        if not stream:
            if not more:
                raise _Broken(ErrorCode.PROTOCOL_ERROR, "the connection's window grows by nothing")
            self._left(self._outgoing.grown_connection(more))
            return
        known = self._streams.get(stream)
        if known is None:
            if stream > self._last_stream and not self._going_away:
                raise _Broken(ErrorCode.PROTOCOL_ERROR, f"a window of stream {stream}, not open")
            return  # it was answered by now
        if not more:
            self._reset_stream(stream, known, ErrorCode.PROTOCOL_ERROR)
            return
        try:
            if self._outgoing.grown(stream, more):
                self._left([stream])
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
        # Of a setting that comes more than once the last value counts, so that a frame full of them
        # costs no more than one.
        values = dict(frames.SETTING.iter_unpack(payload))
        if values.get(Setting.ENABLE_PUSH, 0) > 1:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        size = values.get(Setting.MAX_FRAME_SIZE, frames.DEFAULT_FRAME_BYTES)
        if not frames.DEFAULT_FRAME_BYTES <= size <= frames.LARGEST_FRAME_BYTES:
            raise _Broken(ErrorCode.PROTOCOL_ERROR, f"frames of {size} bytes")
        if Setting.MAX_FRAME_SIZE in values:
            self._outgoing.set_frame_bytes(size)
        window = values.get(Setting.INITIAL_WINDOW_SIZE)
        if window is not None:
            if window > frames.LARGEST_WINDOW_BYTES:
                raise _Broken(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {window} bytes")
            self._left(self._outgoing.set_initial_window(window))
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
        """Nobody waits for the answer any more."""
        if known.waits:
            self._events.append(Gone(stream))
        self._forget(stream, known)

    def _forget(self, stream: int, known: _Stream) -> None:
        del self._streams[stream]
        self._outgoing.closed(stream)
        if known.fields_bytes:
            self._fields_bytes -= known.fields_bytes
            self._held.free(known.fields_bytes)
        if not known.ended or known.series is not None:
            self._let_go(stream, known)

    def _left(self, streams: list[int]) -> None:
        """Answers that have left whole, and series of which nothing waits any more."""
        for stream in streams:
            known = self._streams[stream]
            if known.is_answered and known.ended:
                self._forget(stream, known)
            elif known.is_answered:
                self._close(stream, known)
            else:
                self._events.append(Arrived(stream))

    def _close(self, stream: int, known: _Stream) -> None:
        """A stream whose answer has left whole; a client that has not ended its request is told to stop."""
        if not known.ended:
            self._write(frames.reset(stream, ErrorCode.NO_ERROR))
        self._forget(stream, known)

    # Answers out

    def respond(self, stream: int, head: bytes, data: bytes, trailers: bytes) -> None:
        """An answer of three parts: block of fields, data, block of trailers. Unknown streams are ignored.

        Raises:
            Full: too many answers wait for this client already; `respond_short` is still possible.
        """
        known = self._streams.get(stream)
        if known is None:
            return
        known.is_answered = True
        if self._outgoing.answer(stream, head, data, trailers):
            self._forget(stream, known)

    def respond_short(self, stream: int, head: bytes) -> None:
        """An answer of fields alone; a request that has not ended yet is told to stop."""
        known = self._streams.get(stream)
        if known is None:
            return
        flags = frames.END_HEADERS | frames.END_STREAM
        self._write(frames.frame(FrameType.HEADERS, flags, stream, head))
        self._close(stream, known)

    def reset(self, stream: int) -> None:
        """End a stream at once: its client takes too little of what is sent."""
        known = self._streams.get(stream)
        if known is not None:
            self._write(frames.reset(stream, ErrorCode.ENHANCE_YOUR_CALM))
            self._forget(stream, known)

    # Series of messages

    def message(self, stream: int) -> bytes | None:
        """The next message of a series, with its prefix; None: it has not come yet, or there is none.

        Raises:
            TooLong: it is longer than one may be.
            CutOff: the series has ended within it.
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
        """Whether the client has ended its series, and all messages have been asked for."""
        known = self._streams.get(stream)
        return known is None or known.series is None or known.series.is_over

    def waits_for_client(self, stream: int) -> bool:
        """Whether something that was sent on a stream has not left."""
        return self._outgoing.waits(stream)

    def begin(self, stream: int, head: bytes) -> None:
        """Begin the answer to a series with its block of fields."""
        if stream in self._streams:
            self._write(frames.frame(FrameType.HEADERS, frames.END_HEADERS, stream, head))

    def send(self, stream: int, data: bytes) -> None:
        """Send a message of an answer that has begun.

        Raises:
            Full: too much waits for this client already; `reset` is still possible.
        """
        if stream in self._streams:
            self._outgoing.send(stream, data)

    def end(self, stream: int, trailers: bytes) -> None:
        """End an answer that has begun with its block of trailers."""
        known = self._streams.get(stream)
        if known is None:
            return
        known.is_answered = True
        if self._outgoing.end(stream, trailers):
            self._close(stream, known)


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise _Broken(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]
