"""HTTP values: heads of requests and responses, and their bytes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, final

from serving.errors import ServingError

log = logging.getLogger(__name__)

CLOSE = b"Connection: close\r\n"
KEEP_ALIVE = b"Connection: keep-alive\r\n"
JSON_TYPE = b"Content-Type: application/json\r\n"

OTHERS = frozenset(
    {
        b"accept-encoding",
        b"access-control-request-method",
        b"authorization",
        b"host",
        b"origin",
        b"sec-fetch-site",
        b"traceparent",
        b"x-application",
    }
)

_STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}


class RequestHead:
    """Head of a request; identical heads share one object."""

    __slots__ = (
        "application",
        "content_encoding",
        "handle",
        "inference_header_bytes",
        "inserted",
        "is_plain",
        "keep_alive",
        "meaning",
        "method",
        "others",
        "own_bytes",
        "path",
    )

    def __init__(
        self,
        *,
        method: str,
        path: str,
        keep_alive: bool,
        inference_header_bytes: int | None = None,
        content_encoding: str = "",
        http_1_0: bool = False,
        others: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.inference_header_bytes = inference_header_bytes
        self.content_encoding = content_encoding
        self.keep_alive = keep_alive
        self.others = others or {}
        self.application = self.others.get(b"x-application", b"").decode("latin-1")
        """Application that the request belongs to, from the header `X-Application`."""
        self.inserted = CLOSE if not keep_alive else KEEP_ALIVE if http_1_0 else b""
        self.is_plain = not self.inserted and method != "HEAD"
        self.meaning: Any = None
        """Parsed path, cached by the routes."""
        self.handle: Callable[..., Any] | None = None
        """Handler chosen by the routes for this head."""
        self.own_bytes = 0
        """Size of the head, counted while the request waits."""

    def add(self, fields: bytes) -> None:
        """Add headers to every response to this head."""
        self.inserted += fields
        self.is_plain = self.is_plain and not fields

    def with_content_encoding(self, content_encoding: str) -> RequestHead:
        """Return a copy for a body in another encoding."""
        return RequestHead(
            method=self.method,
            path=self.path,
            inference_header_bytes=self.inference_header_bytes,
            content_encoding=content_encoding,
            keep_alive=self.keep_alive,
            others=self.others,
        )


@final
class Response(NamedTuple):
    """Response: status, headers except the length, and body."""

    status: int
    fields: bytes
    body: bytes


class EarlyResponse(ServingError):
    """Response sent before the client sends the body; nothing more is read."""

    def __init__(self, response: Response) -> None:
        super().__init__(response)
        self.response = response


def ending(fields: bytes, body_bytes: int) -> bytes:
    """Return the end of a head: its headers, the length, and the empty line."""
    return b"%bContent-Length: %d\r\n\r\n" % (fields, body_bytes)


def json_response(status: int, data: object) -> Response:
    """Return a response with a JSON body."""
    return Response(status, JSON_TYPE, json.dumps(data, separators=(",", ":")).encode())


def head_of(response: Response) -> bytes:
    """Return the bytes of a response before its body."""
    return _STATUS_LINES[response.status] + ending(response.fields, len(response.body))


def as_serving_error(error: BaseException) -> ServingError:
    """Return a ServingError unchanged; log any other error and return one without its details."""
    if isinstance(error, ServingError):
        return error
    log.error("a request hit a server error", exc_info=error)
    return ServingError("internal error; the server's log has the reason")


def error_response(error: BaseException) -> Response:
    """Return a response `{"error": message}`, with Retry-After if known; log internal errors."""
    error = as_serving_error(error)
    response = json_response(error.status, {"error": str(error)})
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        retry = b"Retry-After: %d\r\n" % max(1, round(retry_after_s))
        return response._replace(fields=response.fields + retry)
    return response
