"""Middleware of the inference port: access rules, compression, timing.

Decisions are made once per head; plain heads then bypass the middleware.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import re
import time
from collections.abc import Callable

from serving.api.http.access import Access
from serving.api.http.listener import Exchange, ResponseWriter, Routes
from serving.api.http.messages import (
    REASONS,
    RequestHead,
    Response,
    ending,
    error_response,
    json_response,
)
from serving.api.transport import compression
from serving.api.transport.buffered_bytes import LARGE_BYTES, BufferedBytes
from serving.errors import ServingError
from serving.response_handler import HasBatch
from serving.values import Buffer

log = logging.getLogger(__name__)

_LENGTH = re.compile(rb"\r\nContent-Length: \d+\r\n")


class Middleware:
    """Middleware before the routes of a port."""

    def __init__(
        self,
        routes: Routes,
        access: Access,
        *,
        max_body_bytes: int,
        gzip_min_bytes: int | None,
        is_timed: bool = False,
        buffered: BufferedBytes | None = None,
    ) -> None:
        """Store the settings.

        Args:
            max_body_bytes: limit of a decompressed body.
            gzip_min_bytes: size from which to compress; None: never.
            is_timed: whether responses report stage times.
            buffered: counts decompressed bodies.
        """
        self._routes = routes
        self._access = access
        self.max_body_bytes = max_body_bytes
        self.gzip_min_bytes = gzip_min_bytes
        self.is_timed = is_timed
        self.buffered = buffered or BufferedBytes()
        self._threads = concurrent.futures.ThreadPoolExecutor(2, "compression")

    def handle(
        self, head: RequestHead, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response:
        """Implement `serving.api.http.listener.Routes`."""
        refusal = self.refusal(head)
        if refusal is not None:
            return refusal
        head.add(self._access.fields(head))
        decodes = head.content_encoding in compression.ENCODINGS
        encodes = None
        if self.gzip_min_bytes is not None:
            encodes = compression.accepted_encoding(head.others.get(b"accept-encoding", b""))
        head.handle = self._routes.handle
        if decodes or encodes or self.is_timed:
            encoding = head.content_encoding if decodes else None
            inner = head.with_content_encoding(
                content_encoding="" if decodes else head.content_encoding
            )
            inner.handle = self._routes.handle
            head.handle = _CompressionHandler(self, inner, encoding, encodes=encodes).handle
        return head.handle(head, body, connection)

    def refusal(self, head: RequestHead) -> Response | None:
        """Return the response that rejects a head, if any."""
        return self._access.refusal(head)

    def work(self, function: Callable[..., bytes], *arguments: object) -> asyncio.Future[bytes]:
        """Run a function in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _CompressionHandler:
    __slots__ = ("encodes", "encoding", "gate", "head")

    def __init__(
        self, gate: Middleware, head: RequestHead, encoding: str | None, *, encodes: str | None
    ) -> None:
        self.gate = gate
        self.head = head
        self.encoding = encoding
        self.encodes = encodes

    def handle(
        self, _head: RequestHead, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response:
        return _CompressedExchange(self, connection).begin(body)


class _CompressedExchange:
    """Channel of the inner exchange, and exchange of the connection."""

    __slots__ = ("_coder", "_connection", "_held_bytes", "_inner", "_is_gone", "_started_s")

    def __init__(self, coder: _CompressionHandler, connection: ResponseWriter) -> None:
        self._coder = coder
        self._connection = connection
        self._held_bytes = 0
        self._inner: Exchange | None = None
        self._is_gone = False
        self._started_s = 0.0

    def begin(self, body: bytes) -> Exchange | Response:
        coder = self._coder
        if coder.encoding is None:
            return self._handle_body(body)
        limit_bytes = coder.gate.max_body_bytes
        work = coder.gate.work(compression.decompress, coder.encoding, body, limit_bytes)
        work.add_done_callback(self._on_decompressed)
        return self

    def _handle_body(self, body: bytes) -> Exchange | Response:
        self._started_s = time.monotonic()
        head = self._coder.head
        assert head.handle is not None
        outcome: Exchange | Response = head.handle(head, body, self)
        if isinstance(outcome, Response):
            if not self._is_long(len(outcome.body)):
                return outcome._replace(fields=outcome.fields + self._timing())
            self.respond(outcome)
        else:
            self._inner = outcome
        return self

    def _on_decompressed(self, work: asyncio.Future[bytes]) -> None:
        if self._is_gone or work.cancelled():
            return
        outcome: Exchange | Response
        # Not raised here: error and frame would keep each other, and the body, alive.
        error = work.exception()
        if isinstance(error, ServingError):
            outcome = error_response(error)
        elif error is not None:
            log.error("a body cannot be decompressed", exc_info=error)
            outcome = _fault()
        else:
            outcome = self._begin_request(work.result())
        if isinstance(outcome, Response):
            self._let_go()
            self._connection.respond(outcome)

    def _begin_request(self, body: bytes) -> Exchange | Response:
        try:
            if len(body) >= LARGE_BYTES:
                self._coder.gate.buffered.take(len(body))
                self._held_bytes = len(body)
            return self._handle_body(body)
        except ServingError as error:
            return error_response(error)
        except Exception:
            log.exception("a request hit a server error")
            return _fault()

    def _let_go(self) -> None:
        self._coder.gate.buffered.free(self._held_bytes)
        self._held_bytes = 0

    # Channel

    def respond(self, response: Response) -> None:
        """Implement `ResponseWriter`."""
        status, fields, body = response
        if not self._is_long(len(body)):
            fields += self._timing()
            self._inner = None
            self._let_go()
            self._connection.respond(Response(status, fields, body))
            return
        reason = REASONS.get(status, "Unknown").encode()
        self.respond_with(
            b"HTTP/1.1 %d %b\r\n%b" % (status, reason, ending(fields, len(body))), body
        )

    def respond_with(self, head: bytes, body: Buffer) -> None:
        """Implement `ResponseWriter`."""
        timing = self._timing()
        if timing:
            head = head.replace(b"\r\n", b"\r\n" + timing, 1)
        self._inner = None
        self._let_go()
        start = head.index(b"\r\n\r\n") + 4
        if not self._is_long(len(head) - start + len(body)):
            self._connection.respond_with(head, body)
            return
        fields, encoding = head[:start], self._coder.encodes
        data = b"".join((head[start:], body))
        work = self._coder.gate.work(compression.compress, encoding, data)
        work.add_done_callback(lambda done: self._on_compressed(fields, done))

    def _timing(self) -> bytes:
        """Return the header Server-Timing, in ms."""
        if not self._coder.gate.is_timed:
            return b""
        stages = {"total": time.monotonic() - self._started_s}
        inner: object = self._inner
        batch = inner.batch() if isinstance(inner, HasBatch) else None
        if batch is not None:
            times = batch.times
            stages |= {
                "queue": batch.sent_s - self._started_s + times.queue_s,
                "input": times.input_s,
                "exec": times.exec_s,
                "output": times.output_s,
            }
        text = ", ".join(f"{name};dur={seconds * 1e3:.3f}" for name, seconds in stages.items())
        return b"Server-Timing: %b\r\n" % text.encode()

    def _is_long(self, body_bytes: int) -> bool:
        least = self._coder.gate.gzip_min_bytes
        return self._coder.encodes is not None and least is not None and body_bytes >= least

    def _on_compressed(self, fields: bytes, work: asyncio.Future[bytes]) -> None:
        if self._is_gone or work.cancelled():
            return
        if work.exception() is not None:
            log.error("a response cannot be compressed", exc_info=work.exception())
            self._connection.respond(_fault())
            return
        data = work.result()
        encoded = b"\r\nContent-Encoding: %b\r\nVary: Accept-Encoding\r\nContent-Length: %d\r\n" % (
            (self._coder.encodes or "").encode(),
            len(data),
        )
        self._connection.respond_with(_LENGTH.sub(encoded, fields, count=1), data)

    # Exchange

    def cancel(self) -> None:
        """Stop: the client disconnected."""
        self._is_gone = True
        self._let_go()
        if self._inner is not None:
            self._inner.cancel()


def _fault() -> Response:
    return json_response(500, {"error": "internal error; the server's log has the reason"})
