"""TensorFlow Serving's gRPC services through its own messages and stubs, and TensorFlow's own tensors."""

import numpy as np
import pytest

from tests.frameworks.conftest import SLOW, SLOW_S, import_tensorflow

tf = import_tensorflow()
pytest.importorskip(
    "tensorflow_serving.apis",
    reason="tensorflow-serving-api is installed by make test-frameworks",
)
import grpc  # noqa: E402 - may be skipped above
from tensorflow_serving.apis import (  # noqa: E402
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)
from tensorflow_serving.apis.model_service_pb2_grpc import ModelServiceStub  # noqa: E402
from tensorflow_serving.apis.prediction_service_pb2_grpc import (  # noqa: E402
    PredictionServiceStub,
)

pytestmark = pytest.mark.frameworks
CODES = grpc.StatusCode
TIMEOUT_S = 20
X = np.array([[3, 4], [6, 5]], dtype=np.float32)


class Stubs:
    """Both services of one server."""

    def __init__(self, channel):
        self.prediction = PredictionServiceStub(channel)
        self.model = ModelServiceStub(channel)

    def predict(self, model, inputs, *, timeout_s=TIMEOUT_S, outputs=(), **spec):
        """Outputs of Predict as arrays by name, and the model that answered."""
        request = predict_pb2.PredictRequest(output_filter=outputs)
        set_spec(request, model, **spec)
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        answer = self.prediction.Predict(request, timeout=timeout_s)
        return {name: tf.make_ndarray(one) for name, one in answer.outputs.items()}, answer


def set_spec(request, model, *, version=None, label=None, signature=""):
    spec = request.model_spec
    spec.name, spec.signature_name = model, signature
    if version is not None:
        spec.version.value = version
    if label is not None:
        spec.version_label = label


@pytest.fixture(scope="module", name="stubs")
def _stubs(serving):
    with grpc.insecure_channel(serving.grpc) as channel:
        yield Stubs(channel)


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        ({}, 2),
        ({"version": 1}, 1),
        ({"version": 2}, 2),
        ({"label": "canary"}, 1),
        ({"label": "stable"}, 2),
        ({"signature": "serving_default"}, 2),
    ],
)
def test_predict_by_version_and_label(stubs, spec, version):
    """The current version, one by its number, and one by its label; the answer says which."""
    found, answer = stubs.predict("scaled", {"x": X}, **spec)
    np.testing.assert_array_equal(found["y"], version * X)
    np.testing.assert_array_equal(found["place"], [1, 0])
    assert found["y"].dtype == np.float32
    assert found["place"].dtype == np.int64
    said = answer.model_spec
    assert (said.name, said.version.value, said.signature_name) == (
        "scaled", version, "serving_default",
    )  # fmt: skip


def test_datatypes_as_tensorflow_writes_them(stubs):
    """Texts, numbers in raw and typed fields, one number for a whole tensor; back as they were."""
    inputs = {
        "text": [b"lute", b"\xff\0", b""],
        "number": np.full((3, 2), 1.5, np.float32),
        "count": np.array([2**62, -1, 0]),
        "pixel": np.array([[0, 255], [1, 2], [3, 4]], dtype=np.uint8),
    }
    found, _ = stubs.predict("mixed", inputs)
    assert found["text"].tolist() == [b"LUTE", b"\xff\0", b""]
    np.testing.assert_array_equal(found["number"], np.full((3, 2), 3, np.float32))
    np.testing.assert_array_equal(found["count"], [2**62 - 1, -2, -1])
    np.testing.assert_array_equal(found["pixel"], 255 - inputs["pixel"])
    assert found["pixel"].dtype == np.uint8

    request = predict_pb2.PredictRequest()
    set_spec(request, "scaled")
    given = request.inputs["x"]
    given.dtype = tf.float32.as_datatype_enum
    given.tensor_shape.CopyFrom(tf.TensorShape([2, 2]).as_proto())
    given.float_val.append(5)
    answer = stubs.prediction.Predict(request, timeout=TIMEOUT_S)
    assert tf.make_ndarray(answer.outputs["y"]).tolist() == [[10, 10]] * 2


def test_output_filter(stubs):
    """Only the outputs that are asked for."""
    found, _ = stubs.predict("scaled", {"x": X}, outputs=["place"])
    assert set(found) == {"place"}


