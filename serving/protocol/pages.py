"""What a page in a browser may ask of a port: any page may send requests to whatever its browser reaches.

In: what a request says of where it comes from. Out: whether it may be answered. Pure.

A page whose site's name leads to this machine (DNS rebinding) is of the same origin for its browser, and could
read answers: only its `Host` gives it away. A page of another origin cannot read, but its request would be
carried out: `Sec-Fetch-Site` (W3C Fetch Metadata) or `Origin` tell of it, which no page can change.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

_REMEMBERED = 64
_PORT = re.compile(r"^([^:]*|\[.*\]):\d*$")


class Hosts:
    """The names under which a port may be asked: those of this machine for itself, and further ones."""

    def __init__(self, names: Collection[str] = ()) -> None:
        """Keep what is given.

        Args:
            names: further names and addresses, without a port.
        """
        self._names = {_bare(name) for name in names}
        self._passed: set[str] = set()
        """Some fields as they came: to take one apart costs as much as the rest of a head."""

    def refusal(self, host: str) -> str | None:
        """Why a request with this field Host is not answered; None: it is."""
        if host in self._passed:
            return None
        name = _bare(host)
        if name in self._names or name == "localhost" or _is_loopback(name):
            if len(self._passed) < _REMEMBERED:
                self._passed.add(host)
            return None
        return (
            f"Host is {host!r:.100}; this port is asked as localhost or by a loopback address. "
            f"Where it has other names, give them in server.hosts"
        )


def is_foreign(site: bytes | None, origin: bytes | None, host: bytes | None) -> bool:
    """Whether a page of another origin asks.

    Args:
        site: the field Sec-Fetch-Site, which newer browsers send to trustworthy addresses.
        origin: the field Origin, which all of them send with what may change something.
        host: the field Host.
    """
    if site is not None:
        return site not in {b"same-origin", b"none"}
    return origin is not None and origin.partition(b"://")[2] != host


def _bare(host: str) -> str:
    """A name or an address without its port, as names are compared."""
    host = _PORT.sub(r"\1", host.strip().lower())
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1]
    return host.removesuffix(".")


def _is_loopback(name: str) -> bool:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
