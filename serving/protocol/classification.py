"""Triton's classification extension: of each item of an output the best classes, in place of its scores.

In: a requested output's parameter `classification`, and the tensor that the model returned. Out: how many
classes are wanted, and a BYTES tensor of texts `score:index`, the greatest score first. Pure.

It runs on the thread that serves everybody: the bounds keep one output to some milliseconds.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequest
from serving.json_tensors import NUMPY
from serving.values import Signature, Tensor, TensorSpec

PARAMETER = "classification"
MAX_CLASSES = 1000
"""Of an item."""
MAX_TEXTS = 10_000
"""Of an output: its items times the classes of each."""
MAX_SCORES = 2**18
"""Of an output, from which the best are chosen."""
_WITHOUT_SCORES = {"BYTES", "BOOL"}


def wanted(spec: TensorSpec, parameters: Mapping[str, object]) -> int:
    """How many classes of each item a requested output shall have; 0: the tensor as it is.

    Raises:
        InvalidRequest: no such number, or the output has no scores.
    """
    count = parameters.get(PARAMETER)
    if not count and (count is None or count == 0):
        return 0
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MAX_CLASSES:
        raise InvalidRequest(
            f"output {spec.name!r}: parameter classification is {str(count)[:40]}, expected a number of classes "
            f"from 1 to {MAX_CLASSES}; ask for the tensor to get all"
        )
    if spec.datatype in _WITHOUT_SCORES:
        raise InvalidRequest(
            f"output {spec.name!r}: classification takes numbers, and the output is {spec.datatype}; ask for the tensor"
        )
    return count


def classified(tensor: Tensor, count: int, signature: Signature) -> Tensor:
    """The best classes of an output.

    Args:
        tensor: its scores.
        count: classes of each item; where it has fewer, all of them.
        signature: the model's, which tells where the items lie; one that is not batched returns one item.

    Raises:
        InvalidRequest: there is too much to choose from, or to write.
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
            f"output {tensor.name!r}: classification, {count} of {classes} scores of each of {items} items; "
            f"at most {MAX_SCORES} scores and {MAX_TEXTS} classes in all, ask for the tensor"
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
    """For each row the places of its greatest scores, the greatest first, of equal ones the first.

    What is no number comes last.
    """
    if not count:
        return np.zeros((len(rows), 0), dtype=np.intp)
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), -np.inf, rows)
    last = rows.shape[1] - count
    least = np.partition(rows, last, axis=1)[:, last, None]
    greater, equal = rows > least, rows == least
    missing = count - greater.sum(axis=1, keepdims=True)
    chosen = greater | (equal & (np.cumsum(equal, axis=1) <= missing))
    # From the last to the first, so that the order of equal ones is right when it is turned round.
    places = np.nonzero(chosen)[1].reshape(len(rows), count)[:, ::-1]
    order = np.argsort(np.take_along_axis(rows, places, axis=1), axis=1, kind="stable")[:, ::-1]
    return np.take_along_axis(places, order, axis=1)
