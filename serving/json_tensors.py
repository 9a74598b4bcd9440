"""Tensors of the Open Inference Protocol between their JSON form and raw bytes.

In: an `inputs` item of a JSON request (name, shape, datatype, data flat or nested); out: a
`Tensor` whose bytes are little-endian and row-major. And back, with flat data. Shared by the
gateway (small bodies) and replicas (large ones). Pure.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequest, PredictionFailed, shown
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
"""Datatype -> numpy's name of it, in wire order. BYTES has none."""

PIECE = 4096
"""Values that are written in one go: a millisecond, or two."""
PIECE_BYTES = 64 * 1024
"""Of texts that are, in their elements or in one."""


def declared(item: Mapping[str, Any]) -> tuple[str, str, tuple[int, ...]]:
    """Name, datatype and shape of an input, checked.

    Raises:
        InvalidRequest: one of them is missing or wrong.
    """
    name, datatype, shape = item.get("name"), item.get("datatype"), item.get("shape")
    if not isinstance(name, str):
        raise InvalidRequest(f"an input's name is {shown(name)}, expected a string")
    if not isinstance(datatype, str) or datatype not in ITEM_BYTES:
        raise InvalidRequest(
            f"input {shown(name)}: datatype is {shown(datatype)}, expected one of {', '.join(ITEM_BYTES)}"
        )
    if not isinstance(shape, list) or not is_shape(shape):
        raise InvalidRequest(f"invalid shape for input {shown(name)}: {shown(shape)}")
    return name, datatype, tuple(shape)


def tensor_from_json(item: Mapping[str, Any]) -> Tensor:
    """The tensor of one JSON input.

    Raises:
        InvalidRequest: with the input's name, what was given and what was expected.
    """
    return tensor_of(*declared(item), item.get("data"))


def tensor_of(name: str, datatype: str, shape: tuple[int, ...], data: object) -> Tensor:
    """The tensor of an input whose name, datatype and shape were checked.

    Raises:
        InvalidRequest: as `tensor_from_json`.
    """
    if not isinstance(data, list):
        raise InvalidRequest(f"input {name!r}: data is {type(data).__name__}, expected an array")
    elements = math.prod(shape)
    if datatype == "BYTES":
        return Tensor(name, datatype, shape, _bytes_elements(name, data, elements))
    # As objects first: numpy would take true for 1, and give every element the room of the longest text.
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
    return Tensor(name, datatype, shape, _converted(name, datatype, array, wanted).tobytes())


_ELEMENTS: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
"""Kind of a numpy type -> what its elements are in JSON."""


def _converted(
    name: str, datatype: str, array: NDArray[Any], wanted: np.dtype[Any]
) -> NDArray[np.generic]:
    """The array in its datatype; nothing is rounded to an integer, cut off, or made infinite."""
    if wanted.kind in "iu" and array.size:
        limits = np.iinfo(wanted)
        low, high = array.min(), array.max()
        if low < limits.min or high > limits.max:
            raise InvalidRequest(
                f"input {name!r}: {datatype} takes {limits.min} to {limits.max}, data holds "
                f"{_short(low)} to {_short(high)}"
            )
    try:
        with np.errstate(over="raise"):
            exact = array.astype(np.float64) if wanted.kind == "f" else array
            return exact.astype(wanted)
    except (OverflowError, FloatingPointError):
        raise InvalidRequest(
            f"input {name!r}: data holds numbers that are too large for {datatype}"
        ) from None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _flat(data: list[Any]) -> list[Any]:
    """The elements of nested arrays, in order."""
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
            f"input {name!r}: a text holds half a surrogate pair, which no UTF-8 has"
        ) from None
    return b"".join(struct.pack("<I", len(value)) + value for value in encoded)


def tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    """The JSON form of an output, with flat data.

    Raises:
        InvalidRequest: its values have no JSON form (BYTES that are not UTF-8, numbers that are not finite).
    """
    head = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    if tensor.datatype == "BYTES":
        texts = [_utf8(one, tensor.name) for some in elements(tensor) for one in some]
        return {**head, "data": texts}
    array = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype])
    _check_finite(tensor.name, array)
    return {**head, "data": array.tolist()}


def written(tensor: Tensor) -> Iterator[str]:
    """The JSON text of `tensor_to_json` in pieces, each of which is soon made.

    Raises:
        InvalidRequest: as `tensor_to_json`; between two pieces.
    """
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
    """The elements of BYTES, so many at a time as are soon handled.

    Raises:
        PredictionFailed: they are not as many as the shape says, or cut off; at the latest behind the last of them.
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
                break  # it is long, or the first of the next ones
            some.append(bytes(data[start:position]))
        missing -= len(some)
        if position > end or missing < 0:
            break
        yield some
    if position != end or missing:
        raise PredictionFailed(
            f"the model's output {tensor.name!r} does not hold the {math.prod(tensor.shape)} texts "
            f"that its shape {list(tensor.shape)} says"
        )


def written_texts(tensor: Tensor, text: Callable[[bytes], str]) -> Iterator[list[str]]:
    """The JSON of each element of BYTES, some at a time; an empty list is a pause within a long one.

    Args:
        tensor: of BYTES.
        text: of an element.

    Raises:
        PredictionFailed: as `elements`; and what `text` raises.
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
            f"output {name!r} holds numbers that JSON does not have (nan or inf); ask for it in "
            f"binary (parameters: binary_data)"
        )


def _utf8(element: bytes, name: str) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"output {name!r} holds bytes that are not UTF-8; ask for it in binary "
            f"(parameters: binary_data)"
        ) from None


def decode_inputs(body: bytes | memoryview) -> tuple[Tensor, ...]:
    """The input tensors of a whole JSON request.

    Raises:
        InvalidRequest: it is not JSON, or an input is wrong.
    """
    try:
        request = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"failed to parse the request JSON: {error}") from None
    inputs = request.get("inputs") if isinstance(request, dict) else None
    if not isinstance(inputs, list) or not all(isinstance(item, dict) for item in inputs):
        raise InvalidRequest("the request has no array `inputs` of objects")
    return tuple(tensor_from_json(item) for item in inputs)
