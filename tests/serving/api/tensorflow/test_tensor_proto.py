"""TensorProto by hand, against protobuf's own reader and writer."""

import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from serving import api
from serving.api.parsing import proto_fields as fields
from serving.api.parsing import varints
from serving.api.parsing.parse_budget import ParseBudget
from serving.api.tensorflow.tensor_proto import DTYPES, message, tensor
from serving.errors import InvalidRequest
from serving.tensors.json_tensors import NUMPY
from serving.values import Tensor
from tests.fakes.proto_messages import classes
from tests.fakes.servables import array_of

PROTO = pathlib.Path(api.__file__).parent / "tensorflow" / "prediction.proto"
TensorProto = classes(PROTO)["TensorProto"]
TYPED = {
    "FP32": "float_val", "FP64": "double_val", "INT32": "int_val", "UINT8": "int_val",
    "INT16": "int_val", "INT8": "int_val", "UINT16": "int_val", "INT64": "int64_val",
    "BOOL": "bool_val", "FP16": "half_val", "UINT32": "uint32_val", "UINT64": "uint64_val",
}  # fmt: skip


def proto(datatype, shape, **values):
    """A TensorProto of protobuf's making."""
    made = TensorProto(dtype=DTYPES[datatype], **values)
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    return made


def read(made):
    data = made if isinstance(made, bytes) else made.SerializeToString()
    return tensor("x", memoryview(data), ParseBudget())


@st.composite
def arrays(draw):
    """(datatype, array) of any numeric datatype."""
    datatype = draw(st.sampled_from(sorted(NUMPY)))
    shape = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    array = draw(hnp.arrays(np.dtype(NUMPY[datatype]), shape))
    if array.dtype.kind == "f":
        array[np.isnan(array)] = np.nan  # of its many bit patterns the one that Python keeps
    return datatype, array


@given(arrays())
def test_typed_values_and_raw_content_are_the_same_tensor(given_array):
    """Values by type, as protobuf writes them, and raw content give the same bytes."""
    datatype, array = given_array
    flat = np.ravel(array)
    values = flat.view(np.uint16) if datatype == "FP16" else flat
    typed = read(proto(datatype, array.shape, **{TYPED[datatype]: values.tolist()}))
    raw = read(proto(datatype, array.shape, tensor_content=array.tobytes()))
    assert bytes(typed.data) == bytes(raw.data) == array.tobytes()
    assert typed.shape == raw.shape == array.shape
    assert typed.datatype == datatype


@given(arrays())
def test_what_is_written_is_read_by_protobuf(given_array):
    """Protobuf finds the values of an answer in the typed field, and this reader finds the tensor."""
    datatype, array = given_array
    given_tensor = Tensor("x", datatype, array.shape, array.tobytes())
    data = b"".join(bytes(piece) for piece in message(given_tensor))
    made = TensorProto.FromString(data)
    assert made.dtype == DTYPES[datatype]
    assert [dim.size for dim in made.tensor_shape.dim] == list(array.shape)
    values = np.ravel(array).view(np.uint16) if datatype == "FP16" else np.ravel(array)
    np.testing.assert_array_equal(list(getattr(made, TYPED[datatype])), values)
    assert bytes(read(data).data) == array.tobytes()


@given(st.lists(st.binary(max_size=6), max_size=5))
def test_strings_round_trip(items):
    """Bytes of any content come and go as string_val."""
    made = read(proto("BYTES", (len(items),), string_val=items))
    assert array_of(made).tolist() == items
    data = b"".join(bytes(piece) for piece in message(made))
    assert list(TensorProto.FromString(data).string_val) == items


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [
        ("FP32", {"float_val": [2.5]}, [2.5, 2.5, 2.5]),
        ("INT32", {"int_val": [-1, 7]}, [-1, 7, 7]),
        ("INT64", {}, [0, 0, 0]),
        ("BYTES", {"string_val": [b"a"]}, [b"a", b"a", b"a"]),
        ("BYTES", {}, [b"", b"", b""]),
        ("BOOL", {"bool_val": [True]}, [True] * 3),
    ],
)
def test_the_last_value_stands_for_the_rest(datatype, values, expected):
    """Fewer values than elements: the last one repeated; none: zeros."""
    assert array_of(read(proto(datatype, (3,), **values))).tolist() == expected


