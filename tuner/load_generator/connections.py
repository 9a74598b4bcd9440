"""The client's pool of keep-alive connections, which detects a lost server."""

from __future__ import annotations

import collections
import enum
import errno
import os
import select
import socket
from collections.abc import Callable

from tuner.load_generator.response import ResponseReader

RETRIES = 6
FIRST_PAUSE_S = 0.02
"""Pause after the first failure; pauses double, to a total of 0.62 s."""
OPEN_TIMEOUT_S = 5.0


class ServerGone(Exception):
    """The server cannot be reached, or can no longer be reached."""


class ConnectionState(enum.Enum):
    """State of a connection: closed -> opening -> free <-> busy, and any -> closed."""

    CLOSED = enum.auto()
    OPENING = enum.auto()
    FREE = enum.auto()
    BUSY = enum.auto()


class ClientConnection:
    """One connection; times are in seconds since the start of the phase."""

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
        """Unsent rest of a request; empty if the rest can no longer be sent."""
        self.reader: ResponseReader | None = None

    def open(self, family: int, address: tuple[object, ...]) -> int:
        """Start to connect, and return the descriptor, which becomes writable when that is done.

        Raises OSError if connecting fails at once.
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

    def close(self) -> None:
        """Close the socket, which removes it from any poller."""
        if self.socket is not None:
            self.socket.close()
        self.socket = None
        self.reader = None
        self.unsent = None
        self.state = ConnectionState.CLOSED


class ConnectionPool:
    """One phase's connections and their epoll.

    `free` holds exactly the open, idle connections. Failed ones are retried after doubling pauses.
    """

    def __init__(self, host: str, port: int, count: int) -> None:
        self.where = f"http://{host}:{port}"
        self._host, self._port = host, port
        self.connections = [ClientConnection(index) for index in range(count)]
        self.by_descriptor: dict[int, ClientConnection] = {}
        self.free: collections.deque[ClientConnection] = collections.deque()
        self.poller = select.epoll()
        self.reconnects = 0
        self.last_loss = ""

    def resolve(self) -> None:
        """Resolve the host to the first address that accepts connections, or raise ServerGone."""
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ServerGone(f"{self.where}: the host is not known ({error})") from error
        self._family, self._address = found[0][0], found[0][4]
        for family, _, _, _, address in found if len(found) > 1 else ():
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.settimeout(OPEN_TIMEOUT_S)
                if probe.connect_ex(address) == 0:
                    self._family, self._address = family, address
                    return

    @property
    def gone(self) -> int:
        """Number of connections that failed too often in a row."""
        return sum(connection.losses >= RETRIES for connection in self.connections)

    def open_due(self, now_s: float) -> None:
        """Open closed connections whose pause is over, and fail those that open too slowly."""
        for connection in self.connections:
            if (
                connection.state is ConnectionState.OPENING
                and now_s - connection.started_s > OPEN_TIMEOUT_S
            ):
                self.fail(
                    connection, now_s, "the server does not accept the connection", failures=RETRIES
                )
            elif connection.state is ConnectionState.CLOSED and now_s >= connection.retry_s:
                self._open(connection, now_s)

    def _open(self, connection: ClientConnection, now_s: float) -> None:
        connection.started_s = now_s
        try:
            descriptor = connection.open(self._family, self._address)
        except OSError as error:
            self.fail(connection, now_s, error.strerror or str(error))
            return
        self.by_descriptor[descriptor] = connection
        self.poller.register(descriptor, select.EPOLLOUT)

    def decide_opening(self, connection: ClientConnection, event: int, now_s: float) -> None:
        """Handle an event on an opening connection."""
        assert connection.socket is not None
        code = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.fail(connection, now_s, os.strerror(code))
        elif event & select.EPOLLOUT:
            self.watch(connection, select.EPOLLIN)
            connection.state = ConnectionState.FREE
            self.free.append(connection)

    def watch(self, connection: ClientConnection, events: int) -> None:
        """Set the watched events of an open connection."""
        assert connection.socket is not None
        self.poller.modify(connection.socket.fileno(), events)

    def poll_finely(self, timeout_s: float) -> list[tuple[int, int]]:
        """Poll with a timeout in microseconds, as epoll itself counts milliseconds.

        An epoll is readable while it has events. Being older than its connections, it has a
        descriptor below `select`'s limit of 1,024.
        """
        if timeout_s > 0.0:
            select.select((self.poller,), (), (), timeout_s)
        return self.poller.poll(0)

    def fail(
        self, connection: ClientConnection, now_s: float, reason: str, *, failures: int = 1
    ) -> None:
        """Close a failed connection until its pause is over."""
        self.last_loss = reason
        connection.losses += failures
        connection.retry_s = now_s + FIRST_PAUSE_S * 2 ** (min(connection.losses, RETRIES) - 1)
        self._drop(connection)

    def renew(self, connection: ClientConnection) -> None:
        """Close a connection that is to be reopened without a pause."""
        connection.retry_s = 0.0
        self._drop(connection)

    def _drop(self, connection: ClientConnection) -> None:
        if connection.state is ConnectionState.FREE:
            self.free.remove(connection)
        if connection.socket is not None:
            del self.by_descriptor[connection.socket.fileno()]
            self.reconnects += connection.state is not ConnectionState.OPENING
        connection.close()

    def close(self) -> None:
        """Close every connection and the epoll."""
        for connection in self.connections:
            connection.close()
        self.poller.close()
