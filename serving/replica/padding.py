"""Padding of requests to one size, so that they can share a model call.

`batching_check` checks that a model's outputs tolerate it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from serving.values import TensorSpec


class Padding(NamedTuple):
    """Padding rules of one model."""

    multiple: int
    """Free dimensions are padded to a multiple of this."""
    fills: Mapping[str, float]
    outputs: Mapping[str, Mapping[int, tuple[str, int]]]
    """Output -> axis -> the input and the input's axis that determine the size."""

    def pad_shape(self, spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the padded shape of an input."""
        return tuple(
            length
            if size >= 0 or axis == spec.item_axis
            else -(-length // self.multiple) * self.multiple
            for axis, (size, length) in enumerate(zip(spec.shape, shape, strict=True))
        )

    def sizes_of(
        self, output: str, shapes: Mapping[str, tuple[int, ...]]
    ) -> Iterator[tuple[int, int]]:
        """Yield an output's padded axes and their sizes, given the unpadded shapes of inputs."""
        for axis, (name, input_axis) in self.outputs.get(output, {}).items():
            yield axis, shapes[name][input_axis]
