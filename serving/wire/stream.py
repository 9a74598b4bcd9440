"""Parser of the message stream, in which each message is an 8-byte head and a body."""

from __future__ import annotations

import enum
import struct

from serving.errors import ServingError
from serving.values import Buffer

MAGIC = b"LW"
VERSION = 1
DEFAULT_MAX_MESSAGE_BYTES = 1 << 30
"""Default size limit of a message: 16 times that of a request's body."""
MAX_RESULT_BYTES = 2**31 - 1  # what a gateway reads

HEAD = struct.Struct("<2sBBI")
"""Magic, version, type, size of the body."""


class MessageType(enum.IntEnum):
    """Message type in the head."""

    HELLO = 1
    LOAD = 2
    LOADED = 3
    UNLOAD = 4
    UNLOADED = 5
    INFER = 6
    RESULT = 7
    MOVE = 8


_TYPES = tuple(MessageType(n) if n in set(MessageType) else None for n in range(256))


class WireError(ServingError):
    """The peer sent bytes that break the protocol; the connection is unusable."""

    def __init__(self, text: str) -> None:
        super().__init__(text)


def message(kind: MessageType, *parts: bytes) -> bytes:
    """Build a message from the parts of its body."""
    body = b"".join(parts)
    return HEAD.pack(MAGIC, VERSION, kind, len(body)) + body


def unpack_start(form: struct.Struct, body: memoryview, what: str) -> tuple[int, ...]:
    """Unpack the fixed fields at the start of a body, or raise WireError if it is too short."""
    if len(body) < form.size:
        raise WireError(f"{what} has a body of {len(body)} bytes, expected at least {form.size}")
    return form.unpack_from(body, 0)


def parse_head(data: Buffer, position: int, max_message_bytes: int) -> tuple[MessageType, int]:
    """Return the type and body length from the 8 bytes at `position`, or raise WireError."""
    magic, version, type_byte, length = HEAD.unpack_from(data, position)
    if magic != MAGIC:
        raise WireError(f"a message starts with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise WireError(f"a message has version {version} of the wire, expected {VERSION}")
    kind = _TYPES[type_byte]
    if kind is None:
        raise WireError(f"a message has the unknown type {type_byte}")
    if length > max_message_bytes:
        raise WireError(
            f"a {kind.name} has a body of {length} bytes, above the limit of {max_message_bytes}"
        )
    return kind, length


class MessageParser:
    """Incremental parser that copies no messages: bytes fed to it must not change afterwards."""

    __slots__ = ("_buffered", "_held_bytes", "_max_message_bytes", "_needed_bytes")

    def __init__(self, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> None:
        self._max_message_bytes = max_message_bytes
        self._buffered: list[Buffer] = []
        self._held_bytes = 0
        self._needed_bytes = HEAD.size

    @property
    def missing_bytes(self) -> int:
        """Number of bytes missing from the current head or message."""
        return self._needed_bytes - self._held_bytes

    def feed(self, data: Buffer) -> list[tuple[MessageType, memoryview]]:
        """Add bytes; return the completed messages as (type, body), or raise WireError."""
        if self._buffered:
            self._buffered.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed_bytes:
                return []
            data = b"".join(self._buffered)
            self._buffered.clear()
        view = memoryview(data)
        size = len(view)
        messages: list[tuple[MessageType, memoryview]] = []
        position = 0
        needed = HEAD.size
        while size - position >= HEAD.size:
            kind, length = parse_head(view, position, self._max_message_bytes)
            start = position + HEAD.size
            end = start + length
            if end > size:
                needed = HEAD.size + length
                break
            messages.append((kind, view[start:end]))
            position = end
        self._needed_bytes = needed
        self._held_bytes = size - position
        if position < size:
            self._buffered.append(view[position:])
        return messages
