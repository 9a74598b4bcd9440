"""Sizes of the binary part of a request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.api.parsing import tensors as tensors_of
from serving.api.parsing.parse_budget import ParseBudget
from serving.error_text import short_repr
from serving.errors import InvalidRequest
from serving.values import Tensor, TensorSpec

ELEMENTS = "elements of BYTES"
"""Parsed one by one from binary requests."""


def without_data(
    item: Mapping[str, Any], name: str, datatype: str, shape: tuple[int, ...]
) -> Tensor:
    """Return an input of 0 bytes, for which KServe's client sends no binary part."""
    size = binary_size(item, name)
    if size:
        raise InvalidRequest(
            f"input {name!r}: binary_data_size is {size}, but the request has no binary part (that needs "
            f"the header Inference-Header-Content-Length)"
        )
    tensors_of.check_bytes(name, datatype, shape, b"", ParseBudget(what=ELEMENTS))
    return Tensor(name, datatype, shape, b"")


def binary_size(item: Mapping[str, Any], name: str) -> int:
    """Return the length of an input's binary data."""
    size = item["parameters"]["binary_data_size"]
    if type(size) is not int or size < 0:
        raise InvalidRequest(
            f"input {name!r}: binary_data_size is {short_repr(size)}, expected a number of bytes"
        )
    return size


def wrong_size(given: int, expected: int, spec: TensorSpec, model: str) -> InvalidRequest:
    """Return the error of a binary part with too few or too many bytes."""
    if given < expected:
        return InvalidRequest(
            f"unexpected size for input {spec.name!r}, expecting {expected - given} "
            f"additional bytes for model {model!r}"
        )
    return InvalidRequest(
        f"unexpected additional input data for model {model!r}: {given - expected} bytes"
    )
