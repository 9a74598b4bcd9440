"""What a server sends on one connection of HTTP/2: frames, and answers as far as the client takes them.

In: answers, whole or as a series of messages, and what the client says of its windows (RFC 9113, sections
5.2 and 6.9). Out: pieces to send, and the streams of which all that waited has left. Whatever a client does
with its windows, the work is bounded by what it lets through: an answer that waits for its own stream's
window is not looked at when the connection's grows. It must not know what a request is. Pure.
"""

from __future__ import annotations

from collections import deque

from serving.protocol.http2 import frames
from serving.protocol.http2.frames import FrameType
from serving.values import Buffer

HELD_BYTES = 64 * 1024 * 1024
"""Bytes of answers that may wait for a client, beside one of any size: as much as of bodies on their way in."""

_END = frames.END_HEADERS | frames.END_STREAM


class BadWindow(Exception):  # the session says what ends with it
    """A window grows beyond what there is."""


class Full(Exception):  # the session's owner says it in the words of its protocol
    """Too much waits for the client already."""


class _Rest:
    """What has not left yet of an answer, or of a series of messages."""

    __slots__ = ("data", "more", "sent_bytes", "size", "trailers")

    def __init__(self, data: bytes, trailers: bytes | None) -> None:
        self.data = memoryview(data)
        self.size = len(data)
        """All of what `data` is the rest of: what was sent of it is let go with it."""
        self.more: deque[bytes] | None = None
        """Messages behind it."""
        self.trailers = trailers
        """The block that ends the stream behind all that; None: more messages may come."""
        self.sent_bytes = 0


