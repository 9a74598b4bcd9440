"""Open Inference Protocol v2 over REST: metadata, health, inference in every form, and errors."""

import concurrent.futures
import json
import socket
import struct
import time

import numpy as np
import pytest

from serving.api.open_inference.request_decoder import RequestDecoder
from serving.errors import InvalidRequest
from serving.values import Signature, TensorSpec
from tests.fakes.replicas import FakeHome
from tests.fakes.running import gateway

INFER = "/v2/models/echo/infer"


@pytest.fixture(scope="module")
def running():
    with gateway({"batching.max_size": 4, "server.max_body_bytes": 2_000_000}) as it:
        yield it


def request_json(data=None, shape=(1, 4), **more):
    item = {"name": "data", "shape": list(shape), "datatype": "UINT8"}
    if data is not None:
        item["data"] = data
    return {"inputs": [item | more.pop("item", {})], **more}


def binary(header, tail, length=None):
    text = json.dumps(header).encode()
    fields = {"Inference-Header-Content-Length": str(len(text) if length is None else length)}
    return text + tail, fields


def binary_input(size, shape):
    return {
        "name": "data",
        "shape": list(shape),
        "datatype": "UINT8",
        "parameters": {"binary_data_size": size},
    }


def error_of(running, body, headers=None, path=INFER):
    status, _, answer = running.request("POST", path, body, headers)
    return status, json.loads(answer)["error"]


def test_health_and_metadata(running):
    """Both health routes, server and model metadata answer in the protocol's shapes."""
    assert running.json("GET", "/v2/health/live") == (200, {"live": True})
    assert running.json("GET", "/v2/health/ready") == (200, {"ready": True})
    assert running.json("GET", "/v2/models/echo/ready") == (200, {"name": "echo", "ready": True})
    status, server = running.json("GET", "/v2")
    assert status == 200
    assert server["extensions"] == ["binary_tensor_data", "classification", "schedule_policy"]
    status, model = running.json("GET", "/v2/models/echo/versions/1")
    assert status == 200
    assert model["name"] == "echo"
    assert model["inputs"] == [{"name": "data", "datatype": "UINT8", "shape": [-1, -1]}]


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2, 3, 4]], [[1, 2], [3, 4]]])
def test_json_data_flat_or_nested(running, data):
    """Flat and nested data mean the same row-major tensor."""
    status, answer = running.json("POST", INFER, request_json(data, id="7"))
    assert status == 200
    assert answer["model_name"] == "echo"
    assert answer["model_version"] == "1"
    assert answer["id"] == "7"
    assert answer["outputs"] == [
        {"name": "data", "datatype": "UINT8", "shape": [1, 4], "data": [1, 2, 3, 4]}
    ]


def test_large_json_goes_to_the_replica(running):
    """Above 64 KiB the JSON is not decoded on the loop; the fake replica shows what it got."""
    values = list(range(200)) * 200
    body = json.dumps(request_json(values, shape=(1, 40000))).encode()
    assert len(body) > 65536
    status, _, answer = running.request("POST", INFER, body)
    assert status == 500  # this replica answers with its input, which is no tensors frame
    assert "frame" in json.loads(answer)["error"]


def test_large_json_is_decoded_for_a_replica_that_cannot():
    """A replica that does not promise to read JSON gets tensors, however large the request."""
    home = FakeHome()
    home.features = ("windows",)
    values = list(range(200)) * 200
    with gateway({}, home) as running:
        status, answer = running.json("POST", INFER, request_json(values, shape=(1, 40000)))
    assert status == 200
    assert answer["outputs"][0]["data"] == values


@pytest.mark.parametrize("wanted", ["default", "all", "named", "overridden"])
def test_binary_in_any_form_out(running, wanted):
    """The request decides the form of the outputs; an output's own wish wins."""
    header = {"inputs": [binary_input(4, (1, 4))]}
    if wanted != "default":
        header["parameters"] = {"binary_data_output": True}
    if wanted == "named":
        header["outputs"] = [{"name": "data", "parameters": {"binary_data": True}}]
    if wanted == "overridden":
        header["outputs"] = [{"name": "data", "parameters": {"binary_data": False}}]
    body, fields = binary(header, b"\x01\x02\x03\x04")
    status, head, answer = running.request("POST", INFER, body, fields)
    assert status == 200
    if wanted in {"default", "overridden"}:
        assert json.loads(answer)["outputs"][0]["data"] == [1, 2, 3, 4]
        assert "Inference-Header-Content-Length" not in head
        return
    length = int(head["Inference-Header-Content-Length"])
    assert head["Content-Type"] == "application/octet-stream"
    assert json.loads(answer[:length])["outputs"][0]["parameters"] == {"binary_data_size": 4}
    assert answer[length:] == b"\x01\x02\x03\x04"


