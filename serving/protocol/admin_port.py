"""The admin port's connections: how many there are, and how long a client may take, which aiohttp does not bound.

In: an application of aiohttp. Out: protocols for the event loop, which hand on to aiohttp's own. A head that has
not come whole in time, a body, and a connection on which nothing happens are ended by the sweep; the time that
a command takes here is not the client's. It must not know what is asked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, cast

from aiohttp import web

from serving.protocol.door import Door

log = logging.getLogger(__name__)


class AdminListener:
    """The connections of one application."""

    def __init__(
        self,
        application: web.Application,
        *,
        idle_s: float,
        request_s: float,
        door: Door,
        **options: Any,  # aiohttp's own are not of one type
    ) -> None:
        """Nobody is there yet.

        Args:
            application: not yet running.
            idle_s: a connection is ended so long after its last answer.
            request_s: time in which a request, and the first head of a connection, must have come whole.
            door: counts those who come and go.
            options: of `aiohttp.web.AppRunner`.
        """
        application.middlewares.insert(0, self._timed)
        self._runner = web.AppRunner(application, **options)
        self.idle_s = idle_s
        self.request_s = request_s
        self.door = door
        self.connections: dict[object, _Connection] = {}
        """Those that are open, by their transports."""
        self._refused = 0

    async def open(self) -> None:
        """Make ready for `protocol`."""
        await self._runner.setup()

    async def end(self) -> None:
        """Answer what was taken, for a moment, and end every connection."""
        await self._runner.cleanup()

    def protocol(self) -> asyncio.Protocol:
        """Factory of connections for the event loop's server."""
        server = self._runner.server
        assert server is not None
        return _Connection(self, server())

    def sweep(self, now_s: float) -> None:
        """End what has been idle or incomplete for too long."""
        for connection in list(self.connections.values()):
            connection.sweep(now_s)
        if self.door.refused > self._refused:
            log.warning(
                "the admin port had no place for more connections",
                extra={"refused": self.door.refused - self._refused, "most": self.door.most},
            )
            self._refused = self.door.refused

    @web.middleware
    async def _timed(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Tell the connection when its request is here and when it is answered."""
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
    """One connection; aiohttp's own protocol does the work."""

    def __init__(self, listener: AdminListener, inner: asyncio.Protocol) -> None:
        self._listener = listener
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._client: str | None = None
        self._request: web.Request | None = None
        """What is being answered."""
        self._is_idle = False
        """Nothing of the next request has come; the first one is waited for as if it had begun to."""
        self._since_s = time.monotonic()
        """When the request began to come, or the last answer was made."""

    def begin(self, request: web.Request) -> None:
        """A whole head is here."""
        if self._is_idle:  # it came with the request before it
            self._since_s = time.monotonic()
        self._request = request

    def finish(self) -> None:
        """The answer is made; a client that does not take it is as one that asks nothing."""
        self._request = None
        self._is_idle = True
        self._since_s = time.monotonic()

    def sweep(self, now_s: float) -> None:
        """End the connection when its client takes too long."""
        if self._transport is None:
            return
        if self._request is not None and self._request.content.is_eof():
            return
        most_s = self._listener.idle_s if self._is_idle else self._listener.request_s
        if now_s - self._since_s < most_s:
            return
        if self._transport.is_closing():  # the client does not take what was sent
            self._transport.abort()
        else:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._client = self._listener.door.enter(self._transport, b"")
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
        self._listener.door.leave(self._client)
        self._inner.connection_lost(error)