class Outgoing:
    """Frames to be sent, and the windows that they must keep to."""

    def __init__(self) -> None:
        self.pieces: list[Buffer] = []
        """To be sent now."""
        self._window = frames.DEFAULT_WINDOW_BYTES
        self._initial_window = frames.DEFAULT_WINDOW_BYTES
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._windows: dict[int, int] = {}
        """Bytes that the client takes of each open stream; may be below 0."""
        self._rests: dict[int, _Rest] = {}
        self.held_bytes = 0
        """The sizes of all answers that wait for the client."""
        self._sent_bytes = 0
        """Of answers that did not leave at once."""
        self._blocked: dict[int, None] = {}
        """Of those the ones that wait for the connection's window alone."""

    def write(self, piece: Buffer) -> None:
        """Send a frame."""
        self.pieces.append(piece)

    def take(self) -> list[Buffer]:
        """What is to be sent now, in pieces."""
        pieces, self.pieces = self.pieces, []
        return pieces

    # Streams

    def opened(self, stream: int) -> None:
        """A stream that will be answered."""
        self._windows[stream] = self._initial_window

    def closed(self, stream: int) -> None:
        """What was to be sent of a stream is not sent any more."""
        del self._windows[stream]
        rest = self._rests.pop(stream, None)
        if rest is not None:
            self.held_bytes -= rest.size + sum(map(len, rest.more or ()))
            self._blocked.pop(stream, None)

    def answer(self, stream: int, head: bytes, data: bytes, trailers: bytes) -> bool:
        """Send an answer of three parts; True when it has left whole.

        Raises:
            Full: it would have to wait, and too much does.
        """
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
        return self._sent(stream)

    def send(self, stream: int, data: bytes) -> None:
        """Send a message of a series; `end` follows the last one.

        Raises:
            Full: it would have to wait, and too much does.
        """
        self._hold(len(data))
        rest = self._rests.get(stream)
        if rest is not None:
            if rest.more is None:
                rest.more = deque()
            rest.more.append(data)
            return
        self._rests[stream] = _Rest(data, None)
        self._sent(stream)

    def end(self, stream: int, trailers: bytes) -> bool:
        """End a series of messages; True when all of it has left."""
        rest = self._rests.get(stream)
        if rest is None:
            self.write(frames.frame(FrameType.HEADERS, _END, stream, trailers))
            return True
        rest.trailers = trailers
        return False

    def _hold(self, size: int) -> None:
        if self.held_bytes and self.held_bytes + size > HELD_BYTES:
            raise Full
        self.held_bytes += size

    def _sent(self, stream: int) -> bool:
        """Send as much of what waits as the windows take now; True when all of it has left."""
        rest = self._rests[stream]
        data, window, at = rest.data, self._windows[stream], 0
        size, sent = len(data), 0
        while True:
            part = min(self._frame_bytes, self._window, window, size - at)
            if part > 0:
                self.pieces += (
                    frames.HEAD.pack(part << 8 | FrameType.DATA, 0, stream),
                    data[at : at + part],
                )
                self._window -= part
                window -= part
                at += part
                sent += part
            elif at == size and rest.more:
                self.held_bytes -= rest.size
                data, at = memoryview(rest.more.popleft()), 0
                rest.size = size = len(data)
            else:
                break
        self._windows[stream] = window
        self._sent_bytes += sent
        if at < size:
            rest.data = data[at:]
            rest.sent_bytes += sent
            if window > 0:
                self._blocked[stream] = None
            else:
                self._blocked.pop(stream, None)
            return False
        self.held_bytes -= rest.size
        del self._rests[stream]
        self._blocked.pop(stream, None)
        if rest.trailers is not None:
            self.write(frames.frame(FrameType.HEADERS, _END, stream, rest.trailers))
        return True

    # What waits

    def taken(self) -> dict[int, int]:
        """Bytes that the client's windows have let out so far, of each answer that waits; as stream 0 those of all
        such answers, if any waits for the connection's window alone.
        """
        taken = {stream: rest.sent_bytes for stream, rest in self._rests.items()}
        if self._blocked:
            taken[0] = self._sent_bytes
        return taken

    def waits(self, stream: int) -> bool:
        """Whether the client has to take something of a stream before more can leave."""
        return stream in self._rests

    def waits_for_connection(self, stream: int) -> bool:
        """Whether an answer would go on if the connection's window grew."""
        return stream in self._blocked

    # What the client says of its windows

    def grown(self, stream: int, more_bytes: int) -> bool:
        """A stream's window has grown; True when all that waited of it has left by that.

        Raises:
            BadWindow: too far.
        """
        window = self._windows[stream] = self._windows[stream] + more_bytes
        if window > frames.LARGEST_WINDOW_BYTES:
            raise BadWindow(f"a wrong window of stream {stream}")
        return stream in self._rests and self._sent(stream)

    def grown_connection(self, more_bytes: int) -> list[int]:
        """The connection's window has grown: the streams of which all that waited has left by that.

        Raises:
            BadWindow: too far.
        """
        self._window += more_bytes
        if self._window > frames.LARGEST_WINDOW_BYTES:
            raise BadWindow("a wrong window of the connection")
        return self._unblocked()

    def set_initial_window(self, size: int) -> list[int]:
        """Windows of all streams begin at another size: those of which all that waited has left by that.

        Raises:
            BadWindow: one gets too large.
        """
        change = size - self._initial_window
        self._initial_window = size
        if not change:
            return []
        for stream in self._windows:
            self._windows[stream] += change
        if max(self._windows.values(), default=size) > frames.LARGEST_WINDOW_BYTES:
            raise BadWindow(f"a window of {size} bytes makes one of a stream too large")
        self._blocked = {stream: None for stream in self._rests if self._windows[stream] > 0}
        return self._unblocked()

    def set_frame_bytes(self, size: int) -> None:
        """The client takes frames up to another size."""
        self._frame_bytes = size

    def _unblocked(self) -> list[int]:
        """Go on with what waited for the connection's window; each step sends a byte at least."""
        left = []
        while self._blocked and self._window > 0:
            stream = next(iter(self._blocked))
            if self._sent(stream):
                left.append(stream)
        return left
