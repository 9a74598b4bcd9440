"""Answers of Clipper's query protocol.

In: what the hub says of a query, and the application's default output; out: the answer's JSON. An
output that is JSON itself is nested, numbers are numbers or arrays.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequest, PredictionFailed
from serving.json_tensors import NUMPY
from serving.protocol.bounded_json import JsonError, read, shortest, write
from serving.protocol.tfs_tensors import byte_strings
from serving.replica import wire
from serving.values import Tensor


class Result(Protocol):
    """What the hub says of one query."""

    @property
    def query_id(self) -> int:
        """Number of the query."""
        ...

    @property
    def output(self) -> memoryview | str | float | None:
        """A tensors frame of the replica wire, only borrowed for the call; or a label or number on
        which several models agreed; None: no model answered.
        """
        ...

    @property
    def is_default(self) -> bool:
        """The default output is the answer."""
        ...

    @property
    def explanation(self) -> str | None:
        """Why it is."""
        ...

    @property
    def confidence(self) -> float | None:
        """Of several models in the answer, 0 to 1; None where one alone was asked."""
        ...

    @property
    def is_suspicious(self) -> bool:
        """The models disagree so much that the input may be broken."""
        ...


def answer(results: Sequence[Mapping[str, Any]]) -> bytes:
    """The body of an answer: one prediction stands alone, as Clipper's clients expect."""
    data = results[0] if len(results) == 1 else {"batch_predictions": list(results)}
    return write(data).encode()


def answered(result: Result, default_output: str) -> dict[str, Any]:
    """One prediction of an answer.

    Outputs that the model wrote badly are answered by the default, like a model that does not
    answer.

    Args:
        result: of the hub.
        default_output: of the application.
    """
    is_default, explanation = result.is_default or result.output is None, result.explanation
    output: Any = None
    if not is_default:
        try:
            output = output_value(result.output)
        except (PredictionFailed, wire.WireError) as error:
            is_default, explanation = True, f"The model's answer cannot be read: {error}"
    if is_default:
        output = _parsed(default_output)
    data = {"query_id": result.query_id, "output": output, "default": is_default}
    if is_default and explanation is not None:
        data["default_explanation"] = explanation
    if result.confidence is not None:
        data["confidence"] = result.confidence
    if result.is_suspicious:
        data["suspicious"] = True
    return data


def output_value(output: memoryview | str | float | None) -> Any:
    """An output as JSON: text that is JSON itself is nested, numbers are numbers or arrays.

    Several outputs become an object by their names.

    Raises:
        PredictionFailed: BYTES that are malformed.
        WireError: no frame.
    """
    if isinstance(output, str):
        return _parsed(output)
    if output is None or isinstance(output, int | float):
        return _with_names(output)
    tensors = wire.decode_frame(output)
    if len(tensors) == 1:
        return _tensor_value(tensors[0])
    return {tensor.name: _tensor_value(tensor) for tensor in tensors}


def _tensor_value(tensor: Tensor) -> Any:
    """One output of one item, without its batch axis."""
    shape = tensor.shape[1:] if tensor.shape[:1] == (1,) else tensor.shape
    if tensor.datatype == "BYTES":
        texts = [item.decode("utf-8", "replace") for item in byte_strings(tensor)]
        if not shape:
            return _parsed(texts[0])
        values = np.empty(len(texts), dtype=object)
        values[:] = texts
        return values.reshape(shape).tolist()
    array: NDArray[Any] = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype])
    if array.dtype.kind != "f":
        return array.reshape(shape).tolist()
    finite = bool(np.isfinite(array).all())
    values_list = shortest(array).reshape(shape).tolist()
    return values_list if finite else _with_names(values_list)


def _parsed(text: str) -> Any:
    """What a text says as JSON, or else the text."""
    try:
        return _with_names(read(text.encode("utf-8", "replace")))
    except (JsonError, InvalidRequest):  # it is none, or more of it than is read
        return text


def _with_names(value: Any) -> Any:
    """JSON has no NaN and no infinities: they are sent by their names, as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_with_names(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_names(item) for name, item in value.items()}
    return value
