"""Tensors between TensorFlow Serving's JSON and raw bytes.

In: a JSON value (a scalar or evenly nested arrays; bytes as `{"b64": text}`) and a datatype; out: a
shape and little-endian, row-major bytes. And back. What is even and of one kind is converted all at
once by numpy; the rest is walked element by element, to say where it is wrong in TensorFlow
Serving's own words. Nesting is bounded by `bounded_json`.

Pure. Invalid input raises `InvalidRequest`.
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

from serving.errors import InvalidRequest, PredictionFailed
from serving.json_tensors import NUMPY, PIECE, elements, written_texts
from serving.protocol.bounded_json import shortest, shown, write
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
"""Datatype -> TensorFlow's name of it."""

_PYTHON_TYPES: dict[str, frozenset[type]] = {
    "b": frozenset({bool}),
    "u": frozenset({int}),
    "i": frozenset({int}),
    "f": frozenset({int, float}),
}
"""Kind of a numpy type -> what JSON's parser makes of values that may stand for it."""


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
"""Datatype -> types that elements have, and the least and the greatest number of them."""

_JSON_TYPES = {
    type(None): "Null",
    dict: "Object",
    list: "Array",
    str: "String",
    int: "Number",
    float: "Number",
}


class Dense(NamedTuple):
    """A tensor without its name."""

    shape: tuple[int, ...]
    data: bytes


def json_type(value: object) -> str:
    """A JSON type by the name that TensorFlow Serving and Clipper give it."""
    return str(value) if isinstance(value, bool) else _JSON_TYPES[type(value)]


def is_b64(value: object) -> bool:
    """Whether a value stands for bytes in base64."""
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def dense(value: object, datatype: str, *, infinities: bool) -> Dense:
    """A whole tensor: a scalar or nested arrays.

    Args:
        value: from the parser.
        datatype: of the model's input.
        infinities: the text holds the token Infinity; without it, an infinite number was too large.

    Raises:
        InvalidRequest: which element does not fit, and where.
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
    """The rows of one input, all of one shape, as a tensor with one more dimension.

    Args:
        values: at least one.
        datatype: of the model's input.
        key: the input's name where the rows are objects, for the errors' texts.
        infinities: see `dense`.

    Raises:
        InvalidRequest: the row that is wrong.
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
    """The bytes of elements that were checked one by one, or of text and bytes for BYTES.

    Raises:
        InvalidRequest: a float is too large for the datatype, a text cannot be written in UTF-8.
    """
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(text)) + text for text in map(_encoded, values))
    array = _converted(values, np.dtype(NUMPY[datatype]))
    _check_finite(array, infinities=infinities)
    return array.tobytes()


def check(value: object, datatype: str) -> None:
    """Whether one element may stand for a value of the datatype.

    Raises:
        InvalidRequest: it may not.
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
        f"JSON Value: {shown(value)} Type: {json_type(value)} "
        f"is not of expected type: {TYPE_NAMES[datatype]}"
    )


def are_all(values: list[Any], datatype: str) -> bool:
    """Whether all of many elements surely fit, at a fraction of `check`'s cost; False: look at each."""
    if datatype == "BYTES":
        return set(map(type, values)) <= {str, bytes}
    return _at_once(values, datatype) is not None


def decoded(value: dict[str, str]) -> bytes:
    """The bytes of a `{"b64": text}`; padding may be missing.

    Raises:
        InvalidRequest: it is no base64.
    """
    text = "".join(value["b64"].split())
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("Unable to base64 decode") from None


