"""Count of buffered request and response bytes over all connections of the inference ports.

The count includes incomplete, pipelined and decompressed bodies, large heads, bodies of
`LARGE_BYTES` or more until their response, and unread responses.
"""

from __future__ import annotations

from serving.errors import BufferFull

LARGE_BYTES = 64 * 1024
"""Size from which complete bodies are counted."""


class BufferedBytes:
    """Counter of buffered bytes."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        """Number of buffered request bytes."""
        self.unsent_bytes = 0
        """Number of response bytes that clients have not read."""
        self.peak_bytes = 0
        """Maximum sum of request and response bytes so far."""

    def try_acquire(self, size: int) -> bool:
        """Reserve bytes if other requests leave room for them; return whether they do."""
        if self.max_bytes is not None and self.bytes + size > self.max_bytes:
            return False
        self.bytes += size
        self.peak_bytes = max(self.peak_bytes, self.bytes + self.unsent_bytes)
        return True

    def has_let_in(self, size: int) -> bool:
        """Reserve bytes for an arriving body; return whether requests and responses leave room.

        `try_acquire` ignores responses, so that an arrived body can be reserved again.
        """
        if self.max_bytes is not None and self.bytes + self.unsent_bytes + size > self.max_bytes:
            return False
        return self.try_acquire(size)

    def take(self, size: int) -> None:
        """Reserve bytes, or raise BufferFull."""
        if not self.try_acquire(size):
            raise self.refusal()

    def count_unsent(self, more: int) -> None:
        """Add to the unread response bytes, even beyond the limit."""
        self.unsent_bytes += more
        self.peak_bytes = max(self.peak_bytes, self.bytes + self.unsent_bytes)

    def free(self, size: int) -> None:
        """Release reserved bytes."""
        self.bytes -= size

    def refusal(self) -> BufferFull:
        """Return the error for a full buffer."""
        return BufferFull(self.max_bytes or 0)
