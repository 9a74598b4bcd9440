"""Conversion of tensors between Open Inference JSON and raw bytes (little-endian, row-major)."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.error_text import short_repr
from serving.errors import InferenceFailed, InvalidRequest
from serving.values import ITEM_BYTES, Tensor, is_shape

NUMPY: dict[str, str] = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""NumPy type in wire order by datatype, without BYTES."""

PIECE = 4096
PIECE_BYTES = 64 * 1024


def parse_input_header(item: Mapping[str, Any]) -> tuple[str, str, tuple[int, ...]]:
    """Return the checked name, datatype and shape of an input, or raise InvalidRequest."""
    name, datatype, shape = item.get("name"), item.get("datatype"), item.get("shape")
    if not isinstance(name, str):
        raise InvalidRequest(f"an input's name is {short_repr(name)}, expected a string")
    if not isinstance(datatype, str) or datatype not in ITEM_BYTES:
        raise InvalidRequest(
            f"input {short_repr(name)}: datatype is {short_repr(datatype)}, expected one of {', '.join(ITEM_BYTES)}"
        )
    if not isinstance(shape, list) or not is_shape(shape):
        raise InvalidRequest(f"invalid shape for input {short_repr(name)}: {short_repr(shape)}")
    return name, datatype, tuple(shape)


def tensor_from_json(item: Mapping[str, Any]) -> Tensor:
    """Return the tensor of one JSON input, or raise InvalidRequest."""
    return tensor_of(*parse_input_header(item), item.get("data"))


def tensor_of(name: str, datatype: str, shape: tuple[int, ...], data: object) -> Tensor:
    """Return the tensor of an input whose header was checked, or raise InvalidRequest."""
    if not isinstance(data, list):
        raise InvalidRequest(f"input {name!r}: data is {type(data).__name__}, expected an array")
    elements = math.prod(shape)
    if datatype == "BYTES":
        return Tensor(name, datatype, shape, _bytes_elements(name, data, elements))
    # NumPy would read true as 1, and pad every element to the longest text.
    array = np.array(data, dtype=object)
    kinds = set(map(type, array.ravel().tolist()))
    if list in kinds:
        raise InvalidRequest(f"input {name!r}: the nested data is ragged")
    if array.size != elements:
        raise InvalidRequest(
            f"input {name!r}: data has {array.size} elements, shape {list(shape)} takes {elements}"
        )
    wanted = np.dtype(NUMPY[datatype])
    if not kinds <= _ELEMENTS[wanted.kind]:
        expected = {"b": "booleans", "f": "numbers"}.get(wanted.kind, "integers")
        raise InvalidRequest(
            f"input {name!r}: {datatype} takes {expected}, data holds something else"
        )
    return Tensor(name, datatype, shape, _convert(name, datatype, array, wanted).tobytes())


_ELEMENTS: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}


def _convert(
    name: str, datatype: str, array: NDArray[Any], wanted: np.dtype[Any]
) -> NDArray[np.generic]:
    if wanted.kind in "iu" and array.size:
        limits = np.iinfo(wanted)
        low, high = array.min(), array.max()
        if low < limits.min or high > limits.max:
            raise InvalidRequest(
                f"input {name!r}: {datatype} takes {limits.min} to {limits.max}, data holds "
                f"{short_repr(low)} to {short_repr(high)}"
            )
    try:
        with np.errstate(over="raise"):
            exact = array.astype(np.float64) if wanted.kind == "f" else array
            return exact.astype(wanted)
    except (OverflowError, FloatingPointError):
        raise InvalidRequest(
            f"input {name!r}: data holds numbers that are too large for {datatype}"
        ) from None


def _flat(data: list[Any]) -> list[Any]:
    while any(isinstance(value, list) for value in data):
        if not all(isinstance(value, list) for value in data):
            raise InvalidRequest("the nested data is ragged")
        data = [inner for value in data for inner in value]
    return data


