"""How many connections of clients there are at a time, of each and over all query ports, and what the others get.

Clients are told apart by their addresses, but for those on loopback: behind that are all programs of the machine,
and the proxies among them. Of IPv6 the first 64 bits count: whoever has one address of a network has them all.

A connection beyond the limit is answered in the words of its protocol and closed. The answer waits for
the client's first bytes and the end for the client's: what is closed with bytes unread takes the answer
with it. Such connections are few and short-lived; beyond that they are closed at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import socket
import struct
import termios
import time
from typing import cast

LINGERING = 64
"""Connections that are being refused at a time."""
LINGER_S = 5.0
"""How long one of them may take, to the next sweep."""
TEXT = (
    "the server has as many connections as server.max_connections allows, or this client as many as "
    "server.max_connections_of_client does; try again later"
)


class Door:
    """Counts who comes and goes."""

    def __init__(self, most: int | None = None, most_of_client: int | None = None) -> None:
        """Nobody is there.

        Args:
            most: connections at a time; None: as many as come.
            most_of_client: of one client; None: as many as of all.
        """
        self.most = most
        self.most_of_client = most_of_client
        self.inside = 0
        self._of_client: dict[str, int] = {}
        """Of those that are counted for themselves."""
        self.refused = 0
        """Connections beyond the limit."""
        self.stalled = 0
        """Connections, and streams of such, whose clients did not take their answers."""
        self.late = 0
        """Requests that did not arrive in time."""
        self._refusals: set[_Refusal] = set()

    def enter(self, transport: asyncio.Transport, answer: bytes) -> str | None:
        """Whose a new connection is, for `leave`; None: it may not stay, and its transport is looked after here.

        Args:
            transport: the connection's; its protocol is replaced when it may not stay.
            answer: what a client hears that may not.
        """
        client = ""
        if self.most_of_client is not None:
            client = client_of(transport.get_extra_info("peername"))
        if self.has_taken(client):
            return client
        if len(self._refusals) >= LINGERING:
            transport.abort()
        else:
            refusal = _Refusal(self._refusals, transport, answer)
            self._refusals.add(refusal)
        transport.set_protocol(_GONE if transport.is_closing() else refusal)
        return None

    def has_taken(self, client: str) -> bool:
        """Whether there was a place for one more connection of a client; then it is taken."""
        of_client = self._of_client.get(client, 0)
        is_full = self.most is not None and self.inside >= self.most
        if client and self.most_of_client is not None:
            is_full |= of_client >= self.most_of_client
        if is_full:
            self.refused += 1
            return False
        self.inside += 1
        if client:
            self._of_client[client] = of_client + 1
        return True

    def leave(self, client: str) -> None:
        """One that may stay is gone."""
        self.inside -= 1
        if client:
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]

    def sweep(self, now_s: float) -> None:
        """End refusals that take too long."""
        for refusal in list(self._refusals):
            refusal.sweep(now_s)

    def close(self) -> None:
        """End them all."""
        self.sweep(float("inf"))


def client_of(address: object) -> str:
    """Whom a connection counts for.

    Args:
        address: of the other side, as sockets have it.

    Returns:
        An address or the first half of one, or nothing: it is of nobody who could be told from others.
    """
    if not isinstance(address, tuple):
        return ""
    found = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    if found.is_loopback:
        return ""
    return str(found) if found.version == 4 else found.packed[:8].hex(":", 2)


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
