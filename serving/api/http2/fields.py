"""HTTP/2 header fields (HPACK, RFC 7541): requests decoded by `hpack`, responses by hand.

Blocks must be read in connection order. A block of indices and literals without indexing means the
same until the dynamic table changes, so it is checked (RFC 9113, sections 8.2 and 8.3) once and
cached.
"""

from __future__ import annotations

import re
from typing import Any

import hpack

Pairs = tuple[tuple[bytes, bytes], ...]

MAX_LIST_BYTES = 16 * 1024
"""Limit on names, values, and 32 bytes per field."""
_FIELD_BYTES = 128
"""Memory per field beside name and value."""
_REMEMBERED = 128
_REMEMBERED_BYTES = 1024
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"[^\0\r\n]*")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)


class BadBlock(Exception):  # the message comes from the decoder
    """Malformed or too large block; the connection's table is lost."""


class HeaderFields:
    """One request's fields, shared by equal blocks."""

    __slots__ = ("held_bytes", "is_request", "length", "meaning", "pairs")

    def __init__(self, pairs: Pairs) -> None:
        lengths = [value for name, value in pairs if name == b"content-length"]
        self.pairs = pairs
        self.is_request = _is_request(pairs) and (not lengths or _is_length(lengths))
        """Whether a request may begin with them."""
        self.length = int(lengths[0]) if lengths and self.is_request else None
        self.held_bytes = sum([len(name) + len(value) + _FIELD_BYTES for name, value in pairs])
        self.meaning: Any = None

    @property
    def are_trailers(self) -> bool:
        """Whether a request may end with them."""
        return _are_regular(self.pairs)


def _is_request(pairs: Pairs) -> bool:
    pseudo: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name[:1] != b":":
            break
        if name not in _PSEUDO or name in pseudo or not _is_value(value):
            return False
        pseudo[name] = value
    if pseudo.get(b":method") == b"CONNECT":
        is_whole = pseudo.keys() == {b":method", b":authority"}
    else:
        is_whole = all(pseudo.get(name) for name in (b":method", b":scheme", b":path"))
    return is_whole and _are_regular(pairs[len(pseudo) :])


def _are_regular(pairs: Pairs) -> bool:
    """Whether all fields are well formed and regular."""
    for name, value in pairs:
        if not _NAME.fullmatch(name) or name in _OF_CONNECTION or not _is_value(value):
            return False
        if name == b"te" and value.lower() != b"trailers":
            return False
    return True


def _is_value(value: bytes) -> bool:
    return value.strip(b" \t") == value and _VALUE.fullmatch(value) is not None


def _is_length(lengths: list[bytes]) -> bool:
    return len(lengths) == 1 and _LENGTH.fullmatch(lengths[0]) is not None


class FieldReader:
    """Decoder of one connection's header blocks."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=MAX_LIST_BYTES)
        self._remembered: dict[bytes, HeaderFields] = {}

    def read(self, block: bytes) -> HeaderFields:
        """Decode a block.

        Raises:
            BadBlock: malformed or too large.
        """
        fields = self._remembered.get(block)
        if fields is not None:
            return fields
        try:
            pairs = tuple([(bytes(n), bytes(v)) for n, v in self._decoder.decode(block, raw=True)])
        except hpack.HPACKError as error:
            raise BadBlock(str(error)) from error
        fields = HeaderFields(pairs)
        if _changes_table(block):
            self._remembered.clear()
        elif len(block) <= _REMEMBERED_BYTES:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[block] = fields
        return fields


def _changes_table(block: bytes) -> bool:
    """Whether a block changes the dynamic table (RFC 7541, section 6)."""
    position = 0
    while position < len(block):
        first = block[position]
        if first & 0x80:  # indexed
            _, position = _integer(block, position, 0x7F)
            continue
        if first & 0x60:  # with incremental indexing, or a table size update
            return True
        index, position = _integer(block, position, 0x0F)
        for _ in range(1 if index else 2):  # the value, after the name if it is not in the table
            length, position = _integer(block, position, 0x7F)
            position += length
    return False


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """Return a prefixed integer and its end (RFC 7541, section 5.1)."""
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    shift = 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def status(code: int) -> bytes:
    """Encode `:status`, the first field of a response."""
    return b"\x88" if code == 200 else b"\x08\x03%d" % code


def literal(name: bytes, value: bytes) -> bytes:
    """Encode a literal field without indexing."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(value: int) -> bytes:
    if value < 127:
        return bytes((value,))
    value -= 127
    encoded = bytearray((127,))
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
