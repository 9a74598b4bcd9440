"""TensorFlow Serving's requests and answers, read and written without a server."""

import base64
import gc
import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from serving import wire
from serving.api.tensorflow import examples, model_status, rest_codec, rest_tensors
from serving.api.tensorflow.examples import serialize
from serving.errors import InferenceFailed, InvalidRequest, ServingError
from serving.tensors.json_tensors import NUMPY
from serving.values import Signature, Tensor, TensorSpec
from tests.fakes.servables import array_of, arrays_of, frame_of, signature

ONE = signature({"x": ("FP32", (-1, -1))}, {"y": ("FP32", (-1, -1))})
TWO = signature(
    {"number": ("INT32", (-1,)), "text": ("BYTES", (-1,))},
    {"sum": ("INT64", (-1,)), "copy": ("BYTES", (-1,))},
)


def query(body, model=ONE, method="predict"):
    """The query of a request given as a value or as bytes."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return rest_codec.TensorFlowRestCodec("m", "1", model).query(rest_codec.request(text), method)


def inputs(body, model=ONE, method="predict"):
    """The arrays that a request makes."""
    return arrays_of(query(body, model, method).frame)


def answer(arrays, model=ONE, form="row"):
    """The decoded answer for these outputs."""
    frame = memoryview(frame_of(arrays, model.outputs))
    codec = rest_codec.TensorFlowRestCodec("m", "1", model)
    return json.loads(b"".join(codec.encode_response(frame, form)))


def model_of(inputs, outputs, unbatched=""):
    """A signature from `{name: (shape, item axis)}`, all of FP32."""
    inputs, outputs = (
        tuple(
            TensorSpec(name=name, datatype="FP32", shape=shape, item_axis=axis)
            for name, (shape, axis) in specs.items()
        )
        for specs in (inputs, outputs)
    )
    return Signature(inputs=inputs, outputs=outputs, unbatched=unbatched)


SCORES = {"scores": ((-1, 2), 0)}

# Requests


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        (ONE, {"instances": [[1, 2.5], [3, -4]]}, {"x": [[1, 2.5], [3, -4]]}),
        (ONE, {"instances": [{"x": [1, 2]}]}, {"x": [[1, 2]]}),
        (ONE, {"inputs": [[1, 2]]}, {"x": [[1, 2]]}),
        (ONE, {"inputs": {"x": [[1, 2]], "ignored": None}}, {"x": [[1, 2]]}),
        (ONE, {"signature_name": "serving_default", "inputs": [[1]]}, {"x": [[1]]}),
        (ONE, {"signature_name": "", "inputs": [[1]], "other": 5}, {"x": [[1]]}),
        (ONE, {"instances": [[], []]}, {"x": [[], []]}),
        (TWO, {"instances": [{"number": 1, "text": "a"}, {"text": "ü", "number": -2}]},
         {"number": [1, -2], "text": [b"a", "ü".encode()]}),
        (TWO, {"instances": [{"number": 1, "text": {"b64": "AP8="}}]},
         {"number": [1], "text": [b"\0\xff"]}),
        (TWO, {"inputs": {"number": [5], "text": [{"b64": "AP8"}]}},
         {"number": [5], "text": [b"\0\xff"]}),
        (signature({"t": ("BYTES", (-1,))}, {}), {"instances": [{"b64": ""}, "plain"]},
         {"t": [b"", b"plain"]}),
        (signature({"t": ("BYTES", (-1, 2))}, {}), {"instances": [["a", {"b64": "Yg=="}]]},
         {"t": [[b"a", b"b"]]}),
        (signature({"s": ("FP64", ())}, {}), {"inputs": 0.1}, {"s": 0.1}),
        (signature({"s": ("BYTES", ())}, {}), {"inputs": {"b64": "YQ=="}}, {"s": b"a"}),
        (signature({"b": ("BOOL", (-1,))}, {}), {"instances": [True, False]},
         {"b": [True, False]}),
        (signature({"u": ("UINT64", (-1,))}, {}), {"instances": [2**64 - 1, 0]},
         {"u": [2**64 - 1, 0]}),
        (signature({"h": ("FP16", (-1,))}, {}), {"instances": [0.5]}, {"h": [0.5]}),
    ],
)  # fmt: skip
def test_rows_and_columns(model, body, expected):
    """Row and columnar form, plain and named values, text and base64 make the model's inputs."""
    made = inputs(body, model)
    assert {name: array.tolist() for name, array in made.items()} == expected


