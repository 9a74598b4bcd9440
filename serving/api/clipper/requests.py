"""Requests of Clipper's query protocol: predictions and feedback, in JSON.

Source: Clipper's query frontend, with its error texts where clients match on them.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from serving.api.clipper.inputs import ApplicationInput
from serving.api.parsing.bounded_json import MAX_JSON_BYTES, JsonError, read, write
from serving.api.tensorflow.rest_tensors import json_type
from serving.engine.applications import Feedback
from serving.errors import InvalidRequest

MAX_BATCH = 2048
"""Queries per `input_batch`, about 40 us each."""
DEFAULT_USER = ""
MAX_USER = 256

JSON_ERROR = "Json error"
QUERY_ERROR = "Query processing error"

_PREDICT_SCHEMA = (
    '{ "input" := [double] | [int] | [string] | [byte] | [float], '
    '"input_batch" := [[double] | [int] | [byte] | [float] | string], "version" := string (optional) }'
)
_UPDATE_SCHEMA = (
    '{ "uid" := string, "input" := [double] | [int] | [string] | [byte] | [float], '
    '"label" := double }'
)
_ELEMENTS = {"integers": "int", "floats": "float", "doubles": "double"}
_INT32 = range(-(2**31), 2**31)


class RequestError(InvalidRequest):
    """Error answered with 400 and `{"error": name, "cause": text}`."""

    def __init__(self, name: str, cause: str) -> None:
        InvalidRequest.__init__(self, cause)
        self.args = (name, cause)
        self.name = name
        self.cause = cause

    def __str__(self) -> str:
        return self.cause

    def body(self) -> bytes:
        """Return the response's body."""
        return write({"error": self.name, "cause": self.cause}).encode()


class PredictRequest(NamedTuple):
    """Parsed predict request."""

    inputs: tuple[ApplicationInput, ...]
    version: str | None
    user: str


def document(body: bytes, schema: str, max_json_bytes: int = MAX_JSON_BYTES) -> Mapping[str, Any]:
    """Return the JSON object in a body.

    Raises:
        RequestError: invalid, or too large.
    """
    try:
        value = read(body, max_bytes=max_json_bytes)
    except JsonError as error:
        where = "" if error.offset is None else f" (offset {error.offset})"
        raise json_error(f"JSON parse error: {error.reason}{where}", schema) from None
    except InvalidRequest as error:
        raise json_error(str(error), schema) from None
    if not isinstance(value, dict):
        raise json_error("Can only get key-value pair from an object", schema)
    return value


def json_error(reason: str, schema: str) -> RequestError:
    """Return an error in Clipper's words."""
    return RequestError(JSON_ERROR, f"Error parsing JSON: {reason}. Expected JSON schema: {schema}")


def requested_version(given: Mapping[str, Any]) -> str | None:
    """Return the version that a predict request is pinned to.

    Raises:
        RequestError: not a string.
    """
    if "version" not in given:
        return None
    version: str = _of_type(given, "version", str, _PREDICT_SCHEMA)
    return version


def predict_document(body: bytes, max_json_bytes: int = MAX_JSON_BYTES) -> Mapping[str, Any]:
    """Return the JSON object of a predict request; see `document`."""
    return document(body, _PREDICT_SCHEMA, max_json_bytes)


def prediction(given: Mapping[str, Any], kind: str) -> PredictRequest:
    """Parse a predict request, `given` from `predict_document`.

    Raises:
        RequestError: invalid.
    """
    version = requested_version(given)
    user = _user(given["uid"], _PREDICT_SCHEMA) if "uid" in given else DEFAULT_USER
    if "input" in given:
        return PredictRequest((_single(given, kind, _PREDICT_SCHEMA),), version, user)
    if "input_batch" not in given:
        raise json_error(
            "JSON object does not have required keys input or input_batch", _PREDICT_SCHEMA
        )
    batch = _of_type(given, "input_batch", list, _PREDICT_SCHEMA)
    if len(batch) > MAX_BATCH:
        raise json_error(
            f"input_batch has {len(batch)} inputs, at most {MAX_BATCH} are allowed", _PREDICT_SCHEMA
        )
    wanted = list if kind in _ELEMENTS else str
    for item in batch:
        if not isinstance(item, wanted):
            raise json_error(
                f"Array input of type {json_type(item)} is not of type "
                f"{'array' if wanted is list else 'string'}",
                _PREDICT_SCHEMA,
            )
    return PredictRequest(
        tuple([_input(item, kind, _PREDICT_SCHEMA) for item in batch]), version, user
    )


