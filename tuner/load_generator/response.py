"""HTTP/1.1 response parser without a socket (RFC 9112, sections 2 to 6 and 9).

The bytes of a *plain* response (status from 200, one Content-Length) are only counted; llhttp
parses all others.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import httptools

MAX_HEAD_BYTES = 65_536
MAX_REPORTED_BYTES = 512
"""Number of bytes to keep from a body whose status is not 2xx."""
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([2-9]\d\d)(?: [^\r\n]*)?")
_NUMBER = re.compile(rb"\d{1,18}")


class BadResponse(Exception):
    """The bytes are not an HTTP response."""


class ResponseHead(NamedTuple):
    """Head of a plain response."""

    status: int
    body_bytes: int
    keeps_alive: bool


class HttpResponse(NamedTuple):
    """Complete response; `keeps_alive` tells whether the connection can take another request."""

    status: int
    keeps_alive: bool


def read_head(head: bytes) -> ResponseHead | None:
    """Parse a plain response's head, without its empty line; return None for any other response."""
    lines = head.split(b"\r\n")
    status_line = _STATUS_LINE.fullmatch(lines[0])
    if status_line is None:
        return None
    keeps_alive = status_line[1] == b"1"
    length: int | None = None
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if name == b"content-length":
            if length is not None or not _NUMBER.fullmatch(value):
                return None
            length = int(value)
        elif name == b"connection":
            options = {option.strip(b" \t") for option in value.lower().split(b",")}
            keeps_alive = b"close" not in options and (keeps_alive or b"keep-alive" in options)
        elif name in {b"transfer-encoding", b"upgrade"} or not name or line[:1] in {b" ", b"\t"}:
            return None
    status = int(status_line[2])
    if status in {204, 304}:
        return ResponseHead(status, 0, keeps_alive)
    return None if length is None else ResponseHead(status, length, keeps_alive)


class ResponseReader:
    """Reader of one response."""

    __slots__ = ("_begun", "_missing_bytes", "_parser", "_told", "head", "plain")

    def __init__(self) -> None:
        self.plain: ResponseHead | None = None
        self.head = b""
        """Head of a plain response, with its empty line."""
        self._begun = bytearray()
        self._missing_bytes = 0
        self._parser: _FullParser | None = None
        self._told = bytearray()

    @property
    def error_body(self) -> bytes:
        """Start of the body if the status is not 2xx, otherwise empty."""
        return bytes(self._told if self._parser is None else self._parser.told)

    def feed(self, data: bytes) -> HttpResponse | None:
        """Read data; return the response once it is complete, or raise BadResponse."""
        if self._parser is not None:
            return self._parser.feed(data)
        if self.plain is not None:
            return self._count(data)
        self._begun += data
        end = self._begun.find(b"\r\n\r\n")
        if end < 0:
            self._check_open_head()
            return None
        self.head = bytes(self._begun[: end + 4])
        self.plain = read_head(self.head[:-4])
        if self.plain is None:
            self._parser = _FullParser()
            return self._parser.feed(bytes(self._begun))
        self._missing_bytes = self.plain.body_bytes
        return self._count(self._begun[end + 4 :])

    def end(self) -> HttpResponse | None:
        """Return the response if closing by the peer completes it, otherwise None."""
        return None if self._parser is None else self._parser.end()

    def _count(self, data: bytes | bytearray) -> HttpResponse | None:
        assert self.plain is not None
        if not 200 <= self.plain.status < 300:
            wanted = min(MAX_REPORTED_BYTES - len(self._told), self._missing_bytes)
            self._told += data[: max(0, wanted)]
        self._missing_bytes -= len(data)
        if self._missing_bytes > 0:
            return None
        return HttpResponse(self.plain.status, self.plain.keeps_alive and self._missing_bytes == 0)

    def _check_open_head(self) -> None:
        start = bytes(self._begun[:7])
        if start != b"HTTP/1."[: len(start)] or b"\n\n" in self._begun:
            raise BadResponse(
                f"the response begins with {bytes(self._begun[:40])!r}, which is not HTTP/1"
            )
        if len(self._begun) > MAX_HEAD_BYTES:
            raise BadResponse(f"the response's head is longer than {MAX_HEAD_BYTES} bytes")


class _FullParser:
    def __init__(self) -> None:
        self.told = bytearray()
        self._parser = httptools.HttpResponseParser(self)
        self._answer: HttpResponse | None = None
        self._ends_with_close = True
        self._has_head = False

    def feed(self, data: bytes) -> HttpResponse | None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # Surplus bytes after a complete response spoil only the connection.
            if self._answer is None:
                raise BadResponse(f"the response cannot be read: {error}") from error
            self._answer = HttpResponse(self._answer.status, keeps_alive=False)
        return self._answer

    def end(self) -> HttpResponse | None:
        if self._answer is None and self._has_head and self._ends_with_close:
            return HttpResponse(self._parser.get_status_code(), keeps_alive=False)
        return self._answer

    def on_message_begin(self) -> None:
        if self._answer is not None:  # surplus bytes that look like another response
            self._answer = HttpResponse(self._answer.status, keeps_alive=False)
        self._has_head = False
        self._ends_with_close = True

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002  httptools' signature
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._ends_with_close = False

    def on_headers_complete(self) -> None:
        self._has_head = self._parser.get_status_code() >= 200

    def on_body(self, data: bytes) -> None:
        if not 200 <= self._parser.get_status_code() < 300 and self._answer is None:
            self.told += data[: MAX_REPORTED_BYTES - len(self.told)]

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._answer is None:
            self._answer = HttpResponse(status, bool(self._parser.should_keep_alive()))
