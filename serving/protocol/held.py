"""How many bytes of requests are held, over all connections of the query ports.

In: bytes that come, and bytes that are let go. Out: whether there is room for more. Counted are bodies that have
not arrived whole, those that wait behind another request of their connection, with their heads where these are
large, what compressed ones become, and those of `LARGE_BYTES` or more until they are answered; smaller ones that
have arrived are bounded by their number (`scheduling.queue_capacity`). So are answers that their client does not
take. Where there is no room, who asks for more is refused, and lets go of what it had: those that came before it go
on. Pure.
"""

from __future__ import annotations

from serving.errors import TooMuchHeld

LARGE_BYTES = 64 * 1024
"""A request that has arrived is counted from here on: what is small would cost more to count than to hold."""


class Held:
    """Counts what all connections hold together."""

    def __init__(self, most_bytes: int | None = None) -> None:
        """Nothing is held.

        Args:
            most_bytes: of all together; None: as many as come.
        """
        self.most_bytes = most_bytes
        self.bytes = 0
        """Of all together, now; and"""
        self.most_seen = 0
        """the most since whoever looks for it has set it back."""

    def has_taken(self, size: int) -> bool:
        """Whether there was room for that many bytes more; then they are counted."""
        if size and self.most_bytes is not None and self.bytes + size > self.most_bytes:
            return False
        self.keep(size)
        return True

    def take(self, size: int) -> None:
        """That many bytes more.

        Raises:
            TooMuchHeld: there is no room for them.
        """
        if not self.has_taken(size):
            raise self.refusal()

    def keep(self, size: int) -> None:
        """That many bytes more, whether there is room or not: an answer is there, and the next requests are refused."""
        self.bytes += size
        self.most_seen = max(self.most_seen, self.bytes)

    def free(self, size: int) -> None:
        """Bytes that were taken are let go."""
        self.bytes -= size

    def refusal(self) -> TooMuchHeld:
        """Why there was no room."""
        return TooMuchHeld(self.most_bytes or 0)
