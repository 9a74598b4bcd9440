"""A client of HTTP/2 that sends frames as they are given and notes what comes back: RFC 9113, from the RFC alone."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import time
from collections.abc import Iterable
from typing import Self

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 1, 1, 4, 8, 0x20
NO_ERROR, PROTOCOL, INTERNAL, FLOW, _TIMEOUT, CLOSED, SIZE, REFUSED, CANCEL, COMPRESSION = range(10)
CALM = 11

_MARK = b"abuse-ok"
_INFER = b"/inference.GRPCInferenceService/ModelInfer"
_LIVE = b"/inference.GRPCInferenceService/ServerLive"
CALL = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", _LIVE),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
EMPTY_MESSAGE = b"\0\0\0\0\0"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame; its length is that of its payload."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(**values: int) -> bytes:
    """SETTINGS: `s3=100` sets number 3."""
    payload = b"".join(struct.pack(">HI", int(name[1:]), value) for name, value in values.items())
    return frame(SETTINGS, 0, 0, payload)


def block(pairs: Iterable[tuple[bytes, bytes]] = CALL) -> bytes:
    """Fields, spelled out: no table is needed."""
    encoder = hpack.Encoder()
    return bytes(encoder.encode([hpack.NeverIndexedHeaderTuple(n, v) for n, v in pairs]))


def request(
    stream: int, pairs: Iterable[tuple[bytes, bytes]] = CALL, body: bytes = EMPTY_MESSAGE
) -> bytes:
    """A whole call."""
    return frame(HEADERS, END_HEADERS, stream, block(pairs)) + frame(DATA, END_STREAM, stream, body)


@dataclasses.dataclass(slots=True)
class Heard:
    """What a server said."""

    goaway: int | None = None
    resets: dict[int, int] = dataclasses.field(default_factory=dict)
    """Stream -> code."""
    fields: dict[int, dict[bytes, bytes]] = dataclasses.field(default_factory=dict)
    """Stream -> fields and trailers."""
    ended: dict[int, int] = dataclasses.field(default_factory=dict)
    """Stream -> how often its answer ended."""
    ponged: bool = False
    closed: bool = False
    settings_acks: int = 0
    pings: int = 0

    def codes(self) -> set[int]:
        """Of everything that was refused."""
        return set(self.resets.values()) | ({self.goaway} if self.goaway is not None else set())


class Client:
    """One connection."""

    def __init__(self, port: int, *, timeout_s: float = 5.0) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = hpack.Decoder()
        self._buffer = b""
        self.heard = Heard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send(self, data: bytes) -> bool:
        """Send; False: the server does not take it any more."""
        try:
            self._sock.sendall(data)
        except OSError:
            return False
        return True

    def read(self, seconds: float = 0.0) -> bool:
        """Take what comes within a time; False: the server has closed."""
        until_s = time.monotonic() + seconds
        while True:
            self._sock.settimeout(max(0.0001, until_s - time.monotonic()))
            try:
                data = self._sock.recv(1 << 18)
            except (TimeoutError, BlockingIOError):
                return True
            except OSError:
                data = b""
            finally:
                self._sock.settimeout(5.0)
            if not data:
                self.heard.closed = True
                return False
            self._buffer += data
            self._take()
            if self.heard.ponged or time.monotonic() > until_s:
                return True

    def settle(self, seconds: float = 3.0) -> Heard:
        """Ask whether all has been read, and take what comes until that is answered or the connection ends."""
        self.send(frame(PING, 0, 0, _MARK))
        until_s = time.monotonic() + seconds
        while not self.heard.ponged and time.monotonic() < until_s and self.read(0.2):
            pass
        return self.heard

    def _take(self) -> None:
        while len(self._buffer) >= 9:
            length = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + length:
                return
            kind, flags, stream = struct.unpack_from(">BBI", self._buffer, 3)
            payload = self._buffer[9 : 9 + length]
            self._buffer = self._buffer[9 + length :]
            self._note(kind, flags, stream, payload)

    def _note(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        heard = self.heard
        if kind == GOAWAY:
            code = struct.unpack_from(">I", payload, 4)[0]
            heard.goaway = code if heard.goaway is None or code else heard.goaway
        elif kind == RST:
            heard.resets[stream] = struct.unpack(">I", payload)[0]
        elif kind == PING and flags & ACK:
            heard.ponged |= payload == _MARK
            heard.pings += 1
        elif kind == SETTINGS and flags & ACK:
            heard.settings_acks += 1
        elif kind == HEADERS:
            with contextlib.suppress(hpack.HPACKError):
                pairs = self._decoder.decode(payload, raw=True)
                heard.fields.setdefault(stream, {}).update((bytes(n), bytes(v)) for n, v in pairs)
        if kind in {DATA, HEADERS} and flags & END_STREAM:
            heard.ended[stream] = heard.ended.get(stream, 0) + 1
