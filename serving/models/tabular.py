"""Shared parts of the kinds for tabular models.

Input: `input` [-1, features], columns in training order. Output: `scores` (classes, ranks) or
`prediction`, in the library's shape.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from serving.errors import ModelLoadFailed
from serving.values import Signature, TensorSpec

INPUT = "input"
SCORES, PREDICTION = "scores", "prediction"
DATATYPES = {
    "b1": "BOOL",
    **{f"u{size}": f"UINT{8 * size}" for size in (1, 2, 4, 8)},
    **{f"i{size}": f"INT{8 * size}" for size in (1, 2, 4, 8)},
    **{f"f{size}": f"FP{8 * size}" for size in (2, 4, 8)},
}

_PLACE = re.compile(r"^(\[[\d:]+\] )?\S+\.(cc|cpp|h):\d+: ")


def check_file(path: pathlib.Path | None, needed: str) -> pathlib.Path:
    """Return the model's file, or raise ModelLoadFailed."""
    if path is None or not path.is_file():
        raise ModelLoadFailed(str(path), f"no such file; {needed}")
    return path


@contextlib.contextmanager
def as_load_failure(path: pathlib.Path, runtime: str) -> Iterator[None]:
    """Convert a library's error to a one-line ModelLoadFailed."""
    try:
        yield
    except ModelLoadFailed:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = _PLACE.sub("", lines[0]) if lines else type(error).__name__
        raise ModelLoadFailed(str(path), f"{reason} ({runtime})") from error


def rows_spec(features: int, datatype: str) -> TensorSpec:
    """Input spec of a model with numeric features."""
    return TensorSpec(name=INPUT, datatype=datatype, shape=(-1, features))


def output_spec(name: str, response: NDArray[np.generic]) -> TensorSpec:
    """Output spec of the response to one row, as files describe it poorly."""
    return TensorSpec(
        name=name,
        datatype=DATATYPES.get(response.dtype.str[1:], "BYTES"),
        shape=(-1, *response.shape[1:]),
    )


def signature(
    inputs: tuple[TensorSpec, ...], name: str, response: NDArray[np.generic], platform: str
) -> Signature:
    """Build a signature from the response to one row."""
    return Signature(inputs=inputs, outputs=(output_spec(name, response),), platform=platform)
