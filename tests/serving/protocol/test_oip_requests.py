"""Requests of the Open Inference Protocol, read without a server."""

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