def test_numbers_that_are_not_packed():
    """Old clients write repeated numbers one by one; mixed with packed ones, all are in their order."""
    shape = fields.content(2, fields.content(2, fields.number(1, 3)))
    packed = fields.content(7, b"\x02\x03")
    for ints, expected in (
        (b"\x38\x01" + packed, [1, 2, 3]),
        (packed + b"\x38\x01", [2, 3, 1]),
        (b"\x38\x01\x38\x02" + fields.content(7, b"\x03"), [1, 2, 3]),
    ):
        made = read(fields.number(1, DTYPES["INT32"]) + shape + ints)
        assert array_of(made).tolist() == expected
    floats = b"".join(b"\x2d" + np.float32(value).tobytes() for value in (1, 2, 3))
    made = read(fields.number(1, DTYPES["FP32"]) + shape + floats)
    assert array_of(made).tolist() == [1, 2, 3]


def test_floats_are_not_copied():
    """The data of floats are a view of the message."""
    data = proto("FP32", (2,), float_val=[1, 2]).SerializeToString()
    assert tensor("x", memoryview(data), ParseBudget()).data.obj is data


@pytest.mark.parametrize(
    ("made", "phrase"),
    [
        (proto("FP32", (2,), tensor_content=b"abc"), "tensor_content has 3 bytes"),
        (proto("FP32", (1,), float_val=[1, 2]), "2 values, but shape [1] takes 1"),
        (proto("UINT8", (1,), int_val=[256]), "out of the range of uint8"),
        (proto("INT8", (1,), int_val=[-129]), "out of the range of int8"),
        (proto("FP16", (1,), half_val=[65536]), "out of the range of half"),
        (proto("FP32", (-1,)), "invalid shape"),
        (proto("FP32", (2**40,)), "invalid shape"),
        (proto("FP32", (2**20, 2**20)), "invalid shape"),
        (proto("FP32", (1,) * 33), "more than 32 dimensions"),
        (proto("FP32", (2**30,), float_val=[1]), "at most 67108864 are filled in"),
        (proto("BYTES", (2**20,), string_val=[b"x" * 100]), "at most 67108864 are filled in"),
        (TensorProto(dtype=8), "dtype 8 is not one of"),
        (TensorProto(dtype=1, tensor_shape={"unknown_rank": True}), "its rank is unknown"),
        (b"\x2a\x03abc\x08\x01\x12\x00", "not a whole number of values"),
        (b"\x08", "a number does not end"),
        (b"\x0a\x05a", "5 bytes, 1 are left"),
        (b"\x0b", "wire type 3"),
        (b"\x00\x01", "number 0"),
        (b"\x08\x03\x12\x00\x3a\x01\x80", "end within one"),
        (b"\x08\x03\x12\x00\x3a\x0b" + b"\x80" * 10 + b"\x01", "more than 10 bytes"),
    ],
)  # fmt: skip
def test_refusals(made, phrase):
    """Malformed, oversized and unknown tensors are told, in one line."""
    with pytest.raises(InvalidRequest) as caught:
        read(made)
    assert phrase in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_tensor_or_an_error(data):
    """Bytes of a stranger never do anything else."""
    said = ""
    try:
        read(data)
    except InvalidRequest as error:
        said = str(error)
    assert "\n" not in said


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_packed_numbers_round_trip(values):
    """Whole numbers of 64 bits are packed as protobuf packs them."""
    array = np.array(values, dtype=np.uint64)
    data = varints.pack(array)
    assert data == b"".join(varints.one(value) for value in values)
    np.testing.assert_array_equal(fields.whole_numbers(memoryview(data)), array)
