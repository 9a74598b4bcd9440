"""Requests of the Open Inference Protocol, read without a server."""

import dataclasses
import json

import pytest

from serving.protocol.oip_requests import Requests
from tests.fakes.replicas import SIGNATURE


@pytest.mark.parametrize("shape", [[10**12, 0], [0, 10**12], [0, 0], [1, 0]])
@pytest.mark.parametrize("binary", [False, True])
def test_a_tensor_of_nothing_is_one_item(shape, binary):
    """A shape with a zero in it holds nothing, so it fills no queue and is split into no batches."""
    item = {"name": "data", "shape": shape, "datatype": "UINT8"}
    item |= {"parameters": {"binary_data_size": 0}} if binary else {"data": []}
    body = json.dumps({"inputs": [item]}).encode()
    query = Requests("echo", SIGNATURE).query(body, len(body) if binary else None)
    assert query.items == 1


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
    query = Requests("echo", signature).query(json.dumps({"inputs": inputs}).encode(), None)
    assert query.items == 500
