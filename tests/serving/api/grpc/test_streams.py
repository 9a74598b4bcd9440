"""Streams of inferences, as Triton's clients see them and in bytes: order, errors, ends, and bounds."""

import queue
import socket
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from serving.api.grpc import calls, streams
from serving.api.http.access import Token
from serving.api.http2 import frames
from serving.api.http2.frames import FrameType, Setting
from serving.api.transport.buffered_bytes import BufferedBytes
from tests.fakes.grpc_running import grpc_gateway
from tests.fakes.http2_client import CALL, Client
from tests.fakes.replicas import FakeHome
from tests.serving.api.grpc.test_clients import ROW, raw_request, tensor, until

CODES = grpc.StatusCode
STREAM = [
    (name, value.replace(b"ModelInfer", b"ModelStreamInfer") if name == b":path" else value)
    for name, value in CALL
]


@pytest.fixture(name="port", scope="module")
def _port():
    with grpc_gateway({"batching.max_size": 4, "server.max_body_bytes": 2_000_000}) as it:
        yield it


@pytest.fixture(name="held")
def _held():
    """A gateway whose replica holds what it gets, and that home."""
    home = FakeHome()
    with grpc_gateway({"batching.max_size": 1}, home) as it:
        home.hold.set()
        yield it, home
        home.hold.clear()
        home.release.set()


class Callback:
    """What a stream of Triton's client has said."""

    def __init__(self):
        self.said = queue.Queue()

    def __call__(self, result, error):
        self.said.put((result, error))

    def next(self):
        return self.said.get(timeout=20)


def row(number):
    return np.full((1, 1 + number % 50), number % 256, dtype=np.uint8)


def test_many_requests_on_one_stream(port):
    """Each is answered with its id, in their order, and said to have no other answer."""
    callback = Callback()
    with triton.InferenceServerClient(port.address) as client:
        client.start_stream(callback)
        for number in range(300):
            more = {"enable_empty_final_response": True} if number % 2 else {}
            client.async_stream_infer("echo", [tensor(row(number))], request_id=str(number), **more)
        for number in range(300):
            result, error = callback.next()
            assert error is None
            answer = result.get_response()
            assert answer.id == str(number)
            assert answer.parameters["triton_final_response"].bool_param
            np.testing.assert_array_equal(result.as_numpy("data"), row(number))
        client.stop_stream()
        assert callback.said.empty()


def test_an_error_ends_nothing(port):
    """It is an answer like the others, at its place, with the id of its request."""
    made = [raw_request(ROW, id=str(number)) for number in range(4)]
    made[1].model_name = "nobody"
    made[2].inputs[0].name = "x"
    with grpc.insecure_channel(port.address) as channel:
        found = list(GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(made), timeout=20))
    assert [one.infer_response.id for one in found] == ["0", "1", "2", "3"]
    assert [one.error_message.partition(";")[0] for one in found] == [
        "", "model 'nobody' is not known (known: echo)", "inputs are x", "",
    ]  # fmt: skip
    assert [len(one.infer_response.raw_output_contents) for one in found] == [1, 0, 0, 1]


def test_what_is_no_request_is_an_error_too(port):
    """There is no id in it."""
    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    good = raw_request(ROW, id="7").SerializeToString()
    with grpc.insecure_channel(port.address) as channel:
        call = channel.stream_stream(
            path, response_deserializer=service_pb2.ModelStreamInferResponse.FromString
        )
        bad, answered = call(iter([b"\xff\xff", good]), timeout=20)
    assert "not of type inference.ModelInferRequest" in bad.error_message
    assert (answered.error_message, answered.infer_response.id) == ("", "7")


async def test_the_asyncio_client(port):
    """An iterator in, an iterator out."""

    async def requests():
        for number in range(50):
            yield {"model_name": "echo", "inputs": [tensor(row(number))], "request_id": str(number)}

    ids = []
    async with triton_aio.InferenceServerClient(port.address) as client:
        async for result, error in client.stream_infer(requests(), stream_timeout=20):
            assert error is None
            ids.append(result.get_response().id)
    assert ids == [str(number) for number in range(50)]


