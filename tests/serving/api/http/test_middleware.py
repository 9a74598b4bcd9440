"""The gate of the query port over a real gateway: access and compressed bodies, on kept-alive connections."""

import contextlib
import gc
import gzip
import http.client
import json
import socket
import time
import zlib

import numpy as np
import pytest
import tritonclient.http as triton

from serving.api.http.access import Access, Token
from serving.api.http.messages import Response
from serving.api.http.middleware import Middleware
from serving.api.http.router import Router
from serving.api.open_inference.routes import OpenInferenceRoutes
from serving.api.tensorflow.rest_routes import TensorFlowRoutes
from serving.api.transport.buffered_bytes import BufferedBytes
from serving.errors import BodyTooLarge
from tests.fakes.replicas import FakeHome
from tests.fakes.running import gateway
from tests.fakes.servables import counted

LIMIT = 300_000
INFER = "/v2/models/echo/infer"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextlib.contextmanager
def gated(access=None, home=None, gzip_min_bytes=1000, values=None, *, held=None, is_timed=False):
    with gateway({"server.max_body_bytes": LIMIT} | (values or {}), home) as running:
        routes = Router(
            oip=OpenInferenceRoutes(running.engine),
            tfs=TensorFlowRoutes(running.engine, metrics=lambda: iter([b"a_metric 1\n" * 1000])),
            otherwise=Faulty(),
        )
        gate = Middleware(
            routes,
            access or Access(),
            max_body_bytes=LIMIT,
            gzip_min_bytes=gzip_min_bytes,
            is_timed=is_timed,
            buffered=held,
        )
        running.listener.routes = gate
        running.listener.refusal = gate.refusal
        running.listener.buffered = gate.buffered
        yield running
        running.do(gate.close)


class Faulty:
    """Routes with a fault."""

    def handle(self, head, body, connection):
        if head.path == "/fault":
            raise RuntimeError("a fault of the server")
        return Response(200, b"", body)


@pytest.fixture(scope="module")
def running():
    with gated() as it:
        yield it


def body(columns=1, **parameters):
    tensor = {"name": "data", "shape": [1, columns], "datatype": "UINT8", "data": [7] * columns}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def until(condition):
    end_s = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def test_refused_bodies_are_let_go(running):
    """No cycle of an error and its traceback keeps what was refused until the collector comes."""

    def of_refusals():
        return [one for one in gc.get_objects() if isinstance(one, BodyTooLarge)]

    gc.collect()
    before = len(of_refusals())  # of other tests, whose errors somebody has
    gc.disable()
    try:
        for _ in range(3):
            bomb, fields = gzip.compress(bytes(2 * LIMIT)), {"Content-Encoding": "gzip"}
            assert running.request("POST", INFER, bomb, fields)[0] == 413
        until(lambda: len(of_refusals()) <= before)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_requests(running, encoding, compress):
    """They are read as if they had come as they were, small and large, by every protocol."""
    client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    with contextlib.closing(client):
        for columns in (1, 20_000, 1):
            client.request("POST", INFER, compress(body(columns)), {"Content-Encoding": encoding})
            response = client.getresponse()
            assert response.status == 200
            assert json.load(response)["outputs"][0]["data"] == [7] * columns
        rows = compress(b'{"instances": [[7]]}')
        path = "/v1/models/echo:predict"
        client.request("POST", path, rows, {"Content-Encoding": encoding})
        assert json.load(client.getresponse()) == {"predictions": [[7]]}


def test_compressed_answers(running):
    """Long ones are compressed where the client asks; short ones and those of others are not."""
    client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    with contextlib.closing(client):
        for asked, columns, is_compressed in (
            ("gzip, deflate", 5000, True),
            ("gzip, deflate", 1, False),
            ("gzip, deflate", 5000, True),
            ("identity", 5000, False),
        ):
            client.request("POST", INFER, body(columns), {"Accept-Encoding": asked})
            response = client.getresponse()
            data = response.read()
            assert (response.headers["Content-Encoding"] == "gzip") is is_compressed
            if is_compressed:
                assert response.headers["Vary"] == "Accept-Encoding"
                assert len(data) < 1000
                data = gzip.decompress(data)
            assert json.loads(data)["outputs"][0]["data"] == [7] * columns
        path = "/monitoring/prometheus/metrics"  # answered at once, not by a replica
        client.request("GET", path, headers={"Accept-Encoding": "gzip"})
        assert gzip.decompress(client.getresponse().read()) == b"a_metric 1\n" * 1000


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_tritons_client(running, algorithm):
    """Binary tensors compressed both ways; the length of the header is that of the plain body."""
    array = np.arange(20_000, dtype=np.uint8).reshape(2, -1)
    given = triton.InferInput("data", list(array.shape), "UINT8")
    given.set_data_from_numpy(array)
    with triton.InferenceServerClient(f"127.0.0.1:{running.port}") as client:
        for _ in range(2):
            answer = client.infer(
                "echo",
                [given],
                request_compression_algorithm=algorithm,
                response_compression_algorithm="gzip",
            )
            assert (answer.as_numpy("data") == array).all()


