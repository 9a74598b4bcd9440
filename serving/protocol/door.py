"""How many connections of clients there are at a time, over all query ports, and what the others get.

A connection beyond the limit is answered in the words of its protocol and closed. The answer waits for
the client's first bytes and the end for the client's: what is closed with bytes unread takes the answer
with it. Such connections are few and short-lived; beyond that they are closed at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import time
from typing import cast

LINGERING = 64
"""Connections that are being refused at a time."""
LINGER_S = 5.0
"""How long one of them may take, to the next sweep."""
TEXT = "the server has as many connections as server.max_connections allows; try again later"


class Door:
    """Counts who comes and goes."""

    def __init__(self, most: int | None = None) -> None:
        """Nobody is there.

        Args:
            most: connections at a time; None: as many as come.
        """
        self.most = most
        self.inside = 0
        self.refused = 0
        """Connections beyond the limit."""
        self.stalled = 0
        """Connections, and streams of such, whose clients did not take their answers."""
        self._refusals: set[_Refusal] = set()

    def enter(self, transport: asyncio.Transport, answer: bytes) -> bool:
        """Whether a new connection may stay; else its transport is looked after here.

        Args:
            transport: the connection's; its protocol is replaced when it may not stay.
            answer: what a client hears that may not.
        """
        if self.most is None or self.inside < self.most:
            self.inside += 1
            return True
        self.refused += 1
        if len(self._refusals) >= LINGERING:
            transport.abort()
        else:
            refusal = _Refusal(self._refusals, transport, answer)
            self._refusals.add(refusal)
        transport.set_protocol(_GONE if transport.is_closing() else refusal)
        return False

    def leave(self) -> None:
        """One that may stay is gone."""
        self.inside -= 1

    def sweep(self, now_s: float) -> None:
        """End refusals that take too long."""
        for refusal in list(self._refusals):
            refusal.sweep(now_s)

    def close(self) -> None:
        """End them all."""
        self.sweep(float("inf"))


class _Refusal(asyncio.Protocol):
    """Says why, once, and listens to nothing."""

    def __init__(
        self, refusals: set[_Refusal], transport: asyncio.Transport, answer: bytes
    ) -> None:
        self._refusals = refusals
        self._transport = transport
        self._answer = answer
        self._began_s = time.monotonic()

    def data_received(self, _data: bytes) -> None:
        if not self._answer:
            return
        answer, self._answer = self._answer, b""
        self._transport.write(answer)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._refusals.discard(self)

    def sweep(self, now_s: float) -> None:
        if now_s - self._began_s >= LINGER_S:
            self._transport.abort()


_GONE = asyncio.Protocol()

_ACKED = struct.Struct("=120xQ")
"""Of `struct tcp_info` of linux/tcp.h: tcpi_bytes_acked."""
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
"""Linux has it; elsewhere nobody is taken to stall."""


def taken(transport: asyncio.Transport | None) -> int | None:
    """Bytes that a client has taken so far, where more wait for it; None: none do, or it is gone, or nobody knows.

    As the kernel counts them: how much waits says nothing of a client that takes as fast as more comes, and
    beneath TLS nobody but the kernel knows what waits.
    """
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
    except (
        OSError,
        ValueError,
        struct.error,
    ):  # it has been closed meanwhile, or the kernel is old
        return None
