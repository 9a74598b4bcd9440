"""Brings arrays into the form of a model's inputs, or says what does not fit.

In: an array whose first axis counts samples, an input's name, datatype and shape, and where the array
came from. Out: the array in the input's datatype, each sample in the shape that is sent. It reads no files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving import shapes
from serving.values import Signature, TensorSpec
from tuner.errors import WrongUse
from tuner.traffic.oip_body import DTYPES


def samples(
    array: NDArray[Any], spec: TensorSpec, signature: Signature, where: str
) -> NDArray[Any]:
    """Samples of one input in the shapes that are sent: behind the first axis, which counts them, the input's own ones.

    Of a batched model a sample is an item, with or without its item axis. Of one that is served whole it is a whole
    input; where that is one row, or a certain number of rows, these may lie along the first axis instead.

    Raises:
        WrongUse: a wrong shape.
    """
    axis = shapes.item_axis(spec, signature)
    whole = _of_one(spec, axis)
    given = array.shape[1:]
    if array.ndim and _fits(given, whole):
        return array
    if axis is not None and array.ndim and _fits(given, (*whole[:axis], *whole[axis + 1 :])):
        return np.expand_dims(array, axis + 1)
    if not signature.is_batched and _has_rows(array, spec):
        return array.reshape(-1, max(1, spec.shape[0]), *given)
    if axis is None and _fits(array.shape, whole):
        return array[np.newaxis]
    raise WrongUse(f"{where}: shape {list(array.shape)}, expected {shape_text(spec, signature)}")


def _of_one(spec: TensorSpec, axis: int | None) -> tuple[int, ...]:
    """Shape of one item, or of a whole input where it has no item axis; -1 where it is free."""
    return tuple(1 if place == axis else size for place, size in enumerate(spec.shape))


def _fits(given: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(given) == len(expected) and all(
        want in {-1, have} for have, want in zip(given, expected, strict=True)
    )


def _has_rows(array: NDArray[Any], spec: TensorSpec) -> bool:
    """Whether the first axis is that of the input, so many rows for each sample."""
    rows = max(1, spec.shape[0]) if spec.shape else 0
    return bool(rows) and _fits(array.shape[1:], spec.shape[1:]) and len(array) % rows == 0


def converted(array: NDArray[Any], spec: TensorSpec, where: str) -> NDArray[Any]:
    """The array in the input's datatype.

    Raises:
        WrongUse: a datatype of another kind, or a value that does not fit.
    """
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


def shape_text(spec: TensorSpec, signature: Signature) -> str:
    """Shape of one item of an input, or of the whole one, -1 where it is free."""
    return str(list(_of_one(spec, shapes.item_axis(spec, signature))))


def inputs_text(signature: Signature) -> str:
    """Every input with datatype and shape, for an error's text."""
    return ", ".join(
        f"{spec.name} {spec.datatype} {shape_text(spec, signature)}" for spec in signature.inputs
    )
