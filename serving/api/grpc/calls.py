"""gRPC over HTTP/2: parsing of heads, framing of messages, status trailers.

Messages may be compressed, as flagged in their prefix.
"""

from __future__ import annotations

import enum
import re
import string
import urllib.parse
from typing import NamedTuple

from serving.api.http2 import fields
from serving.api.parsing.tensors import MAX_TIMEOUT_US
from serving.errors import InvalidRequest, ServingError, Unimplemented


class Code(enum.IntEnum):
    """gRPC status codes in use."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


OF_HTTP = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    409: Code.FAILED_PRECONDITION,
    413: Code.RESOURCE_EXHAUSTED,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELLED,
    501: Code.UNIMPLEMENTED,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
}

PREFIX_BYTES = 5
"""Size of a message's prefix: compressed flag and length."""
_MAX_TEXT = 1000
_PLAIN = f" {string.punctuation}".replace("%", "")
"""Characters, other than letters and digits, that `grpc-message` holds unescaped."""

_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_CONTENT_TYPE = re.compile(rb"application/grpc(?:\+proto)?(?:;.*)?")

_TYPE = fields.literal(b"content-type", b"application/grpc")
HEAD = fields.status(200) + _TYPE
"""Header block of every response with a message."""
_STATUS = b"grpc-status"
_IDENTITY = b"identity"
_ONCE = frozenset(
    {
        b":method",
        b":path",
        b"authorization",
        b"content-type",
        b"grpc-encoding",
        b"grpc-timeout",
        b"x-application",
    }
)
ENCODINGS = (b"gzip", b"deflate")
_ACCEPTED = fields.literal(b"grpc-accept-encoding", b",".join((_IDENTITY, *ENCODINGS)))
OK_TRAILERS = fields.literal(_STATUS, b"0")


class GrpcCall(NamedTuple):
    """A parsed request head."""

    service: str
    method: str
    timeout_s: float | None
    """Time from now to the deadline, if any."""
    application: str = ""
    """Application that the call belongs to, from the metadata `x-application`."""
    encoding: str | None = None
    response_encoding: str | None = None
    """`encoding`, if the client accepts it in responses."""
    is_stream: bool = False


def call_of(pairs: tuple[tuple[bytes, bytes], ...]) -> GrpcCall | bytes:
    """Parse a head into a call, or return the header block that rejects it."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next((name for name in names if name in _ONCE and names.count(name) > 1), None)
        if twice is not None:
            text = f"the field {twice.decode()!r} appears twice, expected once"
            return refusal(Code.INVALID_ARGUMENT, text)
    if values.get(b":method") != b"POST":
        return fields.status(405) + fields.literal(b"allow", b"POST")
    if not _CONTENT_TYPE.fullmatch(values.get(b"content-type", b"")):
        return fields.status(415)
    encoding = values.get(b"grpc-encoding", _IDENTITY)
    if encoding != _IDENTITY and encoding not in ENCODINGS:
        text = (
            f"compression {encoding.decode('ascii', 'replace')!r} is not supported; send "
            "gzip, deflate, or uncompressed messages"
        )
        return refusal(Code.UNIMPLEMENTED, text) + _ACCEPTED
    path = values.get(b":path", b"").decode("ascii", "replace")
    _, service, method = path.split("/", 2) if path.count("/") >= 2 else ("", "", path)
    timeout_s = None
    timeout = values.get(b"grpc-timeout")
    if timeout is not None:
        match = _TIMEOUT.fullmatch(timeout)
        if match is None:
            return refusal(
                Code.INVALID_ARGUMENT, f"grpc-timeout is {timeout[:40]!r}, expected as 250m"
            )
        timeout_s = min(int(match[1]) * _SECONDS[match[2]], MAX_TIMEOUT_US * 1e-6)
    application = values.get(b"x-application", b"").decode("latin-1")
    if encoding == _IDENTITY:
        return GrpcCall(service, method, timeout_s, application)
    accepted = values.get(b"grpc-accept-encoding", b"").replace(b" ", b"").split(b",")
    name = encoding.decode("ascii")
    return GrpcCall(
        service, method, timeout_s, application, name, name if encoding in accepted else None
    )


def message_of(body: bytes, *, is_compressed: bool = False) -> memoryview:
    """Return the one message in a body, or raise ServingError."""
    if len(body) < PREFIX_BYTES:
        raise InvalidRequest(f"a body of {len(body)} bytes contains no message")
    if body[0] != is_compressed:
        raise ServingError("the message is compressed, but grpc-encoding does not name the method")
    length = int.from_bytes(body[1:PREFIX_BYTES], "big")
    if length > len(body) - PREFIX_BYTES:
        raise InvalidRequest(
            f"the message has {len(body) - PREFIX_BYTES} bytes, its prefix says {length}"
        )
    if length < len(body) - PREFIX_BYTES:
        raise Unimplemented("the call has more than one message; this method accepts one")
    return memoryview(body)[PREFIX_BYTES:]


def prefix(message_bytes: int, *, is_compressed: bool = False) -> bytes:
    """Build a message prefix."""
    return (b"\x01" if is_compressed else b"\x00") + message_bytes.to_bytes(4, "big")


def head(encoding: str | None) -> bytes:
    """Build a response's header block."""
    return HEAD if encoding is None else HEAD + fields.literal(b"grpc-encoding", encoding.encode())


def trailers(error: ServingError | None) -> bytes:
    """Build a streaming response's trailer block."""
    return OK_TRAILERS if error is None else _status_of(error)


def refusal(code: Code, text: str) -> bytes:
    """Build a header-only response with a status."""
    return HEAD + _status(code, text)


def error_block(error: ServingError) -> bytes:
    """Build a header-only error response, with a retry delay on overload."""
    return HEAD + _status_of(error)


def _status(code: Code, text: str) -> bytes:
    return fields.literal(_STATUS, b"%d" % code) + fields.literal(b"grpc-message", _percent(text))


def _status_of(error: ServingError) -> bytes:
    retry_after_s = getattr(error, "retry_after_s", None)
    code = OF_HTTP.get(error.status, Code.INTERNAL)
    block = _status(code if retry_after_s is None else Code.RESOURCE_EXHAUSTED, str(error))
    if retry_after_s is not None:
        pushback = b"%d" % max(1, round(retry_after_s * 1e3))
        block += fields.literal(b"grpc-retry-pushback-ms", pushback)
    return block


def _percent(text: str) -> bytes:
    if len(text) > _MAX_TEXT:
        text = text[: _MAX_TEXT - 1] + "…"
    return urllib.parse.quote(text, safe=_PLAIN, errors="replace").encode()