def test_tokens_that_json_lacks():
    """NaN, Infinity and -Infinity are numbers here."""
    made = inputs(b'{"instances": [[NaN, Infinity, -Infinity, 1]]}')["x"]
    assert str(made.tolist()) == "[[nan, inf, -inf, 1.0]]"


def test_items_are_rows():
    """What counts for a batch is the first dimension; an empty tensor is one item."""
    assert query({"instances": [[1], [2], [3]]}).items == 3
    assert query({"inputs": [[1, 2], [3, 4]]}).items == 2
    assert query({"instances": [[]]}).items == 1


MESSAGES = [
    ("JSON Parse error: The document is empty", b"", ONE),
    ("JSON Parse error: ", b"{", ONE),
    ("JSON Parse error: ", b"\xff\xfe", ONE),
    ("JSON Parse error: The document is nested 101 levels", b"[" * 101, ONE),
    ("Is not object", b"[1]", ONE),
    ("Missing 'inputs' or 'instances' key", {}, ONE),
    ("expecting only one of 'inputs' or 'instances' keys to exist",
     {"inputs": [1], "instances": [1]}, ONE),
    ("No values in 'instances' array", {"instances": []}, ONE),
    ("'instances' to be an list/array", {"instances": {"x": 1}}, ONE),
    ('Serving signature name: "x" not found in signature def',
     {"signature_name": "x", "instances": [[1]]}, ONE),
    ("'signature_name' key must be a string value", {"signature_name": 1}, ONE),
    ('JSON Value: "a" Type: String is not of expected type: float', {"instances": [["a"]]}, ONE),
    ("Type: True is not of expected type: float", {"instances": [[1, True]]}, ONE),
    ("Type: Null is not of expected type: float", {"instances": [[None]]}, ONE),
    ("Type: Object is not of expected type: float", {"inputs": [[{}]]}, ONE),
    ("JSON Value: 1.0 Type: Number is not of expected type: int32",
     {"inputs": {"number": [1.0], "text": ["a"]}}, TWO),
    ("is not of expected type: int32", {"inputs": {"number": [2**31], "text": ["a"]}}, TWO),
    ("is not of expected type: int32", {"inputs": {"number": [10**30], "text": ["a"]}}, TWO),
    ("is not of expected type: string", {"inputs": {"number": [1], "text": [1]}}, TWO),
    ("Missing named input: text in 'inputs' object", {"inputs": {"number": [1]}}, TWO),
    ("Failed to process element: 1 key: number of 'instances' list",
     {"instances": [{"number": 1, "text": "a"}, {"number": "1", "text": "a"}]}, TWO),
    ("JSON object: does not have named input: more",
     {"instances": [{"number": 1, "text": "a", "more": 1}]}, TWO),
    ("keys must be equal to: number,text", {"instances": [{"number": 1}]}, TWO),
    ("instances is a plain list", {"instances": [1]}, TWO),
    ("inputs is a plain value/list", {"inputs": [1]}, TWO),
    ("Expecting value/list but got object at item 1", {"instances": [[1], {"x": [1]}]}, ONE),
    ("Expecting object but got list at item 1", {"instances": [{"x": [1]}, [1]]}, ONE),
    ("Expecting tensor size: 1 but got: 2", {"instances": [[1], [1, 2]]}, ONE),
    ("Expecting shape [1,2] but got: [2,1]", {"instances": [[[1, 2]], [[1], [2]]]}, ONE),
    ("Encountered list at unexpected size: 1 at level: 1 expected size: 2",
     {"inputs": [[1, 2], [3]]}, ONE),
    ("Encountered list at unexpected level: 1 expected < 1", {"inputs": [1, [2]]}, ONE),
    ("found at incorrect level: 2 in the JSON DOM. Expected at level: 2",
     {"inputs": [[1], 2]}, ONE),
    ("Unable to base64 decode", {"inputs": {"number": [1], "text": [{"b64": "*"}]}}, TWO),
    ("not formatted correctly for base64 data",
     {"inputs": {"number": [1], "text": [{"b64": 1}]}}, TWO),
    ("lone surrogate", b'{"inputs": {"number": [1], "text": ["\\ud800"]}}', TWO),
    ("Cannot convert JSON value: 1e+39 to float without loss", {"instances": [[1e39]]}, ONE),
    ("Cannot convert JSON value: 1000", {"instances": [[10**400]]}, ONE),
    ("Number too big to be stored in double", b'{"instances": [[1e999]]}', ONE),
    ("shape is [2], model 'm' takes [-1, -1]", {"instances": [1, 2]}, ONE),
    ("shape is [], model 'm' takes [-1, -1]", {"inputs": 1}, ONE),
    ("Input tensors must have equal 0th-dimension size: 1 and 2",
     {"inputs": {"number": [1], "text": ["a", "b"]}}, TWO),
]  # fmt: skip


