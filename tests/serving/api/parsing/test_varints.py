"""Packed whole numbers, held against protobuf's own reading and writing of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from serving.api.parsing import varints

NUMBERS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=50)


def packed(field, values):
    """What protobuf makes of the numbers, without tag and length."""
    contents = service_pb2.InferTensorContents(**{field: values})
    whole = contents.SerializeToString()
    return whole[len(whole) - sum(len(varint(value)) for value in values) :]


def varint(value):
    return varints.one(value % 2**64)


@given(NUMBERS)
def test_unsigned_numbers(values):
    """Both ways as protobuf does it."""
    array = np.array(values, dtype=np.uint64)
    assert varints.pack(array) == packed("uint64_contents", values)
    assert varints.unpack(packed("uint64_contents", values)).tolist() == values


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300), max_size=50))
def test_signed_numbers(values):
    """Negative numbers are ten bytes long, as protobuf has them."""
    array = np.array(values, dtype=np.int64)
    assert varints.pack(array) == packed("int64_contents", values)
    assert varints.unpack(packed("int64_contents", values)).view(np.int64).tolist() == values


@given(st.lists(st.integers(-128, 127), max_size=50))
def test_small_signed_numbers(values):
    """A negative INT8 is as long as any negative number."""
    assert varints.pack(np.array(values, dtype=np.int8)) == packed("int_contents", values)


@pytest.mark.parametrize("data", [b"\x80", b"\x01\xff", b"\x80" * 10 + b"\x01", b"\xff" * 30])
def test_no_numbers(data):
    """An end inside a number, and a number longer than any, are none."""
    assert varints.unpack(data) is None


@given(st.binary(max_size=60))
def test_any_bytes(data):
    """As many numbers as bytes that end one, or none at all."""
    numbers = varints.unpack(data)
    assert numbers is None or len(numbers) == sum(byte < 128 for byte in data)
