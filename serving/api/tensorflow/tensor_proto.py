"""TensorFlow's TensorProto <-> a tensor's raw bytes.

Decoding returns views where possible. If a typed field has too few values, the last value (or zero)
fills the rest. Invalid input raises `InvalidRequest`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.api.parsing import proto_fields as fields
from serving.api.parsing import varints
from serving.api.parsing.parse_budget import ParseBudget
from serving.api.tensorflow.rest_tensors import TYPE_NAMES
from serving.errors import InvalidRequest
from serving.tensors.json_tensors import NUMPY, elements
from serving.values import ITEM_BYTES, MAX_RANK, Buffer, Tensor, TensorSpec, is_shape

MAX_TENSOR_BYTES = 64 * 2**20
"""Maximum size of a tensor that is given with fewer values than elements."""
_LONG_BYTES = 2**20
"""Maximum size of an integer output sent packed; more would block the event loop."""

_CONTENT = 4
_INT, _STRING, _HALF = 7, 8, 13
_TYPES = {
    "FP32": (1, 5),
    "FP64": (2, 6),
    "INT32": (3, _INT),
    "UINT8": (4, _INT),
    "INT16": (5, _INT),
    "INT8": (6, _INT),
    "BYTES": (7, _STRING),
    "INT64": (9, 10),
    "BOOL": (10, 11),
    "UINT16": (17, _INT),
    "FP16": (19, _HALF),
    "UINT32": (22, 16),
    "UINT64": (23, 17),
}
"""Datatype -> number of TensorFlow's type, and the field of its values."""
DTYPES = {datatype: number for datatype, (number, _) in _TYPES.items()}
_DATATYPES = {number: datatype for datatype, number in DTYPES.items()}


class _Given(NamedTuple):
    dtype: int
    shape: tuple[int, ...]
    contents: dict[int, list[memoryview]]
    numbers: dict[int, list[memoryview | list[int]]]
    """Packed pieces and runs of unpacked values, in their order."""


def tensor(name: str, message: memoryview, budget: ParseBudget) -> Tensor:
    """Decode a TensorProto, or raise InvalidRequest if it is malformed or its type unknown."""
    given = _read(name, message, budget)
    datatype = _DATATYPES.get(given.dtype)
    if datatype is None:
        raise InvalidRequest(
            f"input {name!r}: dtype {given.dtype} is not one of "
            f"{', '.join(f'{number} ({TYPE_NAMES[known]})' for known, number in DTYPES.items())}"
        )
    elements = math.prod(given.shape)
    if datatype == "BYTES":
        return Tensor(name, datatype, given.shape, _strings(name, given, elements))
    raw = given.contents.get(_CONTENT)
    if raw and raw[-1]:
        data = raw[-1]
        if len(data) != elements * ITEM_BYTES[datatype]:
            raise InvalidRequest(
                f"input {name!r}: tensor_content has {len(data)} bytes, shape {list(given.shape)} "
                f"of {TYPE_NAMES[datatype]} takes {elements * ITEM_BYTES[datatype]}"
            )
        return Tensor(name, datatype, given.shape, data)
    return Tensor(name, datatype, given.shape, _values(name, given, datatype, elements))


def message(given: Tensor) -> Iterator[Buffer]:
    """Encode a TensorProto in quick steps, or raise InferenceFailed for malformed BYTES."""
    dtype, field = _TYPES[given.datatype]
    head = fields.number(1, dtype) + fields.content(2, shape_message(given.shape))
    if given.datatype == "BYTES":
        yield head
        tag = varints.one(field << 3 | fields.BYTES)
        for some in elements(given):
            yield b"".join([tag + varints.one(len(item)) + item for item in some])
        return
    data: Buffer = given.data
    if given.datatype not in {"FP32", "FP64", "BOOL"}:  # already packed
        if len(data) > _LONG_BYTES:
            field = _CONTENT
        else:
            kind = "<u2" if given.datatype == "FP16" else NUMPY[given.datatype]
            data = varints.pack(np.frombuffer(given.data, dtype=kind))
    if len(data):
        yield head + fields.opening(field, len(data))
        yield data
    else:
        yield head


def shape_message(shape: Sequence[int]) -> bytes:
    """Encode a TensorShapeProto."""
    return b"".join([fields.content(2, fields.number(1, length)) for length in shape])


def info_message(spec: TensorSpec) -> bytes:
    """Encode a TensorInfo."""
    return (
        fields.string(1, spec.name)
        + fields.number(2, DTYPES[spec.datatype])
        + fields.content(3, shape_message(spec.shape))
    )


