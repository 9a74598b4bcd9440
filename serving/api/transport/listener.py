"""Common base of the inference ports: limits, flow control, and turns for long work."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import struct
import termios
from collections.abc import Iterator
from typing import cast

from serving.api.transport.buffered_bytes import BufferedBytes
from serving.api.transport.connection_limiter import ConnectionLimiter
from serving.api.transport.incremental import IncrementalRunner
from serving.api.transport.slow_clients import SlowClientDetector

log = logging.getLogger(__name__)

_ACKED = struct.Struct("=120xQ")
"""Field tcpi_bytes_acked of `struct tcp_info` in linux/tcp.h."""
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
"""Socket option of Linux; on other systems, no client counts as slow."""


class Listener:
    """State shared by the connections of one port."""

    def __init__(
        self,
        full: bytes,
        *,
        idle_s: float,
        request_s: float,
        door: ConnectionLimiter | None,
        buffered: BufferedBytes | None,
    ) -> None:
        self.full = full
        """Reply to a connection over the limit."""
        self.idle_s = idle_s
        """Seconds until an idle connection is closed."""
        self.request_s = request_s
        """Maximum seconds for a request or message to arrive."""
        self.door = door or ConnectionLimiter()
        self.buffered = buffered or BufferedBytes()
        self.slices = IncrementalRunner()
        """Runner of connections that used up their turn."""
        self.connections: set[Connection] = set()
        self.draining = False
        self._stalls: SlowClientDetector[Connection] = SlowClientDetector()

    def drain(self) -> None:
        """Stop taking new work; each connection closes after its last response."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain()

    def sweep(self, now_s: float) -> None:
        """Close idle connections, incomplete requests and slow clients."""
        taken = {
            one: so_far
            for one in self.connections
            if (so_far := one.acknowledged_bytes()) is not None
        }
        for connection in self._stalls.find_stalled(taken, now_s):
            self.door.stalled += 1
            connection.abort()
        for connection in list(self.connections):
            connection.sweep(now_s)

    def close(self) -> None:
        """Abort every connection."""
        for connection in list(self.connections):
            connection.abort()


class Connection(asyncio.Protocol):
    """One client connection; each protocol adds reading and writing."""

    def __init__(self, listener: Listener) -> None:
        self._port = listener
        self._transport: asyncio.Transport | None = None
        self._client: str | None = None
        self._blocked = False
        """Whether reading pauses because the client reads too slowly."""
        self._is_later = False
        """Whether reading pauses because the turn is used up."""
        self._unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or reject a new connection."""
        client = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass
        self._client = self._port.door.acquire(client, self._port.full)
        if self._client is not None:
            self._transport = client
            self._port.connections.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Release the connection's place and its counted bytes."""
        self._transport = None
        self._port.connections.discard(self)
        self._port.door.release(self._client or "")
        self._count_unsent()

    def pause_writing(self) -> None:
        """Stop reading while the client reads too slowly."""
        self._blocked = True
        if self._transport is not None:
            self._transport.pause_reading()
            self._count_unsent()

    def resume_writing(self) -> None:
        """Resume reading after the client has caught up."""
        self._blocked = False
        self._count_unsent()
        self._resume()

    def drain(self) -> None:
        """Stop taking new work, and close after the last response."""
        raise NotImplementedError

    def sweep(self, now_s: float) -> None:
        """End requests and connections that take too long."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close at once, without sending waiting data."""
        if self._transport is not None:
            self._transport.abort()

    def acknowledged_bytes(self) -> int | None:
        """Return the number of bytes that the client has read, as counted by the kernel.

        Returns None if no bytes are waiting, the connection is closed, or the number is unknown.
        """
        transport = self._transport
        if transport is None or _TCP_INFO is None:
            return None
        is_tls = transport.get_extra_info("sslcontext") is not None
        if not is_tls and not transport.get_write_buffer_size():
            return None
        try:
            fd = transport.get_extra_info("socket").fileno()
            if is_tls and fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)) == bytes(4):
                return None
            with socket.fromfd(fd, socket.AF_INET, socket.SOCK_STREAM) as sock:
                info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _ACKED.size)
            return cast("int", _ACKED.unpack(info)[0])
        except (OSError, ValueError, struct.error):  # closed meanwhile, or an old kernel
            return None

    # Turns

    def _turns(self) -> Iterator[bytes]:
        raise NotImplementedError

    def _later(self) -> None:
        transport = self._transport
        if not self._is_later and transport is not None and not transport.is_closing():
            self._is_later = True
            transport.pause_reading()
            self._port.slices.begin(self._turns(), self._caught_up)

    def _caught_up(self, outcome: list[bytes] | Exception) -> None:
        self._is_later = False
        if isinstance(outcome, Exception):
            log.error("a connection hit a server error", exc_info=outcome)
            self.abort()
        self._resume()

    def _resume(self) -> None:
        if self._transport is not None and not self._is_later and not self._blocked:
            self._transport.resume_reading()

    # Unread responses

    def _queued_bytes(self) -> int:
        return 0

    def _count_unsent(self) -> None:
        size = 0
        if self._transport is not None:
            size = self._queued_bytes()
            if self._blocked:  # both count the bytes of partly sent responses
                size = max(size, self._transport.get_write_buffer_size())
        if size != self._unsent_bytes:
            self._port.buffered.count_unsent(size - self._unsent_bytes)
            self._unsent_bytes = size