def _bytes_elements(name: str, data: list[Any], elements: int) -> bytes:
    flat = _flat(data)
    if len(flat) != elements:
        raise InvalidRequest(
            f"input {name!r}: data has {len(flat)} elements, its shape takes {elements}"
        )
    if not all(isinstance(value, str) for value in flat):
        raise InvalidRequest(f"input {name!r}: BYTES takes strings")
    try:
        encoded = [value.encode() for value in flat]
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"input {name!r}: a text contains a lone surrogate, which is not valid UTF-8"
        ) from None
    return b"".join(struct.pack("<I", len(value)) + value for value in encoded)


def tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    """Return an output in JSON form, with flat data, or raise InvalidRequest."""
    head = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    if tensor.datatype == "BYTES":
        texts = [_utf8(one, tensor.name) for some in elements(tensor) for one in some]
        return {**head, "data": texts}
    array = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype])
    _check_finite(tensor.name, array)
    return {**head, "data": array.tolist()}


def tensor_to_json_pieces(tensor: Tensor) -> Iterator[str]:
    """Yield the JSON text of an output in small pieces; raises as `tensor_to_json` does."""
    head = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    yield f'{_text(head)[:-1]},"data":['
    if tensor.datatype == "BYTES":
        comma = ""
        for texts in written_texts(tensor, lambda one: _utf8(one, tensor.name)):
            if texts:
                yield comma + ",".join(texts)
                comma = ","
            else:
                yield ""
    else:
        values = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype])
        _check_finite(tensor.name, values)
        for start in range(0, len(values), PIECE):
            text = _text(values[start : start + PIECE].tolist())[1:-1]
            yield f",{text}" if start else text
    yield "]}"


def elements(tensor: Tensor) -> Iterator[list[bytes]]:
    """Yield the elements of a BYTES tensor in small lists.

    Raises InferenceFailed if they do not match the shape.
    """
    data, missing = memoryview(tensor.data), math.prod(tensor.shape)
    position, end = 0, len(data)
    while position < end:
        some: list[bytes] = []
        stop = min(end, position + PIECE_BYTES)
        while position < stop and len(some) < PIECE:
            start = position + 4
            position = start + int.from_bytes(data[start - 4 : start], "little")
            if position > stop and some and position <= end:
                position = start - 4
                break  # it is long, or starts the next list
            some.append(bytes(data[start:position]))
        missing -= len(some)
        if position > end or missing < 0:
            break
        yield some
    if position != end or missing:
        raise InferenceFailed(
            f"the model's output {tensor.name!r} does not hold the {math.prod(tensor.shape)} texts "
            f"that its shape {list(tensor.shape)} says"
        )


def written_texts(tensor: Tensor, text: Callable[[bytes], str]) -> Iterator[list[str]]:
    """Yield lists of BYTES elements as JSON strings; an empty list is a pause.

    Raises as `elements` does, and as `text`, which decodes an element.
    """
    for some in elements(tensor):
        if len(some[0]) <= PIECE_BYTES:
            yield [quoted(text(one)) for one in some]
            continue
        (long,) = map(text, some)
        pieces = []
        for start in range(0, len(long), PIECE_BYTES):
            pieces.append(quoted(long[start : start + PIECE_BYTES])[1:-1])
            yield []
        yield [f'"{"".join(pieces)}"']


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _check_finite(name: str, array: NDArray[Any]) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidRequest(
            f"output {name!r} holds numbers that JSON does not have (nan or inf); request "
            "it in binary (parameters: binary_data)"
        )


def _utf8(element: bytes, name: str) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"output {name!r} holds bytes that are not UTF-8; request it in binary "
            "(parameters: binary_data)"
        ) from None


def decode_inputs(body: bytes | memoryview) -> tuple[Tensor, ...]:
    """Return the input tensors of a JSON request, or raise InvalidRequest."""
    try:
        request = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"failed to parse the request JSON: {error}") from None
    inputs = request.get("inputs") if isinstance(request, dict) else None
    if not isinstance(inputs, list) or not all(isinstance(item, dict) for item in inputs):
        raise InvalidRequest("the request has no array `inputs` of objects")
    return tuple(tensor_from_json(item) for item in inputs)
