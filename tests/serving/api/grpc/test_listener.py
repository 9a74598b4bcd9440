"""Connections of the gRPC port, spoken to in bytes: what real clients do not do."""

import contextlib
import socket
import time

import pytest

from serving.api.grpc import calls, messages
from serving.api.http2 import frames
from serving.api.http2.frames import FrameType, Setting
from serving.api.transport.buffered_bytes import BufferedBytes
from serving.api.transport.connection_limiter import ConnectionLimiter
from serving.api.transport.slow_clients import STALL_S
from tests.fakes.grpc_running import grpc_gateway
from tests.fakes.http2_client import CALL, Client
from tests.fakes.replicas import FakeHome


@pytest.fixture(scope="module")
def port():
    with grpc_gateway(request_s=5.0, door=ConnectionLimiter(8)) as it:
        yield it


@contextlib.contextmanager
def connected(port):
    """A socket that has said hello, and its client."""
    client = Client()
    with socket.create_connection(("127.0.0.1", port.port), timeout=10) as sock:
        sock.sendall(client.hello())
        yield sock, client


def read_until(sock, client, wanted):
    """Frames until one is of the wanted type and stream."""
    found = []
    while not any((kind, stream) == wanted for kind, _, stream, _ in found):
        data = sock.recv(65536)
        assert data, found
        found += client.read(data)
    return found


def status_of(found, stream):
    """grpc-status among the fields of a stream."""
    pairs = [
        payload for kind, _, on, payload in found if kind is FrameType.HEADERS and on == stream
    ]
    return dict(pair for fields in pairs for pair in fields)[b"grpc-status"]


def test_a_call_that_does_not_arrive(port):
    """A request that has not come whole in time is ended; others are not touched."""
    with connected(port) as (sock, client):
        before = port.listener.door.late
        sock.sendall(client.headers(1) + client.data(1, b"\0\0", end=False))
        read_until(sock, client, (FrameType.SETTINGS, 0))
        now_s = time.monotonic()
        for later_s in (0, 4, 6):
            port.running.do(port.listener.sweep, now_s + later_s)
        found = read_until(sock, client, (FrameType.RST_STREAM, 1))
        assert status_of(found, 1) == b"4"
        assert port.listener.door.late == before + 1
        live = dict(CALL) | {b":path": b"/inference.GRPCInferenceService/ServerLive"}
        sock.sendall(client.request(3, pairs=list(live.items())))
        found = read_until(sock, client, (FrameType.DATA, 3))
        assert [payload for kind, *_, payload in found if kind is FrameType.DATA] == [
            b"\0\0\0\0\2\x08\1"
        ]


def test_a_frame_that_does_not_come_to_its_end(port):
    """Its connection is ended, however often another byte of it comes."""
    with connected(port) as (sock, client):
        read_until(sock, client, (FrameType.SETTINGS, 0))
        before = port.listener.door.late
        now_s = time.monotonic()
        for piece, later_s in zip((b"\0", b"\0", b"\x08", b"\6"), (0, 2, 4, 6), strict=True):
            sock.sendall(piece)
            time.sleep(0.05)
            port.running.do(port.listener.sweep, now_s + later_s)
        read_until(sock, client, (FrameType.GOAWAY, 0))
        assert sock.recv(1) == b""
        assert port.listener.door.late == before + 1


def test_other_protocols(port):
    """A client of HTTP/1.1 is told nothing that hangs: the connection ends."""
    with socket.create_connection(("127.0.0.1", port.port), timeout=10) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while data := sock.recv(65536):
            received += data
        assert b"does not begin with HTTP/2" in received


def test_a_flood_ends_its_connection(port):
    """A client that only costs is cut off, and nothing else happens."""
    with connected(port) as (sock, _), contextlib.suppress(ConnectionError):
        ping = frames.frame(FrameType.PING, 0, 0, b"12345678")
        for _ in range(20):
            sock.sendall(ping * 1000)
        while sock.recv(65536):
            pass
    assert port.running.json("GET", "/v2/health/ready") == (200, {"ready": True})


def test_connections_are_counted(port):
    """Open connections are known, and forgotten when they close."""
    with connected(port) as (sock, client):
        read_until(sock, client, (FrameType.SETTINGS, 0))
        assert len(port.listener.connections) >= 1
    end_s = time.monotonic() + 10
    while port.listener.connections and time.monotonic() < end_s:
        time.sleep(0.01)
    assert not port.listener.connections


def test_a_deadline_that_has_passed(port):
    """A call without any time left is not begun."""
    with connected(port) as (sock, client):
        sock.sendall(client.request(1, pairs=[*CALL, (b"grpc-timeout", b"0m")]))
        found = read_until(sock, client, (FrameType.HEADERS, 1))
        assert status_of(found, 1) == b"4"


def test_one_connection_too_many_is_told_so(port):
    """GOAWAY that names no stream, so that its calls may be made elsewhere, then the end."""
    door = port.listener.door
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            sock, client = stack.enter_context(connected(port))
            read_until(sock, client, (FrameType.SETTINGS, 0))
        sock, client = stack.enter_context(connected(port))
        found = []
        while data := sock.recv(65536):
            found += client.read(data)
        assert [kind for kind, *_ in found] == [FrameType.SETTINGS, FrameType.GOAWAY]
        assert found[1][3][:4] == bytes(4)
        assert b"server.max_connections" in found[1][3]
        assert door.refused == 1


