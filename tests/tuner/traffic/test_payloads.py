"""Request bodies, built and read back by the protocol's own rules."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.values import ITEM_BYTES, Signature, TensorSpec
from tuner.errors import WrongUse
from tuner.traffic import oip_body, payloads

NUMERIC = [name for name in ITEM_BYTES if name != "BYTES"]


def parsed(requests):
    """Inputs by name of each request: datatype, array."""
    length = int(requests.headers["Inference-Header-Content-Length"])
    for body in requests.requests:
        header, rest = json.loads(body[:length]), body[length:]
        assert header["parameters"] == {"binary_data_output": True}
        inputs = {}
        for item in header["inputs"]:
            size = item["parameters"]["binary_data_size"]
            raw, rest = rest[:size], rest[size:]
            if item["datatype"] == "BYTES":
                data = []
                while raw:
                    (count,) = struct.unpack_from("<I", raw)
                    data.append(raw[4 : 4 + count])
                    raw = raw[4 + count :]
                array = np.array(data, dtype=object).reshape(item["shape"])
            else:
                array = np.frombuffer(raw, oip_body.DTYPES[item["datatype"]]).reshape(item["shape"])
            inputs[item["name"]] = (item["datatype"], array)
        assert not rest, "bytes that belong to no tensor"
        yield inputs


specs = st.lists(
    st.builds(
        TensorSpec,
        name=st.text("abcxyz.:0", min_size=1, max_size=8),
        datatype=st.sampled_from(list(ITEM_BYTES)),
        shape=st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=1, max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda spec: spec.name,
)


@given(inputs=specs, seed=st.integers(0, 2**32), free=st.integers(1, 3))
def test_synthetic_requests_fit_any_signature(inputs, seed, free):
    """Names, datatypes and shapes are the model's, a free batch is 1, free dimensions are as given."""
    signature = Signature(inputs=tuple(inputs), outputs=())
    made = payloads.synthetic(
        signature, 3, np.random.default_rng(seed), model="a model", free_dimension=free
    )
    assert made.is_synthetic
    assert made.path == "/v2/models/a%20model/infer"
    items = list(parsed(made))
    assert len(items) == 3
    for item in items:
        assert list(item) == [spec.name for spec in inputs]
        for spec in inputs:
            datatype, array = item[spec.name]
            expected = (
                max(1, spec.shape[0]),
                *(free if length == -1 else length for length in spec.shape[1:]),
            )
            assert (datatype, array.shape) == (spec.datatype, expected)


@given(seed=st.integers(0, 2**32))
def test_the_seed_decides_synthetic_requests(seed):
    """The same seed gives the same bytes, and requests differ from one another."""
    signature = Signature(
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 8)),), outputs=()
    )
    first, second = (
        payloads.synthetic(signature, 4, np.random.default_rng(seed), model="m").requests
        for _ in range(2)
    )
    assert first == second
    assert len(set(first)) == 4


@pytest.mark.parametrize("datatype", NUMERIC)
def test_tensors_are_little_endian_and_row_major(datatype):
    """Whatever the array's own order in memory is."""
    spec = TensorSpec(name="x", datatype=datatype, shape=(-1, 2, 3))
    kind = oip_body.DTYPES[datatype]
    array = np.arange(6).reshape(1, 2, 3).astype(kind)
    foreign = np.asfortranarray(array.astype(kind.newbyteorder(">")))
    assert oip_body.tensor_bytes(oip_body.Input(spec, foreign)) == array.tobytes()


def test_texts_and_bytes_carry_their_lengths():
    """Empty elements, embedded zeros and letters of several bytes included."""
    spec = TensorSpec(name="x", datatype="BYTES", shape=(-1, 3))
    array = np.array([["é", b"a\0b", ""]], dtype=object)
    expected = b"\x02\0\0\0\xc3\xa9\x03\0\0\0a\0b\0\0\0\0"
    assert oip_body.tensor_bytes(oip_body.Input(spec, array)) == expected


def test_headers_of_unequal_length_are_brought_to_one():
    """All requests of a set share their HTTP headers, so their JSON headers are equally long."""
    spec = TensorSpec(name="x", datatype="INT64", shape=(-1, -1))
    items = [[oip_body.Input(spec, np.zeros((1, length), np.int64))] for length in (1, 1000, 10)]
    made = payloads.of_items(items, path="/v2/models/m/infer", description="x")
    assert [item["x"][1].shape[1] for item in parsed(made)] == [1, 1000, 10]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"requests": ()}, "no request to send"),
        ({"method": "HEAD"}, "expected one of GET, POST"),
        ({"path": "no-slash"}, "path 'no-slash'"),
        ({"path": "/a b"}, "without spaces"),
        ({"headers": {"X": "a\r\nY: b"}}, "cannot stand"),
        ({"headers": {"X Y": "a"}}, "cannot stand"),
        ({"headers": {"Connection": "close"}}, "set by the client"),
    ],
)
def test_what_would_break_the_request_is_refused(changes, text):
    """Before anything is sent, with the part that is wrong."""
    fields = {"requests": (b"",), "headers": {}, "path": "/", "description": "payload"}
    with pytest.raises(WrongUse, match=text):
        payloads.Payloads(**{**fields, **changes})
