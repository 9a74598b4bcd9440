"""Classify and regress: the output that each uses, and the results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from serving.api.tensorflow.rest_outputs import tensor_to_json
from serving.api.tensorflow.rest_tensors import TYPE_NAMES
from serving.errors import InferenceFailed, InvalidRequest
from serving.values import Tensor, TensorSpec

MAX_SCORES = 2**17
"""Maximum number of scores per classify response, each written with its label."""


def scores_output(outputs: Sequence[TensorSpec]) -> TensorSpec | None:
    """Return the output for classify: `scores`, or the only output with a number per class."""
    return _select_output(outputs, "scores", ("FP16", "FP32", "FP64"))


def value_output(outputs: Sequence[TensorSpec]) -> TensorSpec | None:
    """Return the output for regress: `outputs`, or the only output with a number per item."""
    fitting = [spec for spec in outputs if spec.shape[1:] in {(), (1,), (-1,)}]
    numbers = tuple(name for name in TYPE_NAMES if name not in {"BYTES", "BOOL"})
    return _select_output(fitting, "outputs", numbers)


def classifications(
    tensors: Sequence[Tensor], outputs: Sequence[TensorSpec]
) -> list[list[list[Any]]]:
    """Return the pairs of label and score for each item.

    Raises:
        InvalidRequest: there are too many scores.
        InferenceFailed: there are none.
    """
    score = _find_tensor(tensors, scores_output(outputs))
    count = math.prod(score.shape)
    if count > MAX_SCORES:
        raise InvalidRequest(
            f"classify would return {count} scores with labels, at most {MAX_SCORES} are "
            "allowed; send fewer examples per request, or use predict"
        )
    rows = _rows(score)
    label = next((tensor for tensor in tensors if tensor.name == "classes"), None)
    if label is not None and label.datatype == "BYTES" and label.shape == score.shape:
        names = _rows(label)
    else:
        names = [[str(place) for place in range(len(row))] for row in rows]
    return [
        [[name, value] for name, value in zip(*pair, strict=True)]
        for pair in zip(names, rows, strict=True)
    ]


def _rows(tensor: Tensor) -> list[list[Any]]:
    values = tensor_to_json(tensor)
    return [[value] for value in values] if len(tensor.shape) == 1 else values


def regressions(tensors: Sequence[Tensor], outputs: Sequence[TensorSpec]) -> list[float]:
    """Return one number per item.

    Raises:
        InferenceFailed: an item has no number, or several.
    """
    tensor = _find_tensor(tensors, value_output(outputs))
    if not tensor.shape or any(length != 1 for length in tensor.shape[1:]):
        raise InferenceFailed(
            f"Expected output to be of size [batch], output {tensor.name!r} has "
            f"{list(tensor.shape)}"
        )
    numbers: list[float] = tensor_to_json(tensor._replace(shape=tensor.shape[:1]))
    return numbers


def _select_output(
    outputs: Sequence[TensorSpec], name: str, datatypes: tuple[str, ...]
) -> TensorSpec | None:
    fitting = [spec for spec in outputs if len(spec.shape) in {1, 2} and spec.datatype in datatypes]
    named = [spec for spec in fitting if spec.name == name]
    if named:
        return named[0]
    return fitting[0] if len(fitting) == 1 else None


def _find_tensor(tensors: Sequence[Tensor], spec: TensorSpec | None) -> Tensor:
    for tensor in tensors:
        if spec is not None and tensor.name == spec.name:
            return tensor
    raise InferenceFailed(f"the model returned no output {spec.name if spec else ''!r}")