@pytest.mark.parametrize(
    ("data", "encoding", "status"),
    [
        (gzip.compress(bytes(LIMIT + 1), mtime=0), "gzip", 413),
        (gzip.compress(bytes(100_000_000), mtime=0), "gzip", 413),
        (gzip.compress(body(), mtime=0)[:-1], "gzip", 400),
        (b"{}", "gzip", 400),
        (gzip.compress(b"{}", mtime=0), "gzip", 400),
        (body(), "br", 400),
        (gzip.compress(gzip.compress(body(), mtime=0), mtime=0), "gzip, gzip", 400),
    ],
)
def test_what_cannot_be_decompressed(running, data, encoding, status):
    """It is refused, bombs by the limit of bodies."""
    given, _, answer = running.request("POST", INFER, data, {"Content-Encoding": encoding})
    assert given == status
    assert json.loads(answer)["error"]


def test_faults_behind_a_compressed_body(running, caplog):
    """They are answered 500 and logged, as without compression."""
    headers = {"Content-Encoding": "gzip"}
    assert running.request("POST", "/fault", gzip.compress(b"x", mtime=0), headers)[0] == 500
    assert "a fault of the server" in caplog.text
    assert running.request("POST", "/other", gzip.compress(b"x", mtime=0), headers)[2] == b"x"


def test_clients_that_leave():
    """Amid an inference and amid the work of a thread: each request is counted once, nothing is left."""
    home = FakeHome()
    with gated(home=home) as running:
        data = gzip.compress(body(5000))
        message = (
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\n"
            b"Accept-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
        )
        home.hold.set()
        with socket.create_connection(("127.0.0.1", running.port), 5) as client:
            client.sendall(message)
            until(lambda: running.do(lambda: running.engine.inflight_count) == 1)
        until(lambda: counted(running.engine) == {499: 1})
        home.release.set()
        home.hold.clear()
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", running.port), 5) as client:
                client.sendall(message)
        until(lambda: not running.listener.connections)
        until(lambda: running.do(lambda: running.engine.inflight_count) == 0)
        assert sum(counted(running.engine).values()) <= 21
        assert running.request("POST", INFER, body())[0] == 200


def test_a_token():
    """Asked for with every request, also on a connection whose heads are known."""
    with gated(Access(token=Token(b"secret"))) as running:
        client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
        with contextlib.closing(client):
            for headers, status in (
                ({}, 401),
                ({"Authorization": "Bearer secret"}, 200),
                ({"Authorization": "Bearer secret"}, 200),
                ({"Authorization": "Bearer other"}, 401),
                ({}, 401),
            ):
                client.request("POST", INFER, body(), headers)
                response = client.getresponse()
                response.read()
                assert response.status == status
        assert counted(running.engine) == {200: 2}
        assert running.request("GET", "/v2/health/ready")[0] == 200
        assert running.request("GET", "/v1/models/echo")[0] == 401


def test_what_a_compressed_body_becomes_is_counted():
    """Until it is answered, or its client has left; where there is no room it is refused, small ones are not."""
    home = FakeHome()
    held = BufferedBytes(200_000)
    with gated(home=home, held=held) as running:
        tensor = {"name": "data", "shape": [1, 120_000], "datatype": "UINT8"}
        header = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": 120_000}}]})
        data = header.encode() + bytes(120_000)
        packed = gzip.compress(data, mtime=0)
        gzipped = {"Content-Encoding": "gzip"}
        binary = gzipped | {"Inference-Header-Content-Length": str(len(header))}
        lines = [f"{name}: {value}\r\n" for name, value in binary.items()]
        message = b"POST %b HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (
            INFER.encode(), "".join(lines).encode(), len(packed), packed,
        )  # fmt: skip
        home.hold.set()
        with socket.create_connection(("127.0.0.1", running.port), 5) as client:
            client.sendall(message)
            until(lambda: running.do(lambda: held.bytes) == len(data))
            status, fields, answer = running.request("POST", INFER, packed, binary)
            assert (status, fields["Retry-After"]) == (503, "1")
            assert b"server.max_buffered_mb" in answer
        until(lambda: running.do(lambda: held.bytes) == 0)
        home.release.set()
        home.hold.clear()
        small = gzip.compress(body(), mtime=0)
        for sent, headers in ((packed, binary), (small, gzipped)):
            answer = running.request("POST", INFER, sent, headers)
            assert answer[0] == 200, answer
        assert running.do(lambda: held.bytes) == 0


