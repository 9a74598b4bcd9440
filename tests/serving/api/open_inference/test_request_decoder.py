"""Requests of the Open Inference Protocol, read without a server."""

import dataclasses
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import wire
from serving.api.open_inference.request_decoder import RequestDecoder
from serving.api.parsing.parse_budget import MAX_VALUES
from serving.errors import InvalidRequest
from serving.values import Signature, TensorSpec
from tests.fakes.replicas import SIGNATURE


def _nothing(shape, binary):
    """The query of an empty tensor."""
    item = {"name": "data", "shape": shape, "datatype": "UINT8"}
    item |= {"parameters": {"binary_data_size": 0}} if binary else {"data": []}
    body = json.dumps({"inputs": [item]}).encode()
    signature = dataclasses.replace(
        SIGNATURE, inputs=(dataclasses.replace(SIGNATURE.inputs[0], shape=(-1,) * len(shape)),)
    )
    return RequestDecoder("echo", signature).query(body, len(body) if binary else None)


@pytest.mark.parametrize(
    ("shape", "items"),
    [
        ([0, 10**11], 1),
        ([0, 0], 1),
        ([1, 0], 1),
        ([500, 0], 500),
        ([65_536, 0], 65_536),
        ([2, 3, 0], 2),
    ],
)
@pytest.mark.parametrize("binary", [False, True])
def test_items_of_nothing_are_items(shape, items, binary):
    """Who walks them takes its time, though they were sent in a few bytes; no item at all counts as one."""
    assert _nothing(shape, binary).items == items


@pytest.mark.parametrize(
    "shape",
    [[10**12, 0], [2**40 - 1, 0], [65_537, 0], [256, 257, 0], [0, 2**39, 2**39], [2**39, 0, 2**39]],
)
@pytest.mark.parametrize("binary", [False, True])
def test_few_bytes_do_not_name_many_rows_of_nothing(shape, binary):
    """Neither before the zero, where they would be walked, nor behind it, where no array has them."""
    with pytest.raises(InvalidRequest, match="invalid shape for input 'data'"):
        _nothing(shape, binary)


