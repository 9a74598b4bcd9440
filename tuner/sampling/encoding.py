"""Optuna distributions as axes of the unit cube.

Numbers are linear or logarithmic, ascending choices are ranked, and other choices are one-hot, all
equally far apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from tuner.errors import UsageError
from tuner.sampling.arrays import Array
from tuner.values.configuration import Configuration

_ONE_HOT = math.sqrt(0.5)
"""Value of a one-hot entry at which any two choices have distance 1."""

_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class ChoiceAxis:
    """Axis of a categorical parameter: ranks if it is ordered, otherwise one-hot."""

    choices: tuple[Any, ...]

    @property
    def is_ordered(self) -> bool:
        """Whether there are two choices, or ascending numbers."""
        if len(self.choices) <= 2:
            return True
        are_numbers = all(
            isinstance(c, int | float) and not isinstance(c, bool) for c in self.choices
        )
        return are_numbers and all(
            a < b for a, b in zip(self.choices, self.choices[1:], strict=False)
        )

    @property
    def width(self) -> int:
        """Number of entries in a vector."""
        return 1 if self.is_ordered else len(self.choices)

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.choices)

    def values(self) -> list[Any]:
        """Return all values."""
        return list(self.choices)

    def contains(self, value: Any) -> bool:
        """Whether the value is legal."""
        return value in self.choices

    def encode(self, values: Sequence[Any]) -> Array:
        """Encode values as vectors (n, width)."""
        positions = np.array([self.choices.index(value) for value in values])
        if self.is_ordered:
            return (positions / max(1, self.size - 1))[:, None]
        return np.asarray(_ONE_HOT * np.eye(self.size)[positions])

    def decode(self, block: Array) -> list[Any]:
        """Return the values nearest to vectors (n, width)."""
        ranks = np.rint(np.clip(block[:, 0], 0, 1) * (self.size - 1))
        positions = ranks.astype(int) if self.is_ordered else np.argmax(block, axis=1)
        return [self.choices[position] for position in positions.tolist()]

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw a value uniformly."""
        return self.choices[int(rng.integers(self.size))]


