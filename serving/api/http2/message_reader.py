"""Splits a request body into length-prefixed messages.

Callers check `lacks` before admitting more bytes, since messages stay buffered until read.
"""

from __future__ import annotations

_PREFIX_BYTES = 5


class MessageTooLong(Exception):  # the session's owner maps it to its protocol's error
    """A message is longer than the limit."""


class MessageTruncated(Exception):  # the same
    """The body ended within a message."""


class MessageReader:
    """Reader of one body's messages."""

    __slots__ = ("_bytes", "_is_whole", "_max_bytes", "began")

    def __init__(self, max_bytes: int) -> None:
        self._bytes = bytearray()
        self._is_whole = False
        self._max_bytes = max_bytes
        self.began = 0
        """`now` when the first buffered message began."""

    @property
    def held_bytes(self) -> int:
        """Buffered bytes."""
        return len(self._bytes)

    @property
    def lacks(self) -> bool:
        """Whether the next message is incomplete and not too long."""
        size = self._size()
        return size is None or len(self._bytes) < size <= self._max_bytes

    def add(self, payload: bytes, now: int) -> None:
        """Append a part of the body."""
        if not self._bytes:
            self.began = now
        self._bytes += payload

    def end(self) -> None:
        """Mark the body complete."""
        self._is_whole = True

    @property
    def is_over(self) -> bool:
        """Whether all messages were read."""
        return self._is_whole and not self._bytes

    def next(self, now: int) -> bytes | None:
        """Return the next message with its prefix, if there is one.

        Raises:
            MessageTooLong: it exceeds the limit.
            MessageTruncated: the body ended within it.
        """
        size = self._size()
        if size is not None and size > self._max_bytes:
            raise MessageTooLong
        if size is None or len(self._bytes) < size:
            if self._is_whole and self._bytes:
                raise MessageTruncated
            return None
        with memoryview(self._bytes) as view:
            message = bytes(view[:size])
        del self._bytes[:size]
        self.began = now
        return message

    def _size(self) -> int | None:
        if len(self._bytes) < _PREFIX_BYTES:
            return None
        return _PREFIX_BYTES + int.from_bytes(self._bytes[1:_PREFIX_BYTES], "big")