@pytest.mark.parametrize("empty", ["[]", "[ ]", "[\n\t ]", "[[ ],[]]"])
@pytest.mark.parametrize(("count", "is_read"), [(MAX_VALUES // 2, True), (MAX_VALUES + 1, False)])
def test_many_empty_arrays_are_not_left_to_a_replica(empty, count, is_read):
    """However they are written, and wherever the text is cut to look for them; those of numbers are nobody's harm."""
    head = '{"inputs": [{"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": ['
    requests = RequestDecoder("echo", SIGNATURE)
    for fill in (",", " , 1.5,"):
        body = (head + fill.join([empty] * count) + "]}]}").encode()
        if is_read:
            assert requests.query(body, None).encoding == wire.Encoding.OIP_JSON
        else:
            with pytest.raises(InvalidRequest, match=f"more than {MAX_VALUES} empty arrays"):
                requests.query(body, None)
    body = (head + ",".join(["[1]"] * (2 * MAX_VALUES)) + "]}]}").encode()
    assert requests.query(body, None).encoding == wire.Encoding.OIP_JSON


def test_an_output_whose_name_is_no_text_is_refused():
    """In one line, as any other that the model does not have."""
    item = {"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": [1]}
    for name in ([], {}, None, 5, "y" * 1000):
        body = json.dumps({"inputs": [item], "outputs": [{"name": name}]}).encode()
        with pytest.raises(InvalidRequest, match="model 'echo' has data") as caught:
            RequestDecoder("echo", SIGNATURE).query(body, None)
        assert len(str(caught.value)) < 400


def test_an_empty_tensor_does_not_hide_the_items_of_another():
    """What holds something counts: 500 rows are 500 items."""
    spec = SIGNATURE.inputs[0]
    signature = dataclasses.replace(
        SIGNATURE, inputs=(spec, dataclasses.replace(spec, name="more"))
    )
    inputs = [
        {"name": "data", "shape": [500, 0], "datatype": "UINT8", "data": []},
        {"name": "more", "shape": [500, 1], "datatype": "UINT8", "data": [7] * 500},
    ]
    query = RequestDecoder("echo", signature).query(json.dumps({"inputs": inputs}).encode(), None)
    assert query.items == 500


@pytest.mark.parametrize("in_body", [False, True])
def test_null_is_nothing(in_body):
    """What a client leaves out it may write as null: KServe's does, of tensors of 0 bytes without a binary part."""
    item = {"name": "data", "shape": [0, 2], "datatype": "UINT8", "data": None}
    item |= {"parameters": {"binary_data_size": 0}}
    request = {"id": None, "parameters": None, "inputs": [item], "outputs": None}
    body = json.dumps(request).encode()
    requests = RequestDecoder("echo", SIGNATURE)
    query = requests.query(body, len(body) if in_body else None)
    assert query.frame_bytes == len(query.frame[0])
    item |= {"data": [[7, 8]], "shape": [1, 2], "parameters": None}
    query = requests.query(json.dumps(request).encode(), None)
    assert b"".join(query.frame).endswith(b"\7\10")


def test_no_data_and_no_binary_part():
    """The header that is missing is named."""
    item = {"name": "data", "shape": [1, 2], "datatype": "UINT8"}
    for more, phrase in (
        (
            {"parameters": {"binary_data_size": 2}},
            "needs the header Inference-Header-Content-Length",
        ),
        ({"data": None}, "Input must set only one of"),
    ):
        body = json.dumps({"inputs": [item | more]}).encode()
        with pytest.raises(InvalidRequest, match=phrase):
            RequestDecoder("echo", SIGNATURE).query(body, None)


def _raw(shape, datatype, body, **more):
    """The shape of a raw request's tensor, for a model with one input."""
    spec = TensorSpec(name="x", datatype=datatype, shape=shape, item_axis=more.pop("item_axis", 0))
    query = RequestDecoder("m", Signature(inputs=(spec,), outputs=(), **more)).query(body, 0)
    (tensor,) = wire.decode_frame(memoryview(b"".join(query.frame)))
    return tensor.shape


WHOLE = {"unbatched": "of a reason"}


@pytest.mark.parametrize(
    ("shape", "datatype", "body", "more", "expected"),
    [
        ((-1, -1), "FP32", bytes(8), {}, (1, 2)),
        ((4, -1), "FP32", bytes(16), {"item_axis": 1, "unbatched": ""}, (4, 1)),
        ((2, -1, -1), "FP32", bytes(24), {"item_axis": 1, "unbatched": ""}, (2, 1, 3)),
        ((), "FP32", bytes(4), WHOLE, ()),
        ((2, 3), "FP32", bytes(24), WHOLE, (2, 3)),
        ((-1,), "FP32", bytes(40), WHOLE, (10,)),
        ((2, -1), "FP32", bytes(24), WHOLE, (2, 3)),
        ((-1,), "BYTES", b"abc", {}, (1,)),
        ((), "BYTES", b"", WHOLE, ()),
        ((-1, 1), "BYTES", b"abc", WHOLE, (1, 1)),
    ],
)
def test_a_raw_request_is_one_item_or_a_whole_input(shape, datatype, body, more, expected):
    """The body has no shape: it is that of one item, wherever items lie, or of all that the model takes."""
    assert _raw(shape, datatype, body, **more) == expected


@pytest.mark.parametrize(
    ("shape", "datatype", "message"),
    [
        ((2, 3), "FP32", "expecting 16 additional bytes"),
        ((3, -1), "FP32", "8 bytes are not a multiple of 12"),
        ((-1, -1), "FP32", "at most one free dimension"),
        ((2,), "BYTES", "is one element of BYTES; input 'x' has shape [2]"),
    ],
)
def test_raw_requests_of_no_shape(shape, datatype, message):
    """What the body cannot be is said."""
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        _raw(shape, datatype, bytes(8), **WHOLE)


def _header(shape, priority, id_, within, is_first, is_ascii):
    item = {"name": "data", "shape": shape, "datatype": "UINT8"}
    item["parameters"] = {"binary_data_size": 4} | within
    request = {"inputs": [item], "parameters": {"priority": priority} | within}
    named = {} if id_ is None else {"id": id_}
    request = named | request if is_first else request | named
    return json.dumps(request, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")


IDS = st.one_of(st.sampled_from(["", "a", "b", '"', "\\", "id", "not a"]), st.text(max_size=3))


HEADERS = st.builds(
    _header,
    st.sampled_from([[1, 4], [2, 2], [4, 1], [3, 1]]),
    st.sampled_from([1, 2]),
    st.none() | IDS,
    st.fixed_dictionaries({}, optional={"id": IDS}),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(st.tuples(HEADERS, st.binary(min_size=3, max_size=5)), max_size=12))
def test_what_is_remembered_of_a_header_is_said_of_no_other(sent):
    """Headers alike in length, in any order, mean what they mean to whoever reads them for the first time."""

    def meant(requests, header, data):
        try:
            query = requests.query(header + data, len(header))
        except InvalidRequest as error:
            return str(error)
        assert query.frame_bytes == len(b"".join(query.frame))
        return b"".join(query.frame), query.items, query.priority, query.wanted

    used = RequestDecoder("echo", SIGNATURE)
    for header, data in sent:
        assert meant(used, header, data) == meant(RequestDecoder("echo", SIGNATURE), header, data)