@dataclasses.dataclass(frozen=True, slots=True)
class NumberAxis:
    """Axis of a number, linear or logarithmic, optionally with a step; low < high."""

    low: float
    high: float
    log: bool
    step: float | None
    is_integer: bool
    width: int = 1

    @property
    def size(self) -> int | None:
        """Number of values, or None if infinite."""
        return None if self.step is None else round((self.high - self.low) / self.step) + 1

    def values(self) -> list[Any]:
        """Return all values, ascending; requires a finite `size`."""
        assert self.size is not None
        assert self.step is not None
        return self._legal(self.low + self.step * np.arange(self.size, dtype=np.float64))

    def contains(self, value: Any) -> bool:
        """Whether the value is legal."""
        if isinstance(value, str | bool) or value is None or not self.low <= value <= self.high:
            return False
        if self.step is None:
            return True
        steps = (value - self.low) / self.step
        return bool(abs(steps - round(steps)) < 1e-8)

    def encode(self, values: Sequence[Any]) -> Array:
        """Encode values as vectors (n, 1)."""
        column = np.asarray(values, dtype=float)[:, None]
        if self.log:
            if np.any(column <= 0):
                raise ValueError("a value of a logarithmic parameter is not positive")
            return np.asarray(np.log(column / self.low) / math.log(self.high / self.low))
        return np.asarray((column - self.low) / (self.high - self.low))

    def decode(self, block: Array) -> list[Any]:
        """Return the values nearest to vectors (n, 1)."""
        share = np.clip(block[:, 0], 0.0, 1.0)
        if self.log:
            return self._legal(self.low * (self.high / self.low) ** share)
        return self._legal(self.low + share * (self.high - self.low))

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw a value; the ends of a grid are as likely as its middle."""
        margin = 0.0 if self.step is None else self.step / 2
        if self.log:
            low, high = math.log(self.low - margin), math.log(self.high + margin)
            return self._legal(np.array([math.exp(rng.uniform(low, high))]))[0]
        return self._legal(np.array([rng.uniform(self.low - margin, self.high + margin)]))[0]

    def _legal(self, values: Array) -> list[Any]:
        if self.step is not None:
            values = self.low + np.rint((values - self.low) / self.step) * self.step
        values = np.clip(values, self.low, self.high)
        found: list[Any] = (np.rint(values).astype(int) if self.is_integer else values).tolist()
        return found


Axis = ChoiceAxis | NumberAxis


def axis_of(distribution: BaseDistribution) -> Axis:
    """Return a distribution's axis, or raise UsageError for an unknown type."""
    if isinstance(distribution, CategoricalDistribution):
        return ChoiceAxis(distribution.choices)
    if isinstance(distribution, IntDistribution | FloatDistribution):
        return NumberAxis(
            float(distribution.low),
            float(distribution.high),
            distribution.log,
            None if distribution.step is None else float(distribution.step),
            is_integer=isinstance(distribution, IntDistribution),
        )
    raise UsageError(
        f"a distribution of type {type(distribution).__name__} is not known; "
        "expected a float, int or categorical distribution of Optuna"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Cube:
    """Axes by sorted name; parameters with a single value have none."""

    axes: Mapping[str, Axis]

    @classmethod
    def of(cls, distributions: Mapping[str, BaseDistribution]) -> Cube:
        """Build the axes of parameters with more than one value."""
        return cls(
            {
                name: axis_of(dist)
                for name, dist in sorted(distributions.items())
                if not dist.single()
            }
        )

    @property
    def names(self) -> frozenset[str]:
        """Names of the parameters that have an axis."""
        return frozenset(self.axes)

    @property
    def width(self) -> int:
        """Length d of an encoded configuration."""
        return sum(axis.width for axis in self.axes.values())

    @property
    def size(self) -> int | None:
        """Number of candidates, or None if infinite."""
        sizes = [axis.size for axis in self.axes.values()]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def encode(self, configuration: Mapping[str, Any]) -> Array:
        """Return a configuration's vector (d,).

        Raises KeyError, TypeError or ValueError if the configuration is illegal.
        """
        return np.asarray(self.encode_all([configuration])[0])

    def encode_all(self, configurations: Sequence[Mapping[str, Any]]) -> Array:
        """Encode configurations as vectors (n, d)."""
        return np.hstack(
            [axis.encode([c[name] for c in configurations]) for name, axis in self.axes.items()]
        )

    def vector_of(self, values: Mapping[str, Any]) -> Array | None:
        """Return the vector (d,), or None outside the space; other parameters are ignored."""
        return encode_values(values, self.names, self.encode)

    def decode(self, vector: Array) -> Configuration:
        """Return the legal configuration nearest to a vector (d,)."""
        return self.decode_all(vector[None])[0]

    def decode_all(self, vectors: Array) -> list[Configuration]:
        """Return the legal configurations nearest to vectors (n, d)."""
        columns, start = [], 0
        for axis in self.axes.values():
            columns.append(axis.decode(vectors[:, start : start + axis.width]))
            start += axis.width
        names = tuple(self.axes)
        rows = zip(*columns, strict=True)
        return [Configuration(dict(zip(names, row, strict=True))) for row in rows]


def encode_values(
    values: Mapping[str, Any], names: AbstractSet[str], encode: Callable[[Configuration], Array]
) -> Array | None:
    """Return the vector (d,), or None if a value is missing or outside the space."""
    if not names <= values.keys():
        return None
    try:
        vector = encode(Configuration({name: values[name] for name in names}))
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None
    is_inside = bool(np.all((vector >= -_ROUNDING) & (vector <= 1 + _ROUNDING)))
    return np.clip(vector, 0.0, 1.0) if is_inside else None
