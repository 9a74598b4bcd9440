"""How requests of different sizes are filled up to one, so that they can share a call of the model.

In: the shape of a request's input. Out: the larger shape to which it is filled up, and which part of an output belongs
to the request. Pure; whether a model's answers bear it is tried elsewhere (`trial`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from serving.values import TensorSpec


class Padding(NamedTuple):
    """How one model's requests are filled up."""

    multiple: int
    """Free dimensions become multiples of it."""
    fills: Mapping[str, float]
    """Input -> value."""
    outputs: Mapping[str, Mapping[int, tuple[str, int]]]
    """Output -> axis that grows with an input's axis: that input and axis."""

    def padded(self, spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape to which an input is filled up."""
        return tuple(
            length
            if size >= 0 or axis == spec.item_axis
            else -(-length // self.multiple) * self.multiple
            for axis, (size, length) in enumerate(zip(spec.shape, shape, strict=True))
        )

    def sizes_of(
        self, output: str, shapes: Mapping[str, tuple[int, ...]]
    ) -> Iterator[tuple[int, int]]:
        """Axes of an output with the sizes that they have without what was filled up.

        Args:
            output: its name.
            shapes: of the request's inputs, as they came.
        """
        for axis, (name, input_axis) in self.outputs.get(output, {}).items():
            yield axis, shapes[name][input_axis]
