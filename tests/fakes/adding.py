"""ONNX files of one addition, byte by byte: what they answer tells which file was loaded."""

import numpy as np


def free_image(path):
    """Write a model `y = x + 1` of images whose height and width are free; returns its path."""
    return _written(path, 1, ["batch", 3, "height", "width"], count=1)


def adding(path, number, *, weights=None, items=32_768):
    """Write a model `y = x + number`; returns its path.

    Args:
        path: of the file.
        number: what is added, stored as often as there are items.
        weights: name of another file that holds it; None: the model's own.
        items: of `x`, along axis 1.
    """
    return _written(path, number, ["n", items], count=items, weights=weights)


def of_three(path):
    """Write a model that adds to three numbers, and fails on more of them when it is run; returns its path."""
    return _written(path, 1, ["n", "m"], count=3)


def _written(path, number, shape, *, count, weights=None):
    values = np.full(count, number, np.float32).tobytes()
    tensor = _field(1, count) + _field(2, 1) + _field(8, "w")
    if weights is None:
        tensor += _field(9, values)
    else:
        path.with_name(weights).write_bytes(values)
        tensor += _field(13, _field(1, "location") + _field(2, weights)) + _field(14, 1)
    node = _field(1, "x") + _field(1, "w") + _field(2, "y") + _field(4, "Add")
    ends = _field(11, _value("x", shape)) + _field(12, _value("y", shape))
    graph = _field(1, node) + _field(2, "g") + _field(5, tensor) + ends
    path.write_bytes(_field(1, 8) + _field(7, graph) + _field(8, _field(1, "") + _field(2, 17)))
    return path


def _value(name, shape):
    """A tensor of FP32; a size is a number, or a name where it is free."""
    sizes = b"".join(_field(1, _field(1 + isinstance(size, str), size)) for size in shape)
    return _field(1, name) + _field(2, _field(1, _field(1, 1) + _field(2, sizes)))


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
