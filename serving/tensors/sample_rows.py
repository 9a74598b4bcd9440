"""Samples in an array of a samples file (npz, one array per input).

The first axis counts samples where possible. By the array's rank, relative to its input:

    one more              each entry is a sample
    same, batched         each entry is an item, whose item axis is the first or left out; if the
                          sizes say so, items lie along the item axis; a shared input is one sample
    same, not batched     a sample has as many rows as the fixed first dimension (1 if free), or
                          is the whole array

All inputs must have the same number of samples, or a single one that is repeated. Of the layouts
that fit, those with the fewest repeated samples are chosen, then the likeliest.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.tensors.shapes import item_axis
from serving.values import Signature, TensorSpec


class SampleLayout(NamedTuple):
    """Layout of one input's samples in an array."""

    samples: int
    axis: int | None
    """Axis along which the samples lie; None if the array is one sample."""
    entries: int = 1
    """Number of entries along that axis per sample."""
    into: int | None = None
    """Axis of the input for a sample's entries; None if a single entry has all axes."""

    def arrange(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the samples along the first axis, followed by all axes of the input.

        `array` may hold only the first samples.
        """
        if self.axis is None:
            return array[np.newaxis]
        first = np.moveaxis(array, self.axis, 0)
        if self.into is None:
            return first
        samples = first.reshape(len(first) // self.entries, self.entries, *first.shape[1:])
        return np.moveaxis(samples, 1, self.into + 1)

    def rows(self, most: int) -> int | None:
        """Return how many entries of the first axis hold `most` samples; None means all."""
        return most * self.entries if self.axis == 0 else None


def layouts_of(shape: Sequence[int], spec: TensorSpec, signature: Signature) -> list[SampleLayout]:
    """Return the possible layouts of an array, the likeliest first."""
    own = spec.shape
    if len(shape) == len(own) + 1 and _fits(shape[1:], own):
        return [SampleLayout(shape[0], 0)]
    if len(shape) != len(own):
        return []
    found = []
    axis = item_axis(spec, signature)
    if axis is not None:
        if _fits(shape[1:], (*own[:axis], *own[axis + 1 :])):
            found.append(SampleLayout(shape[0], 0, 1, axis))
        if axis and _fits(shape, own):
            found.append(SampleLayout(shape[axis], axis, 1, axis))
        return found
    if not signature.is_batched and own and _fits(shape[1:], own[1:]):
        rows = max(1, own[0])
        if shape[0] % rows == 0:
            found.append(SampleLayout(shape[0] // rows, 0, rows, 0))
    if _fits(shape, own):
        found.append(SampleLayout(1, None))
    return found


def find_layouts(
    shapes: Mapping[str, Sequence[int]], signature: Signature
) -> dict[str, SampleLayout] | None:
    """Return layouts, by input, with the same number of samples for all, or None."""
    ways = {spec.name: layouts_of(shapes[spec.name], spec, signature) for spec in signature.inputs}
    found: list[tuple[tuple[int, int, int], dict[str, SampleLayout]]] = []
    for count in {way.samples for each in ways.values() for way in each if way.samples}:
        chosen: dict[str, SampleLayout] = {}
        repeated = unlikely = 0
        for spec in signature.inputs:
            each = ways[spec.name]
            place = _place(each, count)
            if place is None:
                place = _place(each, 1)
                repeated += _varies(spec, signature)
            if place is None:
                break
            chosen[spec.name] = each[place]
            unlikely += place
        else:
            found.append(((repeated, unlikely, -count), chosen))
    return min(found, key=operator.itemgetter(0))[1] if found else None


def _fits(given: Sequence[int], expected: Sequence[int]) -> bool:
    return len(given) == len(expected) and all(
        want in {-1, have} for have, want in zip(given, expected, strict=True)
    )


def _place(ways: Sequence[SampleLayout], count: int) -> int | None:
    return next((place for place, way in enumerate(ways) if way.samples == count), None)


def _varies(spec: TensorSpec, signature: Signature) -> bool:
    is_shared = signature.is_batched and spec.item_axis is None
    return not is_shared and any(size < 0 for size in spec.shape)
