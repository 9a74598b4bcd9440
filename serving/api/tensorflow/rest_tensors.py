"""Conversion of input tensors from TensorFlow Serving's JSON to raw bytes.

A JSON value (scalar or evenly nested arrays; bytes as `{"b64": text}`) and a datatype become a
shape and little-endian, row-major bytes. numpy converts uniform arrays; other arrays are walked, to
report errors (`InvalidRequest`) with TensorFlow Serving's messages.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.api.parsing.bounded_json import short_json
from serving.errors import InvalidRequest
from serving.tensors.json_tensors import NUMPY
from serving.values import ITEM_BYTES

TYPE_NAMES = {name: name.lower() for name in ITEM_BYTES} | {
    "FP16": "half",
    "FP32": "float",
    "FP64": "double",
    "BYTES": "string",
}
"""Datatype -> its name in TensorFlow."""


def _fitting(wanted: np.dtype[Any]) -> tuple[frozenset[type], float, float]:
    if wanted.kind == "b":
        return frozenset({bool}), 0, 1
    if wanted.kind == "f":
        largest = float(np.finfo(wanted).max)
        return frozenset({int, float}), -largest, largest
    return frozenset({int}), int(np.iinfo(wanted).min), int(np.iinfo(wanted).max)


_FITTING = {name: _fitting(np.dtype(code)) for name, code in NUMPY.items()} | {
    "BYTES": (frozenset({str, bytes}), -math.inf, math.inf)
}
"""Datatype -> accepted types of parsed JSON values, minimum and maximum."""

_JSON_TYPES = {
    type(None): "Null",
    dict: "Object",
    list: "Array",
    str: "String",
    int: "Number",
    float: "Number",
}


class Dense(NamedTuple):
    """A tensor's shape and raw bytes."""

    shape: tuple[int, ...]
    data: bytes


def json_type(value: object) -> str:
    """Return the name of a value's JSON type in TensorFlow Serving and Clipper."""
    return str(value) if isinstance(value, bool) else _JSON_TYPES[type(value)]


def is_b64(value: object) -> bool:
    """Return whether a value stands for base64 bytes."""
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def dense(value: object, datatype: str, *, infinities: bool) -> Dense:
    """Convert a whole tensor: a scalar or nested arrays, with strings or bytes for BYTES.

    See `rest_codec.JsonBody` for `infinities`; if false, an infinity stands for too large a number.

    Raises:
        InvalidRequest: an element is invalid; the message names it.
    """
    numbers = _numbers(value, datatype, infinities=infinities)
    if numbers is not None:
        return numbers
    shape = _shape_of(value)
    flat: list[Any] = []
    _walk(value, 0, shape, datatype, flat)
    return _of_checked(flat, shape, datatype, infinities=infinities)


def rows(values: Sequence[object], datatype: str, key: str | None, *, infinities: bool) -> Dense:
    """Convert one or more rows of the same shape to a tensor.

    `key` is the input's name if rows are objects.

    Raises:
        InvalidRequest: a row is invalid; the message names it.
    """
    numbers = _numbers(values, datatype, infinities=infinities)
    if numbers is not None:
        return numbers
    flat: list[Any] = []
    first: tuple[int, ...] | None = None
    for position, value in enumerate(values):
        try:
            shape = _shape_of(value)
            _walk(value, 0, shape, datatype, flat)
            first = shape if first is None else first
            if math.prod(shape) != math.prod(first):
                raise InvalidRequest(
                    f"Expecting tensor size: {math.prod(first)} but got: {math.prod(shape)}"
                )
            if shape != first:
                raise InvalidRequest(
                    f"Expecting shape {_shown_shape(first)} but got: {_shown_shape(shape)}"
                )
        except InvalidRequest as error:
            where = f"element: {position}" + ("" if key is None else f" key: {key}")
            raise InvalidRequest(
                f"Failed to process {where} of 'instances' list. Error: INVALID_ARGUMENT: {error}"
            ) from None
    return _of_checked(flat, (len(values), *(first or ())), datatype, infinities=infinities)


