"""Request bodies, built and read back by the protocol's own rules."""

import numpy as np
import pytest

from serving.tensors.arrays import DTYPES
from serving.values import ITEM_BYTES, TensorSpec
from tests.fakes.oip_requests import parsed
from tuner.errors import UsageError
from tuner.load_generator import oip_body, payloads

NUMERIC = [name for name in ITEM_BYTES if name != "BYTES"]


@pytest.mark.parametrize("datatype", NUMERIC)
def test_tensors_are_little_endian_and_row_major(datatype):
    """Whatever the array's own order in memory is."""
    spec = TensorSpec(name="x", datatype=datatype, shape=(-1, 2, 3))
    kind = DTYPES[datatype]
    array = np.arange(6).reshape(1, 2, 3).astype(kind)
    foreign = np.asfortranarray(array.astype(kind.newbyteorder(">")))
    assert oip_body.tensor_bytes(oip_body.RequestInput(spec, foreign)) == array.tobytes()


def test_texts_and_bytes_carry_their_lengths():
    """Empty elements, embedded zeros and letters of several bytes included."""
    spec = TensorSpec(name="x", datatype="BYTES", shape=(-1, 3))
    array = np.array([["é", b"a\0b", ""]], dtype=object)
    expected = b"\x02\0\0\0\xc3\xa9\x03\0\0\0a\0b\0\0\0\0"
    assert oip_body.tensor_bytes(oip_body.RequestInput(spec, array)) == expected


def test_headers_of_unequal_length_are_brought_to_one():
    """All requests of a set share their HTTP headers, so their JSON headers are equally long."""
    spec = TensorSpec(name="x", datatype="INT64", shape=(-1, -1))
    items = [
        [oip_body.RequestInput(spec, np.zeros((1, length), np.int64))] for length in (1, 1000, 10)
    ]
    made = payloads.of_items(items, path="/v2/models/m/infer", description="x")
    assert [item["x"][1].shape[1] for item in parsed(made)] == [1, 1000, 10]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"requests": ()}, "no request to send"),
        ({"method": "HEAD"}, "expected one of GET, POST"),
        ({"path": "no-slash"}, "path 'no-slash'"),
        ({"path": "/a b"}, "without spaces"),
        ({"headers": {"X": "a\r\nY: b"}}, "is not allowed in"),
        ({"headers": {"X Y": "a"}}, "is not allowed in"),
        ({"headers": {"Connection": "close"}}, "set by the client"),
    ],
)
def test_what_would_break_the_request_is_refused(changes, text):
    """Before anything is sent, with the part that is wrong."""
    fields = {"requests": (b"",), "headers": {}, "path": "/", "description": "payload"}
    with pytest.raises(UsageError, match=text):
        payloads.Payloads(**{**fields, **changes})
