"""Clipper's queries and answers, read and written without a server."""

import base64
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import wire
from serving.api.clipper import queries
from serving.api.clipper.fields import RequestError
from serving.api.clipper.inputs import INPUT_TYPES, ApplicationInput, input_type, input_types
from serving.api.parsing.bounded_json import write
from serving.errors import InferenceFailed, InvalidRequest
from serving.values import Signature, Tensor, TensorSpec
from tests.fakes.clipper_hub import Result
from tests.fakes.servables import arrays_of, frame_of, signature

KINDS = ("integers", "floats", "doubles", "strings", "bytes")


def asked(body, kind):
    """The inputs' values of a predict request."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    made = queries.prediction(queries.predict_fields(text), kind)
    return [list(item.value) if kind in KINDS[:3] else item.value for item in made.inputs]


def fed(value, kind, datatype, shape):
    """The array that an input feeds to a model whose input is such."""
    (array,) = arrays_of(
        ApplicationInput(kind, value).query(signature({"x": (datatype, shape)}, {})).frame
    ).values()
    return array


def shown(output, **more):
    """One prediction of an answer, its query's number left out."""
    pieces = queries.prediction_pieces(Result(7, output, **more))
    made = json.loads(queries.response_body([b"".join(pieces)]))
    assert made.pop("query_id") == 7
    return made


def frame(*tensors):
    """Outputs of one item, from (name, datatype, value)."""
    specs = signature({}, {name: (datatype, (-1,)) for name, datatype, _ in tensors}).outputs
    return memoryview(frame_of({name: np.asarray(value) for name, _, value in tensors}, specs))


# Requests


@pytest.mark.parametrize(
    ("alias", "kind"),
    [(alias, kind) for kind, aliases in {
        "integers": ("integers", "ints", "integer", "int", "i"),
        "floats": ("floats", "float", "f"),
        "doubles": ("doubles", "double", "d"),
        "strings": ("strings", "string", "str", "strs", "s"),
        "bytes": ("bytes", "byte", "b"),
    }.items() for alias in aliases],
)  # fmt: skip
def test_input_types_have_aliases(alias, kind):
    """Every alias of an input type means its readable name."""
    assert input_type(alias) == kind
    assert set(INPUT_TYPES.values()) == set(KINDS)


def test_unknown_input_types_are_refused():
    """The error is Clipper's."""
    with pytest.raises(InvalidRequest, match="complex is not a valid input string"):
        input_type("complex")


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("integers", {"input": [1, -2]}, [[1, -2]]),
        ("integers", {"input": []}, [[]]),
        ("integers", {"input_batch": [[1], [2, 3]]}, [[1], [2, 3]]),
        ("integers", {"input": [2**31 - 1, -(2**31)]}, [[2**31 - 1, -(2**31)]]),
        ("floats", {"input": [1, 2.5]}, [[1.0, 2.5]]),
        ("doubles", {"input": [1e300, 0]}, [[1e300, 0.0]]),
        ("strings", {"input": "ü"}, ["ü".encode()]),
        ("strings", {"input_batch": ["", "b"]}, [b"", b"b"]),
        ("bytes", {"input": base64.b64encode(b"\0\xff").decode()}, [b"\0\xff"]),
        ("bytes", {"input_batch": ["", "YQ=="]}, [b"", b"a"]),
        ("integers", {"input": [1], "input_batch": "not looked at"}, [[1]]),
        ("integers", {"input_batch": []}, []),
    ],
)
def test_inputs(kind, body, expected):
    """One input or a batch, of every type; `input` wins over `input_batch`."""
    assert asked(body, kind) == expected


def test_users():
    """A request may say whose it is."""
    for body, user in ((b'{"input": "a", "uid": 5}', "5"), (b'{"input": "a"}', "")):
        assert queries.prediction(queries.predict_fields(body), "strings").user == user


