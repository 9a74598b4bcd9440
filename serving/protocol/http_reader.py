"""Reads requests that come in any pieces: httptools' callbacks, and what bounds them.

In: bytes of HTTP/1.1 or 1.0. Out: heads and bodies, in order, through a callback. A head that was read
once, with a plain Content-Length, is remembered with what it means: `Connection` recognises its bytes
and hands nothing like it to the reader any more. A reader serves one connection.

Knows methods, lengths and limits; nothing of answers, their order, or the socket.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import httptools

from serving.errors import BodyTooLarge, InvalidRequest, ServingError
from serving.protocol.http_messages import OTHERS, Head

MAX_HEAD_BYTES = 64 * 1024
"""Largest request head; more is answered 431."""
_REMEMBERED_HEADS = 512
_REMEMBERED_HEAD_BYTES = 2048


class RequestReader:
    """The parser of one connection, at work."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_encoding",
        "_expect",
        "_head_began",
        "_head_bytes",
        "_head_fed",
        "_head_open",
        "_heads",
        "_inference_header",
        "_length",
        "_max_body_bytes",
        "_on_continue",
        "_on_request",
        "_others",
        "_parser",
        "_raw_head",
        "_url",
        "began_s",
        "is_between_requests",
    )

    def __init__(
        self,
        heads: dict[bytes, Head],
        *,
        max_body_bytes: int,
        on_request: Callable[[Head, bytes], None],
        on_continue: Callable[[], None],
    ) -> None:
        """Wait for a request.

        Args:
            heads: heads by their bytes, where new ones are remembered.
            max_body_bytes: a larger body is refused.
            on_request: gets each request that is complete.
            on_continue: the client waits to be told that it may send the body.
        """
        self._heads = heads
        self._max_body_bytes = max_body_bytes
        self._on_request = on_request
        self._on_continue = on_continue
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.is_between_requests = True

    def close(self) -> None:
        """No more will be read. Parser and reader know each other: they are not left to the collector."""
        self._parser = None

    def begin(self, raw_head: bytes) -> None:
        """What is fed next begins a request.

        Args:
            raw_head: the bytes up to the first empty line, if it is there already.
        """
        self._raw_head = raw_head if 4 < len(raw_head) <= _REMEMBERED_HEAD_BYTES else None
        self._head_began = False
        self._head_fed = 0
        self._head_open = True
        self.is_between_requests = False
        self.began_s = time.monotonic()

    def feed(self, data: bytes) -> bytes:
        """Read on; returns what is left, as a beginning, where the client offered another protocol.

        Raises:
            ServingError: the stream cannot be read any further.
        """
        assert self._parser is not None, "it is not closed"
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The offer to speak another protocol is not taken up: the request was answered as it is.
            self.is_between_requests = True
            self._parser = httptools.HttpRequestParser(self)
            return data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            raise (
                cause if isinstance(cause, ServingError) else InvalidRequest(str(error))
            ) from error
        except httptools.HttpParserError as error:
            raise InvalidRequest(f"malformed HTTP request: {error}") from error
        if self._head_open:
            # The parser keeps an unfinished field to itself, so what is fed is counted here; the
            # piece in which the head began may hold other requests before it, so only those after
            # it count.
            self._head_fed += len(data) if self._head_began else 0
            self._head_began = True
            if self._head_fed > MAX_HEAD_BYTES:
                raise _HeadTooLarge
        return b""

    # httptools callbacks

    def on_message_begin(self) -> None:
        """Parser: a request starts."""
        self._url = b""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._head_began = False
        self._head_fed = 0
        self._head_open = True
        self._length: int | None = None
        self._inference_header: int | None = None
        self._encoding = ""
        self._others: dict[bytes, bytes] = {}
        self._expect = False
        self.is_between_requests = False
        self.began_s = time.monotonic()

    def on_url(self, url: bytes) -> None:
        """Parser: (a part of) the target."""
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLarge

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: one head field."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLarge
        key = name.lower()
        if key == b"content-length":
            self._length = _whole_number(value, "Content-Length")
            if self._length > self._max_body_bytes:
                raise BodyTooLarge(self._max_body_bytes)
        elif key == b"inference-header-content-length":
            self._inference_header = _whole_number(value, "Inference-Header-Content-Length")
        elif key == b"content-encoding":
            self._encoding = value.decode("latin-1").strip().lower()
        elif key == b"expect":
            self._expect = value.lower() == b"100-continue"
            self._raw_head = None
        elif key in {b"transfer-encoding", b"upgrade"}:
            self._raw_head = None
        elif key in OTHERS:
            self._others[key] = value
            if key == b"traceparent":  # no two requests have the same
                self._raw_head = None

    def on_headers_complete(self) -> None:
        """Parser: the head is complete."""
        self._head_open = False
        if self._expect:
            self._on_continue()

    def on_body(self, body: bytes) -> None:
        """Parser: (a part of) the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._max_body_bytes:
            raise BodyTooLarge(self._max_body_bytes)
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Parser: the request is complete."""
        parser = self._parser
        assert parser is not None, "it is at work"
        head = Head(
            method=parser.get_method().decode("latin-1"),
            path=self._url.decode("latin-1"),
            content_length=self._length,
            inference_header_bytes=self._inference_header,
            content_encoding=self._encoding,
            keep_alive=parser.should_keep_alive(),
            http_1_0=parser.get_http_version() == "1.0",
            others=self._others,
        )
        if self._raw_head is not None and self._body_bytes == (self._length or 0):
            if len(self._heads) >= _REMEMBERED_HEADS:
                self._heads.clear()
            self._heads[self._raw_head] = head
        self._raw_head = None
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self.is_between_requests = True
        self._on_request(head, body)


class _HeadTooLarge(InvalidRequest):
    status = 431

    def __init__(self) -> None:
        super().__init__(f"the request's head is larger than {MAX_HEAD_BYTES} bytes")


def _whole_number(value: bytes, name: str) -> int:
    if not value.isdigit() or len(value) > 18:
        shown = value[:40].decode("latin-1")
        raise InvalidRequest(
            f"Unable to parse {name}, got: {shown!r}, expected a whole number of bytes"
        )
    return int(value)