def update(body: bytes, kind: str, max_json_bytes: int = MAX_JSON_BYTES) -> Feedback:
    """Parse an update request.

    Raises:
        RequestError: invalid.
    """
    given = document(body, _UPDATE_SCHEMA, max_json_bytes)
    user = _user(_require(given, "uid", _UPDATE_SCHEMA), _UPDATE_SCHEMA)
    _require(given, "input", _UPDATE_SCHEMA)
    value = _single(given, kind, _UPDATE_SCHEMA)
    label = _require(given, "label", _UPDATE_SCHEMA)
    if isinstance(label, bool) or not isinstance(label, int | float | str):
        raise _type_mismatch("label", "Number", label, _UPDATE_SCHEMA)
    if not isinstance(label, str):
        try:
            label = float(label)
        except OverflowError:
            label = math.inf
        if not math.isfinite(label):
            raise json_error("label is too large a number", _UPDATE_SCHEMA)
    query_id = given.get("query_id")
    if query_id is not None and type(query_id) is not int:
        raise _type_mismatch("query_id", "Number", query_id, _UPDATE_SCHEMA)
    return Feedback(user, value, label, query_id)


def _user(value: object, schema: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _type_mismatch("uid", "String", value, schema)
    user = str(value)
    if len(user) > MAX_USER:
        raise json_error(f"uid has {len(user)} characters, at most {MAX_USER} are allowed", schema)
    try:
        user.encode()
    except UnicodeEncodeError:
        raise json_error("uid contains a lone surrogate, which is not valid text", schema) from None
    return user


def _require(given: Mapping[str, Any], key: str, schema: str) -> Any:
    if key not in given:
        raise json_error(f"JSON object does not have required key: {key}", schema)
    return given[key]


def _of_type(given: Mapping[str, Any], key: str, wanted: type, schema: str) -> Any:
    if type(given[key]) is not wanted:
        raise _type_mismatch(key, "Array" if wanted is list else "String", given[key], schema)
    return given[key]


def _type_mismatch(key: str, expected: str, value: object, schema: str) -> RequestError:
    # The missing space is Clipper's.
    return json_error(
        f"Type mismatch! JSON key {key} expected type {expected}but found type {json_type(value)}",
        schema,
    )


def _single(given: Mapping[str, Any], kind: str, schema: str) -> ApplicationInput:
    wanted = list if kind in _ELEMENTS else str
    return _input(_of_type(given, "input", wanted, schema), kind, schema)


def _input(value: Any, kind: str, schema: str) -> ApplicationInput:
    if kind == "strings":
        try:
            return ApplicationInput(kind, value.encode())
        except UnicodeEncodeError:
            raise json_error(
                "input contains a lone surrogate, which is not valid text", schema
            ) from None
    if kind == "bytes":
        try:
            return ApplicationInput(kind, base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError):
            raise json_error("input is not base64", schema) from None
    allowed = {int} if kind == "integers" else {int, float}
    if not set(map(type, value)) <= allowed:
        wrong = next(item for item in value if type(item) not in allowed)
        raise _wrong_element(wrong, kind, schema)
    if kind != "integers":
        try:
            value = list(map(float, value))
        except OverflowError:
            value = [math.inf]
        if math.inf in value or -math.inf in value:
            raise json_error("JSON parse error: Number too big to be stored in double.", schema)
    elif value and not (min(value) in _INT32 and max(value) in _INT32):
        raise _wrong_element(max(value, key=abs), kind, schema)
    return ApplicationInput(kind, value)


def _wrong_element(item: object, kind: str, schema: str) -> RequestError:
    return json_error(
        f"Array input of type {json_type(item)} is not of type {_ELEMENTS[kind]}", schema
    )