def nested(tensor: Tensor) -> Any:
    """A tensor as JSON values: nested lists, or a scalar.

    Bytes whose tensor's name ends in `_bytes` become objects in base64, others text.

    Raises:
        PredictionFailed: the model's BYTES are malformed, or are no text where text is due.
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


def written(tensor: Tensor) -> Iterator[bytes]:
    """The JSON of `nested` in pieces, each of which is soon made.

    Raises:
        PredictionFailed: as `nested`.
    """
    if tensor.datatype != "BYTES":
        yield from number_pieces(_array(tensor), json_of_numbers)
    elif tensor.shape:
        yield from listed(rows_of_texts(tensor.shape, _written_texts(tensor)))
    else:
        for some in _written_texts(tensor):
            yield "".join(some).encode()


def written_rows(tensors: Sequence[Tensor]) -> Iterator[bytes]:
    """The JSON of objects with a value of each tensor, along their first axis, in pieces as `written`.

    Args:
        tensors: as many rows of each.

    Raises:
        PredictionFailed: as `nested`.
    """
    keys = [write(tensor.name).replace("%", "%%") + ":%s" for tensor in tensors]
    form = "{" + ",".join(keys) + "}"
    columns = [_written_column(tensor) for tensor in tensors]
    ready: list[list[str]] = [[] for _ in columns]

    def objects() -> Iterator[list[str]]:
        missing = tensors[0].shape[0]
        while missing:
            # One step of what is behind: so none holds much that others have not come to.
            behind = min(range(len(ready)), key=lambda place: len(ready[place]))
            ready[behind] += next(columns[behind])
            count = min(map(len, ready))
            yield [form % row for row in zip(*[one[:count] for one in ready], strict=True)]
            for one in ready:
                del one[:count]
            missing -= count
        for column in columns:
            yield from column  # nothing but the error of one that holds more than its shape says

    return listed(objects())


def listed(values: Iterator[list[str]]) -> Iterator[bytes]:
    """An array of values, some at a time; an empty list is a pause."""
    before = "["
    for some in values:
        if some:
            yield (before + ",".join(some)).encode()
            before = ","
        else:
            yield b""
    yield b"[]" if before == "[" else b"]"


def rows_of_texts(shape: Sequence[int], texts: Iterator[list[str]]) -> Iterator[list[str]]:
    """The JSON of each row, of elements that are JSON themselves; some at a time, an empty list is a pause.

    Args:
        shape: of the tensor, one dimension or more.
        texts: its elements; they raise where they are not as many as the shape says.
    """
    if 0 in shape:
        yield from texts
        yield from _empty_rows(shape)
        return
    for size in shape[:0:-1]:
        texts = _grouped(texts, size)
    yield from texts


def _empty_rows(shape: Sequence[int]) -> Iterator[list[str]]:
    if not shape[0]:
        return  # and a row of them would not be empty
    empty = write(np.empty(shape[1:]).tolist())
    for start in range(0, shape[0], PIECE):
        yield [empty] * min(PIECE, shape[0] - start)


def _grouped(values: Iterator[list[str]], size: int) -> Iterator[list[str]]:
    """Arrays of so many values each."""
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
    """The JSON of each row of a tensor, some at a time; an empty list is a pause within a long one."""
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
            # Rows are told apart by as many brackets as nothing within them has.
            rows = text[1 + depth : -1 - depth].split(f"{closing},{opening}")
            yield [f"{opening}{one}{closing}" for one in rows]


def number_pieces(array: NDArray[Any], text: Callable[[NDArray[Any]], bytes]) -> Iterator[bytes]:
    """The JSON of an array of numbers in pieces.

    Args:
        array: of any shape.
        text: the JSON of a small one.
    """
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
    """The JSON of an array of numbers, NaN and infinities by their names, as no JSON has them."""
    values = shortest(array) if array.dtype.kind == "f" else array
    return write(values.tolist(), constants=True).encode()


def byte_strings(tensor: Tensor) -> list[bytes]:
    """The elements of a BYTES tensor.

    Raises:
        PredictionFailed: they are not as many as the shape says, or cut off.
    """
    return [one for some in elements(tensor) for one in some]


def _text(item: bytes, name: str) -> str:
    try:
        return item.decode()
    except UnicodeDecodeError:
        raise PredictionFailed(
            f"the model's output {name!r} holds bytes that are not UTF-8; an output whose name ends "
            "in _bytes is sent in base64"
        ) from None


def _at_once(value: object, datatype: str) -> NDArray[Any] | None:
    """Even numbers of the right kind as an array; None where a closer look is needed."""
    if datatype == "BYTES" or not isinstance(value, list):
        return None
    # As objects first: numpy would take true for 1, "1" for a text of the longest one's length.
    objects = np.array(value, dtype=object)
    wanted = np.dtype(NUMPY[datatype])
    if not set(map(type, objects.ravel().tolist())) <= _PYTHON_TYPES[wanted.kind]:
        return None
    try:
        if wanted.kind not in "iu":
            array = _converted(objects, wanted)
            return None if _overflows(objects, array) else array
        wide = objects.astype(np.uint64 if wanted == np.uint64 else np.int64)
    except OverflowError:
        return None
    limits = np.iinfo(wanted)
    if wide.size and (wide.min() < limits.min or wide.max() > limits.max):
        return None
    return wide.astype(wanted)


def _converted(values: Any, wanted: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # what overflows is told from what was infinite by the caller
        array: NDArray[Any] = np.array(values, dtype=np.float64 if wanted.kind == "f" else wanted)
        return array.astype(wanted)


def _overflows(objects: NDArray[np.object_], array: NDArray[Any]) -> bool:
    """Whether a finite number became an infinite one."""
    if array.dtype.kind != "f" or not array.size:
        return False
    wide = np.abs(objects.astype(np.float64))
    return bool((np.isfinite(wide) & (wide > float(np.finfo(array.dtype).max))).any())


def _check_finite(array: NDArray[Any], *, infinities: bool) -> None:
    if not infinities and array.dtype.kind == "f" and np.isinf(array).any():
        raise InvalidRequest("JSON Parse error: Number too big to be stored in double.")


def _lossy(value: object, datatype: str) -> InvalidRequest:
    return InvalidRequest(
        f"Cannot convert JSON value: {shown(value)} to {TYPE_NAMES[datatype]} "
        "without loss of precision."
    )


def _shape_of(value: object) -> tuple[int, ...]:
    """The shape that the first elements tell."""
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
    """Append the elements in order, each checked; TensorFlow Serving's words where it is uneven."""
    if not isinstance(value, list):
        if level != len(shape):
            raise InvalidRequest(
                f"JSON Value: {shown(value)} found at incorrect level: {level + 1} in the JSON DOM. "
                f"Expected at level: {len(shape)}"
            )
        if datatype == "BYTES" and isinstance(value, dict):
            if not is_b64(value):
                raise InvalidRequest(
                    f"JSON Value: {shown(value)} not formatted correctly for base64 data"
                )
            flat.append(decoded(value))
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


def _encoded(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"JSON Value: {shown(text)} has half a surrogate pair, which no text holds"
        ) from None


def _shown_shape(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
