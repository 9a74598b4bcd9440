"""How many clients may come, and what becomes of those that do not read: real sockets."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.credentials import Tls
from serving.api.http.messages import Response
from serving.api.transport.connection_limiter import LINGERING, ConnectionLimiter, client_of
from serving.api.transport.slow_clients import STALL_S
from tests.fakes.certificate import certificate_in
from tests.fakes.listening import listening

ASKED = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 8 * 1024 * 1024


class Routes:
    """Answers that no kernel holds, under one path."""

    def handle(self, head, body, connection):
        return Response(200, b"", bytes(LARGE if head.path == "/large" else 2))


@pytest.fixture(name="port")
def _port():
    with listening(Routes(), door=ConnectionLimiter(3)) as it:
        yield it


def do(port, function, *arguments):
    """Run a function in the port's loop."""

    async def work():
        return function(*arguments)

    return asyncio.run_coroutine_threadsafe(work(), port.loop).result(10)


def until(condition):
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def waited_for(port):
    """What each client that is waited for has taken, as the port's loop sees it: connections come meanwhile."""

    def look():
        taken = [one.acknowledged_bytes() for one in port.listener.connections]
        return [some for some in taken if some is not None]

    return do(port, look)


def until_full(port):
    """Until a client is waited for, and the kernels hold what they can."""
    seen = [-2, -1]
    while seen[-1] != seen[-2]:
        until(lambda: waited_for(port))
        seen.append(max(waited_for(port), default=0))
        time.sleep(0.05)


def connected(port, stack):
    return stack.enter_context(socket.create_connection(("127.0.0.1", port.number), timeout=10))


def read(sock):
    """All until the other side ends."""
    return b"".join(iter(lambda: sock.recv(65536), b""))


def test_one_connection_too_many_is_told_so(port):
    """503 with Retry-After, also to a client with much to say; counted; the next that finds room is served."""
    door = port.listener.door
    with contextlib.ExitStack() as stack:
        inside = [connected(port, stack) for _ in range(3)]
        until(lambda: door.active == 3)
        body = bytes(3_000_000)
        status, fields, answer = port.request("POST", "/", body)
        assert (status, fields["Retry-After"], fields["Connection"]) == (503, "1", "close")
        assert "server.max_connections" in json.loads(answer)["error"]
        assert (door.active, door.refused) == (3, 1)
        inside[0].close()
        until(lambda: door.active == 2)
        assert port.request("GET", "/")[0] == 200


def test_refusals_are_bounded_and_end(port):
    """Those that say nothing are closed by a sweep; when many are refused, the rest at once."""
    door = port.listener.door
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            connected(port, stack)
        until(lambda: door.active == 3)
        silent = [connected(port, stack) for _ in range(LINGERING)]
        until(lambda: door.refused == LINGERING)
        with contextlib.suppress(ConnectionError):
            assert connected(port, stack).recv(1) == b""
        do(port, door.sweep, time.monotonic() + 60)
        for sock in silent:
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
    until(lambda: door.active == 0)


