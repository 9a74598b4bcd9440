"""Conversion of one request's frame into arrays for a batch, and the check of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequest
from serving.replica.padding import Padding
from serving.tensors import arrays
from serving.values import Signature, TensorSpec


class TensorLayout(NamedTuple):
    """Layout of one tensor of a request in a batch."""

    axis: int | None
    """Item axis; None if all items share the tensor."""
    shape: tuple[int, ...]  # as sent
    padded: tuple[int, ...]
    fill: float


class RequestPlan(NamedTuple):
    """Plan for converting frames of one layout into arrays; tensors are sorted by name."""

    key: tuple[tuple[str, str, tuple[int, ...]], ...]
    """(name, datatype, shape without item axis) per tensor; requests with equal keys run as one."""
    items: int | None
    """Number of items; None if there is no free item axis, so that the request runs alone."""
    has_bytes: bool
    places: tuple[int, ...]
    """Index of each tensor in the frame."""
    cuts: tuple[tuple[int, int], ...]
    """Byte range of each tensor in a frame of the tensors encoding."""
    laid: tuple[TensorLayout, ...] | None = None
    """Layouts of the tensors; None if all have items along axis 0, without padding."""


def plan_request(
    declared: Sequence[tuple[str, str, tuple[int, ...]]],
    signature: Signature,
    padding: Padding | None,
) -> RequestPlan:
    """Check a request's inputs, each as (name, datatype, shape), and return their plan."""
    check_inputs(declared, signature)
    places = sorted(range(len(declared)), key=lambda place: declared[place][0])
    ordered = [declared[place] for place in places]
    has_bytes = any(kind == "BYTES" for _, kind, _ in ordered)
    specs = {spec.name: spec for spec in signature.inputs}
    is_whole = any(not shape and specs[name].item_axis is not None for name, _, shape in ordered)
    if is_whole or not signature.is_batched or not ordered:
        return RequestPlan(tuple(ordered), None, has_bytes, tuple(places), ())
    laid = tuple(_layout(specs[name], shape, padding) for name, _, shape in ordered)
    key = tuple(
        (
            name,
            kind,
            one.padded if one.axis is None else one.padded[: one.axis] + one.padded[one.axis + 1 :],
        )
        for (name, kind, _), one in zip(ordered, laid, strict=True)
    )
    items = next(one.shape[one.axis] for one in laid if one.axis is not None)
    is_plain = all(one.axis == 0 and one.padded == one.shape for one in laid) and padding is None
    return RequestPlan(key, items, has_bytes, tuple(places), (), None if is_plain else laid)


def _layout(spec: TensorSpec, shape: tuple[int, ...], padding: Padding | None) -> TensorLayout:
    padded = shape if padding is None else padding.pad_shape(spec, shape)
    fill = 0.0 if padding is None else padding.fills.get(spec.name, 0.0)
    return TensorLayout(spec.item_axis if shape else None, shape, padded, fill)


def padded_arrays(
    plan: RequestPlan, laid: tuple[TensorLayout, ...], parts: list[Any], start: int, stop: int
) -> list[Any]:
    """Return the padded arrays of a request, or of its items [start, stop)."""
    if stop:
        _check_range(plan.items or 0, start, stop)
    found: list[Any] = []
    for (_, datatype, _), one, part in zip(plan.key, laid, parts, strict=True):
        if datatype == "BYTES":
            array: NDArray[Any] = arrays.bytes_array(one.shape, part)
        else:
            array = arrays.array_of(datatype, one.shape, [part])
        if stop and one.axis is not None:
            array = array.take(range(start, stop), one.axis)
        found.append(pad(array, one.shape, one.padded, one.fill))
    return found


def pad(
    array: NDArray[Any], shape: tuple[int, ...], padded: tuple[int, ...], fill: float
) -> NDArray[Any]:
    """Pad an array at the ends of axes, from `shape` to `padded`; fill BYTES with ""."""
    if padded == shape:
        return array
    wider = [(0, more - size) for size, more in zip(shape, padded, strict=True)]
    value: Any = b"" if array.dtype == object else fill
    return np.pad(array, wider, constant_values=value)


def cut_items(items: int, parts: list[Any], start: int, stop: int) -> list[Any]:
    """Return the data of items [start, stop) of a request."""
    _check_range(items, start, stop)
    cut = []
    for part in parts:
        row = len(part) // items
        cut.append(part[start * row : stop * row])
    return cut


def _check_range(items: int, start: int, stop: int) -> None:
    if not start < stop <= items:
        raise InvalidRequest(f"items {start} to {stop} are outside of a request of {items} items")


def check_inputs(
    declared: Sequence[tuple[str, str, tuple[int, ...]]], signature: Signature
) -> None:
    """Check a request's inputs, each as (name, datatype, shape), or raise InvalidRequest."""
    specs = {spec.name: spec for spec in signature.inputs}
    names = [name for name, _, _ in declared]
    if len(set(names)) < len(names) or set(names) != specs.keys():
        raise InvalidRequest(
            f"inputs are {', '.join(names) or 'none'}; the model takes exactly {', '.join(specs)}"
        )
    for name, datatype, shape in declared:
        spec = specs[name]
        if datatype != spec.datatype:
            raise InvalidRequest(
                f"input {name!r}: datatype is {datatype}, the model takes {spec.datatype}"
            )
        if len(shape) != len(spec.shape) or any(
            wanted not in (-1, given) for given, wanted in zip(shape, spec.shape, strict=True)
        ):
            raise InvalidRequest(
                f"input {name!r}: shape is {list(shape)}, "
                f"the model takes {list(spec.shape)} (-1: any)"
            )
    if not signature.is_batched:
        return
    items = {
        name: shape[axis]
        for name, _, shape in declared
        if shape and (axis := specs[name].item_axis) is not None
    }
    if len(set(items.values())) > 1:
        counts = ", ".join(f"{name!r} has {count}" for name, count in items.items())
        raise InvalidRequest(f"inputs differ in their number of items: {counts}")
