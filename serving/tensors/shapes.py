"""Shapes of a model's inputs: its signature, with sizes for the free dimensions.

A missing size is reported rather than guessed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from serving.error_text import nearest
from serving.errors import InvalidSettings
from serving.tensors.sizes import Size, Sizes
from serving.values import Signature, TensorSpec

if TYPE_CHECKING:
    import numpy as np

Axes = Mapping[str, tuple[Size | None, ...]]
"""Size of each axis, by input; None for an item axis or a missing size."""


class FreeAxis(NamedTuple):
    """Free dimension without a given size."""

    input: str
    axis: int
    dimension: str
    """Name in the model's file; may be empty."""

    def __str__(self) -> str:
        named = f" ({self.dimension})" if self.dimension else ""
        return f"input {self.input!r}, axis {self.axis}{named}"


def item_axis(spec: TensorSpec, signature: Signature) -> int | None:
    """Return an input's item axis, or None if the model is not batched along one."""
    return spec.item_axis if signature.is_batched and spec.shape else None


def why_unbatched(signature: Signature) -> str:
    """Return why a model is not batched; empty if it is."""
    if not signature.is_batched:
        fixed = (spec for spec in signature.inputs if spec.shape and spec.shape[0] >= 0)
        return signature.unbatched or next(
            f"input {spec.name!r} has a first dimension that is fixed at {spec.shape[0]}"
            for spec in fixed
        )
    scalar = next((s for s in signature.inputs if not s.shape and s.item_axis is not None), None)
    return "" if scalar is None else f"input {scalar.name!r} is a scalar"


def bind(
    signature: Signature, sizes: Sizes, *, source: str = "--shape", is_settled: bool = True
) -> Axes:
    """Return the size of every axis of every input.

    Sizes for one input also apply to dimensions of the same name in others. Item axes may have
    sizes unless they are final (`is_settled`). `source` is named in errors.

    Raises:
        InvalidSettings: a name is unknown, sizes do not fit, or one name has different sizes.
    """
    inputs = {spec.name: spec for spec in signature.inputs}
    free = {name for spec in signature.inputs for _, name in _free(spec, signature) if name}
    if not is_settled:
        free |= {name for spec in signature.inputs for name in spec.dimensions if name}
    for name in sizes:
        if name not in inputs and name not in free:
            known = [*inputs, *sorted(free - inputs.keys())]
            raise InvalidSettings(
                f"{source} {name}: no such input or free dimension{nearest(name, known)} "
                f"(known: {', '.join(known)})"
            )
    own = {
        name: _of_input(inputs[name], given, signature, source, is_settled=is_settled)
        for name, given in sizes.items()
        if name in inputs
    }
    by_dimension: dict[str, Size] = {}
    for name, given in sizes.items():
        if name not in inputs:
            if len(given) != 1:
                raise InvalidSettings(f"{source} {name}: {len(given)} sizes for one dimension")
            by_dimension[name] = given[0]
    for name, axes in own.items():
        for axis, dimension in _free(inputs[name], signature):
            size = axes[axis]
            if not dimension or size is None:
                continue
            other = by_dimension.setdefault(dimension, size)
            if (other.low, other.high) != (size.low, size.high):
                raise InvalidSettings(
                    f"{source} {name}: {size.text} for the dimension {dimension!r}, which is {other.text} elsewhere; "
                    "expected one size for all dimensions of a name"
                )
    return {
        spec.name: own.get(spec.name) or _by_dimension(spec, by_dimension, signature)
        for spec in signature.inputs
    }


def missing(signature: Signature, axes: Axes) -> list[FreeAxis]:
    """Return the free dimensions without a size, except item axes."""
    return [
        FreeAxis(spec.name, axis, name)
        for spec in signature.inputs
        for axis, name in _free(spec, signature)
        if axes[spec.name][axis] is None
    ]


def option_for(signature: Signature, lacking: Iterable[FreeAxis]) -> str:
    """Return `--shape` options for the missing sizes, with example sizes."""
    by_input: dict[str, list[str]] = {}
    for one in lacking:
        by_input.setdefault(one.input, []).append(one.dimension)
    specs = {spec.name: spec for spec in signature.inputs}
    texts: list[str] = []
    for name, dimensions in by_input.items():
        if all(dimensions):
            texts += [f"{dimension}={_example(dimension)}" for dimension in dimensions]
            continue
        spec, items = specs[name], item_axis(specs[name], signature)
        sizes = [
            str(size) if size >= 0 else _example_of(spec, axis, items)
            for axis, size in enumerate(spec.shape)
            if axis != items
        ]
        texts.append(f"{name}={'x'.join(sizes)}")
    return " ".join(f"--shape {shlex.quote(text)}" for text in dict.fromkeys(texts))


