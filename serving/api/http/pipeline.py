"""Requests of one connection that wait behind the one in flight."""

from __future__ import annotations

from collections import deque

from serving.api.http.messages import RequestHead, Response
from serving.api.transport.buffered_bytes import BufferedBytes

_MAX_REQUESTS = 64
"""Number of waiting requests at which reading pauses."""
_MAX_BYTES = 1024 * 1024
"""Size of waiting heads and bodies at which reading pauses."""


class Pipeline:
    """Queue of waiting requests, whose size is counted in `buffered`."""

    def __init__(self, buffered: BufferedBytes) -> None:
        self._buffered = buffered
        self._bytes = 0
        self.waiting: deque[tuple[RequestHead, bytes] | Response] = deque()
        """Waiting requests, and the response to an unreadable one."""
        self.is_overfull = False
        """Whether reading must pause until the queue is less than half full."""

    def add(self, head: RequestHead, body: bytes) -> None:
        """Append a request, or raise BufferFull."""
        size = head.own_bytes + len(body)
        self._buffered.take(size)
        self._bytes += size
        self.waiting.append((head, body))
        if len(self.waiting) >= _MAX_REQUESTS or self._bytes >= _MAX_BYTES:
            self.is_overfull = True

    def next(self) -> tuple[RequestHead, bytes] | Response:
        """Remove and return the first waiting request or response."""
        first = self.waiting.popleft()
        if not isinstance(first, Response):
            size = first[0].own_bytes + len(first[1])
            self._bytes -= size
            self._buffered.free(size)
        if len(self.waiting) < _MAX_REQUESTS // 2 and self._bytes < _MAX_BYTES // 2:
            self.is_overfull = False
        return first

    def clear(self) -> None:
        """Drop all waiting requests."""
        self.waiting.clear()
        self._buffered.free(self._bytes)
        self._bytes = 0
