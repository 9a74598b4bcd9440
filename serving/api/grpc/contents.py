"""Typed tensor contents (`InferTensorContents`) <-> raw little-endian, row-major bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from serving.api.parsing import varints
from serving.errors import InvalidRequest
from serving.tensors.json_tensors import NUMPY, elements
from serving.values import ITEM_BYTES, Tensor

FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Datatype -> field of its elements; FP16 has none."""
AS_THEY_ARE = frozenset({"BOOL", "FP32", "FP64"})
"""Datatypes whose packed elements are identical to their raw bytes."""


def unpack(name: str, datatype: str, shape: Sequence[int], contents: Any) -> bytes:
    """Return the raw bytes of a typed input, or raise InvalidRequest."""
    field = FIELDS.get(datatype)
    if field is None:
        raise InvalidRequest(
            f"input {name!r}: {datatype} has no typed contents; send it in raw_input_contents"
        )
    given = [descriptor.name for descriptor, _ in contents.ListFields()]
    if any(other != field for other in given):
        raise InvalidRequest(
            f"input {name!r}: contents hold {', '.join(given)}, but {datatype} takes only {field}"
        )
    pieces: list[bytes] = list(getattr(contents, field))
    if datatype == "BYTES":
        _check_count(name, shape, len(pieces))
        return b"".join([struct.pack("<I", len(piece)) + piece for piece in pieces])
    packed = b"".join(pieces)
    if datatype in {"FP32", "FP64"}:
        _check_count(name, shape, len(packed) / ITEM_BYTES[datatype])
        return packed
    numbers = varints.unpack(packed)
    if numbers is None:
        raise InvalidRequest(f"input {name!r}: {field} is malformed")
    _check_count(name, shape, len(numbers))
    if not math.prod(shape):
        return b""
    if datatype == "BOOL":
        return numbers.astype(bool).tobytes()
    wanted = np.dtype(NUMPY[datatype])
    signed = numbers.view(np.int64) if wanted.kind == "i" else numbers
    limits = np.iinfo(wanted)
    low, high = int(signed.min()), int(signed.max())
    if low < limits.min or high > limits.max:
        raise InvalidRequest(
            f"input {name!r}: {datatype} takes {limits.min} to {limits.max}, contents hold {low} to {high}"
        )
    return signed.astype(wanted).tobytes()


def _check_count(name: str, shape: Sequence[int], given: float) -> None:
    if given != math.prod(shape):
        raise InvalidRequest(
            f"input {name!r}: contents have {given:g} elements, shape {list(shape)} takes {math.prod(shape)}"
        )


def pack(tensor: Tensor, contents: Any) -> None:
    """Fill an output's contents; its datatype must be in `FIELDS`.

    Raises InferenceFailed if BYTES do not match the shape.
    """
    target = getattr(contents, FIELDS[tensor.datatype])
    if tensor.datatype == "BYTES":
        for some in elements(tensor):
            target.extend(some)
    elif tensor.datatype in {"FP32", "FP64"}:
        target.append(bytes(tensor.data))
    else:
        array = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype])
        target.append(varints.pack(array.view(np.uint8) if tensor.datatype == "BOOL" else array))
