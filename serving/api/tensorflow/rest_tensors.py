"""Input tensors of TensorFlow Serving's JSON as raw bytes.

In: a JSON value (scalar or evenly nested arrays; bytes as `{"b64": text}`) and a datatype. Out:
shape and little-endian, row-major bytes. numpy converts uniform arrays; others are walked, to
report errors (`InvalidRequest`) in TensorFlow Serving's words. Pure.
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

TYPE_NAMES: dict[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "half",
    "FP32": "float",
    "FP64": "double",
    "BYTES": "string",
}
"""Datatype -> TensorFlow's name."""

_PYTHON_TYPES: dict[str, frozenset[type]] = {
    "b": frozenset({bool}),
    "u": frozenset({int}),
    "i": frozenset({int}),
    "f": frozenset({int, float}),
}
"""Kind of a numpy type -> accepted types of parsed JSON values."""


def _range_of(wanted: np.dtype[Any]) -> tuple[float, float]:
    if wanted.kind == "f":
        largest = float(np.finfo(wanted).max)
        return -largest, largest
    if wanted.kind == "b":
        return 0, 1
    return int(np.iinfo(wanted).min), int(np.iinfo(wanted).max)


_FITTING: dict[str, tuple[frozenset[type], float, float]] = {
    name: (_PYTHON_TYPES[np.dtype(code).kind], *_range_of(np.dtype(code)))
    for name, code in NUMPY.items()
} | {"BYTES": (frozenset({str, bytes}), -math.inf, math.inf)}
"""Datatype -> accepted types, minimum and maximum."""

_JSON_TYPES = {
    type(None): "Null",
    dict: "Object",
    list: "Array",
    str: "String",
    int: "Number",
    float: "Number",
}


class Dense(NamedTuple):
    """Tensor without a name."""

    shape: tuple[int, ...]
    data: bytes


def json_type(value: object) -> str:
    """Return TensorFlow Serving's and Clipper's name of a JSON type."""
    return str(value) if isinstance(value, bool) else _JSON_TYPES[type(value)]


def is_b64(value: object) -> bool:
    """Return whether a value stands for base64 bytes."""
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def dense(value: object, datatype: str, *, infinities: bool) -> Dense:
    """Convert a whole tensor: a scalar or nested arrays.

    For `infinities` see `tfs.Request`; if false, an infinite number was too large.

    Raises:
        InvalidRequest: names the wrong element.
    """
    quick = _at_once(value, datatype)
    if quick is not None:
        _check_finite(quick, infinities=infinities)
        return Dense(quick.shape, quick.tobytes())
    shape = _shape_of(value)
    flat: list[Any] = []
    _walk(value, 0, shape, datatype, flat)
    return Dense(shape, flat_bytes(flat, datatype, infinities=infinities))


def rows(values: Sequence[object], datatype: str, key: str | None, *, infinities: bool) -> Dense:
    """Convert at least one row, all of equal shape, to a tensor.

    `key` is the input's name, if rows are objects.

    Raises:
        InvalidRequest: names the wrong row.
    """
    quick = _at_once(list(values), datatype)
    if quick is not None:
        _check_finite(quick, infinities=infinities)
        return Dense(quick.shape, quick.tobytes())
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
    return Dense((len(values), *(first or ())), flat_bytes(flat, datatype, infinities=infinities))


def flat_bytes(values: list[Any], datatype: str, *, infinities: bool) -> bytes:
    """Encode checked elements, or texts and bytes for BYTES.

    Raises:
        InvalidRequest: too large a float, or invalid UTF-8.
    """
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(text)) + text for text in map(_encode, values))
    array = _convert(values, np.dtype(NUMPY[datatype]))
    _check_finite(array, infinities=infinities)
    return array.tobytes()


def check(value: object, datatype: str) -> None:
    """Check that an element fits the datatype.

    Raises:
        InvalidRequest: it does not.
    """
    types, least, greatest = _FITTING[datatype]
    if type(value) in types:
        if datatype == "BYTES" or least <= value <= greatest:  # type: ignore[operator]  # a number
            return
        if float in types:
            if isinstance(value, float) and not math.isfinite(value):
                return
            raise _lossy(value, datatype)
    raise InvalidRequest(
        f"JSON Value: {short_json(value)} Type: {json_type(value)} "
        f"is not of expected type: {TYPE_NAMES[datatype]}"
    )


def are_all(values: list[Any], datatype: str) -> bool:
    """Check many elements cheaply; False means that `check` must decide."""
    if datatype == "BYTES":
        return set(map(type, values)) <= {str, bytes}
    return _at_once(values, datatype) is not None


def decode_base64(value: dict[str, str]) -> bytes:
    """Decode `{"b64": text}`; padding may be missing.

    Raises:
        InvalidRequest: no base64.
    """
    text = "".join(value["b64"].split())
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("Unable to base64 decode") from None


def _at_once(value: object, datatype: str) -> NDArray[Any] | None:
    """Convert uniform numbers to an array, or return None to look closer."""
    if datatype == "BYTES" or not isinstance(value, list):
        return None
    # As objects first: numpy would convert true to 1, and pad texts to the longest one.
    objects = np.array(value, dtype=object)
    wanted = np.dtype(NUMPY[datatype])
    if not set(map(type, objects.ravel().tolist())) <= _PYTHON_TYPES[wanted.kind]:
        return None
    try:
        if wanted.kind not in "iu":
            array = _convert(objects, wanted)
            return None if _overflows(objects, array) else array
        wide = objects.astype(np.uint64 if wanted == np.uint64 else np.int64)
    except OverflowError:
        return None
    limits = np.iinfo(wanted)
    if wide.size and (wide.min() < limits.min or wide.max() > limits.max):
        return None
    return wide.astype(wanted)


def _convert(values: Any, wanted: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # the caller separates overflow from infinity
        array: NDArray[Any] = np.array(values, dtype=np.float64 if wanted.kind == "f" else wanted)
        return array.astype(wanted)


def _overflows(objects: NDArray[np.object_], array: NDArray[Any]) -> bool:
    """Return whether a finite number became infinite."""
    if array.dtype.kind != "f" or not array.size:
        return False
    wide = np.abs(objects.astype(np.float64))
    return bool((np.isfinite(wide) & (wide > float(np.finfo(array.dtype).max))).any())


def _check_finite(array: NDArray[Any], *, infinities: bool) -> None:
    if not infinities and array.dtype.kind == "f" and np.isinf(array).any():
        raise InvalidRequest("JSON Parse error: Number too big to be stored in double.")


def _lossy(value: object, datatype: str) -> InvalidRequest:
    return InvalidRequest(
        f"Cannot convert JSON value: {short_json(value)} to {TYPE_NAMES[datatype]} "
        "without loss of precision."
    )


def _shape_of(value: object) -> tuple[int, ...]:
    """Return the shape by the first elements."""
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
    """Append checked elements in order; raise TensorFlow Serving's errors if uneven."""
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


def _encode(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"JSON Value: {short_json(text)} contains a lone surrogate, which is not valid text"
        ) from None


def _shown_shape(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
