"""JSON of Clipper's query protocol: parses queries and feedback, and writes responses.

Source: Clipper's query frontend, with its error messages where clients match on them.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving import wire
from serving.api.clipper.fields import INT32, JsonFields
from serving.api.clipper.inputs import ApplicationInput
from serving.api.parsing.bounded_json import MAX_JSON_BYTES, JsonError, read, shortest, write
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
"""Size above which outputs are written in pieces."""
MAX_BATCH = 2048
"""Maximum number of queries per `input_batch`; each takes about 40 us."""
DEFAULT_USER = ""

_PREDICT_SCHEMA = (
    '{ "input" := [double] | [int] | [string] | [byte] | [float], '
    '"input_batch" := [[double] | [int] | [byte] | [float] | string], "version" := string (optional) }'
)
_UPDATE_SCHEMA = (
    '{ "uid" := string, "input" := [double] | [int] | [string] | [byte] | [float], '
    '"label" := double }'
)
_ELEMENTS = {"integers": "int", "floats": "float", "doubles": "double"}


class PredictRequest(NamedTuple):
    """The inputs of a predict request, and the user who sent it."""

    inputs: tuple[ApplicationInput, ...]
    user: str


class UpdateRequest(NamedTuple):
    """The true label of an input."""

    user: str
    input: ApplicationInput
    label: float | str
    query_id: int | None
    """Id of the query, or None if the client sent none."""


def predict_fields(body: bytes, max_json_bytes: int = MAX_JSON_BYTES) -> JsonFields:
    """Read the body of a predict request, or raise RequestError."""
    return JsonFields.parse(body, _PREDICT_SCHEMA, max_json_bytes)


def prediction(fields: JsonFields, kind: str) -> PredictRequest:
    """Parse a predict request with inputs of type `kind`, or raise RequestError."""
    user = fields.user("uid") if "uid" in fields.given else DEFAULT_USER
    if "input" in fields.given:
        return PredictRequest((_single(fields, kind),), user)
    if "input_batch" not in fields.given:
        raise fields.error("JSON object does not have required keys input or input_batch")
    batch = fields.array("input_batch")
    if len(batch) > MAX_BATCH:
        raise fields.error(f"input_batch has {len(batch)} inputs, at most {MAX_BATCH} are allowed")
    wanted, name = (list, "array") if kind in _ELEMENTS else (str, "string")
    for item in batch:
        if not isinstance(item, wanted):
            raise fields.wrong_element(item, name)
    return PredictRequest(tuple([_input(item, kind, fields) for item in batch]), user)


def update(body: bytes, kind: str, max_json_bytes: int = MAX_JSON_BYTES) -> UpdateRequest:
    """Parse an update request, or raise RequestError."""
    fields = JsonFields.parse(body, _UPDATE_SCHEMA, max_json_bytes)
    user, value, label = fields.user("uid"), _single(fields, kind), fields.value("label")
    if isinstance(label, bool) or not isinstance(label, int | float | str):
        raise fields.mismatch("label", "Number", label)
    if not isinstance(label, str):
        try:
            label = float(label)
        except OverflowError:
            label = math.inf
        if not math.isfinite(label):
            raise fields.error("label is too large a number")
    query_id = fields.given.get("query_id")
    if query_id is not None and type(query_id) is not int:
        raise fields.mismatch("query_id", "Number", query_id)
    return UpdateRequest(user, value, label, query_id)


def _single(fields: JsonFields, kind: str) -> ApplicationInput:
    value = fields.array("input") if kind in _ELEMENTS else fields.text("input")
    return _input(value, kind, fields)


def _input(value: Any, kind: str, fields: JsonFields) -> ApplicationInput:
    if kind == "strings":
        try:
            return ApplicationInput(kind, value.encode())
        except UnicodeEncodeError:
            raise fields.error("input contains a lone surrogate, which is not valid text") from None
    if kind == "bytes":
        try:
            return ApplicationInput(kind, base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError):
            raise fields.error("input is not base64") from None
    allowed = {int} if kind == "integers" else {int, float}
    if not set(map(type, value)) <= allowed:
        wrong = next(item for item in value if type(item) not in allowed)
        raise fields.wrong_element(wrong, _ELEMENTS[kind])
    if kind != "integers":
        try:
            value = list(map(float, value))
        except OverflowError:
            value = [math.inf]
        if math.inf in value or -math.inf in value:
            raise fields.error("JSON parse error: Number too big to be stored in double.")
    elif value and not (min(value) in INT32 and max(value) in INT32):
        raise fields.wrong_element(max(value, key=abs), _ELEMENTS[kind])
    return ApplicationInput(kind, value)


# Responses


def response_body(predictions: Sequence[bytes]) -> bytes:
    """Return the body of a response; a single prediction has no enclosing object."""
    if len(predictions) == 1:
        return predictions[0]
    return b'{"batch_predictions":[%b]}' % b",".join(predictions)


def default_prediction(
    result: QueryResponse, default_output: str, explanation: str | None
) -> bytes:
    """Return a prediction with the default output and the reason for it."""
    data = {
        "query_id": result.query_id,
        "output": _parse_text(default_output),
        "default": True,
    }
    if explanation is not None:
        data["default_explanation"] = explanation
    return write(data | _opinion(result)).encode()


def prediction_pieces(result: QueryResponse) -> Iterator[bytes]:
    """Yield a prediction in small pieces; several output tensors become a JSON object.

    Raises:
        InferenceFailed: an output has malformed BYTES.
        WireError: the frame is malformed.
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
    told = _opinion(result)
    yield b',"default":false' + (b"," + write(told)[1:].encode() if told else b"}")


def _opinion(result: QueryResponse) -> dict[str, Any]:
    """Return the confidence in a response and whether it is suspicious, if known."""
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
    """Parse a text as JSON, or return it unchanged if that fails."""
    try:
        return _with_names(read(text.encode("utf-8", "replace")))
    except (JsonError, InvalidRequest):  # invalid or too large
        return text


def _with_names(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, with their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_with_names(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_names(item) for name, item in value.items()}
    return value
