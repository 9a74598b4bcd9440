"""Limiter of connections per client and over all inference ports.

A client is an IPv4 address, or the first 64 bits of an IPv6 address. Loopback is exempt, because
proxies hide their clients behind it. A rejected connection waits for its client to close first,
since closing with unread bytes would destroy the response.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time

LINGERING = 64
"""Maximum number of connections being rejected at a time; others are closed at once."""
LINGER_S = 5.0
"""Time limit for a rejection, enforced by sweeps."""
TEXT = (
    "the server has reached server.max_connections, or this client "
    "server.max_connections_per_client; try again later"
)


class ConnectionLimiter:
    """Counters of open and rejected connections."""

    def __init__(self, most: int | None = None, max_per_client: int | None = None) -> None:
        self.most = most
        self.max_per_client = max_per_client
        self.active = 0
        self._of_client: dict[str, int] = {}
        self.refused = 0
        self.stalled = 0
        """Number of connections and streams of slow clients that were ended."""
        self.late = 0
        """Number of requests that arrived too slowly."""
        self._refusals: set[_Refusal] = set()

    def acquire(self, transport: asyncio.Transport, response: bytes) -> str | None:
        """Count a connection and return its key for `release`, or None if it is rejected."""
        client = ""
        if self.max_per_client is not None:
            client = client_of(transport.get_extra_info("peername"))
        if self.try_acquire(client):
            return client
        if len(self._refusals) >= LINGERING:
            transport.abort()
        else:
            refusal = _Refusal(self._refusals, transport, response)
            self._refusals.add(refusal)
        transport.set_protocol(_GONE if transport.is_closing() else refusal)
        return None

    def try_acquire(self, client: str) -> bool:
        """Count a connection if the limits allow it; return whether they do."""
        of_client = self._of_client.get(client, 0)
        is_full = self.most is not None and self.active >= self.most
        if client and self.max_per_client is not None:
            is_full |= of_client >= self.max_per_client
        if is_full:
            self.refused += 1
            return False
        self.active += 1
        if client:
            self._of_client[client] = of_client + 1
        return True

    def release(self, client: str) -> None:
        """Count an accepted connection as closed."""
        self.active -= 1
        if client:
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]

    def sweep(self, now_s: float) -> None:
        """End rejections that take too long."""
        for refusal in list(self._refusals):
            refusal.sweep(now_s)

    def close(self) -> None:
        """End all rejections."""
        self.sweep(float("inf"))


def client_of(address: object) -> str:
    """Return the key of a client: an address, half an IPv6 address, or "" for loopback."""
    if not isinstance(address, tuple):
        return ""
    found = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    if found.is_loopback:
        return ""
    return str(found) if found.version == 4 else found.packed[:8].hex(":", 2)


class _Refusal(asyncio.Protocol):
    def __init__(
        self, refusals: set[_Refusal], transport: asyncio.Transport, response: bytes
    ) -> None:
        self._refusals = refusals
        self._transport = transport
        self._answer = response
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
