"""A gRPC call in terms of HTTP/2: what a request's fields say, the framing of its message, its status.

In: the fields and the body of a request; out: a `Call` and the bytes of its message, or the status
that answers it. And back: blocks of fields and trailers. Pure. Specification: gRPC over HTTP/2.
Messages are not compressed either way.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from serving.errors import ServingError
from serving.protocol.http2 import fields
from serving.protocol.tensors import LONGEST_TIMEOUT_US


class Code(enum.IntEnum):
    """Status codes of gRPC that this server gives."""

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
"""An error's HTTP status -> the code that says the same; others are INTERNAL."""

PREFIX_BYTES = 5
"""Of a message: whether it is compressed, and its length."""
_MAX_TEXT = 1000
"""Characters of an error's text: what is sent in trailers must fit a client's limits."""

_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_CONTENT_TYPE = re.compile(rb"application/grpc(?:\+proto)?(?:;.*)?")

_TYPE = fields.literal(b"content-type", b"application/grpc")
HEAD = fields.status(200) + _TYPE
"""The fields of every answer with a message."""
_STATUS = b"grpc-status"
OK_TRAILERS = fields.literal(_STATUS, b"0")


class Refused(Exception):  # it says what happened to the call
    """The call is answered with this status, without having been looked at further."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class Call(NamedTuple):
    """What the fields of a request say."""

    service: str
    method: str
    timeout_s: float | None
    """From now on; None: the client has no deadline."""
    application: str = ""
    """Whose call it is, by its metadata `x-application`."""


def call_of(pairs: tuple[tuple[bytes, bytes], ...]) -> Call | bytes:
    """The call that these fields begin, or the block that answers what is no call."""
    values = dict(pairs)
    if values.get(b":method") != b"POST":
        return fields.status(405) + fields.literal(b"allow", b"POST")
    if not _CONTENT_TYPE.fullmatch(values.get(b"content-type", b"")):
        return fields.status(415)
    encoding = values.get(b"grpc-encoding", b"identity")
    if encoding != b"identity":
        text = f"compression {encoding.decode('ascii', 'replace')!r} is not supported; send messages as they are"
        return refusal(Code.UNIMPLEMENTED, text) + fields.literal(
            b"grpc-accept-encoding", b"identity"
        )
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
        timeout_s = min(int(match[1]) * _SECONDS[match[2]], LONGEST_TIMEOUT_US * 1e-6)
    application = values.get(b"x-application", b"").decode("latin-1")
    return Call(service, method, timeout_s, application)


def message_of(body: bytes) -> memoryview:
    """The one message of a request's body.

    Raises:
        Refused: there is none, or more than one, or it is compressed.
    """
    if len(body) < PREFIX_BYTES:
        raise Refused(Code.INVALID_ARGUMENT, f"a body of {len(body)} bytes holds no message")
    if body[0]:
        raise Refused(
            Code.UNIMPLEMENTED,
            "the message is compressed, which is not supported; send it as it is",
        )
    length = int.from_bytes(body[1:PREFIX_BYTES], "big")
    if length > len(body) - PREFIX_BYTES:
        raise Refused(
            Code.INVALID_ARGUMENT,
            f"the message has {len(body) - PREFIX_BYTES} bytes, its prefix says {length}",
        )
    if length < len(body) - PREFIX_BYTES:
        raise Refused(
            Code.UNIMPLEMENTED, "the call has more than one message; this method takes one"
        )
    return memoryview(body)[PREFIX_BYTES:]


def prefix(message_bytes: int) -> bytes:
    """What stands before a message of an answer."""
    return b"\x00" + message_bytes.to_bytes(4, "big")


def refusal(code: Code, text: str) -> bytes:
    """The block of an answer without a message: fields and status in one."""
    return (
        HEAD
        + fields.literal(_STATUS, b"%d" % code)
        + fields.literal(b"grpc-message", _percent(text))
    )


def error_block(error: ServingError) -> bytes:
    """The block of an answer for an error; overload is RESOURCE_EXHAUSTED, and says when to come again."""
    retry_after_s = getattr(error, "retry_after_s", None)
    code = OF_HTTP.get(error.status, Code.INTERNAL)
    block = refusal(code if retry_after_s is None else Code.RESOURCE_EXHAUSTED, str(error))
    if retry_after_s is not None:
        pushback = b"%d" % max(1, round(retry_after_s * 1e3))
        block += fields.literal(b"grpc-retry-pushback-ms", pushback)
    return block


def _percent(text: str) -> bytes:
    """Text as `grpc-message` spells it: UTF-8, all that is not printable ASCII in percent."""
    if len(text) > _MAX_TEXT:
        text = text[: _MAX_TEXT - 1] + "…"
    return b"".join(
        [
            bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
            for byte in text.encode("utf-8", "replace")
        ]
    )
