"""Bodies of inference requests in Open Inference Protocol v2, with the binary tensor extension.

A body is a JSON header, then the tensors' bytes (`serving.tensors.arrays`), as in Triton. Binary
outputs keep number formatting out of the latency. JSON headers are padded with spaces, as all
bodies share one HTTP header. With a client batch, items of the same shape are concatenated along
the item axis; inputs without that axis must be identical.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.tensors import shapes
from serving.tensors.arrays import DTYPES, raw_of
from serving.values import Signature, TensorSpec
from tuner.errors import UsageError

LENGTH_HEADER = "Inference-Header-Content-Length"


class RequestInput(NamedTuple):
    """Input with a batch dimension; elements of a BYTES input are str or bytes."""

    spec: TensorSpec
    array: NDArray[Any]


def encode(items: Sequence[Sequence[RequestInput]]) -> tuple[tuple[bytes, ...], int]:
    """Return one body per item, and the common length of their JSON headers."""
    blobs = [[tensor_bytes(one) for one in inputs] for inputs in items]
    headers = [
        {
            "inputs": [
                {
                    "name": one.spec.name,
                    "shape": list(one.array.shape),
                    "datatype": one.spec.datatype,
                    "parameters": {"binary_data_size": len(blob)},
                }
                for one, blob in zip(inputs, parts, strict=True)
            ],
            "parameters": {"binary_data_output": True},
        }
        for inputs, parts in zip(items, blobs, strict=True)
    ]
    return join_bodies(headers, [b"".join(parts) for parts in blobs])


def join_bodies(
    headers: Sequence[dict[str, Any]], data: Sequence[bytes]
) -> tuple[tuple[bytes, ...], int]:
    """Join JSON headers and tensor bytes; return the bodies and the common header length."""
    texts = [json.dumps(header, separators=(",", ":")).encode() for header in headers]
    header_bytes = max(map(len, texts))
    bodies = (text.ljust(header_bytes) + part for text, part in zip(texts, data, strict=True))
    return tuple(bodies), header_bytes


def tensor_bytes(item: RequestInput) -> bytes:
    """Return the raw bytes of a tensor."""
    kind = DTYPES.get(item.spec.datatype)
    return bytes(raw_of(item.array if kind is None else np.ascontiguousarray(item.array, kind)))


def groups(items: int, client_batch: int) -> NDArray[np.intp]:
    """Return item indexes (requests, client_batch); the first items fill up the last request."""
    requests = -(-items // client_batch)
    return (np.arange(requests * client_batch) % items).reshape(requests, client_batch)


def stack(items: Sequence[Sequence[RequestInput]], where: str) -> Sequence[RequestInput]:
    """Stack all items into one request, or raise UsageError if their shapes do not match."""
    if len(items) == 1:
        return items[0]
    return [_stack_input(inputs, len(items), where) for inputs in zip(*items, strict=True)]


def _stack_input(inputs: Sequence[RequestInput], count: int, where: str) -> RequestInput:
    spec, first = inputs[0]
    found = sorted({item.array.shape for item in inputs})
    if len(found) > 1:
        raise UsageError(
            f"--client-batch {count}: items of {where} differ in the shape of input "
            f"{spec.name!r} ({list(found[0])} and {list(found[-1])}), and one request "
            "has one shape; pad them in the file, or use --client-batch 1"
        )
    if spec.item_axis is not None:
        arrays = [item.array for item in inputs]
        return RequestInput(spec, np.concatenate(arrays, axis=spec.item_axis))
    if any(not np.array_equal(first, item.array) for item in inputs):
        raise UsageError(
            f"--client-batch {count}: items of {where} differ in input {spec.name!r}, which all items of a "
            "request share; use --client-batch 1"
        )
    return inputs[0]


def check_client_batch(signature: Signature, client_batch: int, model: str) -> None:
    """Raise UsageError if an unbatched model would get several items per request."""
    reason = shapes.why_unbatched(signature)
    if client_batch > 1 and reason:
        raise UsageError(
            f"--client-batch {client_batch}: {model} takes one request at a time, whole ({reason}), so that a "
            "request cannot hold several items; use --client-batch 1"
        )
