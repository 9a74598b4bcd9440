"""TensorFlow Serving's REST protocol over real sockets, on a gateway whose models are functions."""

import json
import socket
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.api.tensorflow.rest_routes import TensorFlowRoutes
from serving.errors import DeadlineExceeded, InferenceFailed, NotReady, Overloaded
from serving.values import ModelId
from tests.fakes.running import gateway
from tests.fakes.servables import Altered, FunctionHome, counted, signature

HALF = signature({"x": ("FP32", (-1, -1))}, {"y": ("FP32", (-1, -1))})
NAMED = signature(
    {"a": ("INT32", (-1,)), "b": ("INT32", (-1,))},
    {"sum": ("INT32", (-1,)), "scores": ("FP32", (-1, 2))},
)


@pytest.fixture(scope="module")
def served():
    """(port, engine, home): half in versions 1 to 3 (halving, thirding, ...), Sums in version 7."""
    home = FunctionHome()
    with gateway({"server.max_body_bytes": 1_000_000}, home) as running:
        for version in (1, 2, 3):
            home.deploy(running, "half", str(version), HALF,
                lambda arrays, by=version + 1: {"y": arrays["x"] / by})  # fmt: skip
        home.deploy(running, "Sums", "7", NAMED, lambda arrays: {
            "sum": arrays["a"] + arrays["b"],
            "scores": np.stack([arrays["a"], arrays["b"]], axis=1) / 4,
        })  # fmt: skip
        running.do(running.engine.catalogue.set_label, "half", "canary", "1")
        engine = Altered(running.engine)
        engine.more_states[ModelId("half", "4")] = ("loading", "")
        engine.more_states[ModelId("broken", "1")] = ("failed", "no such layer")
        running.listener.routes = TensorFlowRoutes(engine, metrics=lambda: iter([b"a_metric 1\n"]))
        yield running, engine, home


@pytest.fixture
def port(served):
    return served[0]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/models/half:predict", {"instances": [[3, 6]]}, {"predictions": [[0.75, 1.5]]}),
        ("/V1/MODELS/half:PREDICT", {"instances": [[4]]}, {"predictions": [[1.0]]}),
        ("/v1/models/half:predict?x=1", {"inputs": [[4]]}, {"outputs": [[1.0]]}),
        ("/v1/models/half/versions/1:predict", {"inputs": [[4]]}, {"outputs": [[2.0]]}),
        ("/v1/models/half/versions/001:predict", {"inputs": [[4]]}, {"outputs": [[2.0]]}),
        ("/v1/models/half/labels/canary:predict", {"inputs": [[4]]}, {"outputs": [[2.0]]}),
        ("/v1/models/half/labels/stable:predict", {"inputs": [[4]]}, {"outputs": [[1.0]]}),
        ("/v1/models/Sums/versions/7:predict", {"instances": [{"a": 1, "b": 2}]},
         {"predictions": [{"sum": 3, "scores": [0.25, 0.5]}]}),
        ("/v1/models/Sums:classify", {"examples": [{"a": 1, "b": 2}]},
         {"results": [[["0", 0.25], ["1", 0.5]]]}),
        ("/v1/models/Sums:regress", {"context": {"b": 1}, "examples": [{"a": 1}, {"a": 2}]},
         {"results": [2, 3]}),
    ],
)  # fmt: skip
def test_inference(port, path, body, expected):
    """Predict, classify and regress, by newest version, number and label."""
    assert port.json("POST", path, body) == (200, expected)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/v1/models/half:explain", {}, 400,
         "Malformed request: POST /v1/models/half:explain"),
        ("GET", "/v1/models/half:predict", None, 400,
         "Malformed request: GET /v1/models/half:predict"),
        ("POST", "/v1/models/half", {}, 400, "Malformed request: POST /v1/models/half"),
        ("DELETE", "/v1/models/half", None, 400, "Malformed request: DELETE /v1/models/half"),
        ("POST", "/v1/models/half/versions/one:predict", {}, 400, "Malformed request: POST "),
        ("POST", "/v1/models/half/versions/1/labels/a:predict", {}, 400, "Malformed request: "),
        ("GET", "/v1/other", None, 400, "Malformed request: GET /v1/other"),
        ("GET", "/v1/models", None, 400, "Missing model name in request."),
        ("GET", "/elsewhere", None, 404, "no route"),
        ("POST", f"/v1/models/half/versions/{2**63}:predict", {}, 400, "Failed to convert version"),
        ("POST", f"/v1/models/half/versions/{'9' * 6000}:predict", {}, 400,
         "Failed to convert version"),
        ("POST", "/v1/models/none:predict", {"instances": [1]}, 404,
         "Servable not found for request: Latest(none)"),
        ("POST", "/v1/models/HALF:predict", {"instances": [1]}, 404,
         "Servable not found for request: Latest(HALF)"),
        ("POST", "/v1/models/half/versions/9:predict", {"instances": [1]}, 404,
         "Servable not found for request: Specific(half, 9)"),
        ("POST", "/v1/models/half/labels/none:predict", {"instances": [1]}, 400,
         "Unrecognized servable version label: none"),
        ("GET", "/v1/models/none/metadata", None, 404,
         "Servable not found for request: Latest(none)"),
        ("GET", "/v1/models/none", None, 404, "Could not find any versions of model none"),
        ("GET", "/v1/models/half/versions/9", None, 404, "Could not find version 9 of model half"),
        ("GET", "/v1/models/half/labels/none", None, 400,
         "Unrecognized servable version label: none"),
        ("POST", "/v1/models/half:predict", b"", 400, "JSON Parse error: The document is empty"),
        ("POST", "/v1/models/none:predict", b"{", 400, "JSON Parse error: "),
        ("POST", "/v1/models/half:predict", b'{"instances": ' + b"[" * 50_000, 400, "nested"),
        ("POST", "/v1/models/half:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
        ("POST", "/v1/models/half:predict", {"instances": []}, 400, "No values in 'instances'"),
        ("POST", "/v1/models/half:predict", {"instances": [["a"]]}, 400,
         "not of expected type: float"),
    ],
)  # fmt: skip
def test_errors(port, method, path, body, status, message):
    """Every row of the table of errors: its status, and an object with a text."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body)
    given_status, _, text = port.request(method, path, data)
    answer = json.loads(text)
    assert given_status == status
    assert answer.keys() == {"error"}
    assert message in answer["error"]
    assert "\n" not in answer["error"]


def test_errors_are_counted_where_they_belong(served):
    """With the model that was asked, and with none where none was meant."""
    port, engine, _ = served
    before = dict(engine.unknown_model_responses)
    half = engine.engine.resolve("half", None).counters.responses
    wrong = half.get(400, 0)
    port.json("POST", "/v1/models/half:predict", {})
    assert half[400] == wrong + 1
    port.json("POST", "/v1/models/none:predict", {"instances": [1]})
    assert engine.unknown_model_responses[404] == before.get(404, 0) + 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Overloaded(4, 0.5), 429),
        (NotReady("starting"), 503),
        (DeadlineExceeded(), 504),
        (InferenceFailed("the model raised"), 500),
    ],
)
def test_refusals_of_the_engine(served, error, status):
    """What the engine refuses has the status of TensorFlow's code for it."""
    port, engine, _ = served
    before = counted(engine).get(status, 0)
    engine.fail_with = error
    try:
        given_status, head, body = port.request(
            "POST", "/v1/models/half:predict", b'{"instances": [[1]]}'
        )
    finally:
        engine.fail_with = None
    assert given_status == status
    assert json.loads(body) == {"error": str(error)}
    assert ("Retry-After" in head) == (status == 429)
    assert counted(engine)[status] == before + 1


