"""Protobuf's wire format: fields of a message, read as views and written as pieces.

Source: the encoding of Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from serving.api.parsing import varints
from serving.api.parsing.parse_budget import ParseBudget
from serving.errors import InvalidRequest

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT = 10
_UINT64_RANGE = 2**64

Field = tuple[int, int, int, memoryview]
"""Number, wire type, value (of a varint), and content (of other types)."""


def read(message: memoryview, budget: ParseBudget) -> Iterator[Field]:
    """Yield the fields of a message, or raise InvalidRequest if it is malformed or over budget."""
    position, end = 0, len(message)
    while position < end:
        budget.left -= 1
        if budget.left < 0:
            raise budget.make_error()
        tag = message[position]
        if tag < 0x80:
            position += 1
        else:
            tag, position = _varint(message, position)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise _malformed_error("a field has the number 0")
        if kind == VARINT:
            value, position = _varint(message, position)
            yield number, kind, value, message[:0]
            continue
        if kind == BYTES:
            if position < end and message[position] < 0x80:
                length = message[position]
                position += 1
            else:
                length, position = _varint(message, position)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise _malformed_error(f"field {number} has the wire type {kind}")
        if length > end - position:
            raise _malformed_error(f"field {number} has {length} bytes, {end - position} are left")
        yield number, kind, 0, message[position : position + length]
        position += length


def text(content: memoryview) -> str:
    """Decode a string field, or raise InvalidRequest."""
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError:
        raise _malformed_error("a string is not UTF-8") from None


def entry(content: memoryview, budget: ParseBudget) -> tuple[str, memoryview]:
    """Return the key and value of a map entry, empty if absent; raises as `read` does."""
    key, value = "", content[:0]
    for number, kind, _, inner in read(content, budget):
        if number == 1 and kind == BYTES:
            key = text(inner)
        elif number == 2 and kind == BYTES:
            value = inner
    return key, value


def whole_numbers(content: memoryview) -> NDArray[np.uint64]:
    """Decode packed varints modulo 2**64, or raise InvalidRequest."""
    numbers = varints.unpack(content)
    if numbers is None:
        raise _malformed_error("packed numbers end within one, or one has more than 10 bytes")
    return numbers


def number(field: int, value: int) -> bytes:
    """Encode an integer field; 0 is omitted."""
    return varints.one(field << 3 | VARINT) + varints.one(value) if value else b""


def opening(field: int, content_bytes: int) -> bytes:
    """Encode the tag and length of a string, message or packed field."""
    return varints.one(field << 3 | BYTES) + varints.one(content_bytes)


def content(field: int, value: bytes) -> bytes:
    """Encode a message or bytes field."""
    return opening(field, len(value)) + value


def string(field: int, value: str) -> bytes:
    """Encode a string field; an empty string is omitted."""
    return content(field, value.encode()) if value else b""


def map_entry(field: int, key: str, value: bytes) -> bytes:
    """Encode an entry of a map of messages."""
    return content(field, string(1, key) + content(2, value))


def as_signed(value: int) -> int:
    """Convert a varint to a signed 64-bit integer."""
    return value - _UINT64_RANGE if value >= _UINT64_RANGE >> 1 else value


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[position : position + _MAX_VARINT]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value % _UINT64_RANGE, position + place + 1
    raise _malformed_error("a number does not end")


def _malformed_error(what: str) -> InvalidRequest:
    return InvalidRequest(f"the message cannot be read: {what}")
