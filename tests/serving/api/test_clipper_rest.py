"""Clipper's query protocol over real sockets, on a hub in memory."""

import asyncio
import base64
import json
import math
import random
import socket
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving import wire
from serving.api.clipper.inputs import ApplicationInput
from serving.api.clipper.routes import ClipperRoutes
from serving.api.clipper.service import RegisteredModel
from serving.errors import InferenceFailed, NotReady
from serving.metrics.clipper_metrics import Registry
from serving.values import Tensor
from tests.fakes.clipper_hub import NO_MODELS, TOO_LATE, App, Asked, FakeHub
from tests.fakes.listening import listening
from tests.fakes.servables import signature

SUM = signature({"x": ("FP64", (-1, -1))}, {"y": ("FP64", (-1,))})
TEXT = signature({"x": ("BYTES", (-1,))}, {"y": ("BYTES", (-1,))})
WIDE = signature({"x": ("FP64", (-1, -1))}, {"y": ("FP64", (-1, -1))})
PICTURE = signature({"x": ("UINT8", (-1, 2, 2))}, {"y": ("FP32", (-1, 2))})


def wide(value, count):
    """So many of a value, for which less than zero is no number."""
    return np.full((1, int(count)), value if value >= 0 else math.nan)


def hub():
    """Applications of every kind."""
    made = FakeHub()
    for name, kind, models in (
        ("sums", "doubles", ["sum"]),
        ("echo", "strings", ["text"]),
        ("raw", "bytes", ["text"]),
        ("pictures", "integers", ["picture"]),
        ("wide", "doubles", ["wide"]),
        ("alone", "doubles", []),
        ("many", "doubles", ["sum", "late"]),
        ("hurried", "doubles", ["late"]),
        ("patient", "doubles", ["late"]),
        ("stopped", "doubles", ["absent"]),
    ):
        slo_s = 0.05 if name in {"hurried", "stopped"} else 5.0
        made.apps[name] = App(name, kind, "-1.0", slo_s, models)
    for name, version, kind in (
        ("sum", "1", "doubles"), ("sum", "2", "doubles"), ("text", "1", "strings"),
        ("picture", "1", "integers"), ("wide", "1", "doubles"), ("late", "1", "doubles"), ("absent", "1", "doubles"),
    ):  # fmt: skip
        made.add_model(RegisteredModel(name, version, kind))
    made.run("sum", "1", SUM, lambda arrays: {"y": -arrays["x"].sum(axis=1)})
    made.run("sum", "2", SUM, lambda arrays: {"y": arrays["x"].sum(axis=1)})
    made.run("late", "1", SUM, lambda arrays: {"y": arrays["x"].sum(axis=1)})
    made.run("text", "1", TEXT, lambda arrays: {"y": arrays["x"]})
    made.run("picture", "1", PICTURE, lambda arrays: {"y": arrays["x"].mean(axis=2)})
    made.run("wide", "1", WIDE, lambda arrays: {"y": wide(*arrays["x"][0])})
    made.delays_s["late"] = 0.5
    return made


@pytest.fixture(scope="module")
def served():
    """(port, hub)."""
    made = hub()
    routes = ClipperRoutes(made, metrics=Registry(random.Random(0)))
    with listening(routes, max_body_bytes=1_000_000) as port:
        yield port, made


@pytest.fixture
def port(served):
    return served[0]


def ask(port, application, body):
    """(status, answer without the numbers of the queries)."""
    status, answer = port.json("POST", f"/{application}/predict", body)
    for item in answer.get("batch_predictions", [answer]):
        if status == 200:
            assert isinstance(item.pop("query_id"), int)
    return status, answer


def told(output):
    return {"output": output, "default": False}


