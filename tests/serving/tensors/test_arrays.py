"""Raw bytes and arrays: round trips, writability, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from serving.errors import InvalidRequest
from serving.tensors import arrays
from serving.values import ITEM_BYTES

FIXED = st.sampled_from(sorted(arrays.DTYPES))
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@given(FIXED.flatmap(lambda name: hnp.arrays(arrays.DTYPES[name], SHAPES).map(lambda a: (name, a))))
def test_arrays_round_trip(pair):
    """An array's raw bytes stand for the same array."""
    datatype, array = pair
    back = arrays.array_of(datatype, array.shape, [arrays.raw_of(array)])
    assert arrays.datatype_of(array) == datatype
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


@given(st.lists(st.binary(max_size=6), max_size=6))
def test_bytes_elements_round_trip(elements):
    """Elements of BYTES, empty ones and NULs among them, come back."""
    data = arrays.join_bytes(elements)
    assert arrays.split_bytes(data, len(elements)) == elements
    array = arrays.bytes_array((len(elements), 1), elements)
    assert bytes(arrays.raw_of(array)) == data


@given(st.binary(max_size=40), st.integers(0, 12))
def test_bytes_garbage_is_split_or_refused(data, count):
    """Data either are exactly so many elements, or are refused."""
    try:
        elements = arrays.split_bytes(data, count)
    except InvalidRequest:
        return
    assert arrays.join_bytes(elements) == data


def test_every_datatype_has_an_array():
    """No datatype of the protocol is left out."""
    assert {*arrays.DTYPES, "BYTES"} == set(ITEM_BYTES)


@pytest.mark.parametrize(
    ("phrase", "parts"),
    [
        ("one piece that may be written to", [memoryview(bytearray(8))]),
        ("one piece that may not", [bytes(8)]),
        ("two pieces", [bytes(4), bytes(4)]),
        ("a piece at an odd address", [memoryview(bytearray(9))[1:]]),
    ],
)
def test_models_may_write_to_their_inputs(phrase, parts):
    """An input array is aligned and writable, wherever its bytes came from."""
    array = arrays.array_of("FP32", (2,), parts)
    array += 1
    assert array.tolist() == [1.0, 1.0]
    assert array.flags.aligned


def test_one_writable_piece_is_not_copied():
    """The array of a single request is a view of the message."""
    buffer = bytearray(8)
    arrays.array_of("FP32", (2,), [memoryview(buffer)])[0] = 1.0
    assert any(buffer)


def test_any_byte_but_0_is_true():
    """BOOL data of a careless client become clean truths."""
    array = arrays.array_of("BOOL", (3,), [b"\0\1\7"])
    assert arrays.raw_of(array) == b"\0\1\1"


def test_big_endian_and_scattered_arrays_are_brought_in_order():
    """Raw bytes are little-endian and row-major whatever the array was."""
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    expected = array.astype("<i4").tobytes()
    assert bytes(arrays.raw_of(array)) == expected


@pytest.mark.parametrize("array", [np.array(["a", "ü"]), np.array([b"a", b"\xc3\xbc"], object)])
def test_texts_become_bytes(array):
    """Text is written as UTF-8."""
    assert arrays.split_bytes(arrays.raw_of(array), 2) == [b"a", "ü".encode()]


def test_other_objects_are_refused():
    """An array of objects that are no texts has no raw form."""
    with pytest.raises(TypeError, match="int"):
        arrays.raw_of(np.array([1, None], object))


def test_types_without_a_name():
    """Complex numbers are in no protocol."""
    assert arrays.datatype_of(np.zeros(1, complex)) is None
