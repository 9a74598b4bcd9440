"""The cells that a sampler may propose, as configurations and as points of the unit cube.

Two sources: a search space, whose feasible and distinct cells somebody lists (`Candidates.of`),
or Optuna distributions. A finite grid of distributions is listed whole up to a limit; an endless
or larger one is drawn anew for each proposal: a scrambled Sobol set over the cube, and steps
around the configurations that look best so far.

Shapes: m cells, d entries of a vector in [0, 1]. Nothing here knows of objectives or models.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from tuner.errors import WrongUse
from tuner.sampling.encoding import Cube, place
from tuner.values import Configuration

Array = NDArray[np.float64]

LIMIT = 10_000
"""Largest grid of distributions that is listed whole: all of it is scored for each proposal."""

_STEPS = (0.2, 0.05, 0.01)
"""Standard deviations of the steps around good configurations, in shares of an axis: coarse, fine, finest."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Varying:
    """An encoding of which only some entries are kept, with features behind it."""

    encode: Callable[[Configuration], Array]
    features: Callable[[Configuration], Array] | None
    entries: NDArray[np.intp]

    def __call__(self, configuration: Configuration) -> Array:
        return np.asarray(self._whole(configuration)[self.entries], dtype=float)

    def _whole(self, configuration: Configuration) -> Array:
        knobs = self.encode(configuration)
        if self.features is None:
            return knobs
        return np.concatenate([knobs, self.features(configuration)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidates:
    """Cells and their vectors; complete, or a sample of an endless space (then `decode` makes more of them)."""

    cells: tuple[Configuration, ...]
    vectors: Array  # (m, d) in [0, 1]
    encode: Callable[[Configuration], Array] | None = None
    """Vector (d,) of any legal configuration, also one that is no cell; without it only cells can be placed."""
    decode: Callable[[Array], Configuration] | None = None
    """The legal configuration nearest to a vector; only where the cells are a sample."""
    extra: int = 0
    """Last entries of a vector that follow from the others: features, over which no design is spread."""

    def __post_init__(self) -> None:
        if not self.cells:
            raise WrongUse(
                "there are no candidates: the search space has no feasible cell; widen a knob or a constraint"
            )
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.cells):
            raise WrongUse(
                f"{len(self.cells)} cells need vectors of shape (m, d), given {self.vectors.shape}"
            )

    @classmethod
    def of(
        cls,
        cells: Collection[Configuration],
        encode: Callable[[Configuration], Array],
        features: Callable[[Configuration], Array] | None = None,
    ) -> Candidates:
        """All cells of a search space.

        Entries in which no two cells differ are left out: a knob that is held at one value is no
        dimension of a model.

        Args:
            cells: feasible and distinct configurations, all with the same knobs.
            encode: vector in [0, 1] of a configuration.
            features: more entries in [0, 1], which follow from a configuration's knobs.
        """
        ordered = tuple(cells)
        if not ordered:
            return cls(cells=(), vectors=np.empty((0, 0)))
        width = len(encode(ordered[0]))
        more = 0 if features is None else len(features(ordered[0]))
        whole = _Varying(encode, features, np.arange(width + more))
        vectors = np.array([whole(cell) for cell in ordered], dtype=float)
        entries = np.arange(width)
        if len(ordered) > 1:
            entries = np.flatnonzero(np.ptp(vectors, axis=0))
        return cls(
            cells=ordered,
            vectors=vectors[:, entries],
            encode=dataclasses.replace(whole, entries=entries),
            extra=int(np.count_nonzero(entries >= width)),
        )

    @classmethod
    def listed(cls, cube: Cube) -> Candidates:
        """Every cell of a finite cube."""
        columns = [axis.values() for axis in cube.axes.values()]
        blocks = [
            axis.encode(values) for axis, values in zip(cube.axes.values(), columns, strict=True)
        ]
        positions = np.indices([len(values) for values in columns]).reshape(len(columns), -1)
        vectors = np.hstack(
            [block[position] for block, position in zip(blocks, positions, strict=True)]
        )
        names = tuple(cube.axes)
        cells = (
            Configuration(dict(zip(names, row, strict=True))) for row in itertools.product(*columns)
        )
        return cls(cells=tuple(cells), vectors=vectors, encode=cube.encode)

    @classmethod
    def drawn(
        cls, cube: Cube, rng: np.random.Generator, *, around: Array, count: int = 2048
    ) -> Candidates:
        """A sample of an endless cube.

        Args:
            cube: the axes.
            rng: source of the draw.
            around: (k, d) vectors of the best configurations so far; k may be 0.
            count: points spread over the whole cube; half as many are steps around the best.
        """
        points = [sobol(cube.width, count, rng)]
        if len(around):
            each = count // (2 * len(_STEPS))
            for sd in _STEPS:
                centres = around[rng.integers(len(around), size=each)]
                moved = rng.random(centres.shape) < max(0.5, 1.0 / cube.width)
                points.append(
                    np.clip(centres + moved * rng.normal(0.0, sd, centres.shape), 0.0, 1.0)
                )
        cells = tuple(dict.fromkeys(cube.decode_all(np.vstack(points))))
        vectors = cube.encode_all(cells)
        return cls(cells=cells, vectors=vectors, encode=cube.encode, decode=cube.decode)

    @property
    def is_complete(self) -> bool:
        """Whether these are all cells there are."""
        return self.decode is None

    @property
    def width(self) -> int:
        """Entries d of a vector."""
        return int(self.vectors.shape[1])

    @property
    def design_width(self) -> int:
        """Entries over which a design is spread: those that do not follow from others."""
        return self.width - self.extra

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Knobs of the cells."""
        return frozenset(self.cells[0])

    @functools.cached_property
    def _index(self) -> dict[tuple[Any, ...], int]:
        return {_key(cell): index for index, cell in enumerate(self.cells)}

    def index_of(self, configuration: Mapping[str, Any]) -> int | None:
        """Position of the cell with these values (other knobs are ignored), None if there is none."""
        if not self.names <= configuration.keys():
            return None
        return self._index.get(_key({name: configuration[name] for name in self.names}))

    def vector_of(self, configuration: Mapping[str, Any]) -> Array | None:
        """Vector (d,) of a configuration, None where it cannot be placed."""
        index = self.index_of(configuration)
        if index is not None:
            return np.asarray(self.vectors[index], dtype=float)
        return None if self.encode is None else place(configuration, self.names, self.encode)

    def placed(
        self, configuration: Configuration, features: Callable[[Configuration], Array]
    ) -> Array | None:
        """Vector (d,) of a configuration with other features than its own; None where these have none."""
        if not isinstance(self.encode, _Varying):
            return None
        encode = self.encode
        if encode.features is not None:
            encode = dataclasses.replace(encode, features=features)
        return place(configuration, self.names, encode)

    def unseen(self, seen: Collection[Configuration]) -> NDArray[np.intp]:
        """Positions of the cells that are not among these configurations, ascending."""
        is_free = np.ones(len(self.cells), dtype=bool)
        is_free[[index for index in map(self.index_of, seen) if index is not None]] = False
        return np.flatnonzero(is_free)

    def nearest(self, vector: Array, among: NDArray[np.intp]) -> int:
        """Position of the cell that is nearest to a point, the first of equals; `among` is not empty.

        Args:
            vector: (design_width,), or more entries, which are not looked at.
            among: positions.
        """
        width = self.design_width
        distances = ((self.vectors[among, :width] - vector[:width]) ** 2).sum(axis=1)
        return int(among[int(np.argmin(distances))])

    def realise(self, vector: Array, among: NDArray[np.intp]) -> Configuration:
        """The configuration nearest to a vector (d,): one of these cells, or any legal one of an endless space."""
        return (
            self.cells[self.nearest(vector, among)] if self.decode is None else self.decode(vector)
        )

    def agreeing(self, fixed: Mapping[str, Any]) -> Candidates:
        """Only the cells with these values, or all where no cell has them (what is fixed then is not a cell)."""
        known = {name: value for name, value in fixed.items() if name in self.names}
        if not known:
            return self
        if self.decode is not None and self.encode is not None:
            moved = tuple(dict.fromkeys(Configuration({**cell, **known}) for cell in self.cells))
            vectors = [self.vector_of(cell) for cell in moved]
            kept = [index for index, vector in enumerate(vectors) if vector is not None]
            rows = np.array([vectors[index] for index in kept], dtype=float)
        else:
            moved = self.cells
            kept = [
                i
                for i, cell in enumerate(moved)
                if all(cell[name] == value for name, value in known.items())
            ]
            rows = self.vectors[kept]
        if not kept:
            return self
        return dataclasses.replace(self, cells=tuple(moved[index] for index in kept), vectors=rows)


def sobol(width: int, count: int, rng: np.random.Generator) -> Array:
    """The first `count` points (count, width) of a scrambled Sobol sequence in [0, 1)."""
    engine = qmc.Sobol(width, scramble=True, rng=rng)
    # The sequence is balanced at powers of two; the start of a balanced set still spreads better than random points.
    return np.asarray(engine.random_base2(max(0, count - 1).bit_length()), dtype=float)[:count]


def _key(configuration: Mapping[str, Any]) -> tuple[Any, ...]:
    """Values by name, floats to 12 digits: a grid value that went through arithmetic or a store is still itself."""
    return tuple(
        float(f"{value:.12g}") if isinstance(value, float) else value
        for _, value in sorted(configuration.items())
    )
