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
from serving.errors import InvalidRequest
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


def default_prediction(
    result: QueryResponse, default_output: str, explanation: str | None
) -> bytes:
    """Return a prediction with the default output and the reason."""
    data = {
        "query_id": result.query_id,
        "output": _parse_text(default_output),
        "default": True,
    }
    if explanation is not None:
        data["default_explanation"] = explanation
    return write(data | _opinion(result)).encode()


def prediction_pieces(result: QueryResponse) -> Iterator[bytes]:
    """Yield a prediction with the output of the models in small pieces; several are an object.

    Raises:
        InferenceFailed: malformed BYTES.
        WireError: malformed frame.
    """
    yield b'{"query_id":%d,"output":' % result.query_id
    output = result.output
    if isinstance(output, memoryview):
        tensors = wire.decode_frame(output)
        if len(tensors) == 1:
            yield from _tensor_pieces(tensors[0])
        else:
            yield b"{"
            for place, tensor in enumerate(tensors):
                yield (b"," if place else b"") + write(tensor.name).encode() + b":"
                yield from _tensor_pieces(tensor)
            yield b"}"
    else:
        value = _parse_text(output) if isinstance(output, str) else _with_names(output)
        yield write(value).encode()
    yield b"," + write({"default": False} | _opinion(result))[1:].encode()


def _opinion(result: QueryResponse) -> dict[str, Any]:
    """Return what several models say of one another."""
    told: dict[str, Any] = {}
    if result.confidence is not None:
        told["confidence"] = result.confidence
    if result.is_suspicious:
        told["suspicious"] = True
    return told


def _tensor_pieces(tensor: Tensor) -> Iterator[bytes]:
    shape = tensor.shape[1:] if tensor.shape[:1] == (1,) else tensor.shape
    if tensor.datatype != "BYTES":
        array = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype]).reshape(shape)
        yield from number_pieces(array, _json_of_numbers)
    elif shape:
        texts = written_texts(tensor, lambda item: item.decode("utf-8", "replace"))
        yield from array_pieces(rows_of_texts(shape, texts))
    else:
        (item,) = byte_strings(tensor)
        yield write(_parse_text(item.decode("utf-8", "replace"))).encode()


def _json_of_numbers(array: NDArray[Any]) -> bytes:
    is_float = array.dtype.kind == "f"
    values = shortest(array).tolist() if is_float else array.tolist()
    if is_float and not np.isfinite(array).all():
        values = _with_names(values)
    return write(values).encode()


def _parse_text(text: str) -> Any:
    """Return the value of a text that is JSON, else the text."""
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
