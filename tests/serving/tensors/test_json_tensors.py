"""Tensors in JSON: what is no value of the datatype is refused, and nothing else is changed."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidRequest
from serving.tensors.json_tensors import NUMPY, tensor_from_json, tensor_to_json
from serving.values import Tensor


def read(datatype, data, shape=None):
    item = {"name": "x", "datatype": datatype, "data": data}
    return tensor_from_json({**item, "shape": shape or [len(data)]})


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        ("UINT8", [1, True], "takes integers"),
        ("UINT8", ["1", 1], "takes integers"),
        ("UINT8", [1.0, 2], "takes integers"),
        ("UINT8", [256, 0], "takes 0 to 255"),
        ("INT64", [2**63, 0], "takes -9223372036854775808 to"),
        ("BOOL", [1, 0], "takes booleans"),
        ("FP32", [1, None], "takes numbers"),
        ("FP32", [1e39, 0], "too large for FP32"),
        ("FP64", [10**400, 0], "too large for FP64"),
        ("FP16", [70000, 0], "too large for FP16"),
        ("UINT8", [[1], [2, 3]], "ragged"),
        ("BYTES", ["\ud800", "a"], "surrogate"),
        ("UINT8", [1, 2, 3], "data has 3 elements"),
    ],
)
def test_what_is_no_value_is_refused(datatype, data, text):
    """One line with the input's name."""
    with pytest.raises(InvalidRequest, match=text) as caught:
        read(datatype, data, [2])
    assert "'x'" in str(caught.value)


def test_a_long_text_among_numbers_costs_its_own_room_only():
    """A hundred thousand numbers beside a text of a megabyte: refused, not 400 GiB asked for."""
    with pytest.raises(InvalidRequest, match="takes numbers"):
        read("FP32", [1] * 100_000 + ["a" * 1_000_000])


@given(
    datatype=st.sampled_from([name for name in NUMPY if name != "BOOL"]),
    data=st.lists(st.integers(0, 100), min_size=1, max_size=20),
)
def test_values_come_back(datatype, data):
    """To bytes and back, flat and nested."""
    flat = read(datatype, data)
    nested = read(datatype, [data, data], [2, len(data)])
    assert flat.data == np.array(data, NUMPY[datatype]).tobytes()
    assert nested.data == flat.data * 2
    assert tensor_to_json(flat)["data"] == data


@given(value=st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists))
def test_any_json_is_a_tensor_or_refused(value):
    """Nothing else happens, whatever the client sends."""
    for datatype in ("FP32", "INT8", "BOOL", "BYTES"):
        try:
            tensor = (
                read(datatype, value, [1]) if isinstance(value, list) else read(datatype, [value])
            )
        except InvalidRequest:
            continue
        assert isinstance(tensor, Tensor)
        assert math.prod(tensor.shape) == 1
        json.dumps(tensor.shape)
