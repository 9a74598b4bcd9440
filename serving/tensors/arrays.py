"""Conversion between raw tensor bytes and NumPy arrays (Open Inference Protocol, binary form).

Little-endian, row-major; a BYTES element is a u32 length followed by that many bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequest
from serving.tensors.json_tensors import NUMPY
from serving.values import Buffer

DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(code) for name, code in NUMPY.items()}
"""NumPy dtype by datatype, without BYTES."""

_DATATYPES = {(dtype.kind, dtype.itemsize): name for name, dtype in DTYPES.items()}
_U32 = struct.Struct("<I")
_BYTE = np.dtype("u1")


def datatype_of(array: NDArray[Any]) -> str | None:
    """Return the datatype of an array (BYTES for strings and objects), or None if it has none."""
    if array.dtype.kind in "SUO":
        return "BYTES"
    return _DATATYPES.get((array.dtype.kind, array.dtype.itemsize))


def array_of(datatype: str, shape: tuple[int, ...], parts: Sequence[Buffer]) -> NDArray[Any]:
    """Join raw bytes (not BYTES) into a writable array; a single writable part is not copied."""
    data = parts[0] if len(parts) == 1 else bytearray().join(parts)
    if datatype == "BOOL":
        flags: NDArray[Any] = np.frombuffer(data, _BYTE) != 0
        return flags.reshape(shape)
    array: NDArray[Any] = np.frombuffer(data, DTYPES[datatype])
    if not (array.flags.aligned and array.flags.writeable):
        array = array.copy()
    return array.reshape(shape)


def array_of_rows(datatype: str, shape: tuple[int, ...], rows: NDArray[np.uint8]) -> NDArray[Any]:
    """Copy rows of raw bytes (not BYTES) into one writable array."""
    data = rows.copy()
    if datatype == "BOOL":
        flags: NDArray[Any] = data != 0
        return flags.reshape(shape)
    return data.reshape(-1).view(DTYPES[datatype]).reshape(shape)


def bytes_array(shape: tuple[int, ...], elements: Sequence[bytes]) -> NDArray[Any]:
    """Return an array of `bytes` objects."""
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


def raw_of(array: NDArray[Any]) -> memoryview:
    """Return an array's raw bytes, as a view if it is contiguous.

    Raises TypeError if an element is neither `bytes` nor `str`.
    """
    if array.dtype.kind in "SUO":
        return memoryview(join_bytes([_as_bytes(element) for element in array.ravel().tolist()]))
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.flags.c_contiguous and array.size:
        return array.data.cast("B")
    return np.ascontiguousarray(array).reshape(-1).view(_BYTE).data


def split_bytes(data: Buffer, count: int) -> list[bytes]:
    """Return the `count` elements of a BYTES tensor, or raise InvalidRequest."""
    view = memoryview(data)
    size = len(view)
    elements: list[bytes] = []
    position = 0
    while position + 4 <= size and len(elements) < count:
        start = position + 4
        position = start + _U32.unpack_from(view, position)[0]
        elements.append(bytes(view[start:position]))
    if len(elements) != count or position != size:
        raise InvalidRequest(
            f"a BYTES tensor of {count} elements has {size} bytes of data, which do not end with its "
            f"last element (each is a 4-byte length and that many bytes)"
        )
    return elements


def join_bytes(elements: Iterable[bytes]) -> bytes:
    """Return the data of a BYTES tensor."""
    parts = []
    for element in elements:
        parts.append(_U32.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def _as_bytes(element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode()
    raise TypeError(f"an element is {type(element).__name__}, expected bytes or str")
