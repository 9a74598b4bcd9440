"""Connections of the admin port, with limits on number and time, which aiohttp lacks.

A sweep closes connections that are idle for too long or whose request is late.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, cast

from aiohttp import web

from serving.api.transport.connection_limiter import ConnectionLimiter

log = logging.getLogger(__name__)


class AdminListener:
    """Connections of one aiohttp application."""

    def __init__(
        self,
        application: web.Application,
        *,
        idle_s: float,
        request_s: float,
        door: ConnectionLimiter,
        **options: Any,  # of several types
    ) -> None:
        """Store the settings.

        Args:
            application: an application that is not running yet.
            idle_s: time limit after a response.
            request_s: time limit for a request or a connection's first head.
        """
        application.middlewares.insert(0, self._track_request)
        self._runner = web.AppRunner(application, **options)
        self.idle_s = idle_s
        self.request_s = request_s
        self.door = door
        self.connections: dict[object, _Connection] = {}
        self._refused = 0

    async def open(self) -> None:
        """Prepare to accept connections."""
        await self._runner.setup()

    async def end(self) -> None:
        """Give accepted requests a moment to finish, then close every connection."""
        await self._runner.cleanup()

    def protocol(self) -> asyncio.Protocol:
        """Create a connection for the event loop's server."""
        server = self._runner.server
        assert server is not None
        return _Connection(self, server())

    def sweep(self, now_s: float) -> None:
        """Close connections that exceed their time limits."""
        for connection in list(self.connections.values()):
            connection.sweep(now_s)
        if self.door.refused > self._refused:
            log.warning(
                "the admin port had no free connection",
                extra={"refused": self.door.refused - self._refused, "most": self.door.most},
            )
            self._refused = self.door.refused

    @web.middleware
    async def _track_request(self, request: web.Request, handler: Any) -> web.StreamResponse:
        connection = self.connections.get(request.transport)
        if connection is not None:
            connection.begin(request)
        try:
            response: web.StreamResponse = await handler(request)
        finally:
            if connection is not None:
                connection.finish()
        return response


class _Connection(asyncio.Protocol):
    def __init__(self, listener: AdminListener, inner: asyncio.Protocol) -> None:
        self._listener = listener
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._client: str | None = None
        self._request: web.Request | None = None
        self._is_idle = False
        self._since_s = time.monotonic()
        """Start time of the request, or end time of the last response."""

    def begin(self, request: web.Request) -> None:
        """Start counting the time of a request whose head is complete."""
        if self._is_idle:  # arrived together with the previous request
            self._since_s = time.monotonic()
        self._request = request

    def finish(self) -> None:
        """Note the end of a response; the connection is idle even while the response is unread."""
        self._request = None
        self._is_idle = True
        self._since_s = time.monotonic()

    def sweep(self, now_s: float) -> None:
        if self._transport is None:
            return
        if self._request is not None and self._request.content.is_eof():
            return
        most_s = self._listener.idle_s if self._is_idle else self._listener.request_s
        if now_s - self._since_s < most_s:
            return
        if self._transport.is_closing():  # the client does not read
            self._transport.abort()
        else:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._client = self._listener.door.acquire(self._transport, b"")
        if self._client is None:
            self._transport = None
            return
        self._listener.connections[self._transport] = self
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_idle and self._request is None:
            self._is_idle = False
            self._since_s = time.monotonic()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._client is None:
            return
        self._listener.connections.pop(self._transport, None)
        self._transport = None
        self._listener.door.release(self._client)
        self._inner.connection_lost(error)
