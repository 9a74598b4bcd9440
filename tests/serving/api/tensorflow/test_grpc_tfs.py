"""TensorFlow Serving's gRPC services, against protobuf's own messages, on a gateway whose models are functions."""

import asyncio
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.grpc.exchange import GrpcResponseHandler
from serving.api.parsing import proto_fields as fields
from serving.api.tensorflow import grpc_codec, tensor_proto
from serving.api.tensorflow.grpc_routes import (
    MODEL_SERVICE,
    PREDICTION_SERVICE,
    TensorFlowGrpcRoutes,
)
from serving.api.tensorflow.tensor_proto import DTYPES
from serving.api.transport.incremental import IncrementalRunner
from serving.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidRequest,
    Overloaded,
    ServingError,
)
from serving.values import ModelId, Tensor
from tests.fakes.proto_messages import classes
from tests.fakes.running import gateway
from tests.fakes.servables import Altered, FunctionHome, counted, signature
from tests.fakes.submissions import submissions
from tests.serving.api.tensorflow.test_tensor_proto import PROTO

messages = classes(PROTO)


class Call(NamedTuple):
    method: str
    service: str = PREDICTION_SERVICE
    timeout_s: float | None = None
    application: str = ""


class Reply:
    """What was answered: bytes or an error."""

    def __init__(self):
        self.answered = asyncio.get_running_loop().create_future()

    def send(self, pieces):
        self.answered.set_result(b"".join(bytes(piece) for piece in pieces))

    def reject(self, error):
        self.answered.set_exception(error)


class Server:
    """Routes on a running engine; calls are made in its loop."""

    def __init__(self, running, home):
        self.running = running
        self.home = home
        half = signature(
            {"x": ("FP32", (-1, -1))}, {"y": ("FP32", (-1, -1)), "n": ("INT64", (-1,))}
        )
        for version in (1, 2):
            home.deploy(running, "half", str(version), half, lambda arrays, by=version + 1: {
                "y": arrays["x"] / by, "n": np.full(len(arrays["x"]), -1),
            })  # fmt: skip
        home.deploy(
            running, "text", "7", signature({"t": ("BYTES", (-1,))}, {"u": ("BYTES", (-1,))}),
            lambda arrays: {"u": arrays["t"]},
        )  # fmt: skip
        home.deploy(
            running, "scored", "1",
            signature({"a": ("FP32", (-1, 2))}, {"scores": ("FP32", (-1, 2)), "outputs": ("FP32", (-1,))}),
            lambda arrays: {"scores": arrays["a"], "outputs": arrays["a"].sum(axis=1)},
        )  # fmt: skip
        running.do(running.engine.catalogue.set_label, "half", "canary", "1")
        self.engine = Altered(running.engine)
        self.engine.more_states[ModelId("half", "3")] = ("loading", "")
        self.engine.more_states[ModelId("broken", "1")] = ("failed", "no such layer")
        self.routes = TensorFlowGrpcRoutes(self.engine)

    def call(self, method, request, **more):
        """The bytes of an answer; raises what refused it."""
        data = request if isinstance(request, bytes) else request.SerializeToString()

        async def made():
            reply = Reply()
            call = Call(method, **more)
            self.routes.check(call)
            outcome = self.routes.handle(call, memoryview(data), reply)
            return outcome if isinstance(outcome, bytes) else await reply.answered

        return self.running.call(made())

    def predict(self, name, inputs, **more):
        """The PredictResponse for arrays by name."""
        request = messages["PredictRequest"](model_spec={"name": name} | more.pop("spec", {}))
        request.output_filter.extend(more.pop("wanted", []))
        for key, values in inputs.items():
            fill(request.inputs[key], values)
        return messages["PredictResponse"].FromString(self.call("Predict", request, **more))


def fill(target, values):
    """Write an array into a TensorProto."""
    array = np.asarray(values)
    for size in array.shape:
        target.tensor_shape.dim.add(size=size)
    if array.dtype.kind == "S":
        target.dtype = DTYPES["BYTES"]
        target.string_val.extend(array.ravel().tolist())
    else:
        target.dtype = DTYPES["FP32"]
        target.float_val.extend(array.ravel().tolist())


@pytest.fixture(scope="module")
def server():
    home = FunctionHome()
    with gateway(home=home) as running:
        yield Server(running, home)


def test_predict(server):
    """Tensors in, tensors out by name, in typed fields; and the model that answered."""
    answer = server.predict("half", {"x": [[3.0, 6.0]]})
    assert list(answer.outputs["y"].float_val) == [1.0, 2.0]
    assert [dim.size for dim in answer.outputs["y"].tensor_shape.dim] == [1, 2]
    assert list(answer.outputs["n"].int64_val) == [-1]
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("half", 2, "serving_default")


