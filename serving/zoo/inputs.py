"""Input declarations of `model.yaml`, checked for form; a model's load checks the fit."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from serving.errors import InvalidSettings, ModelLoadFailed
from serving.tensors.sizes import sizes_of


def shapes_of(given: Mapping[Any, Any], file: pathlib.Path) -> tuple[str, ...]:
    """Convert `{image: [3, 640, 640], sequence: 16..512}` for `sizes.sizes_of`.

    Raises:
        ModelLoadFailed: a size is invalid.
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
    """Convert `{ids: 0..30521, rate: 16000}` for `input_values.value_specs_of`.

    Raises:
        ModelLoadFailed: not a number or text.
    """
    for name, value in given.items():
        if not isinstance(value, int | float | str) or str(value).startswith("@"):
            raise ModelLoadFailed(
                str(file),
                f"values: {name}: expected a number, a text or LOW..HIGH, given {value!r:.100}",
            )
    return tuple(f"{name}={value}" for name, value in given.items())


def axes_of(given: Mapping[Any, Any], file: pathlib.Path) -> dict[str, int]:
    """Check `{state: 1}`: input or output -> item axis.

    Raises:
        ModelLoadFailed: not a number from 0.
    """
    for name, axis in given.items():
        if type(axis) is not int or axis < 0:
            raise ModelLoadFailed(
                str(file),
                f"item_axis: {name}: expected the number of an axis from 0, given {axis!r}",
            )
    return {str(name): axis for name, axis in given.items()}


def names_of(given: Sequence[Any], file: pathlib.Path) -> tuple[str, ...]:
    """Check `[sr]`: names of inputs.

    Raises:
        ModelLoadFailed: not a text.
    """
    if not all(isinstance(name, str) for name in given):
        raise ModelLoadFailed(
            str(file), f"shared: expected names of inputs, given {list(given)!r:.100}"
        )
    return tuple(given)


def pads_of(given: Mapping[Any, Any], file: pathlib.Path) -> dict[str, float]:
    """Check `{ids: 0}`: input -> padding value.

    Raises:
        ModelLoadFailed: not a number.
    """
    for name, value in given.items():
        if type(value) not in {int, float}:
            raise ModelLoadFailed(str(file), f"pad: {name}: expected a number, given {value!r}")
    return {str(name): float(value) for name, value in given.items()}
