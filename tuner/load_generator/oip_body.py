"""Bodies of inference requests: Open Inference Protocol v2, binary tensor extension.

A body is a JSON header, then the tensors' bytes, little-endian and row-major; a BYTES element is a
4-byte length and its bytes. Binary outputs keep number printing out of the latency. All bodies
share one HTTP header, so JSON headers are padded with spaces. Source: the protocol's extension
"binary_tensor_data", as in Triton.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.values import TensorSpec

LENGTH_HEADER = "Inference-Header-Content-Length"
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}


class RequestInput(NamedTuple):
    """Input with batch dimension; BYTES has str or bytes elements."""

    spec: TensorSpec
    array: NDArray[Any]


def encode(items: Sequence[Sequence[RequestInput]]) -> tuple[tuple[bytes, ...], int]:
    """One body per item, and the common length of their JSON headers."""
    parts = [_parts(inputs) for inputs in items]
    header_bytes = max(len(header) for header, _ in parts)
    return tuple(header.ljust(header_bytes) + data for header, data in parts), header_bytes


def _parts(inputs: Sequence[RequestInput]) -> tuple[bytes, bytes]:
    blobs = [tensor_bytes(item) for item in inputs]
    header = {
        "inputs": [
            {
                "name": item.spec.name,
                "shape": list(item.array.shape),
                "datatype": item.spec.datatype,
                "parameters": {"binary_data_size": len(blob)},
            }
            for item, blob in zip(inputs, blobs, strict=True)
        ],
        "parameters": {"binary_data_output": True},
    }
    return json.dumps(header, separators=(",", ":")).encode(), b"".join(blobs)


def tensor_bytes(item: RequestInput) -> bytes:
    """Raw bytes of a tensor."""
    if item.spec.datatype != "BYTES":
        return np.ascontiguousarray(item.array, DTYPES[item.spec.datatype]).tobytes()
    elements = [
        part.encode() if isinstance(part, str) else bytes(part)
        for part in item.array.ravel().tolist()
    ]
    return b"".join(struct.pack("<I", len(part)) + part for part in elements)
