"""The admin port's connections over real sockets: their number and their clients' time are bounded."""

import asyncio
import concurrent.futures
import contextlib
import socket
import ssl
import threading
import time

import pytest
import uvloop
from aiohttp import web

from serving.api.admin.port import AdminListener
from serving.api.credentials import Tls
from serving.api.transport.acceptor import Acceptor
from serving.api.transport.connection_limiter import ConnectionLimiter
from tests.fakes.certificate import certificate_in

IDLE_S, REQUEST_S = 1200.0, 300.0
MOST = 8
HEAD = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
LARGE_BYTES = 64 * 1024 * 1024
"""More than sockets hold of an answer that nobody reads."""


class Port:
    """The running port, seen from the test's thread."""

    def __init__(self, listener, loop, number, work):
        self.listener = listener
        self.loop = loop
        self.number = number
        self.work = work
        """Set: the slow command ends."""

    def do(self, function, *arguments):
        """Run a function in the port's loop."""

        async def work():
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(20)

    def sweep(self, later_s):
        """As if so much time had passed."""
        self.do(self.listener.sweep, time.monotonic() + later_s)

    def connected(self, stack):
        return stack.enter_context(socket.create_connection(("127.0.0.1", self.number), 10))


def application(work):
    """Routes that take their time, read, and answer much."""

    async def read(request):
        return web.Response(body=await request.read())

    async def slow(_request):
        await work.wait()
        return web.Response(body=b"done")

    async def large(_request):
        return web.Response(body=bytes(LARGE_BYTES))

    made = web.Application()
    made.add_routes([web.post("/read", read), web.get("/slow", slow), web.get("/large", large)])
    return made


@contextlib.contextmanager
def opened(certificate=None, loop_factory=uvloop.new_event_loop):
    """An admin port, ended at the end."""
    started = concurrent.futures.Future()
    stop = asyncio.Event()

    async def serve():
        work = asyncio.Event()
        listener = AdminListener(
            application(work),
            idle_s=IDLE_S,
            request_s=REQUEST_S,
            door=ConnectionLimiter(MOST),
            access_log=None,
            shutdown_timeout=0.1,
        )
        await listener.open()
        sock = socket.create_server(("127.0.0.1", 0))
        number = sock.getsockname()[1]
        context = None if certificate is None else Tls(*map(str, certificate)).context("http/1.1")
        entrance = Acceptor(
            sock, context, listener.protocol, door=listener.door, handshake_s=10.0, end_s=10.0
        )
        entrance.open(100)
        started.set_result(Port(listener, asyncio.get_running_loop(), number, work))
        await stop.wait()
        entrance.close()
        await entrance.wait_closed()
        await listener.end()
        for _ in range(2):  # what is closing and not taken is ended by the second
            listener.sweep(time.monotonic() + 2 * IDLE_S)
        while listener.door.active:
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


def until(condition):
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def ended(sock):
    """Whether the other side has ended a connection, within the socket's own time."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def answered(sock, body=b"four"):
    """One whole request on a connection."""
    sock.sendall(BODY + body)
    return _answer(sock).endswith(body)


def _answer(sock):
    answer = b""
    while not answer.endswith(b"four"):
        part = sock.recv(65536)
        assert part
        answer += part
    return answer


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("is_secure", [False, True])
def test_requests_one_after_another(tmp_path, is_secure, loop_factory):
    """A connection serves many, and its place is given back."""
    certificate = certificate_in(tmp_path) if is_secure else None
    with opened(certificate, loop_factory) as port, contextlib.ExitStack() as stack:
        sock = port.connected(stack)
        if certificate is not None:
            context = ssl.create_default_context(cafile=certificate[0])
            sock = stack.enter_context(context.wrap_socket(sock, server_hostname="127.0.0.1"))
        assert all(answered(sock) for _ in range(3))
        assert port.listener.door.active == 1
        sock.close()
        until(lambda: port.listener.door.active == 0)


def test_hundreds_of_silent_connections_hold_few_places(caplog):
    """One more is closed at once; the log has one line of them; the next that finds room is answered."""
    with opened() as port, contextlib.ExitStack() as stack:
        with contextlib.ExitStack() as crowd:
            silent = [port.connected(crowd) for _ in range(300)]
            until(lambda: port.listener.door.refused == 300 - MOST)
            assert all(ended(sock) for sock in silent[MOST:])
            assert port.listener.door.active == MOST
            for _ in range(2):
                port.sweep(0)
            assert [record.refused for record in caplog.records] == [300 - MOST]
        until(lambda: port.listener.door.active == 0)
        assert answered(port.connected(stack))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(HEAD[:20], id="half a head"),
        pytest.param(BODY + b"fou", id="a body that does not end"),
    ],
)
def test_a_request_has_its_time(sent):
    """What has not come whole then is ended, not before, and the place is free."""
    with opened() as port, contextlib.ExitStack() as stack:
        sock = port.connected(stack)
        sock.sendall(sent)
        until(lambda: port.listener.door.active == 1)
        port.sweep(REQUEST_S - 60)
        assert port.listener.door.active == 1
        port.sweep(REQUEST_S)
        assert ended(sock)
        until(lambda: port.listener.door.active == 0)


def test_a_second_head_has_its_time_as_well():
    """From its first byte on; bytes that come drop by drop win no more."""
    with opened() as port, contextlib.ExitStack() as stack:
        sock = port.connected(stack)
        assert answered(sock)
        port.sweep(REQUEST_S)  # idle, which is not late
        for byte in HEAD[:20]:
            sock.sendall(bytes([byte]))
        (connection,) = port.listener.connections.values()
        until(lambda: not connection._is_idle)
        port.sweep(REQUEST_S)
        assert ended(sock)


def test_an_idle_connection_has_its_time():
    """From its last answer on."""
    with opened() as port, contextlib.ExitStack() as stack:
        sock = port.connected(stack)
        assert answered(sock)
        port.sweep(IDLE_S)
        assert ended(sock)


def test_a_command_may_take_as_long_as_it_does():
    """Its time is not the client's."""
    with opened() as port, contextlib.ExitStack() as stack:
        sock = port.connected(stack)
        sock.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: any(one._request for one in port.listener.connections.values()))
        port.sweep(10 * IDLE_S)
        port.do(port.work.set)
        answer = b""
        while not answer.endswith(b"done"):
            answer += sock.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")


def test_answers_that_nobody_takes_hold_no_place():
    """The connection is ended as an idle one is, in two sweeps: what it has to send would keep it open."""
    with opened() as port, contextlib.ExitStack() as stack:
        sock = port.connected(stack)
        sock.sendall(HEAD)
        until(lambda: any(one._is_idle for one in port.listener.connections.values()))
        port.sweep(IDLE_S)
        assert port.listener.door.active == 1
        port.sweep(IDLE_S)
        until(lambda: port.listener.door.active == 0)
