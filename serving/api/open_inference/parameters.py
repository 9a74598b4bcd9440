"""Parameters of requests, inputs and outputs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.api.parsing import tensors as tensors_of
from serving.error_text import short_repr
from serving.errors import InvalidRequest


def parameters_of(item: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """Return the parameters of a request, input or output; none if absent."""
    parameters = item.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidRequest(
            f"parameters of {what} are {short_repr(parameters)}, expected an object"
        )
    return parameters


def flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Return a parameter that is true or false."""
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
