"""Responses of one HTTP/2 connection, whole or as a series of messages, and how streams end."""

from __future__ import annotations

from serving.api.http2 import frames
from serving.api.http2.events import Event, MessageReady, StreamReset
from serving.api.http2.frames import ErrorCode, FrameType
from serving.api.http2.incoming import Incoming, Stream
from serving.api.http2.outgoing import Outgoing
from serving.api.transport.buffered_bytes import BufferedBytes
from serving.api.transport.slow_clients import SlowClientDetector
from serving.values import Buffer


class Responder:
    """Part of a session through which its owner responds; ignores unknown streams."""

    def __init__(self, max_body_bytes: int, buffered: BufferedBytes) -> None:
        self.now_s = 0.0
        """Current time, which the owner sets before bytes or messages are read."""
        self.outgoing = Outgoing()
        self._write = self.outgoing.write
        self.incoming = Incoming(buffered, max_body_bytes, self._write)
        self._streams = self.incoming.streams
        self._events: list[Event] = []
        self._stalls: SlowClientDetector[int] = SlowClientDetector()

    @property
    def streams(self) -> int:
        """Number of requests without a whole response."""
        return len(self._streams)

    @property
    def waiting(self) -> bool:
        """Whether a whole request awaits its response."""
        return any(known.waits and not known.is_series for known in self._streams.values())

    @property
    def has_series(self) -> bool:
        """Whether a streaming request is open, which may be silent for a long time."""
        return any(known.is_series for known in self._streams.values())

    def give_up(self, now_s: float) -> list[int]:
        """Reset and return the streams whose clients have stalled.

        Streams that wait for the connection's window have not stalled while other streams use it.
        """
        over = self._stalls.find_stalled(self.outgoing.sent_by_stream(), now_s)
        given_up = [
            stream
            for stream in over
            if stream and (0 in over or not self.outgoing.waits_for_connection(stream))
        ]
        for stream in given_up:
            self.reset(stream)
        return given_up

    def take(self) -> list[Buffer]:
        """Return and clear the pieces to send."""
        return self.outgoing.take()

    # Whole responses

    def respond(self, stream: int, head: bytes, data: bytes, trailers: bytes) -> None:
        """Send a whole response, or raise SendBufferFull; then only `respond_short` may follow."""
        known = self._streams.get(stream)
        if known is None:
            return
        known.is_answered = True
        if self.outgoing.send_response(stream, head, data, trailers):
            self._forget(stream, known)

    def respond_short(self, stream: int, head: bytes) -> None:
        """Send a header-only response; reset the stream if its request is incomplete."""
        known = self._streams.get(stream)
        if known is not None:
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
        """Return the next message of a series, as `Incoming.message` does."""
        known = self._streams.get(stream)
        if known is None or not known.is_series:
            return None
        return self.incoming.message(stream, known, self.now_s)

    def is_over(self, stream: int) -> bool:
        """Whether the client ended its stream and all messages were read."""
        known = self._streams.get(stream)
        return known is None or (known.ended and not known.body and not known.refused)

    def begin(self, stream: int, head: bytes) -> None:
        """Send the header block of a streaming response."""
        if stream in self._streams:
            self._write(frames.frame(FrameType.HEADERS, frames.END_HEADERS, stream, head))

    def send(self, stream: int, data: bytes) -> None:
        """Send a message, or raise SendBufferFull; then only `reset` may follow."""
        if stream in self._streams:
            self.outgoing.send(stream, data)

    def end(self, stream: int, trailers: bytes) -> None:
        """End a streaming response with its trailers."""
        known = self._streams.get(stream)
        if known is None:
            return
        known.is_answered = True
        if self.outgoing.end(stream, trailers):
            self._close(stream, known)

    # Ends of streams

    def _drop(self, stream: int, known: Stream) -> None:
        if known.waits:
            self._events.append(StreamReset(stream))
        self._forget(stream, known)

    def _forget(self, stream: int, known: Stream) -> None:
        self.outgoing.close_stream(stream)
        self.incoming.forget(stream, known)

    def _on_drained(self, streams: list[int]) -> None:
        for stream in streams:
            known = self._streams[stream]
            if known.is_answered:
                self._close(stream, known)
            else:
                self._events.append(MessageReady(stream))

    def _close(self, stream: int, known: Stream) -> None:
        if not known.ended:
            self._write(frames.reset(stream, ErrorCode.NO_ERROR))
        self._forget(stream, known)