def test_the_body_of_a_stranger_is_not_held():
    """The token is looked at when the head is complete; a client that waits for leave does not get it."""
    held = BufferedBytes()
    with gated(Access(token=Token(b"secret")), held=held) as running:
        head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n"
        for token, counted in ((b"", 0), (b"Authorization: Bearer secret\r\n", 150_000)):
            with socket.create_connection(("127.0.0.1", running.port), 5) as client:
                client.sendall(head + token + b"Expect: 100-continue\r\n\r\n")
                answer = client.recv(65536)
                assert answer.startswith(b"HTTP/1.1 100 " if token else b"HTTP/1.1 401 ")
            with socket.create_connection(("127.0.0.1", running.port), 5) as client:
                client.sendall(head + token + b"\r\n" + bytes(150_000))
                if counted:
                    until(lambda: running.do(lambda: held.bytes) == 150_000)
                else:
                    client.sendall(bytes(50_000))
                    assert client.recv(65536).startswith(b"HTTP/1.1 401 ")
                    assert running.do(lambda: held.bytes) == 0
            until(lambda: running.do(lambda: held.bytes) == 0)


def test_fields_of_origins_and_traces():
    """They come with every answer, errors included, once each."""
    with gated(Access(origins=["https://a.example"])) as running:
        client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
        origin = {"Origin": "https://a.example"}
        with contextlib.closing(client):
            for path, headers in (
                (INFER, origin),
                (INFER, origin),
                ("/v2/models/nobody/infer", origin),
                (INFER, origin | {"Accept-Encoding": "gzip"}),
                (INFER, origin | {"traceparent": TRACE}),
                (INFER, origin | {"traceparent": TRACE}),
            ):
                client.request("POST", path, body(5000), headers)
                response = client.getresponse()
                response.read()
                allowed = response.headers.get_all("Access-Control-Allow-Origin")
                assert allowed == ["https://a.example"]
                traces = [TRACE] if "traceparent" in headers else None
                assert response.headers.get_all("traceparent") == traces
        question = origin | {"Access-Control-Request-Method": "POST"}
        status, head, _ = running.request("OPTIONS", INFER, headers=question)
        assert (status, head["Access-Control-Allow-Methods"]) == (200, "GET, POST")


def test_heads_with_a_trace_are_not_remembered(running):
    """No two are equal: they would push out those that repeat."""
    before = len(running.listener.heads)
    for number in range(5):
        trace = TRACE.replace("b7ad", f"000{number}")
        running.request("POST", INFER, body(), {"traceparent": trace})
    assert len(running.listener.heads) == before


def timing(head):
    """Stages of a field Server-Timing, in seconds."""
    pairs = [part.split(";dur=") for part in head["Server-Timing"].split(", ")]
    return {name: float(text) / 1e3 for name, text in pairs}


@pytest.mark.parametrize("capacity_mb", [0, 1])
def test_timing(capacity_mb):
    """Stages and their total, for every protocol and every form of answer; a kept answer has no stages."""
    home = FakeHome()
    home.exec_s = 0.02
    values = {"cache.capacity_mb": capacity_mb, "batching.timeout_us": 10_000}
    with gated(home=home, values=values, is_timed=True) as running:
        gzipped = {"Accept-Encoding": "gzip"}
        rows = b'{"instances": [[9]]}'
        for path, data, headers in (
            (INFER, body(), {}),
            (INFER, body(5000), gzipped),
            ("/v1/models/echo:predict", rows, {}),
        ):
            status, head, _ = running.request("POST", path, data, headers)
            assert status == 200
            found = timing(head)
            assert list(found) == ["total", "queue", "input", "exec", "output"]
            assert found["exec"] == pytest.approx(0.02)
            assert found["queue"] >= 0.009
            assert found["queue"] + found["exec"] <= found["total"] < 5
        status, head, _ = running.request("POST", INFER, body())
        assert ("exec" in timing(head)) is (capacity_mb == 0)
        assert list(timing(running.request("GET", "/v2")[1])) == ["total"]


def test_timing_of_a_refusal():
    """What was in no batch has no stages, whatever was answered before it."""
    home = FakeHome()
    with gated(home=home, is_timed=True) as running:
        assert running.request("POST", INFER, body())[0] == 200
        home.hold.set()
        status, head, _ = running.request("POST", INFER, body(timeout=50_000))
        home.release.set()
        assert status == 504
        assert list(timing(head)) == ["total"]


def test_no_timing_unless_it_is_wanted(running):
    """What others do to the server is nobody's business."""
    assert "Server-Timing" not in running.request("POST", INFER, body())[1]