@pytest.mark.parametrize("window", [0, 2**31 - 1], ids=["window", "socket"])
def test_a_client_that_does_not_take_its_answers_is_given_up(port, window):
    """With its window shut the call is reset, with its socket not read the connection ends."""
    request = messages.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(8_000_000)])
    request.inputs.add(name="data", datatype="UINT8", shape=[1, 8_000_000])
    body = request.SerializeToString()
    body = calls.prefix(len(body)) + body
    with socket.create_connection(("127.0.0.1", port.port), timeout=10) as sock:
        client = Client()
        sock.sendall(client.hello({Setting.INITIAL_WINDOW_SIZE: window}))
        if window:
            sock.sendall(frames.window_update(0, window - frames.DEFAULT_WINDOW_BYTES))
        sock.sendall(client.request(1, body))
        until_full(port)
        stalled, now_s = port.listener.door.stalled, time.monotonic()
        for later_s in (0, STALL_S - 1):
            port.running.do(port.listener.sweep, now_s + later_s)
        assert port.listener.door.stalled == stalled
        port.running.do(port.listener.sweep, now_s + STALL_S)
        assert port.listener.door.stalled == stalled + 1
        if window:
            until(lambda: not port.listener.connections)
        else:
            read_until(sock, client, (FrameType.RST_STREAM, 1))


def unsent(port):
    """What each client for which more waits has taken, by its socket and by its windows."""

    def look():
        found = [
            (one.acknowledged_bytes(), one.session.outgoing.sent_by_stream())
            for one in port.listener.connections
        ]
        return [taken for taken in found if taken[0] is not None or taken[1]]

    return port.running.do(look)


def until_full(port):
    """Until a client is waited for, and the kernels hold what they can."""
    seen = [None, []]
    while seen[-1] != seen[-2]:
        until(lambda: unsent(port))
        seen.append(unsent(port))
        time.sleep(0.05)


def until(condition):
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def call_with(size):
    """The body of a call of the model echo with so many bytes."""
    request = messages.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(size)])
    request.inputs.add(name="data", datatype="UINT8", shape=[1, size])
    body = request.SerializeToString()
    return calls.prefix(len(body)) + body


def test_what_calls_hold_is_bounded_over_all_connections():
    """A call for which there is no room is RESOURCE_EXHAUSTED, while it arrives or when it is there; all is let go."""
    home, held = FakeHome(), BufferedBytes(500_000)
    with grpc_gateway({"batching.max_size": 1}, home, buffered=held) as port:

        def holds(size):
            until(lambda: port.running.do(lambda: held.bytes) >= size)

        home.hold.set()
        with connected(port) as (sock, client), connected(port) as (other, second):
            sock.sendall(client.request(1, call_with(250_000)))
            holds(250_000)
            other.sendall(second.headers(1) + second.data(1, call_with(200_000)[:-1], end=False))
            holds(450_000)
            before = port.running.do(lambda: held.bytes)
            for body, end in ((call_with(100_000), True), (call_with(100_000)[:-1], False)):
                with connected(port) as (late, third):
                    late.sendall(third.headers(1) + third.data(1, body, end=end))
                    found = read_until(late, third, (FrameType.HEADERS, 1))
                    assert status_of(found, 1) == b"8"
                    late.sendall(
                        third.request(3, call_with(10))
                    )  # a small one waits with the first
                    until(lambda: port.unfinished == 2)
                until(lambda: port.unfinished == 1)
                assert port.running.do(lambda: held.bytes) == before
            home.release.set()
            home.hold.clear()
            read_until(sock, client, (FrameType.DATA, 1))
            other.sendall(second.data(1, call_with(200_000)[-1:]))
            read_until(other, second, (FrameType.DATA, 1))
        until(lambda: port.running.do(lambda: held.bytes) == 0)


def test_an_answer_is_held_until_the_client_takes_it():
    """As far as its windows let nothing more out, and what waits in the transport."""
    held = BufferedBytes()
    with grpc_gateway(buffered=held) as port:
        with connected(port) as (sock, client):
            sock.sendall(client.request(1, call_with(250_000)))
            until(lambda: port.running.do(lambda: held.unsent_bytes) >= 250_000)
            for stream in (0, 1):
                sock.sendall(frames.frame(FrameType.WINDOW_UPDATE, 0, stream, b"\0\x0f\0\0"))
            read_until(sock, client, (FrameType.HEADERS, 1))
            until(lambda: port.running.do(lambda: held.unsent_bytes) == 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            body = call_with(4 << 20)
            for stream in (3, 5, 7):
                sock.sendall(client.request(stream, body))
                for on in (0, stream):
                    sock.sendall(frames.frame(FrameType.WINDOW_UPDATE, 0, on, b"\x0f\0\0\0"))
            until(lambda: port.running.do(lambda: held.unsent_bytes) > 4 << 20)
        until(lambda: port.running.do(lambda: held.unsent_bytes) == 0)


def test_a_client_that_leaves_holds_nothing():
    """Amid a body, and with a call in work."""
    home, held = FakeHome(), BufferedBytes()
    with grpc_gateway(None, home, buffered=held) as port:
        home.hold.set()
        with connected(port) as (sock, client):
            sock.sendall(client.request(1, call_with(250_000)) + client.headers(3))
            sock.sendall(client.data(3, bytes(200_000), end=False))
            until(lambda: port.running.do(lambda: held.bytes) > 450_000)
            sock.sendall(frames.reset(1, frames.ErrorCode.CANCEL))
            until(lambda: port.running.do(lambda: held.bytes) == 200_000)
        until(lambda: port.running.do(lambda: held.bytes) == 0)
        home.release.set()
