"""Answers of Clipper's query protocol.

In: what the hub says of a query, and the application's default output; out: the answer's JSON. An
output that is JSON itself is nested, numbers are numbers or arrays.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequest, PredictionFailed
from serving.json_tensors import NUMPY, written_texts
from serving.protocol.bounded_json import JsonError, read, shortest, write
from serving.protocol.tfs_tensors import byte_strings, listed, number_pieces, rows_of_texts
from serving.replica import wire
from serving.values import Tensor

LONG_BYTES = 64 * 1024
"""Outputs that take longer to be written than others should wait."""


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


def answer(predictions: Sequence[bytes]) -> bytes:
    """The body of an answer: one prediction stands alone, as Clipper's clients expect.

    Args:
        predictions: the JSON of each.
    """
    if len(predictions) == 1:
        return predictions[0]
    return b'{"batch_predictions":[%b]}' % b",".join(predictions)


def answered(result: Result, default_output: str) -> dict[str, Any]:
    """One prediction of an answer.

    Outputs that the model wrote badly are answered by the default, like a model that does not
    answer.

    Args:
        result: of the hub.
        default_output: of the application.
    """
    if result.is_default or result.output is None:
        return defaulted(result, default_output, result.explanation)
    try:
        output = output_value(result.output)
    except (PredictionFailed, wire.WireError) as error:
        return defaulted(result, default_output, unreadable(error))
    return _with_more({"query_id": result.query_id, "output": output, "default": False}, result)


def unreadable(error: Exception) -> str:
    """Why the default is the answer where a model has given one."""
    return f"The model's answer cannot be read: {error}"


def defaulted(result: Result, default_output: str, explanation: str | None) -> dict[str, Any]:
    """A prediction whose output is the default, and why."""
    output = _parsed(default_output)
    data = {"query_id": result.query_id, "output": output, "default": True}
    if explanation is not None:
        data["default_explanation"] = explanation
    return _with_more(data, result)


def _with_more(data: dict[str, Any], result: Result) -> dict[str, Any]:
    """What is told of a prediction beside its output."""
    if result.confidence is not None:
        data["confidence"] = result.confidence
    if result.is_suspicious:
        data["suspicious"] = True
    return data


def written(result: Result) -> Iterator[bytes] | None:
    """The JSON of `answered` in pieces, each of which is soon made; None: it is soon made as a whole.

    Outputs that the model wrote badly are errors: `defaulted` is the answer then.

    Raises:
        PredictionFailed: as `output_value`; between two pieces.
        WireError: likewise.
    """
    output = result.output
    if result.is_default or not isinstance(output, memoryview) or len(output) <= LONG_BYTES:
        return None
    return _written(result, memoryview(bytes(output)))


def _written(result: Result, frame: memoryview) -> Iterator[bytes]:
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
        yield from listed(rows_of_texts(shape, texts))
    else:
        yield write(_tensor_value(tensor)).encode()


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
    shape = _item_shape(tensor)
    if tensor.datatype == "BYTES":
        texts = [item.decode("utf-8", "replace") for item in byte_strings(tensor)]
        if not shape:
            return _parsed(texts[0])
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