def test_messages_larger_than_a_window(port):
    """Both ways, several at a time."""
    large = [np.full((1, 400_000), number, dtype=np.uint8) for number in range(6)]
    callback = Callback()
    with triton.InferenceServerClient(port.address) as client:
        client.start_stream(callback)
        for one in large:
            client.async_stream_infer("echo", [tensor(one)])
        for one in large:
            result, error = callback.next()
            assert error is None
            np.testing.assert_array_equal(result.as_numpy("data"), one)
        client.stop_stream()


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_streams(encoding):
    """Short and long messages, answered in their order; an error among them."""
    callback = Callback()
    with (
        grpc_gateway(gzip_min_bytes=2000) as port,
        triton.InferenceServerClient(port.address) as client,
    ):
        client.start_stream(callback, compression_algorithm=encoding)
        rows = [np.full((1, size), 7, dtype=np.uint8) for size in (4, 90_000, 3, 5000, 1)]
        for number, one in enumerate(rows):
            name = "nobody" if number == 2 else "echo"
            client.async_stream_infer(name, [tensor(one)], request_id=str(number))
        for number, one in enumerate(rows):
            result, error = callback.next()
            if number == 2:
                assert "nobody" in str(error)
                continue
            assert error is None
            assert result.get_response().id == str(number)
            np.testing.assert_array_equal(result.as_numpy("data"), one)
        client.stop_stream()


def test_a_message_that_is_too_large(port):
    """Where the next one begins is of no use then: the stream ends, and says why."""
    callback = Callback()
    with triton.InferenceServerClient(port.address) as client:
        client.start_stream(callback)
        client.async_stream_infer("echo", [tensor(np.zeros((1, 2_500_000), dtype=np.uint8))])
        _, error = callback.next()
        assert error.status() == "StatusCode.RESOURCE_EXHAUSTED"
        client.stop_stream()
        client.infer("echo", [tensor(ROW)])


def test_the_requests_in_flight_are_bounded(held, monkeypatch):
    """The others wait in the client, and come when there is room; all are answered before the stream ends."""
    monkeypatch.setattr(streams, "MAX_IN_FLIGHT", 3)
    port, home = held
    callback = Callback()
    with triton.InferenceServerClient(port.address) as client:
        client.start_stream(callback)
        for number in range(20):
            client.async_stream_infer("echo", [tensor(ROW)], request_id=str(number))
        assert until(lambda: port.unfinished == 3)
        time.sleep(0.05)
        assert port.unfinished == 3
        home.hold.clear()
        home.release.set()
        client.stop_stream()  # it waits for what is under way
        ids = [callback.next()[0].get_response().id for _ in range(20)]
    assert ids == [str(number) for number in range(20)]


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_the_bytes_in_flight_are_bounded(encoding):
    """By the largest message and one more, as they are when they are not compressed; all are answered."""
    home, callback = FakeHome(), Callback()
    values = {"batching.max_size": 1, "server.max_body_bytes": 100_000}
    with (
        grpc_gateway(values, home) as port,
        triton.InferenceServerClient(port.address) as client,
    ):
        home.hold.set()
        client.start_stream(callback, compression_algorithm=encoding)
        large = np.zeros((1, 30_000), dtype=np.uint8)
        for number in range(20):
            client.async_stream_infer("echo", [tensor(large)], request_id=str(number))
        assert until(lambda: port.unfinished == 4)
        time.sleep(0.05)
        assert port.unfinished == 4
        home.hold.clear()
        home.release.set()
        client.stop_stream()
        ids = [callback.next()[0].get_response().id for _ in range(20)]
    assert ids == [str(number) for number in range(20)]


def test_requests_of_streams_are_counted_with_all_others():
    """One for which there is no room is answered with an error, and the stream goes on; who leaves holds nothing."""
    home, callback, held = FakeHome(), Callback(), BufferedBytes(250_000)
    large = np.zeros((1, 100_000), dtype=np.uint8)
    with grpc_gateway({"batching.max_size": 1}, home, buffered=held) as port:
        home.hold.set()
        with triton.InferenceServerClient(port.address) as client:
            client.start_stream(callback, compression_algorithm="gzip")
            for number in range(3):
                client.async_stream_infer("echo", [tensor(large)], request_id=str(number))
            assert until(lambda: port.unfinished == 2)
            assert until(lambda: port.running.do(lambda: held.bytes) > 200_000)
            client.async_stream_infer("echo", [tensor(ROW)], request_id="3")
            assert until(lambda: port.unfinished == 3)
            home.hold.clear()
            home.release.set()
            client.stop_stream()
            said = [callback.next() for _ in range(4)]
        answered = [error is None for _, error in said]
        assert sorted(answered[:3]) == [False, True, True]  # they are decompressed two at a time
        assert answered[3]
        assert "server.max_buffered_mb" in str(said[answered.index(False)][1])
        assert until(lambda: port.running.do(lambda: held.bytes) == 0)
        home.release.clear()
        home.hold.set()
        with triton.InferenceServerClient(port.address) as client:
            client.start_stream(Callback())
            client.async_stream_infer("echo", [tensor(large)])
            assert until(lambda: port.running.do(lambda: held.bytes) >= 100_000)
            assert until(lambda: port.unfinished == 1)
            client.stop_stream(cancel_requests=True)
            assert until(lambda: port.running.do(lambda: held.bytes) == 0)
        home.release.set()


