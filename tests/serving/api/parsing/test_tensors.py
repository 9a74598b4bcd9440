"""The checks that all forms of the protocol share: REST and gRPC take the same requests, as the same items."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from serving.api.grpc import messages
from serving.api.grpc.codec import GrpcCodec
from serving.api.open_inference.codec import RestCodec
from serving.api.parsing import tensors
from serving.errors import InvalidRequest
from serving.values import ITEM_BYTES, Signature, TensorSpec

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="a", datatype="FP32", shape=(-1, 2)),
        TensorSpec(name="b", datatype="INT16", shape=(-1, -1)),
    ),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1,)),),
)
SHAPES = st.lists(st.integers(-1, 3), min_size=1, max_size=3) | st.just([2, 2])
INPUTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["FP32", "INT16", "BOOL"]), SHAPES),
    max_size=3,
)
FITTING = st.integers(0, 3).map(lambda n: [("a", "FP32", [n, 2]), ("b", "INT16", [n, 1])])


def outcome(read):
    """Items, time limit and frame of a query; None where the request is refused."""
    try:
        query = read()
    except InvalidRequest:
        return None
    return query.items, query.timeout_s, b"".join(query.frame)


@given(
    INPUTS | FITTING,
    st.sampled_from([None, 5, 0, -1, 2.5, True, "5", 10**12]),
    st.sampled_from([[], ["y"], ["x"]]),
    st.integers(-1, 1),
)
def test_rest_and_grpc_take_the_same(inputs, timeout, outputs, surplus):
    """One request in both forms is refused by both, or means the same frame to both."""
    data = [bytes(max(0, math.prod(s) * ITEM_BYTES[d])) for _, d, s in inputs]
    if data and surplus:
        data[-1] = data[-1][:-1] if surplus < 0 else data[-1] + b"\0"
    header = {
        "inputs": [
            {"name": n, "datatype": d, "shape": s, "parameters": {"binary_data_size": len(raw)}}
            for (n, d, s), raw in zip(inputs, data, strict=True)
        ],
        "outputs": [{"name": name} for name in outputs],
        "parameters": {} if timeout is None else {"timeout": timeout},
    }
    text = json.dumps(header).encode()
    rest = RestCodec("m", "1", SIGNATURE).requests
    made = service_pb2.ModelInferRequest(raw_input_contents=data)
    for name, datatype, shape in inputs:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
    for name in outputs:
        made.outputs.add(name=name)
    if timeout is not None:
        kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
        setattr(made.parameters["timeout"], kinds[type(timeout)], timeout)
    grpc = GrpcCodec("m", "1", SIGNATURE)
    parsed = messages.parse(messages.ModelInferRequest, made.SerializeToString())
    by_rest = outcome(lambda: rest.query(text + b"".join(data), len(text)))
    assert outcome(lambda: grpc.query(parsed)) == by_rest


@pytest.mark.parametrize("value", [-1, 2**31, 1.0, "1", True])
def test_what_is_no_priority(value):
    """It is refused with what a priority is."""
    with pytest.raises(InvalidRequest, match="the highest"):
        tensors.priority(value)
