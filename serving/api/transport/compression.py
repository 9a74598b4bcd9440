"""Gzip and deflate for HTTP bodies and gRPC messages, with bounded decompression."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gzip
import zlib
from collections.abc import Callable

from serving.errors import BodyTooLarge, InvalidRequest
from serving.values import Buffer

_LEVEL = 1
"""Compression level with most of the gain for a third of the time."""
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
ENCODINGS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}
"""Content-Encoding -> zlib's window bits; gRPC lacks x-gzip."""
_MAX_RATIO = 1032
"""Maximum compression ratio of deflate: 258 bytes from two bits."""


class CompressionThreads:
    """Threads for compression, during which zlib releases the GIL."""

    def __init__(self, *, max_body_bytes: int, min_bytes: int | None) -> None:
        self.max_body_bytes = max_body_bytes
        """Limit on a decompressed body."""
        self.min_bytes = min_bytes
        """Size from which responses are compressed, or None for never."""
        self._threads = concurrent.futures.ThreadPoolExecutor(2, "compression")

    def is_long(self, size: int) -> bool:
        """Whether to compress a response of this size."""
        return self.min_bytes is not None and size >= self.min_bytes

    def max_bytes(self, size: int) -> int:
        """Return an upper bound on the decompressed size of `size` bytes."""
        return min(self.max_body_bytes, size * _MAX_RATIO)

    def decompress(self, encoding: str, data: Buffer) -> asyncio.Future[bytes]:
        """Decompress a body in a thread; the future may raise as `decompress` does."""
        return self._work(decompress, encoding, data, self.max_body_bytes)

    def compress(self, encoding: str, data: bytes) -> asyncio.Future[bytes]:
        """Compress a body in a thread."""
        return self._work(compress, encoding, data)

    def _work(self, function: Callable[..., bytes], *arguments: object) -> asyncio.Future[bytes]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def decompress(encoding: str, body: bytes, limit_bytes: int) -> bytes:
    """Decompress a body to at most `limit_bytes`.

    Raises:
        BodyTooLarge: the result is larger.
        InvalidRequest: the body is not one complete stream.
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
    """Compress a body with gzip or deflate."""
    if encoding == "gzip":
        return gzip.compress(body, _LEVEL, mtime=0)
    return zlib.compress(body, _LEVEL)


def accepted_encoding(accept_encoding: bytes) -> str | None:
    """Return gzip, or else deflate, if the client accepts it, otherwise None."""
    asked = set()
    for text in accept_encoding.lower().split(b","):
        coding, _, weight = text.replace(b" ", b"").partition(b";q=")
        if weight.strip(b"0.") or not weight:
            asked.add(coding)
    return next((one for one in ("gzip", "deflate") if one.encode() in asked), None)
