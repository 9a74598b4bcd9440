"""Buffered bytes of requests and responses, over all connections of the inference ports.

Counted are incomplete, pipelined and decompressed bodies, large heads, bodies of `LARGE_BYTES` or
more until their response, and unread responses.
"""

from __future__ import annotations

from serving.errors import BufferFull

LARGE_BYTES = 64 * 1024
"""Size from which complete bodies are counted."""


class BufferedBytes:
    """Counter of buffered bytes."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        """Buffered bytes of requests."""
        self.unsent_bytes = 0
        """Unread bytes of responses."""
        self.most_seen = 0
        """Maximum sum of both."""

    def has_taken(self, size: int) -> bool:
        """Reserve bytes if requests leave room; return whether they do."""
        if self.most_bytes is not None and self.bytes + size > self.most_bytes:
            return False
        self.bytes += size
        self.most_seen = max(self.most_seen, self.bytes + self.unsent_bytes)
        return True

    def has_let_in(self, size: int) -> bool:
        """Reserve bytes of an arriving body if requests and responses leave room.

        `has_taken` ignores responses, so that an arrived body can be reserved again.
        """
        if self.most_bytes is not None and self.bytes + self.unsent_bytes + size > self.most_bytes:
            return False
        return self.has_taken(size)

    def take(self, size: int) -> None:
        """Reserve bytes.

        Raises:
            BufferFull: no room.
        """
        if not self.has_taken(size):
            raise self.refusal()

    def count_unsent(self, more: int) -> None:
        """Add to the unread responses, even without room."""
        self.unsent_bytes += more
        self.most_seen = max(self.most_seen, self.bytes + self.unsent_bytes)

    def free(self, size: int) -> None:
        """Release reserved bytes."""
        self.bytes -= size

    def refusal(self) -> BufferFull:
        """Return the error for missing room."""
        return BufferFull(self.most_bytes or 0)
