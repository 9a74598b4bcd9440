"""One keep-alive connection of the client: a non-blocking socket, and the request that is on it.

The owner (`client.Client`) decides what is sent and when, watches the socket, and reads the time.
"""

from __future__ import annotations

import enum
import errno
import os
import socket
from collections.abc import Callable

from tuner.traffic.response import ResponseReader


class State(enum.Enum):
    """Where it is: closed -> opening -> free <-> busy, and from each of them back to closed."""

    CLOSED = enum.auto()
    OPENING = enum.auto()
    FREE = enum.auto()
    BUSY = enum.auto()


class Connection:
    """State of one connection; times are seconds since the start of the phase."""

    __slots__ = (
        "index",
        "intended_s",
        "losses",
        "reader",
        "receive",
        "retry_s",
        "round_trips",
        "socket",
        "started_s",
        "state",
        "unsent",
        "write",
    )

    receive: Callable[[int], bytes]
    write: Callable[[bytes | memoryview], int]

    def __init__(self, index: int) -> None:
        self.index = index
        self.state = State.CLOSED
        self.socket: socket.socket | None = None
        self.intended_s = 0.0
        self.started_s = 0.0
        """When the request on it was sent; while it opens, when that began."""
        self.retry_s = 0.0
        """When a closed connection may open again."""
        self.losses = 0
        """Failures in a row: requests lost and openings failed."""
        self.round_trips = 0
        self.unsent: memoryview | None = None
        """Rest of a request that did not fit into the socket's buffer; empty where it can never be
        sent."""
        self.reader: ResponseReader | None = None
        """Set while a response has arrived in part."""

    def open(self, family: int, address: tuple[object, ...]) -> int:
        """Begin to connect; the returned file descriptor turns writable when that is decided.

        Raises:
            OSError: it failed at once.
        """
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = opened.connect_ex(address)
            if code not in {0, errno.EINPROGRESS}:
                raise OSError(code, os.strerror(code))
        except BaseException:
            opened.close()
            raise
        self.socket = opened
        # Bound methods, looked up once instead of once a request.
        self.receive = opened.recv
        self.write = opened.send
        self.state = State.OPENING
        return opened.fileno()

    def failure(self) -> str | None:
        """Why an opening connection could not be opened; None when it is open."""
        assert self.socket is not None
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return os.strerror(code) if code else None

    def close(self) -> None:
        """Close the socket; the kernel takes it out of any poller."""
        if self.socket is not None:
            self.socket.close()
        self.socket = None
        self.reader = None
        self.unsent = None
        self.state = State.CLOSED