@pytest.mark.parametrize(("message", "body", "model"), MESSAGES)
def test_messages(message, body, model):
    """What is wrong is said in TensorFlow Serving's words, in one line, with 400."""
    with pytest.raises(InvalidRequest) as caught:
        query(body, model)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (model_of({"x": ((2, -1), 1)}, SCORES), "the items of input 'x' lie along axis 1"),
        (model_of({"x": ((-1, 2), 0)}, {**SCORES, "n": ((2, -1), 1)}),
         "the items of output 'n' lie along axis 1"),
        (model_of({"x": ((-1, 2), 0), "rate": ((2,), None)}, SCORES),
         "input 'rate' is shared by all items"),
        (model_of({"x": ((-1, 2), 0), "rate": ((), 0)}, SCORES, "of a reason"),
         "input 'rate' is a scalar"),
        (model_of({"x": ((-1, 2), 0), "state": ((2, 2), 0)}, SCORES, "of a reason"),
         "input 'state' has a first dimension that is fixed at 2"),
    ],
)  # fmt: skip
def test_what_has_no_rows_is_not_stacked(model, why):
    """Rows stacked along axis 0 would mix up items: they are refused, large ones too, and columns are not."""
    row = {"x": [1, 2], "rate": [1, 2], "state": [1, 2]}
    row = {spec.name: row.get(spec.name) for spec in model.inputs}
    codec = rest_codec.TensorFlowRestCodec("m", "1", model)
    large = json.dumps({"instances": [[1.5] * 20_000] * 2}).encode()
    for ask in (
        lambda: query({"instances": [row, row]}, model),
        lambda: query({"examples": [row, row]}, model, "classify"),
        *([lambda: codec.large_query(large)] if len(model.inputs) == 1 else ()),
    ):
        with pytest.raises(InvalidRequest) as caught:
            ask()
        assert f"does not accept rows (instances, examples): {why}; " in str(caught.value)
        assert str(caught.value).endswith("as 'inputs'")
    columns = {spec.name: np.ones([3 if n < 0 else n for n in spec.shape]) for spec in model.inputs}
    made = inputs({"inputs": {name: array.tolist() for name, array in columns.items()}}, model)
    assert {name: array.shape for name, array in made.items()} == {
        name: array.shape for name, array in columns.items()
    }


@pytest.mark.parametrize(("shape", "rows"), [((1, 2), 1), ((3, 2), 3), ((-1, 2), 2)])
def test_rows_of_a_model_that_is_served_whole(shape, rows):
    """Where its inputs fix how many there are, or its shapes allow batches, rows are what it takes."""
    model = model_of({"x": (shape, 0)}, SCORES, "quantised")
    assert inputs({"instances": [[1, 2]] * rows}, model)["x"].shape == (rows, 2)


def test_rows_of_a_model_whose_outputs_are_of_unknown_rank():
    """Their items are taken to be rows, as long as the answer has any."""
    model = model_of({"x": ((-1, 2), 0)}, {"y": ((), 0)})
    assert inputs({"instances": [[1, 2]] * 2}, model)["x"].shape == (2, 2)
    assert answer({"y": np.ones((2, 1))}, model) == {"predictions": [[1], [1]]}


def test_a_large_value_is_not_repeated_in_the_error():
    """The text of an error stays short, whatever the request holds."""
    with pytest.raises(InvalidRequest) as caught:
        query({"instances": [], "more": ["x" * 100_000]})
    assert len(str(caught.value)) < 400


# Laws

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["x", "number", "text", "b64", "ü"]), inner, max_size=3)
    ),
    max_leaves=12,
)
documents = st.dictionaries(
    st.sampled_from(["instances", "inputs", "signature_name", "examples", "context"]),
    json_values,
)


