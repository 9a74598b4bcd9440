"""What the kinds of models of tables share: rows of numbers in, one answer for each row out.

In: `input` [-1, features], columns in the order of the training. Out: `scores` (of classes, or for a ranking) or
`prediction`, in the shape in which the library gives them.
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
"""NumPy's type of an answer -> Open Inference Protocol datatype; anything else is text."""

_PLACE = re.compile(r"^(\[[\d:]+\] )?\S+\.(cc|cpp|h):\d+: ")
"""Where in its own C++ a library raised, with which some begin the reason."""


def existing(path: pathlib.Path | None, needed: str) -> pathlib.Path:
    """The model's file.

    Raises:
        ModelLoadFailed: there is none.
    """
    if path is None or not path.is_file():
        raise ModelLoadFailed(str(path), f"no such file; {needed}")
    return path


@contextlib.contextmanager
def as_load_failure(path: pathlib.Path, runtime: str) -> Iterator[None]:
    """Whatever a broken file makes a library raise is one error of one line."""
    try:
        yield
    except ModelLoadFailed:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = _PLACE.sub("", lines[0]) if lines else type(error).__name__
        raise ModelLoadFailed(str(path), f"{reason} ({runtime})") from error


def rows_spec(features: int, datatype: str) -> TensorSpec:
    """The input of a model whose features are all numbers."""
    return TensorSpec(name=INPUT, datatype=datatype, shape=(-1, features))


def answer_spec(name: str, answer: NDArray[np.generic]) -> TensorSpec:
    """The output, as the answer to one row has it: files tell too little about it."""
    return TensorSpec(
        name=name,
        datatype=DATATYPES.get(answer.dtype.str[1:], "BYTES"),
        shape=(-1, *answer.shape[1:]),
    )


def signature(
    inputs: tuple[TensorSpec, ...], name: str, answer: NDArray[np.generic], platform: str
) -> Signature:
    """What the model takes, and what it answered to one row."""
    return Signature(inputs=inputs, outputs=(answer_spec(name, answer),), platform=platform)