def test_raw_request(running):
    """A header length of 0 makes the whole body the one tensor, and the answer binary."""
    status, head, answer = running.request(
        "POST", INFER, b"abcdef", {"Inference-Header-Content-Length": "0"}
    )
    assert status == 200
    length = int(head["Inference-Header-Content-Length"])
    assert json.loads(answer[:length])["outputs"][0]["shape"] == [1, 6]
    assert answer[length:] == b"abcdef"


def test_zero_elements(running):
    """A tensor without elements is a tensor."""
    status, answer = running.json("POST", INFER, request_json([], shape=(1, 0)))
    assert status == 200
    assert answer["outputs"][0]["shape"] == [1, 0]


def test_a_request_above_the_batch_size_is_split_and_joined(running):
    """Ten items over batches of four come back as one answer, in order."""
    data = np.arange(30, dtype=np.uint8)
    header = {"inputs": [binary_input(30, (10, 3))]}
    body, fields = binary(header, data.tobytes())
    status, _, answer = running.request("POST", INFER, body, fields)
    assert status == 200
    output = json.loads(answer)["outputs"][0]
    assert output["shape"] == [10, 3]
    assert output["data"] == data.tolist()


@pytest.mark.parametrize(
    ("phrase", "body"),
    [
        ("failed to parse", b"{nonsense"),
        ("not a JSON object", b"[1]"),
        ("no array `inputs`", b"{}"),
        ("Input must set only one", json.dumps(request_json()).encode()),
        ("data has 3 elements", json.dumps(request_json([1, 2, 3])).encode()),
        ("ragged", json.dumps(request_json([[1, 2], [3]])).encode()),
        ("UINT8 takes 0 to 255", json.dumps(request_json([1, 2, 3, 256])).encode()),
        ("takes integers", json.dumps(request_json([1, 2, 3, 0.5])).encode()),
        ("takes integers", json.dumps(request_json([True, False, True, True])).encode()),
        ("invalid shape", json.dumps(request_json([1], shape=(-1, 1))).encode()),
        ("invalid shape", json.dumps(request_json([1], shape=(2**39, 2**39))).encode()),
        ("shape is [4]", json.dumps(request_json([1, 2, 3, 4], shape=(4,))).encode()),
        ("datatype is 'INT9'", json.dumps(request_json([1], item={"datatype": "INT9"})).encode()),
        ("datatype is FP32", json.dumps(
            request_json([1], shape=(1, 1), item={"datatype": "FP32"})).encode()),
        ("takes exactly data", json.dumps(
            request_json([1], shape=(1, 1), item={"name": "dada"})).encode()),
        ("requested output 'x'", json.dumps(
            request_json([1], shape=(1, 1), outputs=[{"name": "x"}])).encode()),
        ("id is 5", json.dumps(request_json([1], shape=(1, 1), id=5)).encode()),
        ("timeout is -1", json.dumps(
            request_json([1], shape=(1, 1), parameters={"timeout": -1})).encode()),
    ],
)  # fmt: skip
def test_bad_json(running, phrase, body):
    """What is wrong is said, with status 400."""
    status, text = error_of(running, body)
    assert status == 400
    assert phrase in text


@pytest.mark.parametrize(
    ("phrase", "header", "tail", "length"),
    [
        ("Unable to parse Inference-Header", {}, b"", "abc"),
        ("Unable to parse Inference-Header", {}, b"", "-1"),
        ("expected 0 to", {}, b"", 1000),
        ("expecting 1 additional bytes", {"inputs": [binary_input(4, (1, 4))]}, b"123", None),
        ("unexpected additional input", {"inputs": [binary_input(4, (1, 4))]}, b"12345", None),
        ("but shape [1, 4] of UINT8 takes 4", {"inputs": [binary_input(3, (1, 4))]}, b"123", None),
        ("Input must set only one", {"inputs": [{**binary_input(3, (1, 3)), "data": [1]}]}, b"", None),
        ("binary_data_size is -4", {"inputs": [binary_input(-4, (1, 4))]}, b"1234", None),
        ("first dimension", {"inputs": [binary_input(4, (1, 4)), binary_input(4, (1, 4))]}, b"", None),
    ],
)  # fmt: skip
def test_bad_binary(running, phrase, header, tail, length):
    """Sizes that disagree are refused before anything is executed."""
    body, fields = binary(header, tail, length)
    status, text = error_of(running, body, fields)
    assert status == 400
    assert phrase in text or "takes exactly" in text


