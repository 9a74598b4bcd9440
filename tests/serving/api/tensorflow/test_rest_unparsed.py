"""Large requests of TensorFlow Serving's protocol: their shape is told without reading their numbers."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from serving import wire
from serving.api.open_inference.skeleton import LARGE_JSON_BYTES
from serving.api.tensorflow import rest_codec
from serving.api.tensorflow.rest_unparsed import read_large, regular_shape
from serving.errors import InvalidRequest
from serving.tensors import json_tensors
from serving.values import TensorSpec
from tests.fakes.servables import array_of, signature

IMAGES = signature({"x": ("FP32", (-1, 2, -1))}, {"y": ("FP32", (-1,))})
SPEC = IMAGES.inputs[0]


def structure(value):
    """Brackets and commas of a value's JSON."""
    return json.dumps(value).encode().translate(None, b"0123456789+-.eE ")


def read(found):
    """The tensor that a replica reads."""
    (tensor,) = json_tensors.decode_inputs(b"".join(found.frame))
    return array_of(tensor)


@given(hnp.arrays(np.int64, hnp.array_shapes(min_dims=1, max_dims=5, min_side=1, max_side=4)))
def test_the_shape_of_even_arrays(array):
    """Brackets and commas tell the shape, at the rank that it has and at no other."""
    text = structure(array.tolist())
    assert regular_shape(text, array.ndim) == array.shape
    assert regular_shape(text, array.ndim + 1) is None
    assert array.ndim == 1 or regular_shape(text, array.ndim - 1) is None


uneven = st.recursive(
    st.just(1), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=12
).filter(lambda value: isinstance(value, list))


@given(uneven, st.integers(1, 5))
def test_uneven_arrays_have_no_shape(value, rank):
    """A shape is told exactly where numpy finds one, too."""
    try:
        expected = np.array(value).shape
    except ValueError:
        expected = None
    if expected is not None and len(expected) != rank:
        expected = None
    assert regular_shape(structure(value), rank) == expected


@given(st.text(alphabet="[],", max_size=30).map(str.encode), st.integers(1, 4))
def test_any_brackets_have_a_shape_or_none(text, rank):
    """Brackets in disorder are told from arrays."""
    shape = regular_shape(text, rank)
    if shape is not None:
        assert structure(np.ones(shape, dtype=int).tolist()) == text


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances": [[[1, 2.5], [3, -4e0]]]}',
        b' {"signature_name" : "serving_default" ,\n "inputs":[[[1,2.5],[3,-4]]] }\n',
        b'{"inputs":[[[1,2.5],[3,-4]]], "signature_name": ""}',
    ],
)
def test_what_the_replica_reads(body):
    """The replica gets the same tensor as if the body had been read here."""
    found = read_large(body, SPEC)
    assert found.shape == (1, 2, 2)
    assert found.form == ("row" if b"instances" in body else "columnar")
    assert read(found).tolist() == [[[1, 2.5], [3, -4]]]


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances": [[[1], [2, 3]]]}',
        b'{"instances": [[[], []]]}',
        b'{"instances": [[[1], ["2"]]]}',
        b'{"instances": [[[1], [NaN]]]}',
        b'{"instances": [[1], [2]]}',
        b'{"instances": [{"x": [[1], [2]]}]}',
        b'{"instances": [[[1], [2]]], "inputs": 1}',
        b'{"instances": [[[1], [2]]], "signature_name": "other"}',
        b'{"instances": [[[1], [2]]]',
        b'{"instances": [[[1], [2]]]} x',
        b'[[[1], [2]]]',
        b'{"instances": 5}',
        b"",
    ],
)  # fmt: skip
def test_what_is_read_whole(body):
    """Anything but one even array of numbers is left to the reader that says what is wrong."""
    assert read_large(body, SPEC) is None


@pytest.mark.parametrize(("datatype", "shape"), [("BYTES", (-1,)), ("BOOL", (-1,)), ("FP32", ())])
def test_inputs_that_are_read_whole(datatype, shape):
    """Texts, booleans and scalars are not left to the replica."""
    assert (
        read_large(b'{"inputs": [1]}', TensorSpec(name="x", datatype=datatype, shape=shape)) is None
    )


def test_large_queries():
    """Large bodies become queries in the JSON encoding; small ones and other forms do not."""
    codec = rest_codec.TensorFlowRestCodec("m", "1", IMAGES)
    body = json.dumps({"instances": np.ones((300, 2, 50)).tolist()}).encode()
    assert len(body) > LARGE_JSON_BYTES
    query = codec.large_query(body)
    assert query.encoding == wire.Encoding.OIP_JSON
    assert (query.items, query.wanted) == (300, "row")
    assert query.frame_bytes == sum(map(len, query.frame))
    assert codec.large_query(b'{"instances": [[[1], [2]]]}') is None
    two = signature({"a": ("FP32", (-1,)), "b": ("FP32", (-1,))}, {})
    assert rest_codec.TensorFlowRestCodec("m", "1", two).large_query(body) is None
    three = json.dumps({"instances": np.ones((300, 3, 50)).tolist()}).encode()
    with pytest.raises(InvalidRequest, match=r"shape is \[300, 3, 50\]"):
        codec.large_query(three)


@pytest.mark.parametrize("blanks", [0, 5, 131_069, 131_070, 131_071, 300_000])
def test_an_empty_array_is_told_wherever_it_stands(blanks):
    """Bodies are looked at in pieces, and blanks between brackets mean nothing."""
    spec = TensorSpec(name="x", datatype="FP32", shape=(-1, -1))
    gap = b" " * blanks
    assert read_large(b'{"instances":[[' + gap + b"],[1]]}", spec) is None
    assert read_large(b'{"instances":[[1' + gap + b"],[1]]}", spec).shape == (2, 1)
    assert read_large(b'{"instances":[[1,' + gap + b'"],[1]]}', spec) is None
    assert read_large(b'{"instances":[[1,' + gap + b"null],[1]]}", spec) is None
