"""Messages that are compressed: decompressed and compressed in threads, outside the interpreter's lock.

In: a message, and the name of its encoding. Out: a future of the other form. What a small message becomes
is bounded as any other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable

from serving.protocol import compression
from serving.values import Buffer

_LARGEST_RATIO = 1032
"""Of what deflate makes longer: 258 bytes for two bits."""


class Coding:
    """What all connections of the port share of it."""

    def __init__(self, *, max_body_bytes: int, min_bytes: int | None) -> None:
        """Nothing is started yet.

        Args:
            max_body_bytes: the longest that a message may become.
            min_bytes: answers from this length on are compressed; None: none.
        """
        self.max_body_bytes = max_body_bytes
        self._min_bytes = min_bytes
        self._threads = concurrent.futures.ThreadPoolExecutor(2, "grpc compression")

    def decompressed(self, encoding: str, data: Buffer) -> asyncio.Future[bytes]:
        """A message as it was; or BodyTooLarge, or InvalidRequest."""
        return self._work(compression.decompressed, encoding, data, self.max_body_bytes)

    def most_bytes(self, size: int) -> int:
        """What a compressed message of that many bytes may become."""
        return min(self.max_body_bytes, size * _LARGEST_RATIO)

    def is_long(self, size: int) -> bool:
        """Whether an answer of that many bytes is to be compressed."""
        return self._min_bytes is not None and size >= self._min_bytes

    def compressed(self, encoding: str, data: bytes) -> asyncio.Future[bytes]:
        """An answer in another form."""
        return self._work(compression.compressed, encoding, data)

    def _work(self, function: Callable[..., bytes], *arguments: object) -> asyncio.Future[bytes]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