def test_body_over_the_limit(port):
    """413 at the head, before the body is read."""
    with socket.create_connection(("127.0.0.1", port.port), 5) as client:
        client.sendall(
            b"POST /v1/models/half:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000001\r\n\r\n"
        )
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_compressed_bodies_are_refused(port):
    """A content encoding that is not undone is not guessed at."""
    status, _, body = port.request(
        "POST", "/v1/models/half:predict", b"x", {"Content-Encoding": "gzip"}
    )
    assert status == 400
    assert b"gzip" in body


def test_status(port):
    """All versions, newest first, or the one that is asked for by number or label."""
    status, answer = port.json("GET", "/v1/models/half")
    assert status == 200
    versions = answer["model_version_status"]
    assert [item["version"] for item in versions] == ["4", "3", "2", "1"]
    assert versions[0]["state"] == "LOADING"
    assert versions[1] == {
        "version": "3",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    (failed,) = port.json("GET", "/v1/models/broken")[1]["model_version_status"]
    assert failed["state"] == "END"
    assert failed["status"] == {"error_code": "UNKNOWN", "error_message": "no such layer"}
    for path in ("/v1/models/half/versions/1", "/v1/models/half/labels/canary"):
        (only,) = port.json("GET", path)[1]["model_version_status"]
        assert only["version"] == "1"


def test_metadata(port):
    """The signature of the model meant."""
    status, answer = port.json("GET", "/v1/models/half/labels/canary/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "half", "signature_name": "", "version": "1"}
    assert "serving_default" in answer["metadata"]["signature_def"]["signature_def"]


def test_metrics_where_they_are_switched_on(port):
    """Prometheus' page stands where TensorFlow Serving has it, if it is given one."""
    path = "/monitoring/prometheus/metrics"
    assert port.request("GET", path)[2] == b"a_metric 1\n"
    with gateway() as other:
        other.listener.routes = TensorFlowRoutes(other.engine)
        assert other.json("GET", path)[0] == 404


def test_a_client_that_leaves_takes_its_request_back(served):
    """The request of a connection that closes is cancelled."""
    port, engine, home = served
    before = counted(engine).get(499, 0)
    home.hold.set()
    try:
        body = b'{"instances": [[1]]}'
        with socket.create_connection(("127.0.0.1", port.port), 5) as client:
            client.sendall(
                b"POST /v1/models/half:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            _until(lambda: port.do(lambda: engine.inflight_count) == 1)
        _until(lambda: counted(engine).get(499) == before + 1)
        assert port.do(lambda: engine.inflight_count) == 0
    finally:
        home.hold.clear()
        home.release.set()


def _until(condition):
    deadline_s = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "x", "b64"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    path=st.sampled_from(["half:predict", "Sums:predict", "Sums:classify", "Sums:regress"]),
    document=st.dictionaries(
        st.sampled_from(["instances", "inputs", "examples", "context"]), json_values
    )
    | json_values,
)
def test_any_json_is_answered(port, path, document):
    """Any JSON gets a 200 with a result, or a 400 with a text; never a fault of the server."""
    status, answer = port.json("POST", f"/v1/models/{path}", document)
    if status == 200:
        assert answer.keys() <= {"predictions", "outputs", "results"}
    else:
        assert status == 400
        assert isinstance(answer["error"], str)