@pytest.mark.parametrize(
    ("application", "body", "expected"),
    [
        ("sums", {"input": [1, 2.5]}, told(3.5)),
        ("sums", {"input": [1.0], "version": "1"}, told(-1.0)),
        ("sums", {"input_batch": [[1], [2, 3]]}, {"batch_predictions": [told(1.0), told(5.0)]}),
        ("sums", {"input_batch": [[4]]}, told(4.0)),
        ("sums", {"input_batch": []}, {"batch_predictions": []}),
        ("echo", {"input": "plain"}, told("plain")),
        ("echo", {"input": '{"nested": [1]}'}, told({"nested": [1]})),
        ("raw", {"input": base64.b64encode(b"[1]").decode()}, told([1])),
        ("pictures", {"input": [0, 2, 4, 6]}, told([1.0, 5.0])),
        ("alone", {"input": [1.0]},
         {"output": -1.0, "default": True, "default_explanation": NO_MODELS}),
        ("hurried", {"input": [1.0]},
         {"output": -1.0, "default": True, "default_explanation": TOO_LATE}),
        ("stopped", {"input_batch": [[1.0], [2.0]]}, {"batch_predictions": [
            {"output": -1.0, "default": True, "default_explanation": TOO_LATE}] * 2}),
    ],
)  # fmt: skip
def test_predictions(port, application, body, expected):
    """Every input type, batches, versions; the default output where no model answers in time."""
    assert ask(port, application, body) == (200, expected)


def test_long_outputs(port):
    """They are written in pieces, beside short ones of the same batch; what no JSON has is named."""
    expected = [1.5] * 20_000
    assert ask(port, "wide", {"input": [1.5, 20_000]}) == (200, told(expected))
    batch = {"input_batch": [[1.5, 20_000], [2.5, 2], [1.5, 20_000]]}
    outputs = [told(one) for one in (expected, [2.5, 2.5], expected)]
    assert ask(port, "wide", batch) == (200, {"batch_predictions": outputs})
    assert ask(port, "wide", {"input": [-1, 10_000]}) == (200, told(["NaN"] * 10_000))


def test_a_long_output_that_cannot_be_read():
    """The default is the answer, with the reason; so is that of others beside it their own."""
    made = BadTexts()
    made.apps["bad"] = App("bad", "doubles", "-1.0", 5.0, ["bad"])
    routes = ClipperRoutes(made, metrics=Registry(random.Random(0)))
    with listening(routes, max_body_bytes=1_000_000) as port:
        status, answer = ask(port, "bad", {"input_batch": [[1], [2]]})
    assert status == 200
    for one in answer["batch_predictions"]:
        why = one.pop("default_explanation")
        assert one == {"output": -1.0, "default": True}
        assert why.startswith(
            "The model's response cannot be read: the model's output 'y' does not"
        )


class BadTexts(FakeHub):
    """A hub whose models answer with fewer texts than they say."""

    def ask(self, application, _question, query_handler, **_):
        asked = Asked(self, self.apps[application], query_handler)
        tensor = Tensor("y", "BYTES", (1, 100_000), b"\4" + bytes(399_999))
        frame = wire.encode_descriptor([tensor]) + tensor.data
        asyncio.get_running_loop().call_soon(asked.on_result, frame)
        return asked


def test_every_query_of_a_batch_has_its_number(port):
    """Numbers are given in the order of the inputs, and never twice."""
    answer = port.json("POST", "/sums/predict", {"input_batch": [[1.0]] * 5})[1]
    numbers = [item["query_id"] for item in answer["batch_predictions"]]
    assert numbers == list(range(numbers[0], numbers[0] + 5))


def test_a_slash_at_the_end_and_escapes(port):
    """Paths may end in a slash, and names may be escaped."""
    assert port.json("POST", "/sums/predict/", {"input": [1]})[0] == 200
    assert port.json("POST", "/s%75ms/predict?x=1", {"input": [1]})[0] == 200


