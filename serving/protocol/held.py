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
        """Bytes of requests that all connections hold now."""
        self.unsent_bytes = 0
        """Bytes of answers that clients have not taken."""
        self.most_seen = 0
        """Largest sum of both since whoever looks for it has set it back."""

    def has_taken(self, size: int) -> bool:
        """Whether requests left room for that many bytes more; then they are counted."""
        if self.most_bytes is not None and self.bytes + size > self.most_bytes:
            return False
        self.bytes += size
        self.most_seen = max(self.most_seen, self.bytes + self.unsent_bytes)
        return True

    def has_let_in(self, size: int) -> bool:
        """The same for a body that arrives: answers take room as well.

        Of what has arrived the same bytes are let go and taken again, and must not be refused.
        """
        if self.most_bytes is not None and self.bytes + self.unsent_bytes + size > self.most_bytes:
            return False
        return self.has_taken(size)

    def take(self, size: int) -> None:
        """That many bytes more.

        Raises:
            TooMuchHeld: there is no room for them.
        """
        if not self.has_taken(size):
            raise self.refusal()

    def count_unsent(self, more: int) -> None:
        """So many bytes more, or less, of answers: they are there, whatever room there is."""
        self.unsent_bytes += more
        self.most_seen = max(self.most_seen, self.bytes + self.unsent_bytes)

    def free(self, size: int) -> None:
        """Bytes that were taken are let go."""
        self.bytes -= size

    def refusal(self) -> TooMuchHeld:
        """Why there was no room."""
        return TooMuchHeld(self.most_bytes or 0)