@given(
    document=documents | json_values,
    model=st.sampled_from([ONE, TWO]),
    method=st.sampled_from(["predict", "classify", "regress"]),
)
def test_any_json_is_a_query_or_an_error(document, model, method):
    """Whatever JSON comes: tensors that fit the model, or a ServingError with a text of one line."""
    try:
        made = query(document, model, method)
    except ServingError as error:
        given_error = error
    else:
        assert arrays_of(made.frame).keys() == {spec.name for spec in model.inputs}
        return
    assert given_error.status == 400
    assert "\n" not in str(given_error)


@given(text=st.binary(max_size=60))
def test_any_bytes_are_a_request_or_an_error(text):
    """Bytes that are no request are answered, too."""
    said = ""
    try:
        rest_codec.request(text)
    except InvalidRequest as error:
        said = str(error)
    assert "\n" not in said


@given(data=st.data(), datatype=st.sampled_from(sorted(NUMPY)))
def test_rows_and_columns_agree(data, datatype):
    """The same tensor as rows, as named rows and as a column gives the same bytes."""
    elements = {"width": 16 if datatype == "FP16" else 32 if datatype == "FP32" else 64}
    array = data.draw(
        hnp.arrays(
            np.dtype(NUMPY[datatype]),
            hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4),
            elements=st.floats(allow_subnormal=True, **elements) if "FP" in datatype else None,
        )
    )
    shape = (-1,) * array.ndim
    model = signature({"x": (datatype, shape)}, {"x": (datatype, shape)})
    values = array.tolist()
    frames = [
        inputs(body, model)["x"]
        for body in (
            {"instances": values},
            {"instances": [{"x": value} for value in values]},
            {"inputs": values},
            {"inputs": {"x": values}},
        )
    ]
    for made in frames:
        np.testing.assert_array_equal(made, array)
    back = answer({"x": array}, model, "columnar")["outputs"]
    assert answer({"x": array}, model, "row")["predictions"] == back or np.isnan(array).any()
    np.testing.assert_array_equal(np.array(back, dtype=array.dtype), array)


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=6))
def test_bytes_round_trip(items):
    """Bytes in base64 come back in base64 from an output whose name ends in _bytes."""
    model = signature({"x": ("BYTES", (-1,))}, {"x_bytes": ("BYTES", (-1,))})
    values = [{"b64": base64.b64encode(item).decode()} for item in items]
    made = inputs({"instances": values}, model)["x"]
    assert made.tolist() == items
    assert answer({"x_bytes": made}, model)["predictions"] == values


# Answers


def test_one_output_is_unnamed_and_several_are_named():
    """The forms of an answer: predictions per row, outputs per column."""
    arrays = {"sum": np.array([1, 2]), "copy": np.array([b"a", b"b"])}
    assert answer(arrays, TWO) == {
        "predictions": [{"sum": 1, "copy": "a"}, {"sum": 2, "copy": "b"}]
    }
    assert answer(arrays, TWO, "columnar") == {"outputs": {"sum": [1, 2], "copy": ["a", "b"]}}
    one = {"y": np.array([[0.2, 1.0]], dtype=np.float32)}
    assert answer(one) == {"predictions": [[0.2, 1.0]]}
    assert answer(one, form="columnar") == {"outputs": [[0.2, 1.0]]}


def test_not_finite_numbers_are_tokens():
    """NaN and the infinities go out as the tokens that come in."""
    frame = memoryview(frame_of({"y": np.array([[np.nan, np.inf, -np.inf]])}, ONE.outputs))
    pieces = rest_codec.TensorFlowRestCodec("m", "1", ONE).encode_response(frame, "row")
    assert b"".join(pieces) == (b'{"predictions":[[NaN,Infinity,-Infinity]]}')


def test_rows_need_one_batch_size():
    """Outputs that differ in their first dimension have no rows."""
    arrays = {"sum": np.array([1, 2, 3]), "copy": np.array([b"a", b"b"])}
    with pytest.raises(InvalidRequest, match="Tensor name: copy has inconsistent batch size: 2"):
        answer(arrays, TWO)
    assert answer(arrays, TWO, "columnar")["outputs"]["sum"] == [1, 2, 3]
    with pytest.raises(InvalidRequest, match="has no shape information"):
        answer({"y": np.float32(1)})


def test_text_that_is_none():
    """Bytes that are no text are the model's fault, told with what to do."""
    with pytest.raises(InferenceFailed, match="ends in _bytes"):
        answer({"copy": np.array([b"\xff"])}, TWO)


