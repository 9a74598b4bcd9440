"""Heads of requests that were read, found again by what of them means something.

In: the bytes of a head, and how many follow it. Out: what it says; None: it is not known, and the parser reads it.
Two heads say the same where they have the same request line and, in the same order, the same fields of those
that mean something here or to the parser. In all others, as X-Request-Id or User-Agent, they may differ, and in the
length of the body. What is not plain is nobody's like: a line that is no field, a length that is no number, two
lengths, a field that says how the body comes. Pure.
"""

from __future__ import annotations

import re

from serving.protocol.http_messages import OTHERS, Head

MAX_HEADS = 512
MAX_HEAD_BYTES = 2048
"""A longer one is not remembered."""
_MAX_LINES = 1024
_NOT_PLAIN = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"traceparent"})
"""A head with one of these is always read: the body comes otherwise, or (a trace) no two are alike."""
_MEANT = OTHERS | {
    b"connection",
    b"content-encoding",
    b"inference-header-content-length",
    b"proxy-connection",
}
_REQUEST = re.compile(rb"[A-Z]+ [!-~]+ HTTP/1\.[01]")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~]*)")
"""Plain ones; each byte is looked at once, whatever a client sends."""
_UNMEANT, _SAID, _UNCLEAR = -1, -2, -3
"""What a line is, if not a length of the body: a field that means nothing, one that means something, none of both."""


class KnownHeads:
    """The heads that one port has read, by what they say."""

    def __init__(self, max_body_bytes: int) -> None:
        """None is known.

        Args:
            max_body_bytes: a request with a longer body is the parser's affair.
        """
        self._max_body_bytes = max_body_bytes
        self._heads: dict[tuple[bytes, ...], Head] = {}
        self._lines: dict[bytes, int] = {}
        """What each line is, or the length that it gives. Most lines come again."""

    def __len__(self) -> int:
        return len(self._heads)

    def find(self, raw_head: bytes, body_bytes: int) -> Head | None:
        """What a head says, if it is known and a request whose body is as long as what has come behind it.

        Args:
            raw_head: up to the empty line and with it.
            body_bytes: that follow it.
        """
        if body_bytes > self._max_body_bytes:
            return None
        said = self._meaning(raw_head)
        return None if said is None or said[1] != body_bytes else self._heads.get(said[0])

    def remember(self, raw_head: bytes, head: Head) -> None:
        """Find it from now on, if it is plain."""
        said = self._meaning(raw_head)
        if said is not None and _REQUEST.fullmatch(said[0][0]):
            if len(self._heads) >= MAX_HEADS and said[0] not in self._heads:
                self._heads.clear()
            self._heads[said[0]] = head
            head.own_bytes = 0

    def _meaning(self, raw_head: bytes) -> tuple[tuple[bytes, ...], int] | None:
        """The lines of a head that mean something, and the length of the body."""
        if not 4 < len(raw_head) <= MAX_HEAD_BYTES:
            return None
        known = self._lines
        lines = raw_head[:-4].split(b"\r\n")
        said = [lines[0]]
        length = -1
        for line in lines[1:]:
            kind = known.get(line)
            if kind is None:
                kind = self._kind(line)
            if kind == _SAID:
                said.append(line)
            elif kind >= 0 and length < 0:
                length = kind
            elif kind != _UNMEANT:
                return None
        return tuple(said), max(length, 0)

    def _kind(self, line: bytes) -> int:
        kind = _kind(line)
        if len(self._lines) >= _MAX_LINES:
            self._lines.clear()
        self._lines[line] = kind
        return kind


def _kind(line: bytes) -> int:
    field = _FIELD.fullmatch(line)
    if field is None:
        return _UNCLEAR
    key, value = field[1].lower(), field[2].lstrip(b" \t")
    if key == b"content-length":
        return int(value) if value.isdigit() and len(value) <= 18 else _UNCLEAR
    if key in _NOT_PLAIN:
        return _UNCLEAR
    return _SAID if key in _MEANT else _UNMEANT
