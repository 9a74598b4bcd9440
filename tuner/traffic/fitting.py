"""Brings arrays into the form of a model's inputs, or says what does not fit.

In: an array whose first axis counts items, an input's name, datatype and shape, and where the array
came from. Out: the array in the input's datatype. It reads no files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.values import Signature, TensorSpec
from tuner.errors import WrongUse
from tuner.traffic.oip_body import DTYPES


def fitted(array: NDArray[Any], spec: TensorSpec, where: str) -> NDArray[Any]:
    """The array in the input's datatype.

    Raises:
        WrongUse: a wrong shape, a datatype of another kind, or a value that does not fit.
    """
    lengths = array.shape[1:]
    expected = spec.shape[1:]
    if len(lengths) != len(expected) or any(
        want not in {-1, have} for have, want in zip(lengths, expected, strict=True)
    ):
        raise WrongUse(f"{where}: shape {list(array.shape)}, expected {shape_text(spec)}")
    if spec.datatype == "BYTES":
        elements = array.astype(object)
        if not all(isinstance(element, str | bytes) for element in elements.ravel()):
            raise WrongUse(f"{where}: {array.dtype}, expected strings (BYTES)")
        return elements
    kind = DTYPES[spec.datatype]
    if not _is_convertible(array.dtype, kind):
        raise WrongUse(f"{where}: {array.dtype}, expected {spec.datatype} ({kind.name})")
    with np.errstate(over="ignore"):
        converted = array.astype(kind)
    is_lost = np.isinf(converted) & np.isfinite(array) if kind.kind == "f" else converted != array
    if np.any(is_lost):
        raise WrongUse(f"{where}: {array[is_lost][0]} does not fit {spec.datatype}")
    return converted


def _is_convertible(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether only precision can be lost; whether each value fits is another question."""
    if given.kind == "i" and wanted.kind == "u":
        return True  # JSON and Python know no unsigned numbers
    return given.kind in "biuf" and np.can_cast(given, wanted, "same_kind")


def shape_text(spec: TensorSpec) -> str:
    """Shape of one item of an input, -1 where it is free."""
    return str([1, *spec.shape[1:]])


def inputs_text(signature: Signature) -> str:
    """Every input with datatype and shape, for an error's text."""
    return ", ".join(f"{spec.name} {spec.datatype} {shape_text(spec)}" for spec in signature.inputs)