def test_a_stream_that_grows_beyond_what_all_may_hold():
    """It ends, and says why; another goes on."""
    callback, held = Callback(), BufferedBytes(150_000)
    with grpc_gateway(None, buffered=held) as port:
        with triton.InferenceServerClient(port.address) as client:
            client.start_stream(callback)
            client.async_stream_infer("echo", [tensor(np.zeros((1, 200_000), dtype=np.uint8))])
            _, error = callback.next()
            assert error.status() == "StatusCode.RESOURCE_EXHAUSTED"
            assert "server.max_buffered_mb" in str(error)
            client.stop_stream()
            client.start_stream(callback)
            client.async_stream_infer("echo", [tensor(np.zeros((1, 100_000), dtype=np.uint8))])
            assert callback.next()[1] is None
            client.stop_stream()
        assert until(lambda: port.running.do(lambda: held.bytes) == 0)


def test_a_cancelled_stream(held):
    """The work of all its requests is dropped, and counted as 499."""
    port, _ = held
    callback = Callback()
    with triton.InferenceServerClient(port.address) as client:
        client.start_stream(callback)
        for _ in range(5):
            client.async_stream_infer("echo", [tensor(ROW)])
        assert until(lambda: port.unfinished == 5)
        client.stop_stream(cancel_requests=True)
        assert until(lambda: port.unfinished == 0)
        assert port.responses == {499: 5}


def test_a_client_that_goes_away(held):
    """So it is when the connection is lost."""
    port, _ = held
    with grpc.insecure_channel(port.address) as channel:
        never = iter(queue.Queue().get, None)
        call = GRPCInferenceServiceStub(channel).ModelStreamInfer(
            first_then(raw_request(ROW), never)
        )
        assert until(lambda: port.unfinished == 1)
    assert until(lambda: port.unfinished == 0 and not port.listener.connections)
    assert call.code() is CODES.CANCELLED


def first_then(first, others):
    yield first
    yield from others


