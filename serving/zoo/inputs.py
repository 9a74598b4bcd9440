"""What a `model.yaml` tells of a model's inputs: sizes, item axes, what a batch shares, and what fills it up.

In: values as YAML has them. Out: fields of a card. Whether they fit the model is seen when it is loaded. Pure.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from serving.errors import InvalidSettings, ModelLoadFailed
from serving.sizes import sizes_of


def shapes_of(given: Mapping[Any, Any], file: pathlib.Path) -> tuple[str, ...]:
    """`{image: [3, 640, 640], sequence: 16..512}` as texts for `sizes.sizes_of`.

    Raises:
        ModelLoadFailed: a size is none.
    """
    texts = []
    for name, sizes in given.items():
        each = sizes if isinstance(sizes, list) else [sizes]
        texts.append(f"{name}={'x'.join(map(str, each))}")
    try:
        sizes_of(texts, source="shapes:")
    except InvalidSettings as error:
        raise ModelLoadFailed(str(file), str(error)) from error
    return tuple(texts)


def values_of(given: Mapping[Any, Any], file: pathlib.Path) -> tuple[str, ...]:
    """`{ids: 0..30521, rate: 16000}` as texts for `input_values.contents_of`.

    Raises:
        ModelLoadFailed: a value is no number or text.
    """
    for name, value in given.items():
        if not isinstance(value, int | float | str) or str(value).startswith("@"):
            raise ModelLoadFailed(
                str(file),
                f"values: {name}: expected a number, a text or LOW..HIGH, given {value!r:.100}",
            )
    return tuple(f"{name}={value}" for name, value in given.items())


def axes_of(given: Mapping[Any, Any], file: pathlib.Path) -> dict[str, int]:
    """`{state: 1}`: input or output -> axis of its items.

    Raises:
        ModelLoadFailed: an axis is no whole number.
    """
    for name, axis in given.items():
        if type(axis) is not int or axis < 0:
            raise ModelLoadFailed(
                str(file),
                f"item_axis: {name}: expected the number of an axis from 0, given {axis!r}",
            )
    return {str(name): axis for name, axis in given.items()}


def names_of(given: Sequence[Any], file: pathlib.Path) -> tuple[str, ...]:
    """`[sr]`: names of inputs.

    Raises:
        ModelLoadFailed: one is no text.
    """
    if not all(isinstance(name, str) for name in given):
        raise ModelLoadFailed(
            str(file), f"shared: expected names of inputs, given {list(given)!r:.100}"
        )
    return tuple(given)


def pads_of(given: Mapping[Any, Any], file: pathlib.Path) -> dict[str, float]:
    """`{ids: 0}`: input -> value that fills it up.

    Raises:
        ModelLoadFailed: one is no number.
    """
    for name, value in given.items():
        if type(value) not in {int, float}:
            raise ModelLoadFailed(str(file), f"pad: {name}: expected a number, given {value!r}")
    return {str(name): float(value) for name, value in given.items()}
