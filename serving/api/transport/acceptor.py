"""Acceptor for TLS and the admin port, which counts connections before their handshake.

Connections over the limit are closed at once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import cast

from serving.api.transport.connection_limiter import ConnectionLimiter, client_of

_AT_ONCE = 64
_REST_S = 1.0
"""Pause after running out of file descriptors."""


class Acceptor:
    """Acceptor of one port."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext | None,
        protocol: Callable[[], asyncio.Protocol],
        *,
        door: ConnectionLimiter,
        handshake_s: float,
        end_s: float,
    ) -> None:
        self._sock = sock
        self._context = context
        self.protocol = protocol
        self.door = door
        self._handshake_s = handshake_s
        self._end_s = end_s
        """Time limit for a TLS shutdown."""
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._rest: asyncio.TimerHandle | None = None

    def open(self, backlog: int) -> None:
        """Start accepting connections."""
        self._sock.setblocking(False)
        self._sock.listen(backlog)
        self._loop.add_reader(self._sock, self._accept)

    def close(self) -> None:
        """Stop accepting connections, and cancel handshakes."""
        if self._rest is not None:
            self._rest.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        """Wait until cancelled handshakes have ended."""
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError:
                self._loop.remove_reader(self._sock)
                self._rest = self._loop.call_later(
                    _REST_S, self._loop.add_reader, self._sock, self._accept
                )
                return
            client = client_of(address)
            if not self.door.try_acquire(client):
                sock.close()
                continue
            sock.setblocking(False)
            handshake = self._loop.create_task(self._shake_hands(sock, client), name="TLS")
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, sock: socket.socket, client: str) -> None:
        arrival = _PendingConnection(self, client)
        try:
            await self._loop.connect_accepted_socket(
                lambda: arrival,
                sock,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s if self._context else None,
                ssl_shutdown_timeout=self._end_s if self._context else None,
            )
        except OSError:
            pass  # disconnected, too slow, or incompatible TLS
        finally:
            arrival.give_back()


class _PendingConnection(asyncio.Protocol):
    def __init__(self, entrance: Acceptor, client: str) -> None:
        self._entrance = entrance
        self._client = client
        self._has_place = True

    def give_back(self) -> None:
        if self._has_place:
            self._has_place = False
            self._entrance.door.release(self._client)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.give_back()  # the connection counts itself at once
        protocol = self._entrance.protocol()
        cast("asyncio.Transport", transport).set_protocol(protocol)
        protocol.connection_made(transport)
