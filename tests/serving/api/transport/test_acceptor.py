"""Connections with TLS from their first packet on: real sockets, handshakes that do not come to an end."""

import asyncio
import concurrent.futures
import contextlib
import socket
import ssl
import threading
import time

import pytest
import uvloop

from serving.api.credentials import Tls
from serving.api.transport.acceptor import Acceptor
from serving.api.transport.connection_limiter import ConnectionLimiter
from tests.fakes.certificate import certificate_in
from tests.fakes.wire import Kept, listening

ASKED = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
MOST = 3


class Port:
    """The running port, seen from the test's thread."""

    def __init__(self, door, loop, number, context):
        self.door = door
        self.loop = loop
        self.number = number
        self.context = context

    def connected(self, stack):
        """A socket of a client that has not said anything."""
        return stack.enter_context(socket.create_connection(("127.0.0.1", self.number), 10))

    def secured(self, stack):
        """A socket of a client that has shaken hands."""
        sock = self.context.wrap_socket(self.connected(stack), server_hostname="127.0.0.1")
        return stack.enter_context(sock)


@contextlib.contextmanager
def entered(certificate, *, handshake_s=10.0, loop_factory=uvloop.new_event_loop):
    """A port with TLS, closed at the end."""
    started = concurrent.futures.Future()
    stop = asyncio.Event()

    async def serve():
        door = ConnectionLimiter(MOST)
        listener = listening(Kept(), door=door)
        sock = socket.create_server(("127.0.0.1", 0))
        number = sock.getsockname()[1]
        entrance = Acceptor(
            sock,
            Tls(*map(str, certificate)).context("http/1.1"),
            listener.protocol,
            door=door,
            handshake_s=handshake_s,
            end_s=10.0,
        )
        entrance.open(100)
        context = ssl.create_default_context(cafile=certificate[0])
        started.set_result(Port(door, asyncio.get_running_loop(), number, context))
        await stop.wait()
        entrance.close()
        entrance.close()
        await entrance.wait_closed()
        listener.close()
        while door.active:
            await asyncio.sleep(0.01)

    def run():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    port = started.result(20)
    try:
        yield port
    finally:
        port.loop.call_soon_threadsafe(stop.set)
        thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return certificate_in(tmp_path_factory.mktemp("tls"))


def until(condition):
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def answered(sock):
    sock.sendall(ASKED)
    return sock.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_requests_over_tls(certificate, loop_factory):
    """One after another and beside one another; places are given back."""
    with entered(certificate, loop_factory=loop_factory) as port:
        for _ in range(2):
            with contextlib.ExitStack() as stack:
                clients = [port.secured(stack) for _ in range(MOST)]
                assert [answered(sock) for sock in clients * 2] == [True] * 2 * MOST
                assert port.door.active == MOST
            until(lambda: port.door.active == 0)
        assert port.door.refused == 0


def test_handshakes_that_do_not_end_have_places(certificate):
    """They are bounded with the others: one more is closed at once, and the next that finds room is served."""
    with entered(certificate) as port, contextlib.ExitStack() as stack:
        silent = [port.connected(stack) for _ in range(MOST)]
        silent[0].sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        until(lambda: port.door.active == MOST)
        with contextlib.suppress(ConnectionError):
            assert port.connected(stack).recv(1) == b""
        assert (port.door.active, port.door.refused) == (MOST, 1)
        for sock in silent[:2]:
            sock.close()
        until(lambda: port.door.active == MOST - 2)
        assert answered(port.secured(stack))


def test_a_handshake_has_its_time(certificate):
    """Then it is ended, and its place is free."""
    with entered(certificate, handshake_s=0.2) as port, contextlib.ExitStack() as stack:
        sock = port.connected(stack)
        until(lambda: port.door.active == 1)
        with contextlib.suppress(ConnectionError):
            assert sock.recv(1) == b""
        until(lambda: port.door.active == 0)


def test_what_is_no_tls_is_ended(certificate):
    """A client that speaks plain HTTP, and one that knows no common version; the port lives on."""
    with entered(certificate) as port, contextlib.ExitStack() as stack:
        plain = port.connected(stack)
        plain.sendall(ASKED)
        with contextlib.suppress(ConnectionError):
            while plain.recv(65536):
                pass
        strange = ssl.create_default_context(cafile=certificate[0])
        strange.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")
        strange.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            ssl.create_default_context().wrap_socket(
                port.connected(stack), server_hostname="127.0.0.1"
            )
        assert answered(
            stack.enter_context(
                strange.wrap_socket(port.connected(stack), server_hostname="127.0.0.1")
            )
        )
        until(lambda: port.door.active == 1)


def test_the_end_comes_amid_handshakes(certificate):
    """Whoever has not shaken hands is gone when the port closes."""
    with contextlib.ExitStack() as stack:
        with entered(certificate) as port:
            sock = port.connected(stack)
            until(lambda: port.door.active == 1)
        with contextlib.suppress(ConnectionError):
            assert sock.recv(1) == b""
    assert port.door.active == 0