def check(value: object, datatype: str) -> None:
    """Raise InvalidRequest unless an element fits the datatype."""
    types, least, greatest = _FITTING[datatype]
    if type(value) in types:
        if datatype == "BYTES" or least <= value <= greatest:  # type: ignore[operator]  # a number
            return
        if float in types:
            if isinstance(value, float) and not math.isfinite(value):
                return
            raise InvalidRequest(
                f"Cannot convert JSON value: {short_json(value)} to {TYPE_NAMES[datatype]} "
                "without loss of precision."
            )
    raise InvalidRequest(
        f"JSON Value: {short_json(value)} Type: {json_type(value)} "
        f"is not of expected type: {TYPE_NAMES[datatype]}"
    )


def decode_base64(value: dict[str, str]) -> bytes:
    """Decode `{"b64": text}`, which may lack padding, or raise InvalidRequest."""
    text = "".join(value["b64"].split())
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("Unable to base64 decode") from None


def _numbers(value: object, datatype: str, *, infinities: bool) -> Dense | None:
    """Convert uniform numbers, or return None if the elements need checks."""
    if datatype == "BYTES":
        return None
    # As objects first: numpy would convert true to 1, and pad strings to the longest one.
    objects = np.array(value, dtype=object)
    wanted = np.dtype(NUMPY[datatype])
    types, least, greatest = _FITTING[datatype]
    if not set(map(type, objects.ravel().tolist())) <= types:
        return None
    wide_type = {"f": np.float64, "i": np.int64, "u": np.uint64, "b": np.bool_}[wanted.kind]
    try:
        wide: NDArray[Any] = objects.astype(wide_type)
    except OverflowError:
        return None
    finite = wide[np.isfinite(wide)] if wanted.kind == "f" else wide
    if finite.size and (finite.min() < least or finite.max() > greatest):
        return None
    if not infinities and wanted.kind == "f" and np.isinf(wide).any():
        raise InvalidRequest("JSON Parse error: Number too big to be stored in double.")
    return Dense(wide.shape, wide.astype(wanted).tobytes())


def _of_checked(
    flat: list[Any], shape: tuple[int, ...], datatype: str, *, infinities: bool
) -> Dense:
    if datatype == "BYTES":
        return Dense(shape, encode_texts(flat))
    numbers = _numbers(flat, datatype, infinities=infinities)  # nested deeper than an array can be
    assert numbers is not None
    return numbers._replace(shape=shape)


def _shape_of(value: object) -> tuple[int, ...]:
    """Return the shape of a value, judged by the first element of each array."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _walk(
    value: object, level: int, shape: tuple[int, ...], datatype: str, flat: list[Any]
) -> None:
    """Append checked elements in order, or raise TensorFlow Serving's errors for uneven arrays."""
    if not isinstance(value, list):
        if level != len(shape):
            raise InvalidRequest(
                f"JSON Value: {short_json(value)} found at incorrect level: {level + 1} in the JSON DOM. "
                f"Expected at level: {len(shape)}"
            )
        if datatype == "BYTES" and isinstance(value, dict):
            if not is_b64(value):
                raise InvalidRequest(
                    f"JSON Value: {short_json(value)} not formatted correctly for base64 data"
                )
            flat.append(decode_base64(value))
            return
        check(value, datatype)
        flat.append(value)
        return
    if level >= len(shape):
        raise InvalidRequest(
            f"Encountered list at unexpected level: {level} expected < {len(shape)}"
        )
    if len(value) != shape[level]:
        raise InvalidRequest(
            f"Encountered list at unexpected size: {len(value)} at level: {level} "
            f"expected size: {shape[level]}"
        )
    for item in value:
        _walk(item, level + 1, shape, datatype, flat)


def encode_texts(texts: Sequence[str | bytes]) -> bytes:
    """Encode strings and bytes as BYTES elements, or raise InvalidRequest for a lone surrogate."""
    encoded = []
    for text in texts:
        try:
            item = text.encode() if isinstance(text, str) else text
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"JSON Value: {short_json(text)} contains a lone surrogate, which is not valid text"
            ) from None
        encoded.append(struct.pack("<I", len(item)) + item)
    return b"".join(encoded)


def _shown_shape(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
