"""Shared parts of the model kinds for tabular data.

The input is `input` [-1, features], the output `scores` or `prediction`, in the library's shape.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving.tensors import arrays
from serving.values import Signature, TensorSpec

INPUT = "input"
SCORES, PREDICTION = "scores", "prediction"


def rows_spec(features: int, datatype: str) -> TensorSpec:
    """Return the input spec of a model with numeric features."""
    return TensorSpec(name=INPUT, datatype=datatype, shape=(-1, features))


def output_spec(name: str, response: NDArray[np.generic]) -> TensorSpec:
    """Return the output spec from the response to one row, as files describe outputs poorly."""
    datatype = arrays.datatype_of(response) or "BYTES"
    return TensorSpec(name=name, datatype=datatype, shape=(-1, *response.shape[1:]))


def signature(
    inputs: tuple[TensorSpec, ...], name: str, response: NDArray[np.generic], platform: str
) -> Signature:
    """Build a signature from the response to one row."""
    return Signature(inputs=inputs, outputs=(output_spec(name, response),), platform=platform)


def blank(spec: TensorSpec) -> NDArray[np.generic]:
    """Return one row of zeros or empty strings."""
    shape = (1, *(max(1, size) for size in spec.shape[1:]))
    if spec.datatype == "BYTES":
        return np.full(shape, b"", object)
    return np.zeros(shape, arrays.DTYPES[spec.datatype])
