"""Writer of ONNX files, node by node, without the `onnx` package.

A subset of `onnx.proto` (IR version 8), encoded as Protocol Buffers: one graph, with dense tensors
and with attributes that are numbers, strings or lists of integers.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPSET = 17
IR_VERSION = 8
"""Version that ONNX Runtime 1.11 (2022) and later can read."""
PRODUCER = "luthier"

DTYPES: dict[str, int] = {
    "float32": 1,
    "uint8": 2,
    "int32": 6,
    "int64": 7,
    "bool": 9,
}

_VARINT, _BYTES, _FLOAT = 0, 2, 5
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_STRING, _ATTRIBUTE_INTS = 1, 2, 3, 7

Size = int | str
"""A dimension: its size, or a name if free."""


class Graph:
    """Graph builder; `add` appends a node and returns its output's name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[bytes] = []
        self._weights: list[tuple[bytes, memoryview]] = []
        self._inputs: list[bytes] = []
        self._outputs: list[bytes] = []

    def input(self, name: str, dtype: str, shape: Sequence[Size]) -> str:
        """Declare an input and return its name."""
        self._inputs.append(_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: str, shape: Sequence[Size]) -> None:
        """Declare a node's output as an output of the graph."""
        self._outputs.append(_value_info(name, dtype, shape))

    def weight(self, name: str, values: NDArray[Any] | np.generic) -> str:
        """Store a constant and return its name, or raise KeyError for an unsupported dtype."""
        # Not ascontiguousarray, which makes a scalar 1-d.
        array = np.asarray(values, order="C")
        dimensions = b"".join(_number(1, size) for size in array.shape)
        head = dimensions + _number(2, DTYPES[array.dtype.name]) + _text(8, name)
        self._weights.append((head, array.reshape(-1).view(np.uint8).data))
        return name

    def add(
        self,
        operator: str,
        *inputs: str,
        output: str | None = None,
        outputs: Sequence[str] = (),
        **attributes: float | str | Sequence[int],
    ) -> str:
        """Append a node and return its first output that is not omitted.

        Args:
            operator: operator of opset 17.
            inputs: names of inputs, weights or outputs; an empty name omits one.
            output: name of a single output; default: the node's name.
            outputs: names of several outputs; an empty name omits one.
        """
        name = f"{operator.lower()}_{len(self._nodes)}"
        names = list(outputs) or [output or name]
        node = b"".join(
            [
                *(_text(1, one) for one in inputs),
                *(_text(2, one) for one in names),
                _text(3, name),
                _text(4, operator),
                *(_field(5, _attribute(key, value)) for key, value in attributes.items()),
            ]
        )
        self._nodes.append(node)
        return next(filter(None, names))

    def save(self, path: pathlib.Path) -> str:
        """Write the file atomically and return its SHA-256 in hexadecimal."""
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.partial")
        digest = hashlib.sha256()
        try:
            with unfinished.open("wb") as file:
                for piece in self._pieces():
                    digest.update(piece)
                    file.write(piece)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        return digest.hexdigest()

    def _pieces(self) -> Iterator[bytes | memoryview]:
        """Yield the file in pieces, without copying the weights (perhaps 100 MB)."""
        nodes = b"".join(_field(1, node) for node in self._nodes) + _text(2, self.name)
        tensors = [
            (_head(5, len(head) + len(data_head) + len(data)) + head + data_head, data)
            for head, data in self._weights
            for data_head in (_head(9, len(data)),)
        ]
        ends = b"".join(
            [
                *(_field(11, one) for one in self._inputs),
                *(_field(12, one) for one in self._outputs),
            ]
        )
        size = len(nodes) + len(ends) + sum(len(head) + len(data) for head, data in tensors)
        yield _number(1, IR_VERSION) + _text(2, PRODUCER) + _field(8, _number(2, OPSET))
        yield _head(7, size) + nodes
        for head, data in tensors:
            yield head
            yield data
        yield ends


def _value_info(name: str, dtype: str, shape: Sequence[Size]) -> bytes:
    dimensions = b"".join(
        _field(1, _number(1, size) if isinstance(size, int) else _text(2, size)) for size in shape
    )
    tensor = _number(1, DTYPES[dtype]) + _field(2, dimensions)
    return _text(1, name) + _field(2, _field(1, tensor))


def _attribute(name: str, value: float | str | Sequence[int]) -> bytes:
    if isinstance(value, str):
        content, kind = _text(4, value), _ATTRIBUTE_STRING
    elif isinstance(value, float):
        content, kind = _varint(2 << 3 | _FLOAT) + struct.pack("<f", value), _ATTRIBUTE_FLOAT
    elif isinstance(value, int):
        content, kind = _number(3, value), _ATTRIBUTE_INT
    else:
        content, kind = b"".join(_number(8, item) for item in value), _ATTRIBUTE_INTS
    return _text(1, name) + content + _number(20, kind)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _text(field: int, text: str) -> bytes:
    return _field(field, text.encode())


def _field(field: int, content: bytes) -> bytes:
    return _head(field, len(content)) + content


def _head(field: int, size: int) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(size)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
