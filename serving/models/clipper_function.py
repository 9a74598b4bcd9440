"""Adapter that lets the `python` model kind serve functions written for Clipper.

The function takes a list of inputs (arrays, strings or bytes) and returns one string per input.
Clipper's Python API appends a call to `wrap_function`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from serving.errors import InferenceFailed

_INPUTS: dict[str, dict[str, Any]] = {
    "integers": {"name": "input", "datatype": "INT32", "shape": [-1, -1]},
    "floats": {"name": "input", "datatype": "FP32", "shape": [-1, -1]},
    "doubles": {"name": "input", "datatype": "FP64", "shape": [-1, -1]},
    "strings": {"name": "input", "datatype": "BYTES", "shape": [-1]},
    "bytes": {"name": "input", "datatype": "BYTES", "shape": [-1]},
}
_OUTPUT = {"name": "output", "datatype": "BYTES", "shape": [-1]}


def wrap_function(function: Callable[[list[Any]], Any], *, input_type: str) -> Callable[..., Any]:
    """Give a function the signature for an input type, and check its results.

    `input_type` is one of integers, floats, doubles, strings and bytes.
    """

    def predict(items: list[Any]) -> list[bytes]:
        given = [item.decode() for item in items] if input_type == "strings" else items
        return _encode_outputs(function(given), len(items))

    predict.inputs = [_INPUTS[input_type]]  # type: ignore[attr-defined]  # what the kind python reads
    predict.outputs = [_OUTPUT]  # type: ignore[attr-defined]
    return predict


def _encode_outputs(responses: object, count: int) -> list[bytes]:
    if isinstance(responses, str | bytes) or not isinstance(responses, Sequence):
        raise InferenceFailed(
            f"the function returned {type(responses).__name__}, expected a list of {count} strings"
        )
    if len(responses) != count:
        raise InferenceFailed(
            f"the function returned {len(responses)} answers to {count} inputs, expected one for each"
        )
    for answer in responses:
        if not isinstance(answer, str):
            raise InferenceFailed(
                f"the function returned a {type(answer).__name__} among its answers, expected "
                "strings; str() or json.dumps() make them"
            )
    return [answer.encode("utf-8", "replace") for answer in responses]
