"""Which part of an array in a file of samples (npz, one array for each input) is one sample: one rule for all readers.

The first axis of an array counts samples wherever it can. An array has one axis more than its input, or as many:

    one more                   each entry is one sample, whole
    as many, in a batch        each entry is one item, whose item axis is the first one or left out; where the sizes say
                               so the items lie along the item axis instead, as the model takes them; what items share
                               is one sample
    as many, served whole      so many rows are one sample as the input's first dimension is fixed at, one where it is
                               free; or else the whole array is one sample

All inputs have the same number of samples, but one that is the same for all may be given once. Where an array can be
read in several ways, that one counts with which they agree, and of such the first in this order.

In: shapes and a signature. Out: a way for each input. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.shapes import item_axis
from serving.values import Signature, TensorSpec


class Way(NamedTuple):
    """How samples of one input lie in an array."""

    samples: int
    """How many."""
    axis: int | None
    """Of the array, along which they lie; None: it is one sample."""
    entries: int = 1
    """Along that axis, of each sample."""
    into: int | None = None
    """The axis of a sample along which its entries lie; None: its one entry has all the axes of the input."""

    def arranged(self, array: NDArray[Any]) -> NDArray[Any]:
        """Samples along the first axis, and behind it all axes of the input.

        Args:
            array: of that shape, or the first samples of it.
        """
        if self.axis is None:
            return array[np.newaxis]
        first = np.moveaxis(array, self.axis, 0)
        if self.into is None:
            return first
        samples = first.reshape(len(first) // self.entries, self.entries, *first.shape[1:])
        return np.moveaxis(samples, 1, self.into + 1)

    def rows(self, most: int) -> int | None:
        """Entries of the array's first axis that hold so many samples; None: all of them are needed."""
        return most * self.entries if self.axis == 0 else None


def ways_of(shape: Sequence[int], spec: TensorSpec, signature: Signature) -> list[Way]:
    """The ways in which an array of a shape can hold samples of an input, the likeliest first; empty: it cannot."""
    own = spec.shape
    if len(shape) == len(own) + 1 and _fits(shape[1:], own):
        return [Way(shape[0], 0)]
    if len(shape) != len(own):
        return []
    found = []
    axis = item_axis(spec, signature)
    if axis is not None:
        if _fits(shape[1:], (*own[:axis], *own[axis + 1 :])):
            found.append(Way(shape[0], 0, 1, axis))
        if axis and _fits(shape, own):
            found.append(Way(shape[axis], axis, 1, axis))
        return found
    if not signature.is_batched and own and _fits(shape[1:], own[1:]):
        rows = max(1, own[0])
        if shape[0] % rows == 0:
            found.append(Way(shape[0] // rows, 0, rows, 0))
    if _fits(shape, own):
        found.append(Way(1, None))
    return found


def agreed(shapes: Mapping[str, Sequence[int]], signature: Signature) -> dict[str, Way] | None:
    """The way for each input with which all have the same number of samples; None: there is none, or no sample.

    Args:
        shapes: of the arrays, by input.
        signature: of the model.
    """
    ways = {spec.name: ways_of(shapes[spec.name], spec, signature) for spec in signature.inputs}
    best: tuple[tuple[int, int, int], dict[str, Way]] | None = None
    for count in {way.samples for each in ways.values() for way in each if way.samples}:
        chosen: dict[str, Way] = {}
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
            rank = (repeated, unlikely, -count)
            if best is None or rank < best[0]:
                best = rank, chosen
    return None if best is None else best[1]


def _fits(given: Sequence[int], expected: Sequence[int]) -> bool:
    return len(given) == len(expected) and all(
        want in {-1, have} for have, want in zip(given, expected, strict=True)
    )


def _place(ways: Sequence[Way], count: int) -> int | None:
    return next((place for place, way in enumerate(ways) if way.samples == count), None)


def _varies(spec: TensorSpec, signature: Signature) -> bool:
    """Whether an input hardly is the same for all samples: it is not shared, nor fixed as a scalar or a setting is."""
    is_shared = signature.is_batched and spec.item_axis is None
    return not is_shared and any(size < 0 for size in spec.shape)
