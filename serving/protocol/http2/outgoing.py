"""What a server sends on one connection of HTTP/2: frames, and answers as far as the client takes them.

In: answers, and what the client says of its windows (RFC 9113, sections 5.2 and 6.9). Out: pieces to
send, and the streams whose answers have left whole. Whatever a client does with its windows, the work
is bounded by what it lets through: an answer that waits for its own stream's window is not looked at
when the connection's grows. It must not know what a request is. Pure.
"""

from __future__ import annotations

from serving.protocol.http2 import frames
from serving.protocol.http2.frames import FrameType
from serving.values import Buffer

HELD_BYTES = 64 * 1024 * 1024
"""Bytes of answers that may wait for a client, beside one of any size: as much as of bodies on their way in."""

_END = frames.END_HEADERS | frames.END_STREAM


class BadWindow(Exception):  # the session says what ends with it
    """A window that grows by nothing, or beyond what there is."""


class Full(Exception):  # the session's owner says it in the words of its protocol
    """Too much waits for the client already."""


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
        self._rests: dict[int, tuple[memoryview, bytes, int]] = {}
        """Of answers that have not left whole: data, the block of the trailers, and the size of all data."""
        self._held_bytes = 0
        """Those sizes together: what was sent of an answer is let go with the rest."""
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
            self._held_bytes -= rest[2]
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
        if self._held_bytes and self._held_bytes + size > HELD_BYTES:
            raise Full
        self.write(frames.frame(FrameType.HEADERS, frames.END_HEADERS, stream, head))
        self._rests[stream] = memoryview(data), trailers, size
        self._held_bytes += size
        return self._sent(stream)

    def _sent(self, stream: int) -> bool:
        """Send as much of an answer as the windows take now; True when it has left whole."""
        data, trailers, whole = self._rests[stream]
        window, sent = self._windows[stream], 0
        while sent < len(data):
            size = min(self._frame_bytes, self._window, window, len(data) - sent)
            if size <= 0:
                break
            self.pieces += (
                frames.HEAD.pack(size << 8 | FrameType.DATA, 0, stream),
                data[sent : sent + size],
            )
            self._window -= size
            window -= size
            sent += size
        self._windows[stream] = window
        self._sent_bytes += sent
        if sent < len(data):
            self._rests[stream] = data[sent:], trailers, whole
            if window > 0:
                self._blocked[stream] = None
            else:
                self._blocked.pop(stream, None)
            return False
        self.write(frames.frame(FrameType.HEADERS, _END, stream, trailers))
        return True

    # What waits

    def taken(self) -> dict[int, int]:
        """Bytes that the client's windows have let out so far, of each answer that waits; as stream 0 those of all
        such answers, if any waits for the connection's window alone.
        """
        taken = {stream: whole - len(data) for stream, (data, _, whole) in self._rests.items()}
        if self._blocked:
            taken[0] = self._sent_bytes
        return taken

    def waits_for_connection(self, stream: int) -> bool:
        """Whether an answer would go on if the connection's window grew."""
        return stream in self._blocked

    # What the client says of its windows

    def grown(self, stream: int, more_bytes: int) -> bool:
        """A stream's window has grown; True when its answer has left whole by that.

        Raises:
            BadWindow: by nothing, or too far.
        """
        window = self._windows[stream] = self._windows[stream] + more_bytes
        if not more_bytes or window > frames.LARGEST_WINDOW_BYTES:
            raise BadWindow(f"a wrong window of stream {stream}")
        return stream in self._rests and self._sent(stream)

    def grown_connection(self, more_bytes: int) -> list[int]:
        """The connection's window has grown: the streams whose answers have left whole by that.

        Raises:
            BadWindow: by nothing, or too far.
        """
        self._window += more_bytes
        if not more_bytes or self._window > frames.LARGEST_WINDOW_BYTES:
            raise BadWindow("a wrong window of the connection")
        return self._unblocked()

    def set_initial_window(self, size: int) -> list[int]:
        """Windows of all streams begin at another size: those whose answers have left by that.

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
                del self._blocked[stream]
        return left