def test_versions_and_labels(server):
    """A model is meant by the newest version, a number, or a label."""
    for spec in ({"version": {"value": 1}}, {"version_label": "canary"}):
        answer = server.predict("half", {"x": [[3.0]]}, spec=spec)
        assert list(answer.outputs["y"].float_val) == [1.5]
        assert answer.model_spec.version.value == 1


def test_output_filter(server):
    """Only the outputs that are asked for."""
    answer = server.predict("half", {"x": [[3.0]]}, wanted=["n"])
    assert set(answer.outputs) == {"n"}


def test_strings(server):
    """Bytes of any content."""
    answer = server.predict("text", {"t": np.array([b"\xff\x01", b"b"])})
    assert list(answer.outputs["u"].string_val) == [b"\xff\x01", b"b"]


def test_many_strings(server):
    """They are written in pieces, and the answer is the same; the next call is answered as well."""
    texts = np.array([b"%d" % number * 50 for number in range(2_000)])
    for _ in range(2):
        answer = server.predict("text", {"t": texts})
        assert list(answer.outputs["u"].string_val) == texts.tolist()
        assert answer.model_spec.name == "text"


async def test_a_call_that_is_given_up_is_not_written_to_its_end():
    """Nobody is answered, and nothing more is written."""
    reply, counts, steps = Reply(), [], []

    def written(_frame, _asked):
        for number in range(100):
            steps.append(number)
            yield b""

    flight = GrpcResponseHandler(
        reply, lambda *_: [], None, 0.0, lambda status, _: counts.append(status),
        steps=written, slices=IncrementalRunner(),
    )  # fmt: skip
    flight.ticket = Cancelled()
    flight.on_result(memoryview(b""))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    flight.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert 0 < len(steps) < 5
    assert counts == [499]
    assert not reply.answered.done()


class Cancelled:
    """The ticket of a request that is finished."""

    def cancel(self):
        pass


async def test_an_answer_that_cannot_be_written_is_refused():
    """What is wrong is found between two pieces."""
    reply, counts = Reply(), []
    tensor = Tensor("u", "BYTES", (3,), bytes(8))
    flight = GrpcResponseHandler(
        reply, lambda *_: [], None, 0.0, lambda status, _: counts.append(status),
        steps=lambda *_: tensor_proto.message(tensor), slices=IncrementalRunner(),
    )  # fmt: skip
    flight.on_result(memoryview(b""))
    with pytest.raises(InferenceFailed, match="does not hold the 3 texts"):
        await reply.answered
    assert counts == [500]


def examples(*rows, context=None):
    """An Input of examples with lists of floats by feature."""
    made = messages["Input"]()
    target = made.example_list_with_context if context else made.example_list
    for row in rows:
        example = target.examples.add()
        for name, values in row.items():
            example.features.feature[name].float_list.value.extend(values)
    for name, values in (context or {}).items():
        target.context.features.feature[name].int64_list.value.extend(values)
    return made


def test_classify(server):
    """Labels and scores per example."""
    request = messages["ClassificationRequest"](
        model_spec={"name": "scored"}, input=examples({"a": [0.25, 0.0]})
    )
    answer = messages["ClassificationResponse"].FromString(server.call("Classify", request))
    (row,) = answer.result.classifications
    assert [(one.label, one.score) for one in row.classes] == [("0", 0.25), ("1", 0.0)]
    assert answer.model_spec.name == "scored"


def test_regress(server):
    """A number per example; features of the context count for each."""
    request = messages["RegressionRequest"](
        model_spec={"name": "scored"},
        input=examples({"a": [1.5, 2.0]}, {}, context={"a": [-1, 1]}),
    )
    answer = messages["RegressionResponse"].FromString(server.call("Regress", request))
    assert [one.value for one in answer.result.regressions] == [3.5, 0.0]


def test_bytes_of_examples(server):
    """Bytes lists reach inputs of strings."""
    request = messages["ClassificationRequest"](model_spec={"name": "text"})
    example = request.input.example_list.examples.add()
    example.features.feature["t"].bytes_list.value.append(b"a")
    with pytest.raises(ServingError, match="Expected classify signature method_name"):
        server.call("Classify", request)


def test_metadata(server):
    """The signature, packed as the client of TensorFlow expects it."""
    request = messages["GetModelMetadataRequest"](
        model_spec={"name": "half"}, metadata_field=["signature_def"]
    )
    answer = messages["GetModelMetadataResponse"].FromString(
        server.call("GetModelMetadata", request)
    )
    assert answer.model_spec.version.value == 2
    packed = answer.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    made = messages["SignatureDefMap"].FromString(packed.value)
    definition = made.signature_def["serving_default"]
    assert definition.inputs["x"].dtype == DTYPES["FP32"]
    assert [dim.size for dim in definition.inputs["x"].tensor_shape.dim] == [-1, -1]
    assert set(definition.outputs) == {"y", "n"}
    assert definition.method_name == "tensorflow/serving/predict"