@pytest.mark.parametrize(
    ("model", "inputs", "more", "code", "phrase"),
    [
        ("none", {"x": X}, {}, CODES.NOT_FOUND, "Servable not found for request: Latest(none)"),
        ("scaled", {"x": X}, {"version": 3}, CODES.NOT_FOUND, "Specific(scaled, 3)"),
        ("scaled", {"x": X}, {"label": "l"}, CODES.INVALID_ARGUMENT,
         "Unrecognized servable version label: l"),
        ("scaled", {"x": X}, {"signature": "s"}, CODES.INVALID_ARGUMENT, '"s" not found'),
        ("", {"x": X}, {}, CODES.INVALID_ARGUMENT, "Missing ModelSpec"),
        ("scaled", {}, {}, CODES.INVALID_ARGUMENT, "input size does not match signature: 0!=1"),
        ("scaled", {"z": X}, {}, CODES.INVALID_ARGUMENT, "alias not found in signature: z"),
        ("scaled", {"x": X.astype(int)}, {}, CODES.INVALID_ARGUMENT,
         "to be float but int64 is provided"),
        ("scaled", {"x": [["a", "b"]]}, {}, CODES.INVALID_ARGUMENT,
         "to be float but string is provided"),
        ("scaled", {"x": X[0]}, {}, CODES.INVALID_ARGUMENT, "[2]"),
        ("scaled", {"x": np.float32(1)}, {}, CODES.INVALID_ARGUMENT, "[]"),
        ("scaled", {"x": X[:, :1]}, {}, CODES.INVALID_ARGUMENT, "[2, 1]"),
        ("scaled", {"x": X}, {"outputs": ["q"]}, CODES.INVALID_ARGUMENT,
         "output tensor alias not found in signature: q"),
        ("scaled", {"x": [[-1.0, 0.0]]}, {}, CODES.INTERNAL, "minus one is not liked"),
        ("scaled", {"x": SLOW}, {"timeout_s": SLOW_S / 3}, CODES.DEADLINE_EXCEEDED, ""),
    ],
)  # fmt: skip
def test_errors(stubs, model, inputs, more, code, phrase):
    """The code that TensorFlow Serving gives, and one line that says what is wrong; the next request is answered."""
    with pytest.raises(grpc.RpcError) as caught:
        stubs.predict(model, inputs, **more)
    assert caught.value.code() is code
    assert phrase in caught.value.details()
    assert "\n" not in caught.value.details()
    assert stubs.predict("scaled", {"x": X})[0]["y"].tolist() == (2 * X).tolist()


def examples(request, *rows):
    """The examples of a request: features by name."""
    for row in rows:
        features = {
            name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
            for name, values in row.items()
        }
        request.input.example_list.examples.append(
            tf.train.Example(features=tf.train.Features(feature=features))
        )
    return request


def test_classify_and_regress(stubs):
    """Classes with scores, and a number, for each example."""
    rows = ({"a": [0.25, 0.5]}, {"a": [0, 1]})
    request = examples(classification_pb2.ClassificationRequest(), *rows)
    set_spec(request, "scored")
    answer = stubs.prediction.Classify(request, timeout=TIMEOUT_S)
    found = [
        [(one.label, one.score) for one in each.classes] for each in answer.result.classifications
    ]
    assert found == [[("0", 0.25), ("1", 0.5)], [("0", 0), ("1", 1)]]
    request = examples(regression_pb2.RegressionRequest(), *rows)
    set_spec(request, "scored")
    answer = stubs.prediction.Regress(request, timeout=TIMEOUT_S)
    assert [one.value for one in answer.result.regressions] == [0.75, 1]
    set_spec(request, "mixed")
    with pytest.raises(grpc.RpcError) as caught:
        stubs.prediction.Regress(request, timeout=TIMEOUT_S)
    assert caught.value.code() is CODES.INVALID_ARGUMENT


def test_metadata(stubs):
    """The signature, in the message that TensorFlow reads signatures from."""
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    set_spec(request, "scaled", label="canary")
    answer = stubs.prediction.GetModelMetadata(request, timeout=TIMEOUT_S)
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("scaled", 1)
    made = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(made)
    definition = made.signature_def["serving_default"]
    found = {
        name: (tf.as_dtype(info.dtype), tf.TensorShape(info.tensor_shape).as_list())
        for group in (definition.inputs, definition.outputs)
        for name, info in group.items()
    }
    assert found == {
        "x": (tf.float32, [None, 2]), "y": (tf.float32, [None, 2]), "place": (tf.int64, [None]),
    }  # fmt: skip
    assert definition.method_name == tf.saved_model.PREDICT_METHOD_NAME


def test_status(stubs):
    """Every version, or one; a model that is none is not found."""
    available = get_model_status_pb2.ModelVersionStatus.State.AVAILABLE

    def ask(model, **spec):
        request = get_model_status_pb2.GetModelStatusRequest()
        set_spec(request, model, **spec)
        return stubs.model.GetModelStatus(request, timeout=TIMEOUT_S).model_version_status

    for spec, versions in (({}, [2, 1]), ({"version": 1}, [1]), ({"label": "canary"}, [1])):
        found = ask("scaled", **spec)
        assert [one.version for one in found] == versions
        assert {one.state for one in found} == {available}
    for model, more in (("none", {}), ("scaled", {"version": 7})):
        with pytest.raises(grpc.RpcError) as caught:
            ask(model, **more)
        assert caught.value.code() is CODES.NOT_FOUND
        assert "Could not find" in caught.value.details()


def test_what_is_not_offered(stubs):
    """Methods that are not there say so."""
    for method, request in (
        (stubs.prediction.MultiInference, inference_pb2.MultiInferenceRequest()),
        (stubs.model.HandleReloadConfigRequest, model_management_pb2.ReloadConfigRequest()),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            method(request, timeout=TIMEOUT_S)
        assert caught.value.code() is CODES.UNIMPLEMENTED