def test_a_streams_deadline(held):
    """It is that of all its requests; the server keeps it where its client does not."""
    port, _ = held
    with grpc.insecure_channel(port.address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        made = raw_request(ROW).SerializeToString()
        never = first_then(made, iter(queue.Queue().get, None))
        with pytest.raises(grpc.RpcError) as error:
            next(call(never, metadata=[("grpc-timeout", "200m")]))
        assert error.value.code() is CODES.DEADLINE_EXCEEDED
        assert until(lambda: port.unfinished == 0)


def test_the_parameter_timeout(held):
    """It ends its request, and not the stream."""
    port, _ = held
    callback = Callback()
    with triton.InferenceServerClient(port.address) as client:
        client.start_stream(callback)
        for _ in range(2):
            client.async_stream_infer("echo", [tensor(ROW)], timeout=100_000)
            _, error = callback.next()
            assert "deadline passed" in str(error)
        client.stop_stream(cancel_requests=True)


def test_draining(held):
    """What was taken is answered, no more is, and a stream with nothing to do ends: the server stops."""
    port, home = held
    callback, idle = Callback(), Callback()
    with (
        triton.InferenceServerClient(port.address) as client,
        triton.InferenceServerClient(port.address) as other,
    ):
        client.start_stream(callback)
        client.async_stream_infer("echo", [tensor(ROW)])
        other.start_stream(idle)
        assert until(lambda: port.unfinished == 1)
        assert until(lambda: port.running.do(lambda: opened_streams(port)) == 2)
        port.running.do(port.listener.drain)
        assert idle.next()[1].status() == "StatusCode.UNAVAILABLE"
        home.hold.clear()
        home.release.set()
        assert callback.next()[0].as_numpy("data").tolist() == ROW.tolist()
        assert callback.next()[1].status() == "StatusCode.UNAVAILABLE"
        assert until(lambda: not port.listener.connections)
        for one in (client, other):
            one.stop_stream()


def opened_streams(port):
    return sum(connection.session.streams for connection in port.listener.connections)


def test_a_silent_stream_is_asked_whether_its_client_is_there():
    """A client that answers keeps its stream; one that does not is told to go away."""
    callback = Callback()
    with grpc_gateway(idle_s=10.0) as port, triton.InferenceServerClient(port.address) as client:
        client.start_stream(callback)
        assert until(lambda: port.running.do(lambda: opened_streams(port)) == 1)
        (connection,) = port.listener.connections
        heard_s = connection._heard_s
        now_s = time.monotonic()
        port.running.do(port.listener.sweep, now_s + 11)
        assert until(lambda: connection._heard_s > heard_s)
        client.async_stream_infer("echo", [tensor(ROW)])
        assert callback.next()[1] is None
        port.running.do(port.listener.sweep, time.monotonic() + 100)
        assert callback.next()[1].status() == "StatusCode.UNAVAILABLE"
        client.stop_stream()


def connected(sock, values=None):
    """The client of a socket on which stream 1 is open."""
    client = Client()
    sock.sendall(client.hello(values) + client.headers(1, STREAM))
    return client


def read(sock, client, wanted):
    """Frames of stream 1 until one is as wanted."""
    found = []
    while not any(map(wanted, found)):
        data = sock.recv(65536)
        assert data, found
        found += [frame for frame in client.read(data) if frame[2] == 1]
    return found


def is_end(frame):
    return bool(frame[1] & frames.END_STREAM)


def code_of(found):
    (end,) = filter(is_end, found)
    return int(dict(end[3])[b"grpc-status"])


def framed(request, flag=False):
    data = request.SerializeToString()
    return calls.prefix(len(data), is_compressed=flag) + data


def test_a_client_that_does_not_take_its_answers(port, monkeypatch):
    """No more requests are taken of it; they come when it takes what there is."""
    monkeypatch.setattr(streams, "MAX_IN_FLIGHT", 2)
    with socket.create_connection(("127.0.0.1", port.port), timeout=20) as sock:
        client = connected(sock, {Setting.INITIAL_WINDOW_SIZE: 10})
        before = port.responses.get(200, 0)
        sock.sendall(client.data(1, b"".join([framed(raw_request(ROW))] * 30)))
        assert until(lambda: port.responses.get(200, 0) > before)
        time.sleep(0.05)
        assert port.responses[200] - before <= 4
        sock.sendall(frames.window_update(1, 1_000_000))
        found = read(sock, client, is_end)
        assert code_of(found) == 0
        assert port.responses[200] - before == 30


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (framed(raw_request(ROW), flag=True), calls.Code.INTERNAL),
        (framed(raw_request(ROW))[:-1], calls.Code.INVALID_ARGUMENT),
    ],
)
def test_what_is_no_series_of_messages(port, body, status):
    """The stream ends with a status."""
    with socket.create_connection(("127.0.0.1", port.port), timeout=20) as sock:
        client = connected(sock)
        sock.sendall(client.data(1, body))
        assert code_of(read(sock, client, is_end)) == status


def test_a_message_that_does_not_arrive():
    """After the time that a request has to arrive the stream ends; until then it may rest."""
    with (
        grpc_gateway(request_s=10.0) as port,
        socket.create_connection(("127.0.0.1", port.port), timeout=20) as sock,
    ):
        client = connected(sock)
        sock.sendall(client.data(1, framed(raw_request(ROW)), end=False))
        read(sock, client, lambda frame: frame[0] is FrameType.DATA)
        now_s = time.monotonic()
        for later_s in (0, 20):
            port.running.do(port.listener.sweep, now_s + later_s)
        assert port.running.do(lambda: opened_streams(port)) == 1
        sock.sendall(client.data(1, b"\0\0", end=False))
        assert until(lambda: held_bytes(port) == 2)
        for later_s in (21, 40):
            port.running.do(port.listener.sweep, now_s + later_s)
        assert code_of(read(sock, client, is_end)) == calls.Code.DEADLINE_EXCEEDED


def held_bytes(port):
    return port.running.do(
        lambda: sum(one.session.incoming.held_bytes for one in port.listener.connections)
    )


def test_a_stream_needs_the_token_as_calls_do():
    """It is answered at its head."""
    with grpc_gateway() as port:
        port.listener.token = Token(b"secret")
        with triton.InferenceServerClient(port.address) as client:
            for headers, status in (
                ({}, "StatusCode.UNAUTHENTICATED"),
                ({"authorization": "Bearer secret"}, None),
            ):
                callback = Callback()
                client.start_stream(callback, headers=headers)
                try:
                    client.async_stream_infer("echo", [tensor(ROW)])
                except InferenceServerException:
                    assert status, "the stream is not valid any more only where it was refused"
                _, error = callback.next()
                assert (error and error.status()) == status
                client.stop_stream()
