"""Triton's classification extension: of each item of an output the best classes, in place of its scores.

In: a requested output's parameter `classification`, and the tensor that the model returned. Out: how many
classes are wanted, and a BYTES tensor of texts `score:index`, the greatest score first. Pure.
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
_WITHOUT_SCORES = {"BYTES", "BOOL"}


def wanted(spec: TensorSpec, parameters: Mapping[str, object]) -> int:
    """How many classes of each item a requested output shall have; 0: the tensor as it is.

    Raises:
        InvalidRequest: no such number, or the output has no scores.
    """
    count = parameters.get(PARAMETER)
    if not count and (count is None or count == 0):
        return 0
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count < 2**31:
        raise InvalidRequest(
            f"output {spec.name!r}: parameter classification is {str(count)[:40]}, expected a number of classes from 1"
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
    """
    axis = None
    if signature.is_batched and tensor.shape:
        axis = next(spec.item_axis for spec in signature.outputs if spec.name == tensor.name)
    scores = np.frombuffer(tensor.data, dtype=NUMPY[tensor.datatype]).reshape(tensor.shape)
    scores = np.moveaxis(scores, axis, 0) if axis is not None else scores[None]
    items = len(scores)
    rows = scores.reshape(items, math.prod(scores.shape[1:]))
    count = min(count, rows.shape[1])
    form = "%f" if rows.dtype.kind == "f" else "%d"
    texts = [
        (f"{form}:%d" % (row[index], index)).encode() for row in rows for index in _best(row, count)
    ]
    data = b"".join([struct.pack("<I", len(text)) + text for text in texts])
    shape = (count,) if axis is None else (items, count)
    return Tensor(tensor.name, "BYTES", shape, data)


def _best(row: NDArray[Any], count: int) -> list[int]:
    """Indices of the greatest scores, the greatest first, of equal ones the first; what is no number comes last."""
    if row.dtype.kind == "f":
        row = np.where(np.isnan(row), -np.inf, row)
    if not count:
        return []
    least = np.partition(row, row.size - count)[row.size - count]
    greater = np.flatnonzero(row > least)
    equal = np.flatnonzero(row == least)[: count - greater.size]
    backwards = np.concatenate((equal[::-1], greater[::-1]))
    order = np.argsort(row[backwards], kind="stable")[::-1]
    found: list[int] = backwards[order].tolist()
    return found
