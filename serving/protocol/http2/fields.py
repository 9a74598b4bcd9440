"""Header fields of HTTP/2 (HPACK, RFC 7541): blocks from a client through `hpack`, blocks of answers by hand.

In: header blocks in the order of the connection; out: `Fields`. Clients repeat their fields: once
the table of the connection knows them, a block is some index bytes and spelled-out fields that are not to
be kept, and such a block means the same until the table changes. It is decoded and checked once (RFC 9113,
sections 8.2 and 8.3) and then looked up, and whoever reads its fields may keep what they mean beside them.

Answers use no table of their own, so their blocks are constants.
"""

from __future__ import annotations

import re
from typing import Any

import hpack

Pairs = tuple[tuple[bytes, bytes], ...]
"""Names and values."""

MAX_LIST_BYTES = 16 * 1024
"""Largest list of fields, counted as the RFC does (names, values, 32 bytes for each field)."""
_FIELD_BYTES = 128
"""Of memory for a field beside its name and its value."""
_REMEMBERED = 128
_REMEMBERED_BYTES = 1024
"""Longest block that is remembered."""
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
"""A token in small letters."""
_VALUE = re.compile(rb"[^\0\r\n]*")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
"""Fields that speak of a connection of HTTP/1.1."""


class BadBlock(Exception):  # every error of the session names what is wrong
    """A header block that is none, or is above the limit; the connection's table is lost with it."""


class Fields:
    """The fields of one request. Equal blocks share one."""

    __slots__ = ("held_bytes", "is_request", "length", "meaning", "pairs")

    def __init__(self, pairs: Pairs) -> None:
        lengths = [value for name, value in pairs if name == b"content-length"]
        self.pairs = pairs
        self.is_request = _is_request(pairs) and (not lengths or _is_length(lengths))
        """Whether a request may begin with them."""
        self.length = int(lengths[0]) if lengths and self.is_request else None
        """Of the body that follows, where they tell it."""
        self.held_bytes = sum([len(name) + len(value) + _FIELD_BYTES for name, value in pairs])
        """Of memory that they take."""
        self.meaning: Any = None
        """Room for whoever reads the fields to keep what they mean."""

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
    """Whether fields are well formed, and none is of another place: no pseudo field, and none of a connection."""
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
    """Header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=MAX_LIST_BYTES)
        self._remembered: dict[bytes, Fields] = {}

    def read(self, block: bytes) -> Fields:
        """The fields of a block.

        Raises:
            BadBlock: malformed, or above the limit.
        """
        fields = self._remembered.get(block)
        if fields is not None:
            return fields
        try:
            pairs = tuple([(bytes(n), bytes(v)) for n, v in self._decoder.decode(block, raw=True)])
        except hpack.HPACKError as error:
            raise BadBlock(str(error)) from error
        fields = Fields(pairs)
        if _changes_table(block):
            self._remembered.clear()
        elif len(block) <= _REMEMBERED_BYTES:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[block] = fields
        return fields


def _changes_table(block: bytes) -> bool:
    """Whether a block, which was decoded, adds to the table or bounds it anew (RFC 7541, section 6)."""
    position = 0
    while position < len(block):
        first = block[position]
        if first & 0x80:  # indexed
            _, position = _integer(block, position, 0x7F)
            continue
        if first & 0x60:  # to be indexed; or the size of the table
            return True
        index, position = _integer(block, position, 0x0F)
        for _ in range(
            1 if index else 2
        ):  # the value; before it the name, where the table has none
            length, position = _integer(block, position, 0x7F)
            position += length
    return False


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """An integer with a prefix, and where it ends (section 5.1)."""
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
    """The field `:status`, which comes first in an answer."""
    return b"\x88" if code == 200 else b"\x08\x03%d" % code


def literal(name: bytes, value: bytes) -> bytes:
    """One field, spelled out and not to be kept in the client's table."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(value: int) -> bytes:
    """A string's length: an integer with a prefix of 7 bits."""
    if value < 127:
        return bytes((value,))
    value -= 127
    encoded = bytearray((127,))
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