def test_a_bytes_output_that_is_cut_off():
    """A replica that writes a broken BYTES tensor is not believed."""
    tensor = Tensor("copy", "BYTES", (1,), b"\xff\0\0\0a")
    frame = wire.encode_descriptor([tensor]) + tensor.data
    with pytest.raises(InferenceFailed, match="does not hold"):
        rest_codec.TensorFlowRestCodec("m", "1", TWO).encode_response(memoryview(frame), "row")


# Classify and regress

CLASSES = signature({"x": ("FP32", (-1, 2)), "n": ("INT64", (-1,))}, {"scores": ("FP32", (-1, 3))})
LABELLED = signature(
    {"x": ("FP32", (-1, -1))},
    {"classes": ("BYTES", (-1, 2)), "scores": ("FP32", (-1, 2)), "other": ("FP32", (-1, 9))},
)
REGRESSION = signature({"x": ("FP32", (-1,))}, {"y": ("FP64", (-1, 1))})
SERIALIZED = signature({"examples": ("BYTES", (-1,))}, {"y": ("FP32", (-1, 1))})


def test_examples_feed_inputs_by_name():
    """Features become inputs; the context's features count for every example; others are ignored."""
    body = {
        "context": {"n": 7},
        "examples": [{"x": [0.5, 1]}, {"x": [2, 3], "n": [8], "ignored": "a"}],
    }
    made = inputs(body, CLASSES, "classify")
    assert made["x"].tolist() == [[0.5, 1], [2, 3]]
    assert made["n"].tolist() == [7, 8]


def test_classify_answers_with_labels_and_scores():
    """Pairs of label and score per example; places stand for labels where there are none."""
    made = answer({"scores": [[0.1, 0.2, 0.7]]}, CLASSES, "classify")
    assert made == {"results": [[["0", 0.1], ["1", 0.2], ["2", 0.7]]]}
    labelled = {"classes": [[b"cat", b"dog"]], "scores": [[0.25, 0.75]], "other": [[0.0] * 9]}
    assert answer(labelled, LABELLED, "classify") == {"results": [[["cat", 0.25], ["dog", 0.75]]]}


def test_one_score_and_one_label_an_item():
    """Outputs of one dimension are one class per item."""
    model = signature(
        {"x": ("FP32", (-1,))}, {"classes": ("BYTES", (-1,)), "scores": ("FP32", (-1,))}
    )
    arrays = {"classes": [b"a", b"b"], "scores": [0.5, 0.25]}
    assert answer(arrays, model, "classify") == {"results": [[["a", 0.5]], [["b", 0.25]]]}


def test_what_the_model_did_not_return():
    """An answer without outputs, or without the one that is due, is the model's fault."""
    with pytest.raises(InferenceFailed, match="empty tensor map"):
        answer({}, ONE)
    with pytest.raises(InferenceFailed, match="returned no output 'scores'"):
        answer({"other": [[0.0]]}, LABELLED, "classify")


def test_features_of_booleans():
    """0, 1, true and false are booleans to an input of such."""
    model = signature({"b": ("BOOL", (-1, 2))}, {"y": ("FP32", (-1,))})
    made = inputs({"examples": [{"b": [1, False]}]}, model, "regress")
    assert made["b"].tolist() == [[True, False]]


def test_values_of_examples_are_checked_all_at_once():
    """Many numbers cost a fraction of what a look at each of them does."""
    row = [0.5] * 50_000
    model = signature({"x": ("FP32", (-1, -1))}, {"y": ("FP32", (-1,))})
    gc.disable()
    try:
        began_s = time.process_time()
        for value in row:
            rest_tensors.check(value, "FP32")
        one_by_one_s = time.process_time() - began_s
        at_once_s = []
        for _ in range(3):
            began_s = time.process_time()
            (made,) = examples.tensors([{"x": row}], model)
            at_once_s.append(time.process_time() - began_s)
    finally:
        gc.enable()
    assert min(at_once_s) < one_by_one_s
    assert one_by_one_s < 0.5e-6 * len(row), "which is little itself"
    assert made.shape == (1, 50_000)


def test_regress_answers_with_numbers():
    """One number per example."""
    assert inputs({"examples": [{"x": 1.5}, {"x": [2.5]}]}, REGRESSION, "regress")[
        "x"
    ].tolist() == [1.5, 2.5]
    assert answer({"y": [[0.5], [1.5]]}, REGRESSION, "regress") == {"results": [0.5, 1.5]}
    with pytest.raises(InferenceFailed, match=r"Expected output to be of size \[batch\]"):
        answer({"y": [[0.5, 1.0]]}, REGRESSION, "regress")