PROBLEMS = [
    ("integers", b"{", "Error parsing JSON: JSON parse error: "),
    ("integers", b"", "Error parsing JSON: JSON parse error: "),
    ("integers", b'{"input": [1', "(offset 12)"),
    ("integers", b"[" * 101, "nested 101 levels deep, at most 100"),
    ("integers", b"[1]", "Can only get key-value pair from an object"),
    ("integers", {}, "JSON object does not have required keys input or input_batch"),
    ("integers", {"input": "1"},
     "Type mismatch! JSON key input expected type Arraybut found type String"),
    ("integers", {"input": None}, "expected type Arraybut found type Null"),
    ("strings", {"input": [1]},
     "Type mismatch! JSON key input expected type Stringbut found type Array"),
    ("bytes", {"input": 1}, "expected type Stringbut found type Number"),
    ("integers", {"input_batch": {}}, "JSON key input_batch expected type Arraybut found type Object"),
    ("integers", {"input_batch": [1]}, "Array input of type Number is not of type array"),
    ("strings", {"input_batch": [1]}, "Array input of type Number is not of type string"),
    ("integers", {"input": [1.0]}, "Array input of type Number is not of type int"),
    ("integers", {"input": [1, 2**31]}, "Array input of type Number is not of type int"),
    ("integers", {"input": [True]}, "Array input of type True is not of type int"),
    ("floats", {"input": [1, "a"]}, "Array input of type String is not of type float"),
    ("doubles", {"input": [[1]]}, "Array input of type Array is not of type double"),
    ("doubles", {"input_batch": [[1], [None]]}, "Array input of type Null is not of type double"),
    ("doubles", b'{"input": [1e999]}', "Number too big"),
    ("doubles", {"input": [10**400]}, "Number too big"),
    ("doubles", b'{"input": [NaN]}', "Invalid value NaN"),
    ("bytes", {"input": "*"}, "input is not base64"),
    ("strings", b'{"input": "\\ud800"}', "lone surrogate"),
    ("strings", {"input": "a", "uid": []}, "JSON key uid expected type Stringbut found type Array"),
    ("strings", {"input": "a", "uid": "u" * 257}, "uid has 257 characters, at most 256"),
    ("strings", b'{"input": "a", "uid": "\\ud800"}', "uid contains a lone surrogate"),
    ("strings", {"input_batch": [""] * (queries.MAX_BATCH + 1)}, "at most 2048 are allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "body", "cause"), PROBLEMS)
def test_problems(kind, body, cause):
    """What is wrong is said in Clipper's words, in one line, under its name for such errors."""
    with pytest.raises(RequestError) as caught:
        asked(body, kind)
    told = json.loads(caught.value.body())
    assert told["error"] == "Json error"
    assert cause in told["cause"]
    assert told["cause"].startswith("Error parsing JSON: ")
    assert "Expected JSON schema: " in told["cause"]
    assert "\n" not in told["cause"]
    assert caught.value.status == 400


def test_request_errors_cross_processes():
    """An error keeps its facts when it is pickled."""
    error = pickle.loads(pickle.dumps(RequestError("Json error", "why")))
    assert (error.name, error.cause, str(error)) == ("Json error", "why", "why")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"uid": "anna", "input": [1], "label": 1.5}, ("anna", [1], 1.5, None)),
        ({"uid": 0, "input": [1], "label": 3}, ("0", [1], 3.0, None)),
        ({"uid": 7, "input": [], "label": "cat", "query_id": 12}, ("7", [], "cat", 12)),
    ],
)
def test_updates(body, expected):
    """Feedback names a user by text or number, and what was right by number or label."""
    made = queries.update(json.dumps(body).encode(), "integers")
    assert (made.user, list(made.input.value), made.label, made.query_id) == expected


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ({"input": [1], "label": 1}, "does not have required key: uid"),
        ({"uid": 1, "label": 1}, "does not have required key: input"),
        ({"uid": 1, "input": [1]}, "does not have required key: label"),
        ({"uid": True, "input": [1], "label": 1}, "JSON key uid expected type String"),
        ({"uid": 1, "input": "a", "label": 1}, "JSON key input expected type Array"),
        ({"uid": 1, "input": [1], "label": True}, "JSON key label expected type Number"),
        ({"uid": 1, "input": [1], "label": 10**400}, "label is too large"),
        ({"uid": 1, "input": [1], "label": 1, "query_id": "1"}, "JSON key query_id"),
    ],
)
def test_problems_of_updates(body, cause):
    """What is wrong with feedback is said."""
    with pytest.raises(RequestError) as caught:
        queries.update(json.dumps(body).encode(), "integers")
    assert cause in str(caught.value)
    assert "\n" not in str(caught.value)


# Inputs for models


@pytest.mark.parametrize(
    ("kind", "value", "datatype", "shape", "expected"),
    [
        ("integers", [1, 2, 3, 4], "UINT8", (-1, 2, 2), [[[1, 2], [3, 4]]]),
        ("integers", [1, 2, 3], "FP32", (-1, -1), [[1, 2, 3]]),
        ("integers", [5], "INT64", (-1,), [5]),
        ("integers", [0, 1], "BOOL", (-1, 2), [[False, True]]),
        ("floats", [1.0, 2.0], "INT32", (-1, -1), [[1, 2]]),
        ("doubles", [0.5] * 6, "FP16", (1, -1, 3), [[[0.5] * 3] * 2]),
        ("strings", b"a", "BYTES", (-1,), [b"a"]),
        ("strings", b"", "BYTES", (-1, 1), [[b""]]),
        ("bytes", b"\0\xff", "BYTES", (-1, -1), [[b"\0\xff"]]),
        ("bytes", bytes(range(4)), "UINT8", (-1, 2, 2), [[[0, 1], [2, 3]]]),
        ("doubles", [], "FP32", (-1, -1), [[]]),
    ],
)
def test_an_input_takes_the_shape_of_the_model(kind, value, datatype, shape, expected):
    """Values in a row take the model's shape and datatype, as one item."""
    assert fed(value, kind, datatype, shape).tolist() == expected


