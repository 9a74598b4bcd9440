"""Large predict requests of TensorFlow Serving's protocol, made ready without reading their numbers.

In: the text of a body; out: a frame in the JSON encoding of the replica wire, whose numbers the
replica reads, where the body is what most large ones are: one array of numbers for the only input,
evenly nested. Anything else is None, and is read whole, which finds what is wrong with it.

Brackets and commas alone tell the shape, in passes over the bytes at C speed: some 1 ms a megabyte,
where reading its numbers here would hold up every other request for 60 ms. Pure.
"""

from __future__ import annotations

import json
import re
from typing import Literal, NamedTuple

from serving.protocol.bounded_json import SMALL_BYTES
from serving.values import Buffer, TensorSpec

LARGE_JSON_BYTES = SMALL_BYTES
"""Bodies above this are looked at in this way."""

_SIGNATURE_NAME = rb'"signature_name"\s*:\s*"(?:serving_default)?"\s*'
_START = re.compile(
    rb"\s*\{\s*(?:" + _SIGNATURE_NAME + rb',\s*)?"(?P<key>instances|inputs)"\s*:\s*(?=\[)'
)
_END = re.compile(rb"\s*(?:,\s*" + _SIGNATURE_NAME + rb")?\}\s*")
_EMPTY = b"[]"
_STRUCTURE = b"[],"
_BLANKS = b" \t\r\n"
_NUMBERS = b"0123456789+-.eE"
_PIECE_BYTES = 128 * 1024
"""Looked at at once: what fits a processor's cache passes several times as fast."""
_LONGEST_ENDS = 200
"""Bytes before and after the array."""


class Large(NamedTuple):
    """A request whose numbers were not read."""

    form: Literal["row", "columnar"]
    shape: tuple[int, ...]
    frame: tuple[Buffer, ...]


def large(body: bytes, spec: TensorSpec) -> Large | None:
    """The request in a body, for a model whose only input is given; None where it is another kind."""
    if spec.datatype in {"BYTES", "BOOL"} or not spec.shape:
        return None
    start = _START.match(body, 0, _LONGEST_ENDS)
    stop = body.rfind(b"]") + 1
    if start is None or not stop or len(body) - stop > _LONGEST_ENDS:
        return None
    if not _END.fullmatch(body, stop):
        return None
    if body.find(b'"', start.end(), stop) >= 0:
        return None
    array = memoryview(body)[start.end() : stop]
    structure = _structure(array)
    shape = None if structure is None else regular_shape(structure, len(spec.shape))
    if shape is None:
        return None
    head = {"name": spec.name, "shape": shape, "datatype": spec.datatype}
    opening = f'{{"inputs":[{json.dumps(head)[:-1]},"data":'.encode()
    form: Literal["row", "columnar"] = "row" if start["key"] == b"instances" else "columnar"
    return Large(form, shape, (opening, array, b"}]}"))


def _structure(array: memoryview) -> bytes | None:
    """Brackets and commas of an array; None where there is anything else than numbers, or an empty array."""
    found = bytearray()
    before = b""
    for at in range(0, len(array), _PIECE_BYTES):
        piece = bytes(array[at : at + _PIECE_BYTES])
        if b" " in piece or b"\n" in piece or b"\r" in piece or b"\t" in piece:
            piece = piece.translate(None, _BLANKS)
        if _EMPTY in piece or before + piece[:1] == _EMPTY:
            return None
        before = piece[-1:] or before
        piece = piece.translate(None, _NUMBERS)
        if piece.translate(None, _STRUCTURE):
            return None
        found += piece
    return bytes(found)


def regular_shape(structure: bytes, rank: int) -> tuple[int, ...] | None:
    """The shape of evenly nested arrays without an empty one, from their brackets and commas.

    The first array of each depth ends at the first so many closing brackets in a row; each must be
    the one within it over and over, and the outermost the whole.
    """
    sizes: list[int] = []
    inner = b""
    for depth in range(1, rank + 1):
        found = structure.find(b"]" * depth)
        if found < 0:
            return None
        array = structure[rank - depth : found + depth]
        if depth == 1:
            size, expected = len(array) - 1, b"[" + b"," * (len(array) - 2) + b"]"
        else:
            size = (len(array) - 1) // (len(inner) + 1)
            expected = b"[" + ((inner + b",") * size)[:-1] + b"]"
        if array != expected:
            return None
        sizes.append(size)
        inner = array
    if inner != structure or structure[: rank + 1].count(b"[") != rank:
        return None
    return tuple(reversed(sizes))
