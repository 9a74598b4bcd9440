"""Conversion of arrays to a model's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.tensors import sample_rows, shapes
from serving.tensors.arrays import DTYPES
from serving.tensors.sample_rows import SampleLayout
from serving.values import Signature, TensorSpec
from tuner.errors import UsageError


def convert(
    arrays: Mapping[str, NDArray[Any]], signature: Signature, where: str
) -> dict[str, NDArray[Any]]:
    """Return each input's samples, in the shape that is sent, along a new first axis.

    An input may have one sample for all items. Raises UsageError if shapes or counts do not match.
    """
    ways = sample_rows.find_layouts(
        {name: array.shape for name, array in arrays.items()}, signature
    )
    if ways is None:
        raise _disagreement(arrays, signature, where)
    return {
        spec.name: _arrange(
            arrays[spec.name], ways[spec.name], spec, signature, f"{where} {spec.name!r}"
        )
        for spec in signature.inputs
    }


def one_sample(
    array: NDArray[Any], spec: TensorSpec, signature: Signature, where: str
) -> NDArray[Any]:
    """Return one sample in the shape that is sent, or raise UsageError if it does not fit."""
    given = array[np.newaxis]
    ways = sample_rows.layouts_of(given.shape, spec, signature)
    way = next((way for way in ways if way.samples == 1), None)
    if way is None:
        raise _wrong_shape(given, spec, signature, where)
    return np.asarray(_arrange(given, way, spec, signature, where)[0])


def _arrange(
    array: NDArray[Any], way: SampleLayout, spec: TensorSpec, signature: Signature, where: str
) -> NDArray[Any]:
    found = way.arrange(array)
    axis = shapes.item_axis(spec, signature)
    if axis is not None and found.shape[axis + 1] != 1:  # a sample is one item
        raise _wrong_shape(array, spec, signature, where)
    return found


def _disagreement(
    arrays: Mapping[str, NDArray[Any]], signature: Signature, where: str
) -> UsageError:
    counts = {}
    for spec in signature.inputs:
        array = arrays[spec.name]
        ways = sample_rows.layouts_of(array.shape, spec, signature)
        if not ways and (array.ndim or not spec.shape):
            return _wrong_shape(array, spec, signature, f"{where} {spec.name!r}")
        counts[spec.name] = ways[0].samples if ways else 0
    counted = next((name for name, count in counts.items() if count > 1), next(iter(counts)))
    name = next((name for name, count in counts.items() if count != counts[counted]), counted)
    return UsageError(
        f"{where} {name!r}: {counts[name]} items, expected as many as in {counted!r}, and at least 1"
    )


def _wrong_shape(
    array: NDArray[Any], spec: TensorSpec, signature: Signature, where: str
) -> UsageError:
    return UsageError(f"{where}: shape {list(array.shape)}, expected {shape_text(spec, signature)}")


def convert_datatype(array: NDArray[Any], spec: TensorSpec, where: str) -> NDArray[Any]:
    """Convert to the input's datatype, or raise UsageError if that loses more than precision."""
    if spec.datatype == "BYTES":
        elements = array.astype(object)
        if not all(isinstance(element, str | bytes) for element in elements.ravel()):
            raise UsageError(f"{where}: {array.dtype}, expected strings (BYTES)")
        return elements
    kind = DTYPES[spec.datatype]
    if not _is_convertible(array.dtype, kind):
        raise UsageError(f"{where}: {array.dtype}, expected {spec.datatype} ({kind.name})")
    with np.errstate(over="ignore"):
        converted = array.astype(kind)
    is_lost = np.isinf(converted) & np.isfinite(array) if kind.kind == "f" else converted != array
    if np.any(is_lost):
        raise UsageError(f"{where}: {array[is_lost][0]} does not fit {spec.datatype}")
    return converted


def _is_convertible(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    if given.kind == "i" and wanted.kind == "u":
        return True  # JSON and Python know no unsigned numbers
    return given.kind in "biuf" and np.can_cast(given, wanted, "same_kind")


def shape_text(spec: TensorSpec, signature: Signature) -> str:
    """Return the shape of an item, or of the whole input, as a string."""
    axis = shapes.item_axis(spec, signature)
    return str([1 if place == axis else size for place, size in enumerate(spec.shape)])


def inputs_text(signature: Signature) -> str:
    """List all inputs with datatype and shape, for error messages."""
    return ", ".join(
        f"{spec.name} {spec.datatype} {shape_text(spec, signature)}" for spec in signature.inputs
    )
