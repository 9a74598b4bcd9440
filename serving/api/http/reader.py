"""Incremental reader of one connection's HTTP/1.1 and 1.0 requests, based on httptools.

Heads with a plain Content-Length are cached (`head_cache`) and then bypass this reader.
`MAX_HEAD_BYTES` bounds the head, the trailers and each chunk extension. Trailers are ignored (RFC
9110, section 6.5.1). Rejected bodies are dropped on arrival. The rest of a long body bypasses the
parser, which would copy it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import httptools

from serving.api.http.head_cache import HeadCache
from serving.api.http.head_fields import (
    MAX_HEAD_BYTES,
    HeadTooLarge,
    check_first,
    check_head,
    whole_number,
)
from serving.api.http.messages import OTHERS, EarlyResponse, RequestHead, Response, error_response
from serving.api.transport.buffered_bytes import BufferedBytes
from serving.errors import BodyTooLarge, InvalidRequest, ServingError

PIECE_BYTES = 16 * 1024
"""Number of bytes parsed per call; within a piece, body and other bytes are not distinguished."""
_SMALL_BYTES = 4096
"""Body pieces of at least this size stay separate, at an overhead of at most 1 %."""
_LISTS = frozenset({b"accept-encoding"})
"""Headers that may repeat and are then joined; any other repeated header is ambiguous."""


class RequestReader:
    """Parser of one connection's requests."""

    def __init__(
        self,
        heads: HeadCache,
        *,
        max_body_bytes: int,
        buffered: BufferedBytes,
        on_head: Callable[[RequestHead, bool], Response | None],
        on_request: Callable[[RequestHead, bytes], None],
    ) -> None:
        """Wait for the first request.

        `buffered` counts incomplete bodies. `on_head` gets each head and whether 100 Continue is
        expected, and may return a rejection; `on_request` gets each complete request.
        """
        self._heads = heads
        self._max_body_bytes = max_body_bytes
        self._buffered = buffered
        self._on_head = on_head
        self._on_request = on_request
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._raw_head: bytes | None = None
        self._pieces: list[bytes | bytearray] = []
        """Body so far; adjacent small pieces are merged."""
        self._refusal: Response | None = None
        """Response to send after the request, whose body is dropped."""
        self._held_bytes = 0
        self._direct_bytes = 0
        """Number of remaining body bytes that bypass the parser."""
        self._outside_bytes = 0
        """Number of bytes fed since the request or body part began."""
        self._is_cut = False
        """Whether the parser takes the body for another protocol."""
        self._is_replayed = False
        """Whether callbacks report a head that was already read."""
        self.parts = 0
        """Number of headers and body pieces read; each takes a few microseconds."""
        self.on_message_begin()
        self.is_between_requests = True

    def close(self) -> None:
        """Break the reference cycle with the parser, which ends reading."""
        self._parser = None
        self.drop()

    def drop(self) -> None:
        """Release the received body."""
        self._pieces = []
        self._buffered.free(self._held_bytes)
        self._held_bytes = 0

    def begin(self, raw_head: bytes) -> None:
        """Start a request; `raw_head` holds its bytes up to the first empty line, if complete."""
        self._raw_head = raw_head
        self._outside_bytes = 0
        self.is_between_requests = False
        self.began_s = time.monotonic()

    @property
    def max_bytes(self) -> int:
        """Maximum size of the next piece."""
        return self._direct_bytes or PIECE_BYTES

    def feed(self, piece: memoryview) -> None:
        """Parse a piece of at most `max_bytes`, or raise ServingError if the rest is unreadable."""
        self._has_moved = False
        if self._direct_bytes:
            self._direct_bytes -= len(piece)
            read = piece.obj  # a view of a part would keep the whole buffer
            if not isinstance(read, bytes) or len(read) != len(piece):
                read = bytes(piece)
            self.on_body(read)
            if not self._direct_bytes:
                self.on_message_complete()
        else:
            self._parse(piece)
        if self.is_between_requests:
            return
        # The piece in which a request or body part began may hold other bytes: later ones count.
        self._outside_bytes = 0 if self._has_moved else self._outside_bytes + len(piece)
        if self._outside_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge
        if self._body_bytes > self._held_bytes and self._refusal is None:
            self._hold(self._body_bytes - self._held_bytes)
        head = self._head
        if head is not None and head.keep_alive and self._coding is None:
            rest_bytes = (self._length or 0) - self._body_bytes
            if rest_bytes >= PIECE_BYTES and not self._direct_bytes:
                self._direct_bytes = rest_bytes
                self._parser = httptools.HttpRequestParser(self)  # for the bytes behind it

    def _parse(self, view: memoryview) -> None:
        while True:
            assert self._parser is not None, "it is not closed"
            try:
                self._parser.feed_data(view)
            except httptools.HttpParserUpgrade as upgrade:
                # The upgrade is ignored; the request is answered as it is.
                view = view[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                if self._is_cut:
                    self._replay(self._parser)
            except httptools.HttpParserCallbackError as error:
                cause = error.__context__
                raise (
                    cause if isinstance(cause, ServingError) else InvalidRequest(str(error))
                ) from error
            except httptools.HttpParserError as error:
                raise InvalidRequest(f"malformed HTTP request: {error}") from error
            else:
                return

    def _replay(self, parser: httptools.HttpRequestParser) -> None:
        """Restart the parser for the body of a request that offered an upgrade."""
        framing = b"Transfer-Encoding: chunked"
        if self._length is not None:
            framing = b"Content-Length: %d" % self._length
        self._is_replayed = True
        parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self._is_replayed = self._is_cut = False

    def _hold(self, size: int) -> None:
        if self._buffered.has_let_in(size):
            self._held_bytes += size
        else:
            self._refuse(error_response(self._buffered.refusal()))

    def _refuse(self, response: Response) -> None:
        self._refusal = response
        self._raw_head = None
        self.drop()

    # httptools callbacks

    def on_message_begin(self) -> None:
        """Start a request."""
        if self._is_replayed:
            return
        self._url = b""
        self._head: RequestHead | None = None
        self._length: int | None = None
        self._inference_header: int | None = None
        self._encoding: str | None = None
        self._coding: bytes | None = None
        self._others: dict[bytes, bytes] = {}
        self._expect = False
        self._refusal = None
        self._body_bytes = self._head_bytes = 0
        self._has_moved = True
        """Whether a request or body part began in the current piece."""
        self.is_between_requests = False
        self.began_s = time.monotonic()

    def on_url(self, url: bytes) -> None:
        """Append to the request target."""
        if self._is_replayed:
            return
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read one header or trailer."""
        if self._is_replayed:
            return
        self.parts += 1
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge
        if self._head is not None:
            return
        key = name.lower()
        if key == b"content-length":
            self._length = whole_number(value, "Content-Length")
            if self._length > self._max_body_bytes:
                raise BodyTooLarge(self._max_body_bytes)
        elif key == b"inference-header-content-length":
            check_first(name, self._inference_header)
            self._inference_header = whole_number(value, "Inference-Header-Content-Length")
        elif key == b"content-encoding":
            check_first(name, self._encoding)
            self._encoding = value.decode("latin-1").strip().lower()
        elif key in OTHERS:
            self._keep(key, value)
        elif key == b"transfer-encoding":
            check_first(name, self._coding)
            self._coding = value.strip().lower()
        elif key == b"expect":
            self._expect = value.lower() == b"100-continue"

    def _keep(self, key: bytes, value: bytes) -> None:
        before = self._others.get(key)
        if before is not None:
            if key not in _LISTS:
                check_first(key, before)
            value = before + b", " + value
        self._others[key] = value

    def on_headers_complete(self) -> None:
        """Finish the head."""
        parser = self._parser
        if self._is_replayed or parser is None:
            return
        version, method = parser.get_http_version(), parser.get_method().decode("latin-1")
        check_head(version, method, self._others.get(b"host"), self._coding)
        head = self._head = RequestHead(
            method=method,
            path=self._url.decode("latin-1"),
            inference_header_bytes=self._inference_header,
            content_encoding=self._encoding or "",
            keep_alive=parser.should_keep_alive(),
            http_1_0=version == "1.0",
            others=self._others,
        )
        has_body = bool(self._length) or self._coding is not None
        self._is_cut = has_body and parser.should_upgrade()
        refusal = self._on_head(head, self._expect)
        if refusal is not None:
            if self._expect:
                raise EarlyResponse(refusal)
            self._refuse(refusal)

    def on_body(self, body: bytes) -> None:
        """Append to the body."""
        self._has_moved = True
        self.parts += 1
        size = len(body)
        self._body_bytes += size
        if self._body_bytes > self._max_body_bytes:
            raise BodyTooLarge(self._max_body_bytes)
        if self._refusal is not None:
            return
        last = self._pieces[-1] if self._pieces else None
        if size >= _SMALL_BYTES or last is None:
            self._pieces.append(body)
        elif isinstance(last, bytearray):
            last += body
        else:
            self._pieces.append(bytearray(body))

    def _join_body(self) -> bytes:
        pieces = self._pieces
        first = pieces[0] if len(pieces) == 1 else None
        return first if isinstance(first, bytes) else b"".join(pieces)

    def on_message_complete(self) -> None:
        """Hand over the request."""
        head = self._head
        if self._is_cut or head is None:
            return  # the body follows
        self._head = None
        body = self._join_body()
        self.drop()
        refusal = self._refusal
        head.own_bytes = self._head_bytes
        if refusal is not None:
            head.handle = lambda *_: refusal
        elif self._raw_head is not None and self._body_bytes == (self._length or 0):
            self._heads.remember(self._raw_head, head)
        self._raw_head = None
        self._body_bytes = 0
        self.is_between_requests = True
        self._on_request(head, body)