def test_a_picture_in_a_row():
    """3072 values are one picture to a model of pictures."""
    assert fed([0.0] * 3072, "doubles", "FP32", (-1, 3, 32, 32)).shape == (1, 3, 32, 32)


@pytest.mark.parametrize(
    ("kind", "value", "datatype", "shape", "message"),
    [
        ("doubles", [1.0] * 5, "FP32", (-1, 3, 32), "5 values in a row cannot be"),
        ("doubles", [1.0], "FP32", (-1, -1, -1), "1 value in a row cannot be"),
        ("doubles", [1.0], "FP32", (8, -1), "does not accept one item"),
        ("doubles", [1.0], "FP32", (), "does not accept one item"),
        ("integers", [256], "UINT8", (-1, -1), "the values range from 256 to 256"),
        ("integers", [-1, 2], "UINT8", (-1, -1), "the values range from -1 to 2"),
        ("doubles", [1e39], "FP32", (-1, -1), "the values range from 1e+39"),
        ("doubles", [0.5], "INT32", (-1, -1), "not all values are whole"),
        ("doubles", [0.5], "BYTES", (-1,), "takes BYTES, the application's input type is doubles"),
        ("strings", b"a", "FP32", (-1,), "takes FP32, the application's input type is strings"),
        ("strings", b"a", "UINT8", (-1, -1), "the application's input type is strings"),
        ("bytes", b"abc", "UINT8", (-1, 2), "3 values in a row cannot be"),
    ],
)
def test_what_does_not_fit_the_model(kind, value, datatype, shape, message):
    """Nothing is cut off, rounded, or guessed."""
    with pytest.raises(InvalidRequest) as caught:
        fed(value, kind, datatype, shape)
    assert message in str(caught.value)


@pytest.mark.parametrize("shape", [(-1,), (1, 1), (-1, -1), (8, 1), ()])
@pytest.mark.parametrize("datatype", ["BYTES", "UINT8", "INT64", "FP32", "BOOL"])
@pytest.mark.parametrize("kind", sorted(set(INPUT_TYPES.values())))
def test_a_model_takes_the_input_types_that_its_signature_says(kind, datatype, shape):
    """An application can be linked to the model exactly where its queries can be asked of it."""
    taken = input_types(signature({"x": (datatype, shape)}, {}))
    value = b"a" if kind in {"strings", "bytes"} else [1]
    if kind in taken:
        assert fed(value, kind, datatype, shape).size == 1
    else:
        with pytest.raises(InvalidRequest, match=r"input type is|does not accept one item"):
            fed(value, kind, datatype, shape)


@pytest.mark.parametrize(
    ("shape", "item_axis", "unbatched", "is_taken"),
    [
        ((-1, 1), 0, "", True),
        ((1, -1), 1, "", False),
        ((-1, 1), None, "", False),
        ((-1, 1), 0, "of a reason", True),
        ((1, 1), 0, "of a reason", True),
        ((2, 1), 0, "of a reason", False),
    ],
)
def test_items_that_lie_elsewhere(shape, item_axis, unbatched, is_taken):
    """A query is one item in front: it is made where the model's items lie there, or where it is served whole."""
    spec = TensorSpec(name="x", datatype="FP32", shape=shape, item_axis=item_axis)
    model = Signature(inputs=(spec,), outputs=(), unbatched=unbatched)
    assert bool(input_types(model)) is is_taken
    if is_taken:
        assert ApplicationInput("doubles", [1.0]).query(model).items == 1
        return
    with pytest.raises(
        InvalidRequest, match="does not accept one item as its first dimension; use"
    ):
        ApplicationInput("doubles", [1.0]).query(model)


