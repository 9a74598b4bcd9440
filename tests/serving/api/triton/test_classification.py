"""The best classes in place of scores, as Triton's extension has it, and over REST in every form."""

import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from serving import wire
from serving.api.open_inference import codec as open_inference_codec
from serving.api.triton.classification import MAX_SCORES, classify, requested_classes
from serving.errors import InvalidRequest
from serving.tensors.json_tensors import NUMPY, elements
from serving.values import Signature, Tensor, TensorSpec

SCORES = TensorSpec(name="scores", datatype="FP32", shape=(-1, 3))
MODEL = Signature(
    inputs=(TensorSpec(name="x", datatype="UINT8", shape=(-1, 1)),),
    outputs=(SCORES, TensorSpec(name="texts", datatype="BYTES", shape=(-1,))),
)


def signature(shape, datatype="FP32", **more):
    spec = TensorSpec(name="scores", datatype=datatype, shape=shape, **more)
    return Signature(inputs=MODEL.inputs, outputs=(spec,))


def tensor(array, datatype="FP32"):
    data = np.ascontiguousarray(array, dtype=NUMPY[datatype])
    return Tensor("scores", datatype, data.shape, data.tobytes())


def texts(found):
    return [text.decode() for some in elements(found) for text in some]


def test_the_best_of_each_item():
    """Score, index; the greatest first. More classes than there are: all of them."""
    scores = tensor([[0.25, 2.0, -1.0], [1e9, 0.5, 0.125]])
    found = classify(scores, 2, MODEL)
    assert (found.name, found.datatype, found.shape) == ("scores", "BYTES", (2, 2))
    assert texts(found) == ["2.000000:1", "0.250000:0", "1000000000.000000:0", "0.500000:1"]
    assert classify(scores, 9, MODEL).shape == (2, 3)


def test_a_model_that_is_served_whole_returns_one_item():
    """Its index counts over the whole output, and there is no axis of items."""
    fixed = TensorSpec(name="x", datatype="UINT8", shape=(1, 1))
    whole = Signature(inputs=(fixed,), outputs=(SCORES,))
    found = classify(tensor([[1, 2, 3], [9, 8, 7]]), 2, whole)
    assert (found.shape, texts(found)) == ((2,), ["9.000000:3", "8.000000:4"])


def test_items_along_another_axis():
    """Classes are counted within an item wherever the items lie."""
    found = classify(tensor([[1, 6], [5, 2], [3, 4]]), 1, signature((3, -1), item_axis=1))
    assert (found.shape, texts(found)) == ((2, 1), ["5.000000:1", "6.000000:0"])


def test_equal_scores_and_what_is_no_number():
    """The first of equal ones comes first; what is no number comes last."""
    scores = tensor([[1.0, np.nan, 1.0, 1.0, -np.inf]])
    found = texts(classify(scores, 5, signature((-1, 5))))
    assert [text.rpartition(":")[2] for text in found[:3]] == ["0", "2", "3"]
    assert {text.rpartition(":")[2] for text in found[3:]} == {"1", "4"}


def test_nothing():
    """No items, no scores, and one score for each item."""
    assert classify(tensor(np.zeros((0, 3))), 2, MODEL).shape == (0, 2)
    assert classify(tensor(np.zeros((2, 0))), 2, signature((-1, -1))).shape == (2, 0)
    assert texts(classify(tensor([4.0, 5.0]), 2, signature((-1,)))) == [
        "4.000000:0",
        "5.000000:0",
    ]


@given(st.data(), st.sampled_from(["INT8", "UINT8", "INT64", "UINT64", "FP16", "FP64"]))
def test_any_scores(data, datatype):
    """Each text names a score of its item and where it stands; they descend, and none that is left out is greater."""
    shape = data.draw(arrays.array_shapes(min_dims=1, max_dims=3, max_side=6))
    kind = np.dtype(NUMPY[datatype])
    numbers = (
        arrays.arrays(kind, shape)
        if kind.kind != "f"
        else arrays.arrays(kind, shape, elements=st.floats(-1000, 1000, width=16))
    )
    scores = data.draw(numbers)
    count = data.draw(st.integers(1, 9))
    free = (-1, *shape[1:])
    found = classify(tensor(scores, datatype), count, signature(free, datatype))
    rows = scores.reshape(shape[0], -1)
    said = [text.split(":") for text in texts(found)]
    for row in rows:
        own, said = said[: found.shape[1]], said[found.shape[1] :]
        places = [int(place) for _, place in own]
        assert len(set(places)) == len(places) == min(count, row.size)
        assert row[places].tolist() == sorted(row.tolist(), reverse=True)[: len(places)]
        assert [float(text) for text, _ in own] == pytest.approx(row[places].tolist(), abs=1e-5)


