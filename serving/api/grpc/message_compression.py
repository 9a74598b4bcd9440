"""Message compression in threads, where zlib releases the GIL."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable

from serving.api.transport import compression
from serving.values import Buffer

_MAX_RATIO = 1032
"""Largest ratio of deflate: 258 bytes from two bits."""


class MessageCompression:
    """Compression threads of the port."""

    def __init__(self, *, max_body_bytes: int, min_bytes: int | None) -> None:
        self.max_body_bytes = max_body_bytes
        self._min_bytes = min_bytes
        self._threads = concurrent.futures.ThreadPoolExecutor(2, "grpc compression")

    def decompress(self, encoding: str, data: Buffer) -> asyncio.Future[bytes]:
        """Decompress a message; the future may raise BodyTooLarge or InvalidRequest."""
        return self._work(compression.decompress, encoding, data, self.max_body_bytes)

    def max_bytes(self, size: int) -> int:
        """Return a bound on a message's decompressed size."""
        return min(self.max_body_bytes, size * _MAX_RATIO)

    def is_long(self, size: int) -> bool:
        """Return whether to compress a response."""
        return self._min_bytes is not None and size >= self._min_bytes

    def compress(self, encoding: str, data: bytes) -> asyncio.Future[bytes]:
        """Compress a response."""
        return self._work(compression.compress, encoding, data)

    def _work(self, function: Callable[..., bytes], *arguments: object) -> asyncio.Future[bytes]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
