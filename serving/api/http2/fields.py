"""HTTP/2 header fields (HPACK, RFC 7541): requests decoded by `hpack`, responses encoded by hand.

Blocks must be read in connection order. A block that leaves the dynamic table unchanged
keeps its meaning until another block changes the table, so it is checked (RFC 9113, sections 8.2
and 8.3) once and cached.
"""

from __future__ import annotations

import re
from typing import Any

import hpack

from serving.api.http2.frames import ErrorCode, Http2Error

Pairs = tuple[tuple[bytes, bytes], ...]

MAX_LIST_BYTES = 16 * 1024
"""Limit on the total size of the fields: names, values, and 32 bytes each."""
_FIELD_BYTES = 128
"""Memory per field in addition to its name and value."""
_REMEMBERED = 128
_REMEMBERED_BYTES = 1024
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"[^\0\r\n]*")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)


class HeaderFields:
    """Decoded header fields, shared by identical blocks."""

    __slots__ = ("held_bytes", "is_request", "length", "meaning", "pairs")

    def __init__(self, pairs: Pairs) -> None:
        lengths = [value for name, value in pairs if name == b"content-length"]
        self.pairs = pairs
        self.is_request = _is_request(pairs) and (not lengths or _is_length(lengths))
        """Whether a request may begin with these fields."""
        self.length = int(lengths[0]) if lengths and self.is_request else None
        self.held_bytes = sum([len(name) + len(value) + _FIELD_BYTES for name, value in pairs])
        self.meaning: Any = None

    @property
    def are_trailers(self) -> bool:
        """Whether a request may end with these fields."""
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
        """Decode a block, or raise Http2Error; after that, the connection's table is unusable."""
        fields = self._remembered.get(block)
        if fields is not None:
            return fields
        table = self._decoder.header_table
        before = table.maxsize, len(table.dynamic_entries)
        newest = next(iter(table.dynamic_entries), None)
        try:
            pairs = tuple([(bytes(n), bytes(v)) for n, v in self._decoder.decode(block, raw=True)])
        except hpack.HPACKError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        fields = HeaderFields(pairs)
        is_same = (table.maxsize, len(table.dynamic_entries)) == before
        if not is_same or next(iter(table.dynamic_entries), None) is not newest:
            self._remembered.clear()
        elif len(block) <= _REMEMBERED_BYTES:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[block] = fields
        return fields


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