@pytest.mark.parametrize("count", [True, -1, 1.5, "3", 1001])
def test_what_is_no_number_of_classes(count):
    """The line names the output and what is expected."""
    with pytest.raises(
        InvalidRequest, match=r"output 'scores': parameter classification is .* from 1 to 1000; "
    ):
        requested_classes(SCORES, {"classification": count})


@pytest.mark.parametrize(
    ("shape", "count", "is_too_much"),
    [
        ((10, 1200), 1000, False),
        ((11, 1200), 1000, True),
        ((1, MAX_SCORES), 1, False),
        ((1, MAX_SCORES + 1), 1, True),
    ],
)
def test_what_holds_up_everybody_is_refused(shape, count, is_too_much):
    """It is worked on where all requests are: scores and texts are bounded, and the line says the bounds."""
    scores = tensor(np.arange(math.prod(shape)).reshape(shape))
    if not is_too_much:
        assert classify(scores, count, signature((-1, -1))).shape == (shape[0], count)
        return
    with pytest.raises(InvalidRequest, match="at most 262144 scores and 10000 classes in total"):
        classify(scores, count, signature((-1, -1)))


def test_an_output_is_classified_once():
    """A request that names it over and over is refused, as over gRPC."""
    item = {"name": "x", "datatype": "UINT8", "shape": [1, 1], "data": [1]}
    outputs = [{"name": "scores", "parameters": {"classification": 1}}] * 2
    with pytest.raises(InvalidRequest, match="an output is requested twice: scores"):
        body = json.dumps({"inputs": [item], "outputs": outputs}).encode()
        open_inference_codec.RestCodec("m", "1", MODEL).requests.query(body, None)


def test_what_has_no_scores():
    """Texts have none. No classes, or none wanted: the tensor."""
    with pytest.raises(InvalidRequest, match="output 'texts': classification needs numbers"):
        requested_classes(MODEL.outputs[1], {"classification": 2})
    assert (
        requested_classes(MODEL.outputs[1], {})
        == requested_classes(MODEL.outputs[1], {"classification": 0})
        == 0
    )


@pytest.mark.parametrize("binary", [False, True])
def test_over_rest(binary):
    """Texts in JSON, or in binary, beside an output that is asked for as it is."""
    codec = open_inference_codec.RestCodec("m", "1", MODEL)
    item = {"name": "x", "datatype": "UINT8", "shape": [2, 1], "data": [1, 2]}
    outputs = [
        {"name": "texts", "parameters": {"binary_data": False}},
        {"name": "scores", "parameters": {"classification": 1, "binary_data": binary}},
    ]
    body = json.dumps({"inputs": [item], "outputs": outputs}).encode()
    query = codec.requests.query(body, None)
    returned = [
        tensor([[1, 2, 3], [6, 5, 4]]),
        Tensor("texts", "BYTES", (2,), b"\x01\0\0\0a\x01\0\0\0b"),
    ]
    frame = wire.encode_descriptor(returned) + b"".join(one.data for one in returned)
    form, data = codec.answers.encode_response(memoryview(frame), query.wanted)
    plain, scores = json.loads(form.header)["outputs"]
    assert plain["data"] == ["a", "b"]
    assert (scores["name"], scores["datatype"], scores["shape"]) == ("scores", "BYTES", [2, 1])
    if not binary:
        assert scores["data"] == ["3.000000:2", "6.000000:0"]
        return
    expected = [b"3.000000:2", b"6.000000:0"]
    assert bytes(data) == b"".join(struct.pack("<I", len(one)) + one for one in expected)
    assert scores["parameters"] == {"binary_data_size": len(data)}


@pytest.mark.parametrize("where", ["inputs", "outputs"])
def test_tensors_in_shared_memory(where):
    """They are refused with what there is instead, over REST too."""
    item = {"name": "x", "datatype": "UINT8", "shape": [2, 1], "data": [1, 2]}
    given = {"inputs": [item], "outputs": [{"name": "scores"}]}
    given[where][0]["parameters"] = {"shared_memory_region": "r", "shared_memory_byte_size": 2}
    if where == "inputs":
        del item["data"]
    with pytest.raises(InvalidRequest, match=r"shared memory is not offered .* binary tensors"):
        open_inference_codec.RestCodec("m", "1", MODEL).requests.query(
            json.dumps(given).encode(), None
        )
