"""Tensors between TensorFlow Serving's JSON and raw bytes.

In: a JSON value (scalar or evenly nested arrays; bytes as `{"b64": text}`) and a datatype. Out:
shape and little-endian, row-major bytes. And back. numpy converts uniform arrays; others are
walked, to report errors (`InvalidRequest`) in TensorFlow Serving's words. Pure.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.api.parsing.bounded_json import short_json, shortest, write
from serving.errors import InferenceFailed, InvalidRequest
from serving.tensors.json_tensors import NUMPY, PIECE, elements, written_texts
from serving.values import Tensor

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


def tensor_to_json(tensor: Tensor) -> Any:
    """Convert a tensor to nested lists or a scalar.

    BYTES become base64 objects if the name ends in `_bytes`, else text.

    Raises:
        PredictionFailed: malformed BYTES, or not UTF-8.
    """
    if tensor.datatype == "BYTES":
        elements = byte_strings(tensor)
        values = np.empty(len(elements), dtype=object)
        if tensor.name.endswith("_bytes"):
            values[:] = [{"b64": base64.b64encode(item).decode()} for item in elements]
        else:
            values[:] = [_text(item, tensor.name) for item in elements]
        return values.reshape(tensor.shape).tolist()
    array: NDArray[Any] = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype])
    if array.dtype.kind == "f":
        array = shortest(array)
    return array.reshape(tensor.shape).tolist()


def tensor_to_json_pieces(tensor: Tensor) -> Iterator[bytes]:
    """Encode as `tensor_to_json`, as JSON in small pieces.

    Raises:
        PredictionFailed: as `tensor_to_json`.
    """
    if tensor.datatype != "BYTES":
        yield from number_pieces(_array(tensor), json_of_numbers)
    elif tensor.shape:
        yield from array_pieces(rows_of_texts(tensor.shape, _written_texts(tensor)))
    else:
        for some in _written_texts(tensor):
            yield "".join(some).encode()


def written_rows(tensors: Sequence[Tensor]) -> Iterator[bytes]:
    """Encode equally many rows of each tensor as JSON objects, in small pieces.

    Raises:
        PredictionFailed: as `tensor_to_json`.
    """
    keys = [write(tensor.name).replace("%", "%%") + ":%s" for tensor in tensors]
    form = "{" + ",".join(keys) + "}"
    columns = [_written_column(tensor) for tensor in tensors]
    ready: list[list[str]] = [[] for _ in columns]

    def objects() -> Iterator[list[str]]:
        missing = tensors[0].shape[0]
        while missing:
            # Advance the column that is furthest behind, so that none buffers much.
            behind = min(range(len(ready)), key=lambda place: len(ready[place]))
            ready[behind] += next(columns[behind])
            count = min(map(len, ready))
            yield [form % row for row in zip(*[one[:count] for one in ready], strict=True)]
            for one in ready:
                del one[:count]
            missing -= count
        for column in columns:
            yield from column  # only raises, for a column longer than its shape

    return array_pieces(objects())


def array_pieces(values: Iterator[list[str]]) -> Iterator[bytes]:
    """Encode an array from chunks of values; an empty chunk is a pause."""
    before = "["
    for some in values:
        if some:
            yield (before + ",".join(some)).encode()
            before = ","
        else:
            yield b""
    yield b"[]" if before == "[" else b"]"


def rows_of_texts(shape: Sequence[int], texts: Iterator[list[str]]) -> Iterator[list[str]]:
    """Encode rows from encoded elements, in chunks; an empty chunk is a pause.

    Args:
        shape: not empty.
        texts: must raise unless their number fits the shape.
    """
    if 0 in shape:
        yield from texts
        yield from _empty_rows(shape)
        return
    for size in shape[:0:-1]:
        texts = _group(texts, size)
    yield from texts


def _empty_rows(shape: Sequence[int]) -> Iterator[list[str]]:
    if not shape[0]:
        return  # a row would not be empty
    empty = write(np.empty(shape[1:]).tolist())
    for start in range(0, shape[0], PIECE):
        yield [empty] * min(PIECE, shape[0] - start)


def _group(values: Iterator[list[str]], size: int) -> Iterator[list[str]]:
    """Join values to arrays of `size`."""
    parts: list[str] = []
    missing = size
    for some in values:
        if size == 1:
            yield [f"[{one}]" for one in some]
            continue
        found = []
        start = 0
        while start < len(some):
            part = some[start : start + missing]
            parts.append(",".join(part))
            start += len(part)
            missing -= len(part)
            if not missing:
                found.append(f"[{','.join(parts)}]")
                parts, missing = [], size
        yield found


def _written_texts(tensor: Tensor) -> Iterator[list[str]]:
    if not tensor.name.endswith("_bytes"):
        return written_texts(tensor, lambda item: _text(item, tensor.name))
    coded = written_texts(tensor, lambda item: base64.b64encode(item).decode())
    return ([f'{{"b64":{one}}}' for one in some] for some in coded)


def _written_column(tensor: Tensor) -> Iterator[list[str]]:
    """Encode a tensor's rows, in chunks; an empty chunk is a pause within a long row."""
    if tensor.datatype == "BYTES":
        yield from rows_of_texts(tensor.shape, _written_texts(tensor))
        return
    array = _array(tensor)
    row = math.prod(array.shape[1:])
    if not row:
        yield from _empty_rows(array.shape)
    elif row > PIECE:
        for values in array:
            pieces = []
            for piece in number_pieces(values, json_of_numbers):
                pieces.append(piece)
                yield []
            yield [b"".join(pieces).decode()]
    else:
        step, depth = PIECE // row, array.ndim - 1
        opening, closing = "[" * depth, "]" * depth
        for start in range(0, len(array), step):
            text = json_of_numbers(array[start : start + step]).decode()
            # No row contains this many brackets in sequence, so they separate rows.
            rows = text[1 + depth : -1 - depth].split(f"{closing},{opening}")
            yield [f"{opening}{one}{closing}" for one in rows]


def number_pieces(array: NDArray[Any], text: Callable[[NDArray[Any]], bytes]) -> Iterator[bytes]:
    """Encode numbers in pieces; `text` encodes a small array."""
    if array.size <= PIECE or not array.ndim:
        yield text(array)
        return
    row = math.prod(array.shape[1:])
    if row > PIECE:
        for place, inner in enumerate(array):
            yield b"," if place else b"["
            yield from number_pieces(inner, text)
    else:
        step = PIECE // row
        for start in range(0, len(array), step):
            yield (b"," if start else b"[") + text(array[start : start + step])[1:-1]
    yield b"]"


def _array(tensor: Tensor) -> NDArray[Any]:
    return np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype]).reshape(tensor.shape)


def json_of_numbers(array: NDArray[Any]) -> bytes:
    """Encode numbers as JSON, with NaN and infinities by name."""
    values = shortest(array) if array.dtype.kind == "f" else array
    return write(values.tolist(), constants=True).encode()


def byte_strings(tensor: Tensor) -> list[bytes]:
    """Return the elements of a BYTES tensor.

    Raises:
        PredictionFailed: wrong number, or truncated.
    """
    return [one for some in elements(tensor) for one in some]


def _text(item: bytes, name: str) -> str:
    try:
        return item.decode()
    except UnicodeDecodeError:
        raise InferenceFailed(
            f"the model's output {name!r} holds bytes that are not UTF-8; an output whose name ends "
            "in _bytes is sent in base64"
        ) from None


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
            f"JSON Value: {short_json(text)} has half a surrogate pair, which no text holds"
        ) from None


def _shown_shape(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