def test_binary_size_without_the_header(running):
    """A body with a binary tail but no header length is read as JSON and refused."""
    body, _ = binary({"inputs": [binary_input(4, (1, 4))]}, b"\x01\x02\x03\x04")
    status, text = error_of(running, body)
    assert status == 400
    assert "Inference-Header-Content-Length" in text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v2/models/other/infer", 404),
        ("POST", "/v2/models/echo/versions/9/infer", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/other/ready", 404),
        ("GET", "/nothing", 404),
        ("GET", INFER, 405),
        ("POST", "/v2/health/live", 405),
        ("DELETE", "/v2", 405),
    ],
)
def test_unknown_things_and_wrong_methods(running, method, path, status):
    """Unknown models and paths are 404, wrong methods 405, all with a text."""
    body = json.dumps(request_json([1], shape=(1, 1))) if method == "POST" else None
    given, answer = running.request(method, path, body)[::2]
    assert given == status
    assert json.loads(answer)["error"]


def test_body_over_the_limit(running):
    """413 at the head, before the body is read."""
    with socket.create_connection(("127.0.0.1", running.port), 5) as client:
        client.sendall(
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n" % INFER.encode()
        )
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_chunked_body_and_its_limit(running):
    """Chunked bodies are read, and bounded as well."""
    body = json.dumps(request_json([1, 2, 3, 4])).encode()
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode()
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7)
    )
    with socket.create_connection(("127.0.0.1", running.port), 5) as client:
        client.sendall(head + chunks + b"0\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        client.sendall(head)
        for _ in range(4):
            client.sendall(b"%x\r\n%b\r\n" % (1_000_000, b"x" * 1_000_000))
            time.sleep(0.01)
            client.settimeout(0.05)
            try:
                answer = client.recv(65536)
                break
            except TimeoutError:
                client.settimeout(5)
        else:
            answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413 ")


def read_answers(client, count):
    """Status lines and bodies of answers with a Content-Length."""
    data = b""
    answers = []
    while len(answers) < count:
        more = client.recv(65536)
        assert more, f"closed after {answers}"
        data += more
        while b"\r\n\r\n" in data:
            head, rest = data.split(b"\r\n\r\n", 1)
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            if len(rest) < length:
                break
            answers.append((head, rest[:length]))
            data = rest[length:]
    return answers


def test_pipelined_requests_are_answered_in_order(running):
    """Several requests in one packet, and one byte at a time, give the answers of single requests, in order."""
    requests = b""
    for value in (1, 2, 3):
        body = json.dumps(request_json([value], shape=(1, 1))).encode()
        requests += b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
            INFER.encode(), len(body), body,
        )  # fmt: skip
    for pieces in ([requests], [requests[i : i + 1] for i in range(len(requests))]):
        with socket.create_connection(("127.0.0.1", running.port), 5) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                client.sendall(piece)
            answers = read_answers(client, 3)
        assert [json.loads(body)["outputs"][0]["data"] for _, body in answers] == [[1], [2], [3]]


def test_a_client_that_does_not_read_is_not_read_from(running):
    """Answers that nobody reads stop the reading of requests, and nothing is lost once it goes on."""
    request = b"GET /v2/models/echo HTTP/1.1\r\nHost: x\r\n\r\n"
    requests = request * 100
    sent_bytes = 0
    blocked = []
    with socket.socket() as client:
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # what grows by itself may hold it all
            client.setsockopt(socket.SOL_SOCKET, buffer, 1 << 16)
        client.settimeout(0.3)
        client.connect(("127.0.0.1", running.port))
        end_s = time.monotonic() + 120
        # With both windows at zero, TCP probes at 0.2 s and then ever later: a stall alone says nothing.
        while not blocked and time.monotonic() < end_s:
            try:
                while sent_bytes < 80_000_000:  # more than the kernel holds at the listener's side
                    sent_bytes += client.send(requests[sent_bytes % len(request) :])
                pytest.fail("the listener reads on")
            except TimeoutError:
                blocked = running.do(
                    lambda: [c for c in running.listener.connections if c._blocked]
                )
        (connection,) = blocked
        assert running.do(connection._transport.get_write_buffer_size) < 1_000_000
        client.settimeout(5)
        answers = 0
        rest = b""
        while answers < sent_bytes // len(request):
            data = rest + client.recv(1 << 20)
            answers += data.count(b"HTTP/1.1 200 OK")
            rest = data[-14:]
    assert running.json("GET", "/v2/health/live")[0] == 200