@pytest.mark.parametrize(
    ("application", "body", "error", "cause"),
    [
        ("sums", b"{", "Json error", "Error parsing JSON: JSON parse error: "),
        ("sums", {}, "Json error", "does not have required keys input or input_batch"),
        ("sums", {"input": "a"}, "Json error", "expected type Arraybut found type String"),
        ("sums", {"input": ["a"]}, "Json error", "Array input of type String is not of type double"),
        ("sums", {"input": [1], "version": 1}, "Json error", "JSON key version expected type String"),
        ("sums", {"input": [1], "version": "9"}, "Query processing error",
         "Requested version: 9 does not exist for model: sum"),
        ("sums", {"input": "not looked at", "version": "9"}, "Query processing error",
         "Requested version: 9 does not exist for model: sum"),
        ("many", {"input": [1], "version": "1"}, "Query processing error",
         "Too many models linked to application many"),
        ("alone", {"input": [1], "version": "1"}, "Query processing error", "no model is linked"),
        ("pictures", {"input": [1, 2, 3]}, "Query processing error", "3 values in a row cannot be"),
        ("pictures", {"input_batch": [[1, 2, 3, 4], [999, 0, 0, 0]]}, "Query processing error",
         "takes UINT8, but the values range from 0 to 999"),
    ],
)  # fmt: skip
def test_errors(port, application, body, error, cause):
    """400 with the kind of the error and its cause, in one line."""
    status, answer = ask(port, application, body)
    assert status == 400
    assert answer.keys() == {"error", "cause"}
    assert answer["error"] == error
    assert cause in answer["cause"]
    assert "\n" not in answer["cause"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/nobody/predict", 404),
        ("POST", "/nobody/update", 404),
        ("POST", "/sums/explain", 404),
        ("POST", "/sums", 404),
        ("GET", "/", 404),
        ("GET", "/sums/predict", 405),
        ("GET", "/sums/update", 405),
        ("POST", "/metrics", 405),
    ],
)
def test_paths_and_methods(port, method, path, status):
    """Where Clipper does not answer at all: 404 for what is not there, 405 for a wrong method."""
    given_status, answer = port.json(method, path, {} if method == "POST" else None)
    assert given_status == status
    assert isinstance(answer["error"], str)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/smus/predict", "no application 'smus', did you mean 'sums'? (known: "),
        (
            "/",
            "no route '/'; available are /v2 (Open Inference), /v1/models (TensorFlow Serving), and",
        ),
    ],
)
def test_what_there_is_instead(port, path, message):
    """A 404 says what was perhaps meant."""
    assert port.json("POST", path, {})[1]["error"].startswith(message)


def test_a_bad_input_takes_back_the_others_of_its_batch(served):
    """Queries that were taken before the bad one of a batch are given up."""
    port, made = served
    body = {"input_batch": [[1, 2, 3, 4], [1]]}
    before, given_up = len(made.asked), len(made.given_up)
    assert ask(port, "pictures", body)[0] == 400
    assert len(made.asked) == before + 2
    assert len(made.given_up) == given_up + 1


@pytest.mark.parametrize("error", [NotReady("starting"), InferenceFailed("raised")])
def test_a_hub_that_refuses(served, error):
    """A refusal of the hub is told as an error of the query."""
    port, made = served
    made.fail_with = error
    try:
        status, answer = ask(port, "sums", {"input": [1]})
    finally:
        made.fail_with = None
    assert (status, answer) == (400, {"error": "Query processing error", "cause": str(error)})


def test_a_fault_of_the_server(served, caplog):
    """A fault is a plain text with 500, as Clipper's; the log has the reason."""
    port, made = served
    made.fail_with = ZeroDivisionError("a fault")
    try:
        status, head, body = port.request("POST", "/sums/predict", b'{"input": [1]}')
    finally:
        made.fail_with = None
    assert (status, body) == (500, b"An unexpected error occurred!")
    assert head["Content-Type"] == "application/json"
    assert "a fault" in caplog.text


def test_compressed_bodies_are_refused(port):
    """A content encoding that is not undone is not guessed at."""
    assert port.request("POST", "/sums/predict", b"x", {"Content-Encoding": "gzip"})[0] == 400


