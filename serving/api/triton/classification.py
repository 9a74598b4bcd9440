"""Triton's classification extension: an output's best classes instead of its scores.

The classes are a BYTES tensor of strings `score:index`, highest score first.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequest
from serving.tensors.json_tensors import NUMPY
from serving.values import Signature, Tensor, TensorSpec

PARAMETER = "classification"
MAX_CLASSES = 1000
"""Maximum number of classes per item."""
MAX_TEXTS = 10_000
"""Maximum number of strings per output: items times classes."""
MAX_SCORES = 2**18
"""Maximum number of scores per output, before selection."""
_WITHOUT_SCORES = {"BYTES", "BOOL"}


def requested_classes(spec: TensorSpec, parameters: Mapping[str, object]) -> int:
    """Return the requested number of classes per item, or 0 for the tensor itself.

    Raises:
        InvalidRequest: the number is invalid, or the output has no scores.
    """
    count = parameters.get(PARAMETER)
    if not count and (count is None or count == 0):
        return 0
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MAX_CLASSES:
        raise InvalidRequest(
            f"output {spec.name!r}: parameter classification is {str(count)[:40]}, "
            f"expected a number of classes from 1 to {MAX_CLASSES}; request the tensor to "
            "get all"
        )
    if spec.datatype in _WITHOUT_SCORES:
        raise InvalidRequest(
            f"output {spec.name!r}: classification needs numbers, but the output is "
            f"{spec.datatype}; request the tensor"
        )
    return count


def classify(tensor: Tensor, count: int, signature: Signature) -> Tensor:
    """Return the best `count` classes per item, or all if there are fewer.

    Raises:
        InvalidRequest: there are too many scores or classes.
    """
    axis = None
    if signature.is_batched and tensor.shape:
        axis = next(spec.item_axis for spec in signature.outputs if spec.name == tensor.name)
    scores = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype]).reshape(tensor.shape)
    scores = np.moveaxis(scores, axis, 0) if axis is not None else scores[None]
    items, classes = len(scores), math.prod(scores.shape[1:])
    count = min(count, classes)
    if scores.size > MAX_SCORES or items * count > MAX_TEXTS:
        raise InvalidRequest(
            f"output {tensor.name!r}: classification, {count} of {classes} scores of each "
            f"of {items} items; at most {MAX_SCORES} scores and {MAX_TEXTS} classes in "
            "total, request the tensor"
        )
    rows = scores.reshape(items, classes)
    best = _best(rows, count)
    chosen = np.take_along_axis(rows, best, axis=1)
    form = "%f:%d" if rows.dtype.kind == "f" else "%d:%d"
    pairs = zip(chosen.ravel().tolist(), best.ravel().tolist(), strict=True)
    texts = [(form % pair).encode() for pair in pairs]
    data = b"".join([struct.pack("<I", len(text)) + text for text in texts])
    shape = (count,) if axis is None else (items, count)
    return Tensor(tensor.name, "BYTES", shape, data)


def _best(rows: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Return the indices of each row's highest scores, best first; ties by index, NaN last."""
    if not count:
        return np.zeros((len(rows), 0), dtype=np.intp)
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), -np.inf, rows)
    last = rows.shape[1] - count
    least = np.partition(rows, last, axis=1)[:, last, None]
    greater, equal = rows > least, rows == least
    missing = count - greater.sum(axis=1, keepdims=True)
    chosen = greater | (equal & (np.cumsum(equal, axis=1) <= missing))
    # Reversed here and again after the stable sort, so that ties stay in order.
    places = np.nonzero(chosen)[1].reshape(len(rows), count)[:, ::-1]
    order = np.argsort(np.take_along_axis(rows, places, axis=1), axis=1, kind="stable")[:, ::-1]
    return np.take_along_axis(places, order, axis=1)
