"""Request bodies of the Open Inference Protocol v2 in its binary forms.

In: what a server says of its model, and raw bytes. Out: body and headers. Written out here,
not taken from `serving`: a benchmark is a client that knows the specification and no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ELEMENT_BYTES = {
    "BOOL": 1,
    "UINT8": 1,
    "INT8": 1,
    "FP16": 2,
    "FP32": 4,
    "INT32": 4,
    "FP64": 8,
    "INT64": 8,
}
HEADER_LENGTH = "Inference-Header-Content-Length"


class Body(NamedTuple):
    """A POST body with the headers it needs."""

    data: bytes
    headers: dict[str, str]


def binary(
    tensor: Mapping[str, Any], shape: Sequence[int], data: bytes, *, request_id: str | None = None
) -> Body:
    """JSON header followed by one tensor's bytes; the outputs are asked for in binary too."""
    described = {
        "name": tensor["name"],
        "shape": list(shape),
        "datatype": tensor["datatype"],
        "parameters": {"binary_data_size": len(data)},
    }
    named = {} if request_id is None else {"id": request_id}
    header = json.dumps(
        {**named, "inputs": [described], "parameters": {"binary_data_output": True}}
    ).encode()
    return Body(header + data, _headers(len(header)))


def raw(data: bytes) -> Body:
    """The tensor's bytes alone: the model has one input, and the server deduces its shape."""
    return Body(data, _headers(0))


def filled_shape(tensor: Mapping[str, Any], data: bytes) -> tuple[int, ...]:
    """The shape of one item that these bytes fill: batch 1, the last free dimension gets the rest.

    Raises:
        ValueError: the tensor's shape cannot hold exactly these bytes.
    """
    shape = [1, *(size if size > 0 else 1 for size in tensor["shape"][1:])]
    free = [i for i, size in enumerate(tensor["shape"]) if i > 0 and size < 0]
    known = ELEMENT_BYTES[tensor["datatype"]]
    for size in shape:
        known *= size
    if free:
        shape[free[-1]] = len(data) // known
        known *= len(data) // known
    if known != len(data):
        raise ValueError(f"{len(data)} bytes do not fill {tensor['datatype']} {tensor['shape']}")
    return tuple(shape)


def output_bytes(headers: Mapping[str, str], body: bytes) -> bytes:
    """The raw tensors of a binary answer, all of them in one piece."""
    return body[int(headers[HEADER_LENGTH.lower()]) :]


def _headers(header_bytes: int) -> dict[str, str]:
    return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(header_bytes)}
