"""A body that is a series of messages: pieces in, whole messages out, as they are asked for.

Each message stands behind a prefix of five bytes, a flag and a length, as gRPC has it; it comes out with
its prefix. What nobody asks for stays here, and whoever lets bytes in must look at `lacks`. Pure.
"""

from __future__ import annotations

_PREFIX_BYTES = 5


class TooLong(Exception):  # the session's owner says it in the words of its protocol
    """A message is longer than one may be."""


class CutOff(Exception):  # the same
    """The body has ended within a message."""


class Series:
    """What of a body has come and was not asked for."""

    __slots__ = ("_bytes", "_is_whole", "_most_bytes", "began")

    def __init__(self, most_bytes: int) -> None:
        self._bytes = bytearray()
        self._is_whole = False
        self._most_bytes = most_bytes
        """Of a message with its prefix."""
        self.began = 0
        """When the first of these messages began, in whatever its owner counts."""

    @property
    def held_bytes(self) -> int:
        """Bytes that are here."""
        return len(self._bytes)

    @property
    def lacks(self) -> bool:
        """Whether more bytes are needed for a message; one that is too long needs none."""
        size = self._size()
        return size is None or len(self._bytes) < size <= self._most_bytes

    def add(self, payload: bytes, now: int) -> None:
        """More of the body, at some time."""
        if not self._bytes:
            self.began = now
        self._bytes += payload

    def end(self) -> None:
        """There is no more."""
        self._is_whole = True

    @property
    def is_over(self) -> bool:
        """Whether all messages have been taken."""
        return self._is_whole and not self._bytes

    def next(self, now: int) -> bytes | None:
        """The next message, with its prefix; None: it is not there yet, or there is none.

        Raises:
            TooLong: it is longer than one may be.
            CutOff: the body has ended within it.
        """
        size = self._size()
        if size is not None and size > self._most_bytes:
            raise TooLong
        if size is None or len(self._bytes) < size:
            if self._is_whole and self._bytes:
                raise CutOff
            return None
        with memoryview(self._bytes) as view:
            message = bytes(view[:size])
        del self._bytes[:size]
        self.began = now
        return message

    def _size(self) -> int | None:
        """Of the first message with its prefix; None: nobody knows yet."""
        if len(self._bytes) < _PREFIX_BYTES:
            return None
        return _PREFIX_BYTES + int.from_bytes(self._bytes[1:_PREFIX_BYTES], "big")
