"""Cache of parsed heads by their request lines and relevant headers.

Malformed lines or lengths, and headers that change how the body arrives, prevent caching.
"""

from __future__ import annotations

import re

from serving.api.http.messages import OTHERS, RequestHead

MAX_HEADS = 512
MAX_CACHED_HEAD_BYTES = 2048
"""Maximum size of a cached head."""
_MAX_LINES = 1024
_NOT_PLAIN = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"traceparent"})
"""Headers that prevent caching, since they change the framing or their values never repeat."""
_MEANT = OTHERS | {
    b"connection",
    b"content-encoding",
    b"inference-header-content-length",
    b"proxy-connection",
}
_REQUEST = re.compile(rb"[A-Z]+ [!-~]+ HTTP/1\.[01]")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~]*)")
"""Plain headers, matched in linear time."""
_UNMEANT, _SAID, _UNCLEAR = -1, -2, -3
"""Kinds of lines without a length: irrelevant, relevant, uncacheable."""


class HeadCache:
    """Head cache of one port."""

    def __init__(self, max_body_bytes: int) -> None:
        """Start empty; requests with bodies over `max_body_bytes` go to the parser."""
        self._max_body_bytes = max_body_bytes
        self._heads: dict[tuple[bytes, ...], RequestHead] = {}
        self._lines: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def find(self, raw_head: bytes, body_bytes: int) -> RequestHead | None:
        """Return the cached head of a request, if any; `body_bytes` were received after it."""
        if body_bytes > self._max_body_bytes:
            return None
        said = self._meaning(raw_head)
        return None if said is None or said[1] != body_bytes else self._heads.get(said[0])

    def remember(self, raw_head: bytes, head: RequestHead) -> None:
        """Cache a head if it is plain."""
        said = self._meaning(raw_head)
        if said is not None and _REQUEST.fullmatch(said[0][0]):
            if len(self._heads) >= MAX_HEADS and said[0] not in self._heads:
                self._heads.clear()
            self._heads[said[0]] = head
            head.own_bytes = 0

    def _meaning(self, raw_head: bytes) -> tuple[tuple[bytes, ...], int] | None:
        if not 4 < len(raw_head) <= MAX_CACHED_HEAD_BYTES:
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
