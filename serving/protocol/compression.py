"""Compressed bodies and messages: gzip and deflate, in and out.

In: bytes, and what fields say of them. Out: bytes. Pure. What a small body becomes is bounded: a few
kilobytes can be gigabytes of zeros.
"""

from __future__ import annotations

import gzip
import zlib

from serving.errors import BodyTooLarge, InvalidRequest

_LEVEL = 1
"""Of nine: most of the gain for a third of the time."""
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
ENCODINGS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}
"""Values of Content-Encoding that are read; the messages of gRPC have the same, but for x-gzip."""


def decompressed(encoding: str, body: bytes, limit_bytes: int) -> bytes:
    """A body as it was before it was compressed.

    Args:
        encoding: of `ENCODINGS`.
        body: all of it.
        limit_bytes: the longest that it may become.

    Raises:
        BodyTooLarge: it would become longer.
        InvalidRequest: it is not compressed so, or not all is there.
    """
    window = ENCODINGS[encoding]
    if window == _ZLIB and (len(body) < 2 or body[0] & 15 != 8 or (body[0] * 256 + body[1]) % 31):
        window = _RAW  # what some clients take deflate to mean
    stream = zlib.decompressobj(window)
    try:
        data = stream.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not {encoding}, as its head says") from error
    if len(data) > limit_bytes:
        del data  # the error keeps this frame
        raise BodyTooLarge(limit_bytes)
    if not stream.eof or stream.unused_data:
        raise InvalidRequest(f"the body is not one whole stream of {encoding}")
    return data


def compressed(encoding: str, body: bytes) -> bytes:
    """A body in gzip or deflate."""
    if encoding == "gzip":
        return gzip.compress(body, _LEVEL, mtime=0)
    return zlib.compress(body, _LEVEL)


def accepted(accept_encoding: bytes) -> str | None:
    """The encoding that a client asks for: gzip, or else deflate; None: neither."""
    asked = set()
    for text in accept_encoding.lower().split(b","):
        coding, _, weight = text.replace(b" ", b"").partition(b";q=")
        if weight.strip(b"0.") or not weight:
            asked.add(coding)
    return next((one for one in ("gzip", "deflate") if one.encode() in asked), None)
