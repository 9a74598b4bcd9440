"""Frame reader: cuts a client's bytes into frames, joins heads, and bounds the cost of both."""

from __future__ import annotations

from serving.api.http2 import frames
from serving.api.http2.frames import ErrorCode, FrameType, Http2Error

MAX_HEAD_BYTES = 64 * 1024
PATIENCE = 10_000
"""Maximum number of frames without progress (PING, SETTINGS, RST_STREAM, empty) per `refresh`."""
TURN = 256
"""Units of work per turn, for fairness between connections; a frame (microseconds) costs one."""

_OF_HEADS = frozenset({int(FrameType.HEADERS), int(FrameType.CONTINUATION)})
_HEAD_FLAGS = frames.END_HEADERS | frames.PADDED | frames.PRIORITY

Frame = tuple[int, int, int, bytes]
"""Type, flags, stream and payload; HEADERS frames are whole, without padding or priority."""


class FrameReader:
    """Frame reader of one connection."""

    def __init__(self) -> None:
        self.turn = TURN
        """Units of work left in the turn."""
        self._patience = PATIENCE
        self._data = b""
        self._position = 0
        self._preface = frames.PREFACE
        self._is_settled = False
        """Whether the first frame, SETTINGS, has arrived."""
        self._block: tuple[int, int, list[bytes], int] | None = None
        """Stream, flags, pieces and size of an incomplete head."""
        self._now_s = 0.0
        self._began_s = 0.0
        self._block_began_s = 0.0

    def refresh(self) -> None:
        """Allow `PATIENCE` more frames without progress; called every few seconds."""
        self._patience = PATIENCE

    def bear(self) -> None:
        """Count a frame without progress, or raise Http2Error if there are too many."""
        self._patience -= 1
        if self._patience < 0:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without progress")

    def is_stuck(self, before_s: float) -> bool:
        """Whether a frame or head that began before the given time is still incomplete."""
        if self._block is not None:
            return self._block_began_s < before_s
        return self._is_half_there and self._began_s < before_s

    @property
    def _is_half_there(self) -> bool:
        return bool(self._data) or 0 < len(self._preface) < len(frames.PREFACE)

    def feed(self, data: bytes, now_s: float) -> None:
        """Add bytes, split anywhere, or raise Http2Error if the preface is incorrect."""
        self._now_s = now_s
        if not self._is_half_there:
            self._began_s = now_s
        if self._data:
            data = self._data + data
        if self._preface:
            size = min(len(data), len(self._preface))
            if data[:size] != self._preface[:size]:
                text = "the connection does not begin with HTTP/2"
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, text)
            self._preface = self._preface[size:]
            data = data[size:]
        self._data = data

    def next(self) -> Frame | None:
        """Return the next frame, or None if it is incomplete or the turn is over.

        Raises Http2Error if the client violates the protocol.
        """
        unpack = frames.HEAD.unpack_from
        data, position = self._data, self._position
        while self.turn > 0 and len(data) - position >= 9:
            self.turn -= 1
            length_and_type, flags, stream = unpack(data, position)
            length = length_and_type >> 8
            if length > frames.DEFAULT_FRAME_BYTES:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame has {length} bytes")
            end = position + 9 + length
            if end > len(data):
                break
            kind, stream = length_and_type & 0xFF, stream & 0x7FFFFFFF
            payload = data[position + 9 : end]
            self._position = position = end
            if self._block is not None or not self._is_settled:
                self._check_order(kind, stream)
            if kind not in _OF_HEADS or (
                kind == FrameType.HEADERS and flags & _HEAD_FLAGS == frames.END_HEADERS
            ):
                return kind, flags, stream, payload
            head = self._join_head(kind, flags, stream, payload)
            if head is not None:
                return head
        if position:
            self._began_s = self._now_s
            self._data, self._position = data[position:], 0
        return None

    def _check_order(self, kind: int, stream: int) -> None:
        if self._block is not None and (kind != FrameType.CONTINUATION or stream != self._block[0]):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a head is not followed by its continuation")
        if not self._is_settled and kind != FrameType.SETTINGS:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self._is_settled = True

    def _join_head(self, kind: int, flags: int, stream: int, payload: bytes) -> Frame | None:
        if kind == FrameType.HEADERS:
            if flags & frames.PADDED:
                payload = strip_padding(payload)
            if flags & frames.PRIORITY:
                if len(payload) < 5:
                    text = "HEADERS is too short for its priority"
                    raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, text)
                payload = payload[5:]
            if flags & frames.END_HEADERS:
                return kind, flags, stream, payload
            self._block = stream, flags, [payload], len(payload)
            self._block_began_s = self._now_s
            return None
        if self._block is None:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a continuation without a head")
        if not payload:
            self.bear()
        _, first_flags, pieces, size = self._block
        size += len(payload)
        if size > MAX_HEAD_BYTES:
            text = f"a head has over {MAX_HEAD_BYTES} bytes"
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, text)
        pieces.append(payload)
        self._block = stream, first_flags, pieces, size
        if not flags & frames.END_HEADERS:
            return None
        self._block = None
        return FrameType.HEADERS, first_flags, stream, b"".join(pieces)


def strip_padding(payload: bytes) -> bytes:
    """Return a payload without its padding, or raise Http2Error."""
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]
