"""Parameters of requests, inputs and outputs: flags, limits, sizes of binary data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.api.parsing import tensors as tensors_of
from serving.error_text import short_repr
from serving.errors import InvalidRequest


def parameters_of(item: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """Return the parameters of a request, input or output; empty if absent."""
    parameters = item.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidRequest(
            f"parameters of {what} are {short_repr(parameters)}, expected an object"
        )
    return parameters


def flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Return a boolean parameter, or raise InvalidRequest."""
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequest(f"parameter {name} is {short_repr(value)}, expected true or false")
    return value


def limits_of(request: Mapping[str, Any]) -> tuple[float | None, int]:
    """Return the request's time limit in seconds and its priority."""
    parameters = parameters_of(request, "the request")
    return (
        tensors_of.timeout_s(parameters.get("timeout")),
        tensors_of.priority(parameters.get("priority")),
    )


def binary_data_size(item: Mapping[str, Any], name: str) -> int:
    """Return the size of an input's data, which follows the JSON header."""
    size = item["parameters"]["binary_data_size"]
    if type(size) is not int or size < 0:
        raise InvalidRequest(
            f"input {name!r}: binary_data_size is {short_repr(size)}, expected a number of bytes"
        )
    return size


def wrong_size(given: int, expected: int, name: str, model: str) -> InvalidRequest:
    """Return the error for an input with too few bytes, or a request with too many."""
    if given < expected:
        return InvalidRequest(
            f"unexpected size for input {name!r}, expecting {expected - given} "
            f"additional bytes for model {model!r}"
        )
    return InvalidRequest(
        f"unexpected additional input data for model {model!r}: {given - expected} bytes"
    )
