"""Requests of Clipper's query protocol: predictions and feedback, in JSON.

Source: Clipper's query frontend, with its error texts where clients match on them.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any, NamedTuple

from serving.api.clipper.fields import JsonFields
from serving.api.clipper.inputs import ApplicationInput
from serving.api.parsing.bounded_json import MAX_JSON_BYTES

MAX_BATCH = 2048
"""Queries per `input_batch`, about 40 us each."""
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
_INT32 = range(-(2**31), 2**31)


class PredictRequest(NamedTuple):
    """Parsed predict request."""

    inputs: tuple[ApplicationInput, ...]
    user: str


class FeedbackRequest(NamedTuple):
    """The true label of an input."""

    user: str
    input: ApplicationInput
    label: float | str
    query_id: int | None


def predict_fields(body: bytes, max_json_bytes: int = MAX_JSON_BYTES) -> JsonFields:
    """Read the body of a predict request; raises RequestError."""
    return JsonFields.parse(body, _PREDICT_SCHEMA, max_json_bytes)


def prediction(fields: JsonFields, kind: str) -> PredictRequest:
    """Parse a predict request of an application with the input type `kind`.

    Raises:
        RequestError: invalid.
    """
    user = fields.user("uid") if "uid" in fields.given else DEFAULT_USER
    if "input" in fields.given:
        return PredictRequest((_single(fields, kind),), user)
    if "input_batch" not in fields.given:
        raise fields.error("JSON object does not have required keys input or input_batch")
    batch = fields.array("input_batch")
    if len(batch) > MAX_BATCH:
        raise fields.error(
            f"input_batch has {len(batch)} inputs, at most {MAX_BATCH} are allowed"
        )
    wanted, name = (list, "array") if kind in _ELEMENTS else (str, "string")
    for item in batch:
        if not isinstance(item, wanted):
            raise fields.wrong_element(item, name)
    return PredictRequest(tuple([_input(item, kind, fields) for item in batch]), user)


def update(body: bytes, kind: str, max_json_bytes: int = MAX_JSON_BYTES) -> FeedbackRequest:
    """Parse an update request.

    Raises:
        RequestError: invalid.
    """
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
    return FeedbackRequest(user, value, label, query_id)


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
    elif value and not (min(value) in _INT32 and max(value) in _INT32):
        raise fields.wrong_element(max(value, key=abs), _ELEMENTS[kind])
    return ApplicationInput(kind, value)
