"""ONNX files of one addition, byte by byte: what they answer tells which file was loaded."""

import numpy as np


def adding(path, number, *, weights=None, items=32_768):
    """Write a model `y = x + number`; returns its path.

    Args:
        path: of the file.
        number: what is added, stored as often as there are items.
        weights: name of another file that holds it; None: the model's own.
        items: of `x`, along axis 1.
    """
    values = np.full(items, number, np.float32).tobytes()
    tensor = _field(1, items) + _field(2, 1) + _field(8, "w")
    if weights is None:
        tensor += _field(9, values)
    else:
        path.with_name(weights).write_bytes(values)
        tensor += _field(13, _field(1, "location") + _field(2, weights)) + _field(14, 1)
    node = _field(1, "x") + _field(1, "w") + _field(2, "y") + _field(4, "Add")
    ends = _field(11, _value("x", items)) + _field(12, _value("y", items))
    graph = _field(1, node) + _field(2, "g") + _field(5, tensor) + ends
    path.write_bytes(_field(1, 8) + _field(7, graph) + _field(8, _field(1, "") + _field(2, 17)))
    return path


def _value(name, items):
    shape = _field(1, _field(2, "n")) + _field(1, _field(1, items))
    return _field(1, name) + _field(2, _field(1, _field(1, 1) + _field(2, shape)))


def _field(number, payload):
    """Of Protocol Buffers: a whole number, or what has a length."""
    if isinstance(payload, int):
        return _varint(number << 3) + _varint(payload)
    data = payload.encode() if isinstance(payload, str) else payload
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value):
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])
