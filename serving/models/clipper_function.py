"""A function by Clipper's contract, as the kind python serves it.

The function takes a list of inputs and returns a list of as many strings. Inputs are arrays of
numbers (int32, float32, float64), strings, or bytes. Modules that the Python API of Clipper writes
end with a call of `batched`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from serving.errors import PredictionFailed

_INPUTS: dict[str, dict[str, Any]] = {
    "integers": {"name": "input", "datatype": "INT32", "shape": [-1, -1]},
    "floats": {"name": "input", "datatype": "FP32", "shape": [-1, -1]},
    "doubles": {"name": "input", "datatype": "FP64", "shape": [-1, -1]},
    "strings": {"name": "input", "datatype": "BYTES", "shape": [-1]},
    "bytes": {"name": "input", "datatype": "BYTES", "shape": [-1]},
}
_OUTPUT = {"name": "output", "datatype": "BYTES", "shape": [-1]}


def batched(function: Callable[[list[Any]], Any], *, input_type: str) -> Callable[..., Any]:
    """The function with the signature of an input type, and its answers checked.

    Args:
        function: by Clipper's contract.
        input_type: integers, floats, doubles, strings or bytes.
    """

    def predict(items: list[Any]) -> list[bytes]:
        given = [item.decode() for item in items] if input_type == "strings" else items
        return _checked(function(given), len(items))

    predict.inputs = [_INPUTS[input_type]]  # type: ignore[attr-defined]  # what the kind python reads
    predict.outputs = [_OUTPUT]  # type: ignore[attr-defined]
    return predict


def _checked(answers: object, count: int) -> list[bytes]:
    """The answers' bytes.

    Raises:
        PredictionFailed: they are not a string for every input.
    """
    if isinstance(answers, str | bytes) or not isinstance(answers, Sequence):
        raise PredictionFailed(
            f"the function returned {type(answers).__name__}, expected a list of {count} strings"
        )
    if len(answers) != count:
        raise PredictionFailed(
            f"the function returned {len(answers)} answers to {count} inputs, expected one for each"
        )
    for answer in answers:
        if not isinstance(answer, str):
            raise PredictionFailed(
                f"the function returned a {type(answer).__name__} among its answers, expected "
                "strings; str() or json.dumps() make them"
            )
    return [answer.encode("utf-8", "replace") for answer in answers]