def test_models_of_several_inputs_are_not_asked():
    """A query of this protocol feeds one input."""
    with pytest.raises(InvalidRequest, match="the model has 2"):
        ApplicationInput("doubles", [1.0]).query(
            signature({"a": ("FP32", (-1,)), "b": ("FP32", (-1,))}, {})
        )
    assert input_types(signature({"a": ("FP32", (-1,)), "b": ("FP32", (-1,))}, {})) == ()


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20))
def test_equal_inputs_have_equal_keys(values):
    """What feedback is joined by depends on the values alone, however they were written."""
    as_integers, as_floats = (
        ApplicationInput("doubles", values).key,
        ApplicationInput("doubles", [float(v) for v in values]).key,
    )
    assert as_integers == as_floats
    assert ApplicationInput("integers", values).key == np.array(values, dtype="<i4").tobytes()
    assert ApplicationInput("strings", b"a").key == b"a"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(
    document=st.dictionaries(
        st.sampled_from(["input", "input_batch", "version", "uid", "label", "query_id"]),
        json_values,
    )
    | json_values,
    kind=st.sampled_from(KINDS),
    datatype=st.sampled_from(["FP32", "UINT8", "BOOL", "INT64", "BYTES"]),
)
def test_any_json_is_queries_or_an_error(document, kind, datatype):
    """Whatever JSON comes: inputs, or an error of one line; and so for the models' tensors."""
    said = ""
    text = json.dumps(document).encode()
    try:
        made = queries.prediction(queries.predict_fields(text), kind)
        for item in made.inputs:
            item.query(signature({"x": (datatype, (-1, -1))}, {}))
    except InvalidRequest as error:
        said = str(error)
    assert "\n" not in said
    try:
        queries.update(text, kind)
    except InvalidRequest as error:
        said = str(error)
    assert "\n" not in said


# Answers


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (frame(("y", "BYTES", [b"cat"])), "cat"),
        (frame(("y", "BYTES", [b'{"a": [1, 2.5]}'])), {"a": [1, 2.5]}),
        (frame(("y", "BYTES", [b"1.0"])), 1.0),
        (frame(("y", "BYTES", [b'"quoted"'])), "quoted"),
        (frame(("y", "BYTES", [b"nan"])), "nan"),
        (frame(("y", "BYTES", [b"NaN"])), "NaN"),
        (frame(("y", "BYTES", [b""])), ""),
        (frame(("y", "BYTES", [b"\xff"])), "\ufffd"),
        (frame(("y", "BYTES", [b"[" * 101])), "[" * 101),
        (frame(("y", "BYTES", [[b"a", b"1"]])), ["a", "1"]),
        (frame(("y", "FP32", [0.2])), 0.2),
        (frame(("y", "FP32", [[0.2, 0.5]])), [0.2, 0.5]),
        (frame(("y", "FP64", [[math.nan, -math.inf]])), ["NaN", "-Infinity"]),
        (frame(("y", "INT64", [[[1], [2]]])), [[1], [2]]),
        (frame(("y", "BOOL", [True])), True),
        (frame(("a", "INT32", [1]), ("b", "BYTES", [b"x"])), {"a": 1, "b": "x"}),
        ("cat", "cat"),
        ("3", 3),
        (0.5, 0.5),
    ],
)  # fmt: skip
def test_outputs(output, expected):
    """Text that is JSON is nested, other text is text; numbers are numbers or arrays."""
    assert shown(output) == {"output": expected, "default": False}


def default(**more):
    """A prediction with the default output, its query's number left out."""
    why = more.pop("explanation", None)
    made = json.loads(queries.default_prediction(Result(7, None, True, **more), "-1.0", why))
    assert made.pop("query_id") == 7
    return made


def test_default_output():
    """Where there is no answer the default one is given, with the reason where it is known."""
    assert default(explanation="why") == {
        "output": -1.0, "default": True, "default_explanation": "why",
    }  # fmt: skip
    assert default(confidence=0.5) == {"output": -1.0, "default": True, "confidence": 0.5}
    assert shown(0.5, explanation="not told") == {"output": 0.5, "default": False}


def test_confidence_and_suspicion():
    """What several models say of one another is told, where there are several."""
    assert shown("a", confidence=0.75, is_suspicious=True) == {
        "output": "a", "default": False, "confidence": 0.75, "suspicious": True,
    }  # fmt: skip


@pytest.mark.parametrize("output", [b"\1\0", None])
def test_a_broken_frame_cannot_be_read(output):
    """The routes answer with the default output, and say why."""
    tensor = Tensor("y", "BYTES", (1,), b"\xff\0\0\0")
    broken = wire.encode_descriptor([tensor]) + tensor.data if output is None else output
    with pytest.raises((InferenceFailed, wire.WireError)):
        shown(memoryview(broken))


def test_one_prediction_stands_alone_and_several_in_a_list():
    """A batch of one is unwrapped: Clipper's clients depend on it."""
    one = {"query_id": 1, "output": 2, "default": False}
    text = write(one).encode()
    assert json.loads(queries.response_body([text])) == one
    assert json.loads(queries.response_body([text, text])) == {"batch_predictions": [one, one]}
    assert json.loads(queries.response_body([])) == {"batch_predictions": []}
