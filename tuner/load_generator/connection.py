"""Keep-alive connection of the client with its current request.

`send_loop.Client` decides what to send, watches the socket and reads the time.
"""

from __future__ import annotations

import enum
import errno
import os
import socket
from collections.abc import Callable

from tuner.load_generator.response import ResponseReader


class ConnectionState(enum.Enum):
    """Connection state: closed -> opening -> free <-> busy, and any -> closed."""

    CLOSED = enum.auto()
    OPENING = enum.auto()
    FREE = enum.auto()
    BUSY = enum.auto()


class ClientConnection:
    """One connection; times are seconds since the start of the phase."""

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
        self.state = ConnectionState.CLOSED
        self.socket: socket.socket | None = None
        self.intended_s = 0.0
        self.started_s = 0.0
        self.retry_s = 0.0
        self.losses = 0
        self.round_trips = 0
        self.unsent: memoryview | None = None
        """Unsent rest of a request; empty if unsendable."""
        self.reader: ResponseReader | None = None

    def open(self, family: int, address: tuple[object, ...]) -> int:
        """Start to connect; the descriptor turns writable on success or failure.

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
        # Saves a lookup per request.
        self.receive = opened.recv
        self.write = opened.send
        self.state = ConnectionState.OPENING
        return opened.fileno()

    def failure(self) -> str | None:
        """Why the opening failed, or None."""
        assert self.socket is not None
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return os.strerror(code) if code else None

    def close(self) -> None:
        """Close the socket; the kernel removes it from any poller."""
        if self.socket is not None:
            self.socket.close()
        self.socket = None
        self.reader = None
        self.unsent = None
        self.state = ConnectionState.CLOSED