@pytest.mark.parametrize(
    ("message", "body", "model", "method"),
    [
        ("'examples' is expected and was not found", {}, CLASSES, "classify"),
        ("Expecting 'examples' value to be an list/array", {"examples": {}}, CLASSES, "classify"),
        ("'examples' value is an empty array", {"examples": []}, CLASSES, "classify"),
        ("Example must be JSON object but got JSON Array", {"examples": [[]]}, CLASSES, "classify"),
        ("Example must be JSON object but got JSON Number",
         {"context": 1, "examples": [{}]}, CLASSES, "classify"),
        ("has element with unexpected JSON type: Null", {"examples": [{"x": None}]}, CLASSES,
         "classify"),
        ("has element with unexpected JSON type: Array", {"examples": [{"x": [[1]]}]}, CLASSES,
         "classify"),
        ("Unexpected element type in feature: x expecting type: bytes",
         {"examples": [{"x": ["a", 1]}]}, CLASSES, "classify"),
        ("lone surrogate", {"examples": [{"\ud800": 1}]}, CLASSES, "classify"),
        ("lone surrogate", {"examples": [{"x": "\udfff"}]}, CLASSES, "classify"),
        ("Only int64 is supported", {"examples": [{"n": 2**63}]}, CLASSES, "classify"),
        ("Feature: n (data type: int64) is required but could not be found",
         {"examples": [{"x": [1, 2]}]}, CLASSES, "classify"),
        ("takes items of shape [2]", {"examples": [{"x": [1.5], "n": 1}]}, CLASSES, "classify"),
        ("Feature: x has 1 values in one example and 2 in another",
         {"examples": [{"x": [1, 2]}, {"x": [1]}]}, LABELLED, "classify"),
        ("is not of expected type: float", {"examples": [{"x": "a"}]}, REGRESSION, "regress"),
        ('Was: "tensorflow/serving/predict"', {"examples": [{}]}, TWO, "classify"),
        ('signature method_name to be "tensorflow/serving/regress"', {"examples": [{}]},
         LABELLED, "regress"),
    ],
)  # fmt: skip
def test_messages_of_examples(message, body, model, method):
    """What is wrong with examples is said as TensorFlow Serving says it."""
    with pytest.raises(InvalidRequest) as caught:
        query(body, model, method)
    assert message in str(caught.value)


def test_a_model_of_serialized_examples_gets_them():
    """A single BYTES input takes each example as a tf.Example; golden bytes of its protobuf form."""
    body = {"examples": [{"a": [1, -1]}, {"b": 0.5}, {"c": ["xy", {"b64": "AA=="}]}, {"d": []}]}
    made = inputs(body, SERIALIZED, "regress")["examples"].tolist()
    assert made[0] == serialize({"a": [1, -1]})
    assert made[1] == bytes.fromhex("0a0f0a0d0a016212081206 0a04 0000003f".replace(" ", ""))
    assert made[2] == bytes.fromhex("0a100a0e0a016312090a07 0a027879 0a0100".replace(" ", ""))
    assert made[3] == bytes.fromhex("0a070a050a01641200")


def test_serialized_integers():
    """Packed varints, negative ones in ten bytes."""
    packed = b"\x01" + b"\xff" * 9 + b"\x01"
    feature = b"\x1a\x0d\x0a\x0b" + packed
    entry = b"\x0a\x01a\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    assert serialize({"a": [1, -1]}) == b"\x0a" + bytes([len(features)]) + features


# Status and metadata


def test_metadata():
    """Every model has one signature, in the form of a SignatureDef's JSON."""
    made = model_status.metadata("m", "3", ONE)
    assert made["model_spec"] == {"name": "m", "signature_name": "", "version": "3"}
    definition = made["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert definition["inputs"]["x"]["dtype"] == "DT_FLOAT"
    assert definition["inputs"]["x"]["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}] * 2
    assert definition["method_name"] == "tensorflow/serving/predict"


def test_status():
    """A state per version, the version as a text."""
    assert model_status.status([model_status.VersionState("2", "AVAILABLE")]) == {
        "model_version_status": [
            {
                "version": "2",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }


def test_arrays_of_the_fake_are_those_of_the_wire():
    """The fake that these tests read frames with agrees with itself."""
    tensor = Tensor("x", "BYTES", (2,), b"\x01\0\0\0a\0\0\0\0")
    assert array_of(tensor).tolist() == [b"a", b""]