def test_feedback(served):
    """Feedback is answered by a plain text that says whether it was taken."""
    port, made = served
    body = json.dumps({"uid": "anna", "input": [1], "label": 2, "query_id": 5})
    status, head, answer = port.request("POST", "/sums/update", body)
    assert (status, answer) == (200, b"Feedback received? 1")
    assert head["Content-Type"] == "application/json"
    key = ApplicationInput("doubles", [1.0]).key
    assert made.updates[-1] == ("sums", "anna", 2.0, 5, key)
    assert port.request("POST", "/alone/update", body)[2] == b"Feedback received? 0"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([True], (200, b"Feedback received? 1")),
        ([False, ZeroDivisionError("a fault")], (500, b"An unexpected error occurred!")),
    ],
)
def test_feedback_whose_decision_comes_late(found, expected, monkeypatch):
    """It is looked for again, and the client is told, also of a fault."""
    made, looks = hub(), iter([False, *found])

    def feedback(*_, **__):
        outcome = next(looks)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(made, "hears_late", True)
    monkeypatch.setattr(made, "feedback", feedback)
    routes = ClipperRoutes(made, metrics=Registry(random.Random(0)))
    with listening(routes, max_body_bytes=1_000) as port:
        body = json.dumps({"uid": 1, "input": [1], "label": 2})
        status, _, answer = port.request("POST", "/sums/update", body)
    assert (status, answer) == expected


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", b"Error parsing JSON: JSON parse error: "),
        (b'{"uid": 1}', b"does not have required key: input"),
        (b'{"uid": 1, "input": [1], "label": "nonsense"}', b"is no class"),
    ],
)
def test_bad_feedback(port, body, text):
    """Errors of feedback are plain text with 400."""
    status, _, answer = port.request("POST", "/sums/update", body)
    assert status == 400
    assert text in answer


def test_feedback_that_cannot_be_learnt_from_now_may_be_sent_again(port):
    """503 and one line: nothing is wrong with what the client has sent."""
    body = json.dumps({"uid": 1, "input": [1], "label": "unlearnt"})
    status, _, answer = port.request("POST", "/sums/update", body)
    assert (status, answer) == (503, b"the server of the states does not answer")


def test_metrics():
    """What was asked is counted by application; all numbers are strings."""
    routes = ClipperRoutes(hub(), metrics=Registry(random.Random(0)))
    with listening(routes) as port:
        ask(port, "alone", {"input_batch": [[1.0]] * 3})
        ask(port, "sums", {"input": [1.0]})
        status, report = port.json("GET", "/metrics")
    assert status == 200
    counters = {name: value for item in report["counters"] for name, value in item.items()}
    assert counters["app:alone:num_predictions"] == {"count": "3"}
    ratios = {name: value for item in report["ratio_counters"] for name, value in item.items()}
    assert ratios["app:alone:default_prediction_ratio"] == {"ratio": "1"}
    assert ratios["app:sums:default_prediction_ratio"] == {"ratio": "0"}
    (latency,) = [item for item in report["histograms"] if "app:alone:prediction_latency" in item]
    assert latency["app:alone:prediction_latency"]["size"] == "3"
    assert latency["app:alone:prediction_latency"]["unit"] == "microseconds"
    assert "app:sums:prediction_throughput" in report["meters"][1]


def test_a_client_that_leaves_takes_its_queries_back(served):
    """Queries of a connection that closes are given up."""
    port, made = served
    body = b'{"input_batch": [[1.0], [2.0]]}'
    before = len(made.given_up)
    with socket.create_connection(("127.0.0.1", port.number), 5) as client:
        client.sendall(
            b"POST /patient/predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        time.sleep(0.01)
    deadline_s = time.monotonic() + 5
    while len(made.given_up) < before + 2 and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert len(made.given_up) == before + 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    application=st.sampled_from(["sums", "echo", "raw", "pictures", "alone"]),
    verb=st.sampled_from(["predict", "update"]),
    document=st.dictionaries(
        st.sampled_from(["input", "input_batch", "version", "uid", "label"]), json_values
    )
    | json_values,
)
def test_any_json_is_answered(port, application, verb, document):
    """Any JSON gets a 200 or a 400, never a fault of the server."""
    status, _, body = port.request("POST", f"/{application}/{verb}", json.dumps(document))
    assert status in {200, 400}
    if verb == "predict":
        answer = json.loads(body)
        keys = {"error", "cause"} if status == 400 else {"query_id", "batch_predictions"}
        assert answer.keys() & keys
