"""Receive side of an HTTP/2 connection: bodies, within windows and a budget (RFC 9113, 5.2)."""

from __future__ import annotations

from collections.abc import Callable

from serving.api.http2 import frames
from serving.api.http2.fields import HeaderFields
from serving.api.transport.buffered_bytes import BufferedBytes
from serving.errors import BodyTooLarge, InvalidRequest

WINDOW_BYTES = 256 * 1024
"""Flow-control window of a stream."""
BUDGET_BYTES = 64 * 1024 * 1024
"""Size of unfinished bodies above which only the stream that grew first may continue."""
_UPDATE_BYTES = WINDOW_BYTES // 2
"""Number of used bytes at which a window is refilled."""
PREFIX_BYTES = 5
"""Length of a message's prefix."""


class Stream:
    """Stream with a request coming in or a response going out."""

    __slots__ = (
        "began_s",
        "body",
        "ended",
        "fields",
        "fields_bytes",
        "is_answered",
        "is_series",
        "refused",
        "to_come",
        "used",
    )

    def __init__(self, fields: HeaderFields, began_s: float) -> None:
        self.fields = fields
        self.fields_bytes = 0
        """Size of `fields` counted in `BufferedBytes`."""
        self.began_s = began_s
        """Time when the request, or the first buffered message of a series, began."""
        self.is_series = False
        """Whether the body is a series of messages with prefixes."""
        self.body = bytearray()
        """Unread body; not a list, since pieces may have only two bytes."""
        self.used = 0
        """Number of window bytes used and not yet returned."""
        self.ended = False
        """Whether the client sent its last frame."""
        self.is_answered = False
        """Whether the response is being sent."""
        self.refused = False
        """Whether the rest of the body is dropped, because it is too large or there is no space."""
        self.to_come = fields.length
        """Number of body bytes still to come, if the length is known."""

    @property
    def waits(self) -> bool:
        """Whether the request awaits the end of its response."""
        is_known = self.ended or self.is_series
        return is_known and not self.refused and not self.is_answered


class Incoming:
    """Streams of a connection and their buffered bodies."""

    def __init__(
        self, buffered: BufferedBytes, max_bytes: int, write: Callable[[bytes], None]
    ) -> None:
        self.streams: dict[int, Stream] = {}
        self.held_bytes = 0
        self._fields_bytes = 0
        self._buffered = buffered
        self._max_bytes = max_bytes
        """Limit on a body, or on a message with its prefix."""
        self._write = write
        self._growing: dict[int, None] = {}
        """Streams that used half of their window, earliest first."""

    def hold_fields(self, known: Stream) -> bool:
        """Count a request's fields if there is space; return whether there is."""
        size = known.fields.held_bytes
        if not self._buffered.try_acquire(size):
            return False
        known.fields_bytes = size
        self._fields_bytes += size
        return True

    def add(self, stream: int, known: Stream, payload: bytes, now_s: float) -> bool:
        """Append to a body; if there is no buffer space, drop the body and return False."""
        if not self._buffered.has_let_in(len(payload)):
            self.release(stream, known)
            return False
        if known.is_series and not known.body:
            known.began_s = now_s
        known.body += payload
        self.held_bytes += len(payload)
        self._refill(stream, known)
        return True

    def release(self, stream: int, known: Stream) -> None:
        """Free a stream's body."""
        if known.body or stream in self._growing:
            held_bytes = len(known.body)
            known.body = bytearray()
            self._make_room(stream, held_bytes)

    def forget(self, stream: int, known: Stream) -> None:
        """Remove a stream and free its buffers."""
        del self.streams[stream]
        if known.fields_bytes:
            self._fields_bytes -= known.fields_bytes
            self._buffered.free(known.fields_bytes)
        self.release(stream, known)

    def close(self) -> None:
        """Remove all streams."""
        self.streams.clear()
        self._growing.clear()
        self._buffered.free(self.held_bytes + self._fields_bytes)
        self.held_bytes = self._fields_bytes = 0

    # Messages

    def message(self, stream: int, known: Stream, now_s: float) -> bytes | None:
        """Return the next message of a series with its prefix, or None if there is none yet.

        Raises:
            BodyTooLarge: the message exceeds the limit.
            InvalidRequest: the stream ended within the message.
        """
        size = self._message_bytes(known)
        if size > self._max_bytes:
            raise BodyTooLarge(self._max_bytes - PREFIX_BYTES)
        if len(known.body) < size:
            if known.ended and known.body:
                raise InvalidRequest("the stream ends within a message")
            return None
        with memoryview(known.body) as view:
            message = bytes(view[:size])
        del known.body[:size]
        known.began_s = now_s
        self._make_room(stream, size)
        self._refill(stream, known)
        return message

    def late(self, before_s: float) -> list[int]:
        """Return the streams whose incomplete request or message began before the given time."""
        return [
            stream
            for stream, known in self.streams.items()
            if known.began_s < before_s
            and (known.body and self._lacks_message(known) if known.is_series else not known.ended)
        ]

    def _lacks_message(self, known: Stream) -> bool:
        return len(known.body) < self._message_bytes(known) <= self._max_bytes

    def _message_bytes(self, known: Stream) -> int:
        """Return the size of the next message, or of its prefix while that is incomplete."""
        if len(known.body) < PREFIX_BYTES:
            return PREFIX_BYTES
        return PREFIX_BYTES + int.from_bytes(known.body[1:PREFIX_BYTES], "big")

    # Windows

    def _refill(self, stream: int, known: Stream) -> None:
        """Refill a window, unless a series has a message ready to be read."""
        if known.is_series and (known.ended or not self._lacks_message(known)):
            if stream in self._growing:
                self._make_room(stream, 0)
        elif known.used >= _UPDATE_BYTES:
            self._growing.setdefault(stream)
            self._grow(stream, known)

    def _grow(self, stream: int, known: Stream) -> None:
        """Refill a window if there is space or the stream is first in line."""
        if self.held_bytes <= BUDGET_BYTES or stream == next(iter(self._growing)):
            self._write(frames.window_update(stream, known.used))
            known.used = 0

    def _make_room(self, stream: int, held_bytes: int) -> None:
        """Free a stream's bytes, remove it from the line, and refill waiting streams."""
        self.held_bytes -= held_bytes
        self._buffered.free(held_bytes)
        self._growing.pop(stream, None)
        for other in list(self._growing):
            waiting = self.streams[other]
            if waiting.used >= _UPDATE_BYTES:
                self._grow(other, waiting)
