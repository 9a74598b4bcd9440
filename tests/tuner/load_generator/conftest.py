"""Small real HTTP servers on loopback, each with the bad habit that a test needs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tuner.load_generator.client_process import LoadGenerator

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer:
    """The server's side of one connection."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.socket = connection
        self.number = number
        self._buffer = b""

    def request(self) -> tuple[bytes, bytes] | None:
        """Head and body of the next request, None when the client is done."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                return None
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        while len(rest) < length:
            self._buffer = b""
            if not self._more():
                return None
            rest += self._buffer
        self._buffer = rest[length:]
        return head, rest[:length]

    def _more(self) -> bool:
        data = self.socket.recv(65_536)
        self._buffer += data
        return bool(data)

    def answer_all(self, answer: bytes = OK) -> None:
        """The same answer to every request."""
        while self.request() is not None:
            self.socket.sendall(answer)


class Server:
    """Listens on a free port; `habit` is called with each connection, in a thread of its own."""

    def __init__(self, habit: Callable[[Peer], None]) -> None:
        self._habit = habit
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0

    def start(self) -> None:
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(
                target=self._talk, args=(connection, self.connections), daemon=True
            )
            self.connections += 1
            self._threads.append(thread)
            thread.start()

    def _talk(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connection:
            self._habit(Peer(connection, number))

    def stop(self) -> None:
        """Refuse new connections and cut the open ones."""
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join(10)
        for one in self._open:
            one.close()


Serve = Callable[[Callable[[Peer], None]], Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server with a habit; all are stopped after the test."""
    servers: list[Server] = []

    def start(habit: Callable[[Peer], None]) -> Server:
        server = Server(habit)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def generator() -> Iterator[LoadGenerator]:
    """One client process for a whole module, as a study uses it."""
    with LoadGenerator() as made:
        yield made
