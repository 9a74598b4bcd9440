"""Responses of Clipper's query protocol, as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving import wire
from serving.api.parsing.bounded_json import JsonError, read, shortest, write
from serving.api.tensorflow.rest_outputs import (
    array_pieces,
    byte_strings,
    number_pieces,
    rows_of_texts,
)
from serving.errors import InferenceFailed, InvalidRequest
from serving.selection.query_session import QueryResponse
from serving.tensors.json_tensors import NUMPY, written_texts
from serving.values import Tensor

LONG_BYTES = 64 * 1024
"""Larger outputs are written in pieces."""


def response_body(predictions: Sequence[bytes]) -> bytes:
    """Return the body; a single prediction stands alone."""
    if len(predictions) == 1:
        return predictions[0]
    return b'{"batch_predictions":[%b]}' % b",".join(predictions)


def prediction_json(result: QueryResponse, default_output: str) -> dict[str, Any]:
    """Return one prediction, the default for a malformed output."""
    if result.is_default or result.output is None:
        return default_prediction_json(result, default_output, result.explanation)
    try:
        output = output_value(result.output)
    except (InferenceFailed, wire.WireError) as error:
        return default_prediction_json(result, default_output, unreadable(error))
    return _with_more({"query_id": result.query_id, "output": output, "default": False}, result)


def unreadable(error: Exception) -> str:
    """Return the explanation for a malformed output."""
    return f"The model's response cannot be read: {error}"


def default_prediction_json(
    result: QueryResponse, default_output: str, explanation: str | None
) -> dict[str, Any]:
    """Return a prediction with the default output and the reason."""
    output = _parse_default(default_output)
    data = {"query_id": result.query_id, "output": output, "default": True}
    if explanation is not None:
        data["default_explanation"] = explanation
    return _with_more(data, result)


def _with_more(data: dict[str, Any], result: QueryResponse) -> dict[str, Any]:
    if result.confidence is not None:
        data["confidence"] = result.confidence
    if result.is_suspicious:
        data["suspicious"] = True
    return data


def prediction_pieces(result: QueryResponse) -> Iterator[bytes] | None:
    """Return the JSON of `prediction_json` in small pieces, or None if short.

    Raises:
        InferenceFailed: respond with `default_prediction_json`.
        WireError: likewise.
    """
    output = result.output
    if result.is_default or not isinstance(output, memoryview) or len(output) <= LONG_BYTES:
        return None
    return _prediction_pieces(result, memoryview(bytes(output)))


def _prediction_pieces(result: QueryResponse, frame: memoryview) -> Iterator[bytes]:
    yield write({"query_id": result.query_id})[:-1].encode() + b',"output":'
    tensors = wire.decode_frame(frame)
    if len(tensors) == 1:
        yield from _tensor_pieces(tensors[0])
    else:
        for place, tensor in enumerate(tensors):
            yield (b"," if place else b"{") + write(tensor.name).encode() + b":"
            yield from _tensor_pieces(tensor)
        yield b"}"
    yield b"," + write(_with_more({"default": False}, result))[1:].encode()


def _tensor_pieces(tensor: Tensor) -> Iterator[bytes]:
    shape = _item_shape(tensor)
    if tensor.datatype != "BYTES":
        array = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype]).reshape(shape)
        yield from number_pieces(array, lambda some: write(_numbers(some)).encode())
    elif shape:
        texts = written_texts(tensor, lambda item: item.decode("utf-8", "replace"))
        yield from array_pieces(rows_of_texts(shape, texts))
    else:
        yield write(_tensor_value(tensor)).encode()


def output_value(output: memoryview | str | float | None) -> Any:
    """Convert an output to JSON values; several outputs become an object by name.

    Raises:
        InferenceFailed: malformed BYTES.
        WireError: malformed frame.
    """
    if isinstance(output, str):
        return _parse_default(output)
    if output is None or isinstance(output, int | float):
        return _with_names(output)
    tensors = wire.decode_frame(output)
    if len(tensors) == 1:
        return _tensor_value(tensors[0])
    return {tensor.name: _tensor_value(tensor) for tensor in tensors}


def _tensor_value(tensor: Tensor) -> Any:
    shape = _item_shape(tensor)
    if tensor.datatype == "BYTES":
        texts = [item.decode("utf-8", "replace") for item in byte_strings(tensor)]
        if not shape:
            return _parse_default(texts[0])
        values = np.empty(len(texts), dtype=object)
        values[:] = texts
        return values.reshape(shape).tolist()
    return _numbers(np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype]).reshape(shape))


def _item_shape(tensor: Tensor) -> tuple[int, ...]:
    return tensor.shape[1:] if tensor.shape[:1] == (1,) else tensor.shape


def _numbers(array: NDArray[Any]) -> Any:
    if array.dtype.kind != "f":
        return array.tolist()
    values = shortest(array).tolist()
    return values if bool(np.isfinite(array).all()) else _with_names(values)


def _parse_default(text: str) -> Any:
    try:
        return _with_names(read(text.encode("utf-8", "replace")))
    except (JsonError, InvalidRequest):  # invalid or too large
        return text


def _with_names(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_with_names(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_names(item) for name, item in value.items()}
    return value