def typical(axes: Axes) -> dict[str, tuple[int, ...]]:
    """Return one shape per input: median sizes, and 1 along the item axis."""
    return {
        name: tuple(1 if size is None else size.typical for size in each)
        for name, each in axes.items()
    }


def sample_shapes(
    signature: Signature, axes: Axes, rng: np.random.Generator, *, items: int = 1
) -> dict[str, tuple[int, ...]]:
    """Draw the shapes of one request.

    Dimensions of one name get the same size, as do unnamed ones with the same size text and axis.
    """
    known: dict[object, int] = {}
    shapes = {}
    for spec in signature.inputs:
        shape = []
        for axis, size in enumerate(axes[spec.name]):
            if size is None:
                shape.append(items)
                continue
            key = spec.dimension(axis) or (size.text, axis)
            if key not in known:
                known[key] = size.draw(rng)
            shape.append(known[key] if size.varies else size.low)
        shapes[spec.name] = tuple(shape)
    return shapes


def _free(spec: TensorSpec, signature: Signature) -> list[tuple[int, str]]:
    items = item_axis(spec, signature)
    return [
        (axis, spec.dimension(axis))
        for axis, size in enumerate(spec.shape)
        if size < 0 and axis != items
    ]


def _of_input(
    spec: TensorSpec,
    given: tuple[Size, ...],
    signature: Signature,
    source: str,
    *,
    is_settled: bool,
) -> tuple[Size | None, ...]:
    items = item_axis(spec, signature)
    if items is not None and not is_settled and len(given) == len(spec.shape):
        given = given[:items] + given[items + 1 :]
    axes = [axis for axis in range(len(spec.shape)) if axis != items]
    free = [axis for axis, _ in _free(spec, signature)]
    # An unbatched model may get the sizes of one item, as if batched: then a request is one item.
    is_one = items is None and 0 in free and len(free) > 1 and _is_item(given, spec.shape[1:])
    if is_one:
        axes = axes[1:]
    elif len(given) == len(free):
        axes = free
    if len(given) != len(axes):
        raise InvalidSettings(
            f"{source} {spec.name}={'x'.join(size.text for size in given)}: {len(given)} sizes, expected "
            f"{len(axes)}, for {list(spec.shape)}"
            + (" of the whole input" if items is None else f" without the item axis {items}")
        )
    found = list(_by_dimension(spec, {}, signature))
    if is_one:
        found[0] = Size("1", 1, 1)
    for axis, size in zip(axes, given, strict=True):
        fixed = spec.shape[axis]
        if fixed >= 0 and (size.varies or size.low != fixed):
            raise InvalidSettings(
                f"{source} {spec.name}: {size.text} for axis {axis}, which the model fixes at {fixed}"
            )
        found[axis] = size
    return tuple(found)


def _is_item(given: tuple[Size, ...], shape: tuple[int, ...]) -> bool:
    return len(given) == len(shape) and all(
        wanted < 0 or (not size.varies and size.low == wanted)
        for size, wanted in zip(given, shape, strict=True)
    )


def _by_dimension(
    spec: TensorSpec, sizes: Mapping[str, Size | None], signature: Signature
) -> tuple[Size | None, ...]:
    items = item_axis(spec, signature)
    return tuple(
        None
        if axis == items
        else Size(str(size), size, size)
        if size >= 0
        else sizes.get(spec.dimension(axis) or "")
        for axis, size in enumerate(spec.shape)
    )


def _example_of(spec: TensorSpec, axis: int, items: int | None) -> str:
    rank = len(spec.shape)
    is_outer = axis == 0 or (rank < 4 and axis < rank - 1)
    if items is None and is_outer and not spec.dimension(axis):
        return "1"
    return _example(spec.dimension(axis), rank=rank)


def _example(dimension: str, *, rank: int = 0) -> str:
    name = dimension.lower()
    if any(word in name for word in ("height", "width")) or (rank == 4 and not name):
        return "224"
    return "1" if "batch" in name else "128"
