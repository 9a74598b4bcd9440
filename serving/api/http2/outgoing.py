"""Send side of an HTTP/2 connection, within the client's windows (RFC 9113, 5.2 and 6.9)."""

from __future__ import annotations

from collections import deque

from serving.api.http2 import frames
from serving.api.http2.frames import ErrorCode, FrameType, Http2Error
from serving.values import Buffer

BUFFERED_BYTES = 64 * 1024 * 1024
"""Limit on waiting response bytes; a single response of any size may wait."""

_END = frames.END_HEADERS | frames.END_STREAM


class SendBufferFull(Exception):  # the session's owner maps it to its protocol's error
    """Too many bytes wait for the client."""


class _Rest:
    __slots__ = ("at", "messages", "sent_bytes", "trailers")

    def __init__(self, message: bytes, trailers: bytes | None) -> None:
        self.messages = deque((message,))
        self.at = 0
        """Number of bytes sent of the first message."""
        self.trailers = trailers
        """Block that ends the stream, or None if more messages may come."""
        self.sent_bytes = 0


class Outgoing:
    """Outgoing frames and the client's windows."""

    def __init__(self) -> None:
        self.pieces: list[Buffer] = []
        self._window = frames.DEFAULT_WINDOW_BYTES
        self._initial_window = frames.DEFAULT_WINDOW_BYTES
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._windows: dict[int, int] = {}
        """Window of each stream, possibly negative."""
        self._rests: dict[int, _Rest] = {}
        self.held_bytes = 0
        self._sent_bytes = 0
        self._blocked: dict[int, None] = {}
        """Streams that only the connection's window blocks."""

    def write(self, piece: Buffer) -> None:
        """Queue a frame."""
        self.pieces.append(piece)

    def take(self) -> list[Buffer]:
        """Return and clear the pieces to send."""
        pieces, self.pieces = self.pieces, []
        return pieces

    # Streams

    def open_stream(self, stream: int) -> None:
        """Register an open stream."""
        self._windows[stream] = self._initial_window

    def close_stream(self, stream: int) -> None:
        """Drop a stream and its unsent data."""
        del self._windows[stream]
        rest = self._rests.pop(stream, None)
        if rest is not None:
            self.held_bytes -= sum(map(len, rest.messages))
            self._blocked.pop(stream, None)

    def send_response(self, stream: int, head: bytes, data: bytes, trailers: bytes) -> bool:
        """Send a whole response, or raise SendBufferFull; return True if nothing is left."""
        size = len(data)
        if size <= self._window and size <= self._windows[stream] and size <= self._frame_bytes:
            self._window -= size
            pack = frames.HEAD.pack
            self.pieces += (
                pack(len(head) << 8 | FrameType.HEADERS, frames.END_HEADERS, stream),
                head,
                pack(size << 8 | FrameType.DATA, 0, stream),
                data,
                pack(len(trailers) << 8 | FrameType.HEADERS, _END, stream),
                trailers,
            )
            return True
        self._hold(size)
        self.write(frames.frame(FrameType.HEADERS, frames.END_HEADERS, stream, head))
        self._rests[stream] = _Rest(data, trailers)
        return self._send_rest(stream)

    def send(self, stream: int, data: bytes) -> None:
        """Send a message, or raise SendBufferFull; `end` follows the last message."""
        self._hold(len(data))
        rest = self._rests.get(stream)
        if rest is not None:
            rest.messages.append(data)
            return
        self._rests[stream] = _Rest(data, None)
        self._send_rest(stream)

    def end(self, stream: int, trailers: bytes) -> bool:
        """End a streaming response; return True if nothing is left."""
        rest = self._rests.get(stream)
        if rest is None:
            self.write(frames.frame(FrameType.HEADERS, _END, stream, trailers))
            return True
        rest.trailers = trailers
        return False

    def _hold(self, size: int) -> None:
        if self.held_bytes and self.held_bytes + size > BUFFERED_BYTES:
            raise SendBufferFull
        self.held_bytes += size

    def _send_rest(self, stream: int) -> bool:
        """Send what the windows admit; return True if nothing is left."""
        rest = self._rests[stream]
        window, before_bytes = self._windows[stream], rest.sent_bytes
        while rest.messages:
            message = rest.messages[0]
            part = min(self._frame_bytes, self._window, window, len(message) - rest.at)
            if part > 0:
                self.pieces += (
                    frames.HEAD.pack(part << 8 | FrameType.DATA, 0, stream),
                    memoryview(message)[rest.at : rest.at + part],
                )
                self._window -= part
                window -= part
                rest.at += part
                rest.sent_bytes += part
            elif rest.at < len(message):
                break
            if rest.at == len(message):
                rest.messages.popleft()
                rest.at = 0
                self.held_bytes -= len(message)
        self._windows[stream] = window
        self._sent_bytes += rest.sent_bytes - before_bytes
        if rest.messages and window > 0:
            self._blocked[stream] = None
            return False
        self._blocked.pop(stream, None)
        if rest.messages:
            return False
        del self._rests[stream]
        if rest.trailers is not None:
            self.write(frames.frame(FrameType.HEADERS, _END, stream, rest.trailers))
        return True

    # What waits

    def sent_by_stream(self) -> dict[int, int]:
        """Return the number of bytes sent for each waiting response.

        Stream 0 stands for all responses if a response waits only for the connection's window.
        """
        taken = {stream: rest.sent_bytes for stream, rest in self._rests.items()}
        if self._blocked:
            taken[0] = self._sent_bytes
        return taken

    def waits(self, stream: int) -> bool:
        """Whether a stream has unsent data."""
        return stream in self._rests

    def waits_for_connection(self, stream: int) -> bool:
        """Return whether the connection's window alone blocks a stream."""
        return stream in self._blocked

    # The client's flow control

    def grow_window(self, stream: int, more_bytes: int) -> bool:
        """Enlarge a stream's window, or raise Http2Error; return True if the stream is drained."""
        window = self._windows[stream] = self._windows[stream] + more_bytes
        if window > frames.MAX_WINDOW_BYTES:
            raise _bad_window(f"the window of stream {stream} is too large")
        return stream in self._rests and self._send_rest(stream)

    def grown_connection(self, more_bytes: int) -> list[int]:
        """Enlarge the connection's window, or raise Http2Error; return the drained streams."""
        self._window += more_bytes
        if self._window > frames.MAX_WINDOW_BYTES:
            raise _bad_window("the window of the connection is too large")
        return self._send_blocked()

    def set_initial_window(self, size: int) -> list[int]:
        """Change all streams' initial windows, or raise Http2Error; return the drained streams."""
        change = size - self._initial_window
        self._initial_window = size
        if not change:
            return []
        for stream in self._windows:
            self._windows[stream] += change
        if max(self._windows.values(), default=size) > frames.MAX_WINDOW_BYTES:
            raise _bad_window(f"a window of {size} bytes makes one of a stream too large")
        self._blocked = {stream: None for stream in self._rests if self._windows[stream] > 0}
        return self._send_blocked()

    def set_frame_bytes(self, size: int) -> None:
        """Set the client's limit on frame payloads."""
        self._frame_bytes = size

    def _send_blocked(self) -> list[int]:
        """Continue blocked streams, each by at least a byte; return the drained streams."""
        left = []
        while self._blocked and self._window > 0:
            stream = next(iter(self._blocked))
            if self._send_rest(stream):
                left.append(stream)
        return left


def _bad_window(text: str) -> Http2Error:
    return Http2Error(ErrorCode.FLOW_CONTROL_ERROR, text)
