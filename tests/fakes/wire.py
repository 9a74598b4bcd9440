"""A connection of the query port without a socket: a transport that keeps what is written, and routes that remember."""

import asyncio
import atexit
import functools

from serving.api.http.listener import HttpListener
from serving.api.http.messages import Response


class Wire:
    """A transport."""

    def __init__(self):
        self.written = b""
        self.closed = False
        self.is_reading = True

    def write(self, data):
        if not self.closed:  # as a real one: what is written after the end goes nowhere
            self.written += data

    def close(self):
        self.closed = True

    abort = close

    def is_closing(self):
        return self.closed

    def get_extra_info(self, _name, default=None):
        return default

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True


class Kept:
    """Routes that keep what reaches them, and answer it."""

    def __init__(self):
        self.heads = []
        self.bodies = []

    def handle(self, head, body, _connection):
        self.heads.append(head)
        self.bodies.append(body)
        return Response(200, b"", b"ok")


def listening(routes, max_body_bytes=1 << 20, **given):
    """A port over these routes."""
    listener = HttpListener(
        routes, max_body_bytes=max_body_bytes, idle_s=10.0, request_s=10.0, **given
    )
    listener.soon = lambda callback: callback()  # there is no loop
    return listener


@functools.cache
def _loop():
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


class Fed:
    """A connection that comes to the end of what it was given, in as many turns of a loop as it takes."""

    def __init__(self, connection):
        self._connection = connection

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def __eq__(self, other):
        return other is self._connection

    def __hash__(self):
        return hash(self._connection)

    def data_received(self, data):
        _loop().run_until_complete(self._received(data))

    async def _received(self, data):
        self._connection.data_received(data)
        while self._connection._is_later:
            await asyncio.sleep(0)


def connected(listener):
    """A new connection, and its transport."""
    wire = Wire()
    connection = listener.protocol()
    connection.connection_made(wire)
    return Fed(connection), wire


def exchange(listener, pieces):
    """Send pieces over a new connection; returns the routes that its requests reach, and its transport."""
    routes = listener.routes = Kept()
    connection, wire = connected(listener)
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
    return routes, wire


def answers(written):
    """The answers in what was written: status, head and body of each."""
    found = []
    while written:
        head, _, written = written.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in lines[1:])
        size = int(fields.get(b"content-length", 0))
        found.append((int(lines[0].split()[1]), head, written[:size]))
        written = written[size:]
    return found


def statuses(written):
    """Those of the answers in what was written."""
    return [status for status, _, _ in answers(written)]
