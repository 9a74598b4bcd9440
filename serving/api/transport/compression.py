"""Gzip and deflate for HTTP bodies and gRPC messages, with bounded decompression."""

from __future__ import annotations

import gzip
import zlib

from serving.errors import BodyTooLarge, InvalidRequest

_LEVEL = 1
"""Most of the gain for a third of the time."""
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
ENCODINGS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}
"""Values of Content-Encoding; gRPC lacks x-gzip."""


def decompress(encoding: str, body: bytes, limit_bytes: int) -> bytes:
    """Decompress a body to at most `limit_bytes`.

    Raises:
        BodyTooLarge: the result is larger.
        InvalidRequest: not one complete stream.
    """
    window = ENCODINGS[encoding]
    if window == _ZLIB and (len(body) < 2 or body[0] & 15 != 8 or (body[0] * 256 + body[1]) % 31):
        window = _RAW  # some clients send deflate without zlib's header
    stream = zlib.decompressobj(window)
    try:
        data = stream.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not {encoding}, as its head says") from error
    if len(data) > limit_bytes:
        del data  # the error keeps this frame alive
        raise BodyTooLarge(limit_bytes)
    if not stream.eof or stream.unused_data:
        raise InvalidRequest(f"the body is not one whole stream of {encoding}")
    return data


def compress(encoding: str, body: bytes) -> bytes:
    """Compress with gzip or deflate."""
    if encoding == "gzip":
        return gzip.compress(body, _LEVEL, mtime=0)
    return zlib.compress(body, _LEVEL)


def accepted_encoding(accept_encoding: bytes) -> str | None:
    """Return gzip or else deflate, if the client accepts it."""
    asked = set()
    for text in accept_encoding.lower().split(b","):
        coding, _, weight = text.replace(b" ", b"").partition(b";q=")
        if weight.strip(b"0.") or not weight:
            asked.add(coding)
    return next((one for one in ("gzip", "deflate") if one.encode() in asked), None)
