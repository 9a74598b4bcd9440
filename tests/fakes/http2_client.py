"""The client's side of one HTTP/2 connection in bytes: it writes frames and reads what a session sends."""

import struct

import hpack

from serving.api.http2 import frames
from serving.api.http2.frames import FrameType, Setting

CALL = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]


class Turned:
    """A session whose owner lets it go on at once, as often as it has more."""

    def __init__(self, session):
        self._session = session

    def __getattr__(self, name):
        return getattr(self._session, name)

    def at(self, now_s):
        self._session.now_s = now_s

    def receive(self, data):
        events = self._session.receive(data)
        while self._session.has_more:
            events += self._session.go_on()
        return events


class Client:
    """Encodes requests; decodes frames."""

    def __init__(self):
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.buffer = b""

    def hello(self, values=None):
        """Preface and SETTINGS."""
        return frames.PREFACE + frames.settings(values or {})

    def headers(self, stream, pairs=CALL, flags=frames.END_HEADERS):
        return frames.frame(FrameType.HEADERS, flags, stream, self.encoder.encode(pairs))

    def data(self, stream, payload, *, end=True, frame_bytes=frames.DEFAULT_FRAME_BYTES):
        pieces = [
            payload[start : start + frame_bytes]
            for start in range(0, max(1, len(payload)), frame_bytes)
        ]
        last = len(pieces) - 1
        return b"".join(
            frames.frame(
                FrameType.DATA, frames.END_STREAM if end and i == last else 0, stream, piece
            )
            for i, piece in enumerate(pieces)
        )

    def request(self, stream, body=b"\0\0\0\0\0", pairs=CALL):
        """A whole request."""
        return self.headers(stream, pairs) + self.data(stream, body)

    def read(self, data):
        """The frames in what came, bytes or pieces: (type, flags, stream, payload), header blocks decoded."""
        self.buffer += data if isinstance(data, bytes) else b"".join(data)
        found = []
        while len(self.buffer) >= 9:
            length_and_type, flags, stream = frames.HEAD.unpack_from(self.buffer)
            end = 9 + (length_and_type >> 8)
            if len(self.buffer) < end:
                break
            kind, payload = FrameType(length_and_type & 0xFF), self.buffer[9:end]
            self.buffer = self.buffer[end:]
            if kind is FrameType.HEADERS:
                payload = self.decoder.decode(payload, raw=True)
            found.append((kind, flags, stream, payload))
        return found


def goaway_code(found):
    """The code of the GOAWAY among frames, None without one."""
    codes = [
        struct.unpack_from(">II", payload)[1]
        for kind, _, _, payload in found
        if kind is FrameType.GOAWAY
    ]
    return codes[-1] if codes else None


SMALL_WINDOW = {Setting.INITIAL_WINDOW_SIZE: 1000}