def test_status(server):
    """States of all versions, newest first, or of one."""
    request = messages["GetModelStatusRequest"](model_spec={"name": "half"})
    answer = messages["GetModelStatusResponse"].FromString(
        server.call("GetModelStatus", request, service=MODEL_SERVICE)
    )
    assert [(one.version, one.state) for one in answer.model_version_status] == [
        (3, 20), (2, 30), (1, 30),
    ]  # fmt: skip
    assert all(one.HasField("status") for one in answer.model_version_status)
    request.model_spec.version_label = "canary"
    answer = messages["GetModelStatusResponse"].FromString(
        server.call("GetModelStatus", request, service=MODEL_SERVICE)
    )
    assert [one.version for one in answer.model_version_status] == [1]
    request = messages["GetModelStatusRequest"](model_spec={"name": "broken"})
    answer = messages["GetModelStatusResponse"].FromString(
        server.call("GetModelStatus", request, service=MODEL_SERVICE)
    )
    (failed,) = answer.model_version_status
    assert (failed.state, failed.status.error_message) == (50, "no such layer")


@pytest.mark.parametrize(
    ("name", "inputs", "more", "status", "phrase"),
    [
        ("none", {"x": [[1.0]]}, {}, 404, "Servable not found for request: Latest(none)"),
        ("half", {"x": [[1.0]]}, {"spec": {"version": {"value": 9}}}, 404, "Specific(half, 9)"),
        ("half", {"x": [[1.0]]}, {"spec": {"version": {"value": -1}}}, 404, "Specific(half, -1)"),
        ("half", {"x": [[1.0]]}, {"spec": {"version_label": "l"}}, 400,
         "Unrecognized servable version label: l"),
        ("half", {"x": [[1.0]]}, {"spec": {"signature_name": "s"}}, 400,
         'Serving signature key "s" not found'),
        ("", {"x": [[1.0]]}, {}, 400, "Missing ModelSpec"),
        ("half", {}, {}, 400, "input size does not match signature: 0!=1"),
        ("half", {"z": [[1.0]]}, {}, 400, "input tensor alias not found in signature: z"),
        ("half", {"x": np.array([[b"a"]])}, {}, 400, "to be float but string is provided"),
        ("half", {"x": [1.0]}, {}, 400, "shape is [1]"),
        ("half", {"x": [[1.0]]}, {"wanted": ["z"]}, 400, "output tensor alias not found"),
        ("half", {"x": [[1.0]]}, {"wanted": ["y", "y"]}, 400, "duplicate output tensor alias"),
        ("half", {"x": [[1.0]]}, {"timeout_s": 0.0}, 504, "deadline"),
    ],
)  # fmt: skip
def test_errors(server, name, inputs, more, status, phrase):
    """Errors with the status that says the same, counted, in one line."""
    before = counted(server.engine).get(status, 0)
    with pytest.raises(ServingError) as caught:
        server.predict(name, inputs, **more)
    assert caught.value.status == status
    assert phrase in str(caught.value)
    assert counted(server.engine)[status] == before + 1


@pytest.mark.parametrize(
    ("method", "service", "request_", "status", "phrase"),
    [
        ("MultiInference", PREDICTION_SERVICE, b"", 501, "no method tensorflow.serving.Pred"),
        ("Predict", MODEL_SERVICE, b"", 501, "no method"),
        ("Predict", PREDICTION_SERVICE, b"\x0a", 400, "the message cannot be read"),
        ("Predict", PREDICTION_SERVICE, b"\x0a\x03\x0a\x01\xff", 400, "not UTF-8"),
        ("Classify", PREDICTION_SERVICE, b"", 400, "Input is empty."),
        ("GetModelMetadata", PREDICTION_SERVICE, b"\x0a\x06\x0a\x04half", 400,
         "at least one metadata_field"),
        ("GetModelMetadata", PREDICTION_SERVICE, b"\x0a\x06\x0a\x04half\x12\x01x", 400,
         "Metadata field x is not supported"),
        ("GetModelStatus", MODEL_SERVICE, b"\x0a\x06\x0a\x04none", 404,
         "Could not find any versions of model none"),
    ],
)  # fmt: skip
def test_methods_and_messages(server, method, service, request_, status, phrase):
    """Unknown methods and broken messages are told."""
    with pytest.raises(ServingError) as caught:
        server.call(method, request_, service=service)
    assert caught.value.status == status
    assert phrase in str(caught.value)