@pytest.mark.parametrize(
    "request_", [ASKED * 20, ASKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")]
)
def test_a_client_that_never_reads_is_cut_off(port, request_):
    """With requests behind, or with an end that is due; what is held of its answers is bounded meanwhile."""
    with contextlib.ExitStack() as stack:
        sock = connected(port, stack)
        sock.sendall(request_)
        until_full(port)
        (connection,) = port.listener.connections
        assert do(port, connection._transport.get_write_buffer_size) < 2 * LARGE
        now_s = time.monotonic()
        do(port, port.listener.sweep, now_s)
        do(port, port.listener.sweep, now_s + STALL_S - 1)
        assert len(port.listener.connections) == 1
        do(port, port.listener.sweep, now_s + STALL_S + 1)
        until(lambda: not port.listener.connections)
        assert (port.listener.door.stalled, port.listener.door.active) == (1, 0)
        assert len(read(sock)) < LARGE


def test_a_client_that_reads_slowly_is_served(port):
    """However long an answer takes, as long as some of it is taken."""
    with contextlib.ExitStack() as stack:
        sock = connected(port, stack)
        sock.sendall(ASKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        until(lambda: waited_for(port))
        received, now_s = 0, time.monotonic()
        for sweep in range(8):
            do(port, port.listener.sweep, now_s + sweep * (STALL_S - 1))
            before = received
            while received - before < LARGE // 10:
                received += len(sock.recv(1 << 18))
            time.sleep(0.02)
        assert received + len(read(sock)) > LARGE
    assert port.listener.door.stalled == 0


def test_tls_hides_no_client_that_never_reads(tmp_path):
    """There the answer waits below TLS, where its transport does not see it; one that reads is not cut off."""
    paths = certificate_in(tmp_path)
    context = ssl.create_default_context(cafile=paths[0])
    tls = Tls(*map(str, paths)).context("http/1.1")
    with (
        listening(Routes(), door=ConnectionLimiter(), tls=tls) as port,
        contextlib.ExitStack() as stack,
    ):
        silent, reading = [
            stack.enter_context(
                context.wrap_socket(connected(port, stack), server_hostname="127.0.0.1")
            )
            for _ in range(2)
        ]
        silent.sendall(ASKED)
        until_full(port)
        reading.sendall(ASKED.replace(b"large", b"small"))
        assert reading.recv(65536).startswith(b"HTTP/1.1 200")
        now_s = time.monotonic()
        for later_s in (0, STALL_S - 1):
            do(port, port.listener.sweep, now_s + later_s)
            assert len(port.listener.connections) == 2
        do(port, port.listener.sweep, now_s + STALL_S + 1)
        until(lambda: len(port.listener.connections) == 1)
        assert port.listener.door.stalled == 1


def test_an_answer_on_its_way_is_no_idleness_beneath_tls(tmp_path):
    """However long it takes; when it is taken the connection ends, also of a client that does not end TLS."""
    paths = certificate_in(tmp_path)
    context = ssl.create_default_context(cafile=paths[0])
    tls = Tls(*map(str, paths)).context("http/1.1")
    with (
        listening(Routes(), door=ConnectionLimiter(), tls=tls) as port,
        contextlib.ExitStack() as stack,
    ):
        sock = context.wrap_socket(connected(port, stack), server_hostname="127.0.0.1")
        stack.enter_context(sock).sendall(ASKED)
        until_full(port)
        (connection,) = port.listener.connections
        received, now_s = 0, time.monotonic()
        for later_s in (0, 70, 140):
            do(port, connection.sweep, now_s + later_s)
            assert not connection._transport.is_closing()
        while received < LARGE:
            received += len(sock.recv(65536))
        until(lambda: connection.acknowledged_bytes() is None)
        do(port, connection.sweep, now_s + 210)
        assert connection._transport.is_closing()
        until(lambda: connection.acknowledged_bytes() is None)  # the kernel of the client has it
        do(port, connection.sweep, now_s + 280)
        until(lambda: not port.listener.connections)


def test_bodies_of_pipelined_requests_are_bounded(port):
    """A client that sends on and never reads is not listened to after a few megabytes."""
    with contextlib.ExitStack() as stack:
        sock = connected(port, stack)
        sock.sendall(ASKED)
        until(lambda: waited_for(port))
        sock.settimeout(0.3)
        body = bytes(500_000)
        sent = 0
        with contextlib.suppress(TimeoutError):
            for _ in range(60):
                sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n" + body)
                sent += 1
        (connection,) = port.listener.connections
        held = do(port, lambda: sum(len(body) for _, body in connection._pipeline.waiting))
        assert sent < 60
        assert held < 3_000_000
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# Clients


@pytest.mark.parametrize(
    ("address", "client"),
    [
        (("10.0.0.1", 1234), "10.0.0.1"),
        (("10.0.0.2", 1234), "10.0.0.2"),
        (("::ffff:10.0.0.1", 1234, 0, 0), "10.0.0.1"),
        (("2001:db8:1:2::3", 1234, 0, 0), "2001:0db8:0001:0002"),
        (("2001:db8:1:2:ffff::9", 1234, 0, 0), "2001:0db8:0001:0002"),
        (("2001:db8:1:3::3", 1234, 0, 0), "2001:0db8:0001:0003"),
        (("fe80::1%eth0", 1234, 0, 2), "fe80:0000:0000:0000"),
        (("127.0.0.1", 1234), ""),
        (("127.1.2.3", 1234), ""),
        (("::1", 1234, 0, 0), ""),
        (("::ffff:127.0.0.1", 1234, 0, 0), ""),
        ("", ""),
        (None, ""),
    ],
)
def test_whom_a_connection_counts_for(address, client):
    """An address, or the network of one of IPv6; loopback is many."""
    assert client_of(address) == client


class Caller:
    """A connection from an address, and what it hears."""

    def __init__(self, host):
        self.address = (host, 1234)
        self.protocol = None
        self.written = b""

    def get_extra_info(self, name):
        return {"peername": self.address}[name]

    def set_protocol(self, protocol):
        self.protocol = protocol

    def is_closing(self):
        return False

    def write(self, data):
        self.written += data

    def can_write_eof(self):
        return True

    def write_eof(self):
        pass


@given(st.lists(st.tuples(st.sampled_from(["10.0.0.1", "10.0.0.2", "127.0.0.1"]), st.booleans())))
def test_no_client_has_more_than_its_part(steps):
    """Whoever comes and goes: the counts are right, one client has so many at most, and loopback what is there."""
    door, inside = ConnectionLimiter(5, 2), []
    for host, comes in steps:
        if comes:
            before = [other for other in inside if other == host]
            has_room = len(inside) < 5 and (host == "127.0.0.1" or len(before) < 2)
            caller = Caller(host)
            entered = door.acquire(caller, b"no")
            assert (entered is not None) is has_room
            if has_room:
                inside.append(host)
            else:
                caller.protocol.data_received(b"anything")
                assert caller.written == b"no"
        elif host in inside:
            inside.remove(host)
            door.release(client_of((host, 1)))
        assert door.active == len(inside)
    for host in inside:
        door.release(client_of((host, 1)))
    assert (door.active, door._of_client) == (0, {})
