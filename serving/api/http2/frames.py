"""HTTP/2 frame constants and encoders for a server (RFC 9113, sections 4, 6, 7).

A frame is a 9-byte head (24-bit length, type, flags, stream) and a payload.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

HEAD = struct.Struct(">IBI")
"""Frame head: length << 8 | type, flags, stream."""
U32 = struct.Struct(">I")
SETTING = struct.Struct(">HI")

DEFAULT_FRAME_BYTES = 16384
"""Default limit on payloads, and the lowest limit that SETTINGS may set."""
MAX_FRAME_BYTES = 2**24 - 1
DEFAULT_WINDOW_BYTES = 65535
MAX_WINDOW_BYTES = 2**31 - 1


class FrameType(enum.IntEnum):
    """Frame types; unknown types are ignored (RFC 9113)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


ACK = 0x1
END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20


class Setting(enum.IntEnum):
    """Identifiers of settings in a SETTINGS frame."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(enum.IntEnum):
    """Error codes in use, for ending a stream or a connection."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(Exception):
    """Protocol violation by the client, which ends its connection (RFC 9113, section 5.4.1)."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Build a frame; `kind` may be an unknown type."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: Mapping[Setting, int]) -> bytes:
    """Build a SETTINGS frame."""
    payload = b"".join([SETTING.pack(name, value) for name, value in values.items()])
    return frame(FrameType.SETTINGS, 0, 0, payload)


SETTINGS_ACK = frame(FrameType.SETTINGS, ACK, 0)


def window_update(stream: int, more_bytes: int) -> bytes:
    """Build a WINDOW_UPDATE frame that grants bytes to a stream, or to the connection (0)."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream, U32.pack(more_bytes))


def reset(stream: int, code: ErrorCode) -> bytes:
    """Build a RST_STREAM frame."""
    return frame(FrameType.RST_STREAM, 0, stream, U32.pack(code))


def goaway(last_stream: int, code: ErrorCode, text: str = "") -> bytes:
    """Build a GOAWAY frame; streams above `last_stream` may be retried."""
    payload = U32.pack(last_stream) + U32.pack(code) + text.encode()
    return frame(FrameType.GOAWAY, 0, 0, payload)
