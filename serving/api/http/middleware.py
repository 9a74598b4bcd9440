"""Middleware of the inference port: access rules, compression, timing.

Decisions are made once per head; requests with plain heads then bypass the middleware.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time

from serving.api.http.access import Access
from serving.api.http.exchange import Exchange, ResponseWriter, Routes
from serving.api.http.messages import RequestHead, Response, error_response, head_of
from serving.api.transport import compression
from serving.api.transport.buffered_bytes import LARGE_BYTES, BufferedBytes
from serving.response_handler import HasBatch
from serving.values import Buffer

_LENGTH = re.compile(rb"\r\nContent-Length: \d+\r\n")


class Middleware:
    """Middleware in front of the routes of a port."""

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
        self._routes = routes
        self._access = access
        self.is_timed = is_timed
        """Whether responses report stage times."""
        self.buffered = buffered or BufferedBytes()
        self.coding = compression.CompressionThreads(
            max_body_bytes=max_body_bytes, min_bytes=gzip_min_bytes
        )

    def handle(
        self, head: RequestHead, body: bytes, connection: ResponseWriter
    ) -> Exchange | Response:
        """Implement `serving.api.http.exchange.Routes`."""
        refusal = self.refusal(head)
        if refusal is not None:
            return refusal
        head.add(self._access.fields(head))
        decodes = head.content_encoding in compression.ENCODINGS
        encodes = None
        if self.coding.min_bytes is not None:
            encodes = compression.accepted_encoding(head.others.get(b"accept-encoding", b""))
        head.handle = self._routes.handle
        if decodes or encodes or self.is_timed:
            inner = head.with_content_encoding("" if decodes else head.content_encoding)
            inner.handle = self._routes.handle
            head.handle = functools.partial(
                self._begin, inner, head.content_encoding if decodes else None, encodes
            )
        return head.handle(head, body, connection)

    def _begin(
        self,
        inner: RequestHead,
        decodes: str | None,
        encodes: str | None,
        _head: RequestHead,
        body: bytes,
        connection: ResponseWriter,
    ) -> Exchange | Response:
        exchange = _WrappedExchange(self, inner, encodes, connection)
        if decodes is None:
            return exchange.handle_body(body)
        work = self.coding.decompress(decodes, body)
        work.add_done_callback(exchange.on_decompressed)
        return exchange

    def refusal(self, head: RequestHead) -> Response | None:
        """Return the response that rejects a head, if any."""
        return self._access.refusal(head)

    def close(self) -> None:
        """Stop the compression threads."""
        self.coding.close()


class _WrappedExchange:
    """`ResponseWriter` for the inner exchange, and exchange for the connection."""

    def __init__(
        self, gate: Middleware, head: RequestHead, encodes: str | None, connection: ResponseWriter
    ) -> None:
        self._gate = gate
        self._head = head
        self._encodes = encodes
        self._connection = connection
        self._held_bytes = 0
        self._inner: Exchange | None = None
        self._is_gone = False
        self._started_s = 0.0

    def handle_body(self, body: bytes) -> Exchange | Response:
        self._started_s = time.monotonic()
        assert self._head.handle is not None
        outcome: Exchange | Response = self._head.handle(self._head, body, self)
        if isinstance(outcome, Response):
            if not self._is_long(len(outcome.body)):
                return outcome._replace(fields=outcome.fields + self._timing())
            self.respond(outcome)
        else:
            self._inner = outcome
        return self

    def on_decompressed(self, work: asyncio.Future[bytes]) -> None:
        if self._is_gone or work.cancelled():
            return
        outcome: Exchange | Response
        # Not raised here: error and frame would keep each other, and the body, alive.
        error = work.exception()
        outcome = self._begin_request(work.result()) if error is None else error_response(error)
        if isinstance(outcome, Response):
            self._let_go()
            self._connection.respond(outcome)

    def _begin_request(self, body: bytes) -> Exchange | Response:
        try:
            if len(body) >= LARGE_BYTES:
                self._gate.buffered.take(len(body))
                self._held_bytes = len(body)
            return self.handle_body(body)
        except Exception as error:
            return error_response(error)

    def _let_go(self) -> None:
        self._gate.buffered.free(self._held_bytes)
        self._held_bytes = 0

    def _is_long(self, body_bytes: int) -> bool:
        return self._encodes is not None and self._gate.coding.is_long(body_bytes)

    def respond(self, response: Response) -> None:
        self.respond_with(head_of(response), response.body)

    def respond_with(self, head: bytes, body: Buffer) -> None:
        """Compress and time a response, then pass it to the connection."""
        timing = self._timing()
        if timing:
            head = head.replace(b"\r\n", b"\r\n" + timing, 1)
        self._inner = None
        self._let_go()
        start = head.index(b"\r\n\r\n") + 4
        if self._encodes is None or not self._is_long(len(head) - start + len(body)):
            self._connection.respond_with(head, body)
            return
        work = self._gate.coding.compress(self._encodes, b"".join((head[start:], body)))
        work.add_done_callback(functools.partial(self._on_compressed, head[:start]))

    def _timing(self) -> bytes:
        if not self._gate.is_timed:
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

    def _on_compressed(self, fields: bytes, work: asyncio.Future[bytes]) -> None:
        if self._is_gone or work.cancelled():
            return
        error = work.exception()
        if error is not None:
            self._connection.respond(error_response(error))
            return
        data = work.result()
        encoded = b"\r\nContent-Encoding: %b\r\nVary: Accept-Encoding\r\nContent-Length: %d\r\n" % (
            (self._encodes or "").encode(),
            len(data),
        )
        self._connection.respond_with(_LENGTH.sub(encoded, fields, count=1), data)

    def cancel(self) -> None:
        self._is_gone = True
        self._let_go()
        if self._inner is not None:
            self._inner.cancel()