def test_refusals_and_cancelled_calls(server):
    """What the engine refuses reaches the reply; a client that leaves takes its request back."""
    before = counted(server.engine)
    server.engine.fail_with = Overloaded(1, 0.5)
    try:
        with pytest.raises(Overloaded):
            server.predict("half", {"x": [[1.0]]})
    finally:
        server.engine.fail_with = None
    assert counted(server.engine)[429] == before.get(429, 0) + 1

    async def cancelled():
        request = messages["PredictRequest"](model_spec={"name": "half"})
        fill(request.inputs["x"], [[1.0]])
        reply = Reply()
        server.routes.handle(Call("Predict"), request.SerializeToString(), reply).cancel()
        assert server.engine.inflight_count == 0
        await asyncio.sleep(0.01)
        assert not reply.answered.done()

    server.running.call(cancelled())
    assert counted(server.engine)[499] == before.get(499, 0) + 1


def test_deadlines_reach_the_engine(server):
    """The client's deadline is the request's time limit."""
    server.home.hold.set()
    try:
        with pytest.raises(DeadlineExceeded):
            server.predict("half", {"x": [[1.0]]}, timeout_s=0.05)
    finally:
        server.home.hold.clear()
        server.home.release.set()
    with pytest.raises(DeadlineExceeded):
        server.predict("half", {"x": [[1.0]]}, timeout_s=-1.0)


def test_an_application_is_named_by_its_call(server):
    """Its requests wait as one flow."""
    places = [served.id for served in server.running.engine.deployments()]
    with submissions(server.running, places.index(("half", "2"))) as seen:
        server.predict("half", {"x": [[1.0]]}, application="digits")
    assert seen == [(0, "digits")]


@given(
    data=st.binary(max_size=60),
    method=st.sampled_from(["Predict", "Classify", "Regress", "GetModelMetadata"]),
)
def test_any_bytes_are_answered_or_refused(server, data, method):
    """Bytes of a stranger are a ServingError below 500, or an answer."""
    said = ""
    try:
        server.call(method, b"\x0a\x06\x0a\x04half" + data)
    except ServingError as error:
        said = str(error)
        assert error.status < 500  # noqa: PT017
    assert "\n" not in said


def test_a_message_of_too_many_fields_is_refused_before_they_are_read():
    """Fields cost the thread that serves everybody: a request has 65,536, in all its messages together."""
    with pytest.raises(InvalidRequest, match="more than 65536 fields; send less"):
        grpc_codec.decode_request(b"\x40\x00" * (2**16 + 1), "predict")
    entry = fields.content(2, b"\x40\x00" * 1000)
    with pytest.raises(InvalidRequest, match="more than 65536 fields"):
        grpc_codec.decode_request(entry * 66, "predict")


NUMBER = fields.content(1, fields.content(1, b"a") + fields.content(2, b"\x1a\x03\x0a\x01\x01"))
NUMBERS = fields.content(3, b"\x08\x01" * 20_000)
NESTED = {
    "examples": b"\x0a\x00" * 20_000,
    "features": fields.content(1, b"\x0a\x00" * 20_000),
    "entries": fields.content(1, fields.content(1, b"\x0a\x00" * 20_000)),
    "values": fields.content(1, fields.content(1, NUMBER * 4_000)),
    "numbers": fields.content(1, fields.content(1, fields.content(1, fields.content(2, NUMBERS)))),
    "some of each": fields.content(1, fields.content(1, NUMBER * 10)) * 400,
}  # fmt: skip
"""Lists of examples of many small messages within one another."""


@pytest.mark.parametrize("method", ["Classify", "Regress"])
@pytest.mark.parametrize("listed", NESTED.values(), ids=NESTED)
def test_examples_of_too_many_fields_are_refused(server, method, listed):
    """However they are nested; in one line that says what to do."""
    data = b"\x0a\x08\x0a\x06scored" + fields.content(2, fields.content(1, listed))
    with pytest.raises(InvalidRequest, match="more than 16384 fields; send less per") as refused:
        server.call(method, data)
    assert refused.value.status == 400


def test_a_context_is_not_multiplied_without_bound(server):
    """A thousand empty examples and a context of 1,000 values would be a million."""
    many = {f"f{n}": [1] for n in range(10_000)}
    request = messages["ClassificationRequest"](
        model_spec={"name": "scored"}, input=examples(*[{}] * 1000, context=many)
    )
    with pytest.raises(InvalidRequest, match="more than 16384 fields"):
        server.call("Classify", request)
    for name in list(request.input.example_list_with_context.context.features.feature)[1:]:
        del request.input.example_list_with_context.context.features.feature[name]
    (feature,) = request.input.example_list_with_context.context.features.feature.values()
    feature.int64_list.value.extend([1] * 999)
    with pytest.raises(InvalidRequest, match="1000 examples would each get a context of 1001"):
        server.call("Classify", request)
