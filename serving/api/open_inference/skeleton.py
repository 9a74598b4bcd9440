"""Skeletons of large JSON requests, without the elements of arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator

from serving.api.parsing import bounded_json
from serving.api.parsing.parse_budget import MAX_VALUES, ParseBudget
from serving.values import Buffer

LARGE_JSON_BYTES = bounded_json.SMALL_BYTES
"""Size above which JSON is decoded in the replica, to let other requests run."""

_DATA = b'"data"'
_ARRAY = re.compile(rb"\s*:\s*\[")

_EMPTY = b"[]"
_BLANKS = b" \t\r\n"
_PIECE_BYTES = 128 * 1024


def skeleton(body: bytes) -> bytes | None:
    """Return a JSON body with its `data` arrays emptied, or None if that is still large.

    Arrays without strings or objects are assumed to hold numbers; the replica reports errors. The
    search runs at the speed of memory.
    """
    pieces: list[bytes] = []
    size = done = 0
    place = body.find(_DATA)
    while place >= 0:
        if size + place - done > LARGE_JSON_BYTES:
            return None
        array = _ARRAY.match(body, place + len(_DATA))
        place += len(_DATA)
        if array is not None:
            start = place = array.end()
            stop = _end_of_numbers(body, start)
            last = body.rfind(b"]", start, stop)
            if (
                last >= 0
                and body[last + 1 : stop].strip() in {b"", b","}
                and body.count(b"[", start, last) == body.count(b"]", start, last)
            ):
                pieces.append(body[done:start])
                size += start - done
                done = place = last
        place = body.find(_DATA, place)
    if size + len(body) - done > LARGE_JSON_BYTES:
        return None
    pieces.append(body[done:])
    return b"".join(pieces)


def check_empty(body: bytes) -> None:
    """Raise InvalidRequest if large JSON has many empty arrays, which parse into larger lists."""
    if body.count(b"[") <= MAX_VALUES:
        return
    budget = ParseBudget(what="empty arrays")
    before = b""
    for piece in without_blanks(body):
        budget.spend(piece.count(_EMPTY) + (before + piece[:1] == _EMPTY))
        before = piece[-1:] or before


def without_blanks(text: Buffer) -> Iterator[bytes]:
    """Yield JSON without its whitespace, in pieces that fit into a processor's cache."""
    for at in range(0, len(text), _PIECE_BYTES):
        piece = bytes(text[at : at + _PIECE_BYTES])
        if b" " in piece or b"\n" in piece or b"\r" in piece or b"\t" in piece:
            piece = piece.translate(None, _BLANKS)
        yield piece


def _end_of_numbers(body: bytes, start: int) -> int:
    """Return the position of the next string or object, or of the current object's end."""
    stop = body.find(b'"', start)
    if stop < 0:
        stop = len(body)
    for brace in (b"}", b"{"):
        found = body.find(brace, start, stop)
        if found >= 0:
            stop = found
    return stop