def _read(name: str, message: memoryview, budget: ParseBudget) -> _Given:
    dtype, shape = 0, memoryview(b"")
    contents: dict[int, list[memoryview]] = {}
    numbers: dict[int, list[memoryview | list[int]]] = {}
    for number, kind, value, content in fields.read(message, budget):
        if number == 1 and kind == fields.VARINT:
            dtype = value
        elif number == 2 and kind == fields.BYTES:
            shape = content
        elif kind == fields.VARINT:
            pieces = numbers.setdefault(number, [])
            if pieces and isinstance(pieces[-1], list):
                pieces[-1].append(value)
            else:
                pieces.append([value])
        else:
            contents.setdefault(number, []).append(content)
            numbers.setdefault(number, []).append(content)
    return _Given(dtype, _shape(name, shape, budget), contents, numbers)


def _shape(name: str, message: memoryview, budget: ParseBudget) -> tuple[int, ...]:
    shape: list[int] = []
    for number, kind, value, content in fields.read(message, budget):
        if number == 3 and kind == fields.VARINT and value:
            raise InvalidRequest(f"invalid shape for input {name!r}: its rank is unknown")
        if number != 2 or kind != fields.BYTES:
            continue
        size = 0
        for inner, inner_kind, inner_value, _ in fields.read(content, budget):
            if inner == 1 and inner_kind == fields.VARINT:
                size = fields.as_signed(inner_value)
        shape.append(size)
        if len(shape) > MAX_RANK:
            raise InvalidRequest(
                f"invalid shape for input {name!r}: more than {MAX_RANK} dimensions"
            )
    if not is_shape(shape):
        raise InvalidRequest(f"invalid shape for input {name!r}: {shape}")
    return tuple(shape)


def _strings(name: str, given: _Given, elements: int) -> bytes:
    items = given.contents.get(_STRING, [])
    _check_count(name, len(items), elements, given.shape)
    last = items[-1] if items else memoryview(b"")
    missing = elements - len(items)
    _check_size(name, missing * (4 + len(last)), given.shape)
    written = [struct.pack("<I", len(item)) + item for item in items]
    return b"".join(written) + (struct.pack("<I", len(last)) + last) * missing


def _values(name: str, given: _Given, datatype: str, elements: int) -> Buffer:
    field, wanted = _TYPES[datatype][1], np.dtype(NUMPY[datatype])
    pieces = given.contents.get(field, [])
    if datatype in {"FP32", "FP64"}:
        data = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
        if len(data) % wanted.itemsize:
            raise InvalidRequest(
                f"input {name!r}: {len(data)} bytes are not a whole number of values"
            )
        if len(data) == elements * wanted.itemsize:
            return data
        array: NDArray[Any] = np.frombuffer(data, dtype=wanted)
    else:
        varints.check_size(sum(map(len, pieces)))
        numbers = [
            np.array(piece, dtype=np.uint64)
            if isinstance(piece, list)
            else fields.whole_numbers(piece)
            for piece in given.numbers.get(field, [])
        ]
        whole = np.concatenate([np.empty(0, np.uint64), *numbers])
        array = _narrow_integers(name, whole, datatype, wanted)
    _check_count(name, len(array), elements, given.shape)
    missing = elements - len(array)
    if missing:
        _check_size(name, elements * wanted.itemsize, given.shape)
        last = array[-1] if len(array) else wanted.type(0)
        array = np.concatenate([array, np.full(missing, last, dtype=wanted)])
    return array.tobytes()


def _narrow_integers(
    name: str, whole: NDArray[np.uint64], datatype: str, wanted: np.dtype[Any]
) -> NDArray[Any]:
    if datatype == "BOOL":
        return np.asarray(whole != 0)
    if datatype == "UINT64":
        return whole
    bits = np.dtype("<u2") if datatype == "FP16" else wanted
    numbers = whole.view(np.int64)
    limits = np.iinfo(bits)
    if numbers.size and not limits.min <= numbers.min() <= numbers.max() <= limits.max:
        raise InvalidRequest(
            f"input {name!r}: a value is out of the range of {TYPE_NAMES[datatype]}"
        )
    return numbers.astype(bits).view(wanted)


def _check_count(name: str, given: int, elements: int, shape: tuple[int, ...]) -> None:
    if given > elements:
        raise InvalidRequest(
            f"input {name!r}: {given} values, but shape {list(shape)} takes {elements}"
        )


def _check_size(name: str, size: int, shape: tuple[int, ...]) -> None:
    if size > MAX_TENSOR_BYTES:
        raise InvalidRequest(
            f"input {name!r} of shape {list(shape)} would take {size} bytes, most of them "
            f"not in the message; at most {MAX_TENSOR_BYTES} are filled in"
        )
