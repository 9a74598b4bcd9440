"""Output tensors as TensorFlow Serving's JSON, whole or in small pieces."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.api.parsing.bounded_json import shortest, write
from serving.errors import InferenceFailed
from serving.tensors.json_tensors import NUMPY, PIECE, elements, written_texts
from serving.values import Tensor


def tensor_to_json(tensor: Tensor) -> Any:
    """Convert a tensor to nested lists or a scalar.

    BYTES elements become base64 objects if the name ends in `_bytes`, otherwise strings.

    Raises:
        InferenceFailed: BYTES elements are malformed or not UTF-8.
    """
    if tensor.datatype == "BYTES":
        elements = byte_strings(tensor)
        values = np.empty(len(elements), dtype=object)
        if tensor.name.endswith("_bytes"):
            values[:] = [{"b64": base64.b64encode(item).decode()} for item in elements]
        else:
            values[:] = [_text(item, tensor.name) for item in elements]
        return values.reshape(tensor.shape).tolist()
    array = _array(tensor)
    return (shortest(array) if array.dtype.kind == "f" else array).tolist()


def tensor_to_json_pieces(tensor: Tensor) -> Iterator[bytes]:
    """Encode a tensor like `tensor_to_json`, with the same errors, but as JSON in small pieces."""
    if tensor.datatype != "BYTES":
        yield from number_pieces(_array(tensor), json_of_numbers)
    elif tensor.shape:
        yield from array_pieces(rows_of_texts(tensor.shape, _written_texts(tensor)))
    else:
        for some in _written_texts(tensor):
            yield "".join(some).encode()


def written_rows(tensors: Sequence[Tensor]) -> Iterator[bytes]:
    """Encode tensors with equally many rows as JSON objects, in small pieces.

    Raises as `tensor_to_json` does.
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
    """Encode an array from chunks of encoded values, in which an empty chunk is a pause."""
    before = "["
    for some in values:
        if some:
            yield (before + ",".join(some)).encode()
            before = ","
        else:
            yield b""
    yield b"[]" if before == "[" else b"]"


def rows_of_texts(shape: Sequence[int], texts: Iterator[list[str]]) -> Iterator[list[str]]:
    """Join the JSON of elements into the JSON of rows, in chunks; an empty chunk is a pause.

    Args:
        shape: shape of the tensor, with at least one dimension.
        texts: chunks of the elements' JSON, whose number must fit the shape.
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
    """Join the JSON of values into arrays of `size` elements."""
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

    Raises InferenceFailed if their number is incorrect or one is truncated.
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