def test_repeated_heads_take_the_short_way_and_stay_right(running):
    """The same head with other bodies, split anywhere, is answered from its own body every time."""
    with socket.create_connection(("127.0.0.1", running.port), 5) as client:
        for cut in range(0, 180, 9):
            body = json.dumps(request_json([cut % 9], shape=(1, 1))).encode()
            request = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
                INFER.encode(), len(body), body,
            )  # fmt: skip
            client.sendall(request[:cut])
            time.sleep(0.002)
            client.sendall(request[cut:])
            ((head, answer),) = read_answers(client, 1)
            assert head.startswith(b"HTTP/1.1 200")
            assert json.loads(answer)["outputs"][0]["data"] == [cut % 9]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nBad Field\r\n\r\n",
    ],
)
def test_garbage_is_answered_and_closed(running, garbage):
    """What is not HTTP gets 400 and the end of the connection; the server lives on."""
    with socket.create_connection(("127.0.0.1", running.port), 5) as client:
        client.sendall(garbage)
        answer = b""
        while more := client.recv(65536):
            answer += more
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert running.json("GET", "/v2/health/live")[0] == 200


@pytest.mark.parametrize("timeout", ["NaN", "Infinity", "1e400", "1" + "0" * 400, "0", "true"])
def test_a_timeout_that_is_no_time_is_refused(running, timeout):
    """A request's time limit is a finite number of microseconds, and a wrong one harms nobody else."""
    body = json.dumps(request_json([1], shape=(1, 1), parameters={"timeout": "T"}))
    status, text = error_of(running, body.replace('"T"', timeout))
    assert status == 400
    assert "timeout" in text
    assert running.json("POST", INFER, request_json([1], shape=(1, 1)))[0] == 200


