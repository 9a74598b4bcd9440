"""Checks of HTTP/1 head fields, and their errors."""

from __future__ import annotations

import re

from serving.errors import InvalidRequest, Unimplemented

MAX_HEAD_BYTES = 64 * 1024
"""Limit on a head, trailers or a chunk extension; larger ones are answered with 431."""
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[A-Fa-f0-9:.]+\])(?::\d*)?")
"""Valid values of Host (RFC 9110, section 7.2)."""


def check_head(version: str, method: str, host: bytes | None, coding: bytes | None) -> None:
    """Raise ServingError for a head that makes the rest of the stream unreadable or ambiguous."""
    if version not in {"1.0", "1.1"}:
        raise _UnknownVersion(version)
    if host is None and version == "1.1":
        raise InvalidRequest("an HTTP/1.1 request needs a Host field (RFC 9112, section 3.2)")
    if host is not None and not _HOST.fullmatch(host.strip()):
        raise InvalidRequest(
            f"Host is {_short_repr(host)}, expected a name or an address and a port"
        )
    if method == "CONNECT":
        raise Unimplemented("CONNECT is not supported: this server is not a proxy")
    if coding is None or (coding == b"chunked" and version == "1.1"):
        return
    if version == "1.1" and coding.rpartition(b",")[2].strip() == b"chunked":
        raise Unimplemented(
            f"Transfer-Encoding {_short_repr(coding)} is not supported, only chunked; "
            f"compressed bodies have a Content-Encoding"
        )
    raise InvalidRequest(
        f"Transfer-Encoding is {_short_repr(coding)}, expected chunked, in HTTP/1.1"
    )


class HeadTooLarge(InvalidRequest):
    """Error for a head, trailers or a chunk extension over the limit."""

    status = 431

    def __init__(self) -> None:
        super().__init__(
            f"the request's head, its trailers or the extension of a chunk is larger than {MAX_HEAD_BYTES} bytes"
        )


class _UnknownVersion(InvalidRequest):
    status = 505

    def __init__(self, version: str) -> None:
        super().__init__(f"HTTP/{version} is not supported, only HTTP/1.1 and HTTP/1.0")


def check_first(name: bytes, before: object) -> None:
    """Raise InvalidRequest if a field is repeated."""
    if before is not None:
        raise InvalidRequest(f"the field {_short_repr(name)} appears twice, expected once")


def _short_repr(value: bytes) -> str:
    return repr(value[:40].decode("latin-1"))


def whole_number(value: bytes, name: str) -> int:
    """Parse a field as a whole number, or raise InvalidRequest."""
    if not value.isdigit() or len(value) > 18:
        raise InvalidRequest(
            f"Unable to parse {name}, got: {_short_repr(value)}, expected a whole number of bytes"
        )
    return int(value)
