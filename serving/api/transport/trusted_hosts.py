"""Trusted hosts and origins: which requests from browser pages a port accepts.

`Host` reveals DNS rebinding, by which a page's host name resolves to this machine. `Sec-Fetch-Site`
(W3C Fetch Metadata) or `Origin` reveal pages of another origin, which cannot read responses but can
send requests.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

_REMEMBERED = 64
_PORT = re.compile(r"^([^:]*|\[.*\]):\d*$")


class TrustedHosts:
    """Loopback names of this machine, and configured host names."""

    def __init__(self, names: Collection[str] = ()) -> None:
        """Store further names and addresses, without ports."""
        self._names = {_bare(name) for name in names}
        self._passed: set[str] = set()

    def refusal(self, host: str) -> str | None:
        """Return the error message for a Host header, or None if it is trusted."""
        if host in self._passed:
            return None
        name = _bare(host)
        if name in self._names or is_loopback(name):
            if len(self._passed) < _REMEMBERED:
                self._passed.add(host)
            return None
        return (
            f"Host is {host!r:.100}; this port accepts only localhost and loopback "
            "addresses. Add other names to server.hosts"
        )


def is_foreign(site: bytes | None, origin: bytes | None, host: bytes | None) -> bool:
    """Return whether a page of another origin sent a request.

    Args:
        site: Sec-Fetch-Site, which newer browsers send to trustworthy addresses.
        origin: Origin, which all browsers send with requests that change something.
    """
    if site is not None:
        return site not in {b"same-origin", b"none"}
    return origin is not None and origin.partition(b"://")[2] != host


def _bare(host: str) -> str:
    host = _PORT.sub(r"\1", host.strip().lower())
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1]
    return host.removesuffix(".")


def is_loopback(host: str) -> bool:
    """Whether a host, given without a port, is reachable only from this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