def test_head_gets_no_body_and_the_connection_stays_in_step(running):
    """The answer to HEAD has a head alone, and the next answer is whole."""
    with socket.create_connection(("127.0.0.1", running.port), 5) as client:
        client.sendall(b"HEAD /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(65536).endswith(b"\r\n\r\n")
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answers(client, 1)[0][1] == b'{"live":true}'


def test_an_offer_to_upgrade_is_not_taken_up(running):
    """A client that offers HTTP/2 on plain text is answered in HTTP/1.1, again and again."""
    request = (
        b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", running.port), 5) as client:
        for _ in range(3):
            client.sendall(request)
            assert read_answers(client, 1)[0][1] == b'{"live":true}'


def test_http_1_0_keep_alive_is_said(running):
    """An HTTP/1.0 client that asks to keep the connection is told that it is kept."""
    with socket.create_connection(("127.0.0.1", running.port), 5) as client:
        for _ in range(2):
            client.sendall(b"GET /v2/health/live HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
            head, _ = read_answers(client, 1)[0]
            assert b"Connection: keep-alive" in head


def test_head_over_the_limit(running):
    """A head above 64 KiB is refused."""
    with socket.create_connection(("127.0.0.1", running.port), 5) as client:
        client.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\nX-Long: ")
        time.sleep(0.05)
        client.sendall(b"a" * 70_000)
        assert client.recv(65536).startswith(b"HTTP/1.1 431 ")


def test_connection_close_and_http_1_0(running):
    """The client's wish to close is honoured, and HTTP/1.0 closes by itself."""
    for head in (
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /v2 HTTP/1.0\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", running.port), 5) as client:
            client.sendall(head)
            answer = b""
            while more := client.recv(65536):
                answer += more
        assert b"200 OK" in answer


def test_expect_100_continue(running):
    """A client that waits for 100 Continue gets it."""
    body = json.dumps(request_json([1], shape=(1, 1))).encode()
    with socket.create_connection(("127.0.0.1", running.port), 5) as client:
        client.sendall(
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n"
            % (INFER.encode(), len(body))
        )
        assert client.recv(100).startswith(b"HTTP/1.1 100 Continue")
        client.sendall(body)
        assert client.recv(65536).startswith(b"HTTP/1.1 200")


def test_full_queue_answers_429_with_retry_after():
    """When the queue holds its limit the next request is refused at once and told when to come again."""
    home = FakeHome()
    home.hold.set()
    body = json.dumps(request_json([1], shape=(1, 1)))
    settings = {"scheduling.queue_capacity": 1, "batching.max_size": 1}
    with gateway(settings, home) as running, concurrent.futures.ThreadPoolExecutor(8) as pool:
        waiting = []
        (served,) = running.engine.deployments()
        for queued in (0, 0, 1):  # one runs, one is with the replica
            waiting.append(pool.submit(running.request, "POST", INFER, body))
            expected = (len(waiting), queued)
            until_s = time.monotonic() + 10
            while expected != running.do(
                lambda: (running.engine.inflight_count, served.dispatcher.waiting_of(served.id))
            ):
                assert time.monotonic() < until_s
                time.sleep(0.005)
        status, head, answer = running.request("POST", INFER, body)
        assert status == 429
        assert int(head["Retry-After"]) >= 1
        assert "queue" in json.loads(answer)["error"]
        home.hold.clear()
        home.release.set()
        assert [w.result(10)[0] for w in waiting] == [200, 200, 200]


def test_no_request_waits_for_longer_than_it_may():
    """A client that asks for an hour is answered as one that asks for the longest deadline there is."""
    home = FakeHome()
    home.hold.set()
    with gateway({"scheduling.max_deadline_s": 0.05}, home) as running:
        body = json.dumps(request_json([1], shape=(1, 1), parameters={"timeout": 3_600_000_000}))
        assert error_of(running, body)[0] == 504


def test_deadline_is_answered_504():
    """A request whose own timeout passes is answered, though its replica hangs."""
    home = FakeHome()
    home.hold.set()
    with gateway({}, home) as running:
        body = json.dumps(request_json([1], shape=(1, 1), parameters={"timeout": 50_000}))
        assert error_of(running, body)[0] == 504
        home.hold.clear()
        home.release.set()
        status, _ = running.json("POST", INFER, request_json([1], shape=(1, 1)))
        assert status == 200


def test_a_client_that_goes_away_drops_its_work():
    """Queued work of a closed connection never reaches a replica."""
    home = FakeHome()
    home.hold.set()
    body = json.dumps(request_json([1], shape=(1, 1))).encode()
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (
        INFER.encode(),
        len(body),
    )
    with gateway({"batching.max_size": 1}, home) as running:
        clients = [socket.create_connection(("127.0.0.1", running.port), 5) for _ in range(6)]
        for client in clients:
            client.sendall(head + body)
        until_s = time.monotonic() + 5
        while running.do(lambda: running.engine.inflight_count) < 6 and time.monotonic() < until_s:
            time.sleep(0.01)
        for client in clients:
            client.close()
        while running.do(lambda: running.engine.inflight_count) and time.monotonic() < until_s:
            time.sleep(0.01)
        assert running.do(lambda: running.engine.inflight_count) == 0
        home.hold.clear()
        home.release.set()
        time.sleep(0.1)
        assert sum(len(r.batches) for r in home.replicas) <= 2


def test_a_real_client_json_and_binary(running):
    """Triton's own HTTP client works against the server in both forms."""
    client_module = pytest.importorskip("tritonclient.http")
    client = client_module.InferenceServerClient(f"127.0.0.1:{running.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert client.get_model_metadata("echo")["name"] == "echo"
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for binary_in in (True, False):
        for binary_out in (True, False):
            given = client_module.InferInput("data", list(array.shape), "UINT8")
            given.set_data_from_numpy(array, binary_data=binary_in)
            wanted = client_module.InferRequestedOutput("data", binary_data=binary_out)
            result = client.infer("echo", [given], outputs=[wanted], request_id="abc")
            assert result.get_response()["id"] == "abc"
            np.testing.assert_array_equal(result.as_numpy("data"), array)
    with pytest.raises(client_module.InferenceServerException, match="not known"):
        client.get_model_metadata("nobody")
    client.close()


def test_bytes_tensors_are_checked_element_by_element():
    """A truncated length prefix or a wrong count is refused; NUL bytes and empty strings pass."""
    spec = TensorSpec(name="text", datatype="BYTES", shape=(-1, 1))
    requests = RequestDecoder("m", Signature(inputs=(spec,), outputs=(spec,)))
    good = struct.pack("<I", 3) + b"a\0b" + struct.pack("<I", 0)
    header = {"inputs": [{"name": "text", "shape": [2, 1], "datatype": "BYTES",
                          "parameters": {"binary_data_size": len(good)}}]}  # fmt: skip
    text = json.dumps(header).encode()
    assert requests.query(text + good, len(text)).items == 2
    for bad in (good[:-1], good[:-4] + b"\xff\xff\xff\x7f"):
        header["inputs"][0]["parameters"]["binary_data_size"] = len(bad)
        text = json.dumps(header).encode()
        with pytest.raises(InvalidRequest, match="BYTES"):
            requests.query(text + bad, len(text))
