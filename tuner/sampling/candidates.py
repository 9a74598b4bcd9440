"""A sampler's candidates, as configurations and as points of the unit cube.

A finite grid is listed up to a limit; otherwise each proposal samples Sobol points and steps around
the best configurations. Shapes: m candidates, d entries in [0, 1].
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.sampling.arrays import Array, Positions
from tuner.sampling.encoding import Cube, encode_values
from tuner.values.configuration import Configuration

LIMIT = 10_000

_STEPS = (0.2, 0.05, 0.01)
"""Sds of steps around good configurations, as shares of an axis."""


@dataclasses.dataclass(frozen=True, slots=True)
class _VaryingEncoding:
    encode: Callable[[Configuration], Array]
    features: Callable[[Configuration], Array] | None
    entries: Positions

    def __call__(self, configuration: Configuration) -> Array:
        return np.asarray(self._whole(configuration)[self.entries], dtype=float)

    def _whole(self, configuration: Configuration) -> Array:
        knobs = self.encode(configuration)
        if self.features is None:
            return knobs
        return np.concatenate([knobs, self.features(configuration)])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CandidateSet:
    """All candidates and their vectors, or a sample of them (with `decode`)."""

    configurations: tuple[Configuration, ...]
    vectors: Array  # (m, d) in [0, 1]
    encode: Callable[[Configuration], Array] | None = None
    """Returns any legal configuration's vector (d,); None if only the candidates have one."""
    decode: Callable[[Array], Configuration] | None = None
    """Returns the legal configuration nearest to a vector; only for samples."""
    extra: int = 0

    def __post_init__(self) -> None:
        if not self.configurations:
            raise UsageError(
                "there are no candidates: no configuration of the search space is "
                "feasible; widen a knob or a constraint"
            )

    @classmethod
    def of(
        cls,
        candidates: Collection[Configuration],
        encode: Callable[[Configuration], Array],
        features: Callable[[Configuration], Array] | None = None,
    ) -> CandidateSet:
        """Build a search space's candidates; their vectors leave out constant entries.

        Args:
            candidates: feasible and distinct configurations, with the same knobs.
            encode: returns a configuration's vector in [0, 1].
            features: returns further entries in [0, 1].
        """
        ordered = tuple(candidates)
        if not ordered:
            return cls(configurations=(), vectors=np.empty((0, 0)))
        width = len(encode(ordered[0]))
        more = 0 if features is None else len(features(ordered[0]))
        whole = _VaryingEncoding(encode, features, np.arange(width + more))
        vectors = np.array([whole(cell) for cell in ordered], dtype=float)
        entries = np.arange(width)
        if len(ordered) > 1:
            entries = np.flatnonzero(np.ptp(vectors, axis=0))
        return cls(
            configurations=ordered,
            vectors=vectors[:, entries],
            encode=dataclasses.replace(whole, entries=entries),
            extra=int(np.count_nonzero(entries >= width)),
        )

    @classmethod
    def enumerate_cube(cls, cube: Cube) -> CandidateSet:
        """List all points of a finite cube."""
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
        return cls(configurations=tuple(cells), vectors=vectors, encode=cube.encode)

    @classmethod
    def sample_cube(
        cls, cube: Cube, rng: np.random.Generator, *, around: Array, count: int = 2048
    ) -> CandidateSet:
        """Sample an infinite cube: `count` Sobol points, half as many around the best (k, d)."""
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
        return cls(configurations=cells, vectors=vectors, encode=cube.encode, decode=cube.decode)

    @property
    def is_complete(self) -> bool:
        """Whether these are all candidates of the space."""
        return self.decode is None

    @property
    def width(self) -> int:
        """Number of entries d of a vector."""
        return int(self.vectors.shape[1])

    @property
    def design_width(self) -> int:
        """Number of vector entries that are not derived."""
        return self.width - self.extra

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Names of the candidates' knobs."""
        return frozenset(self.configurations[0])

    @functools.cached_property
    def _index(self) -> dict[tuple[Any, ...], int]:
        return {_key(cell): index for index, cell in enumerate(self.configurations)}

    @functools.cached_property
    def _exact(self) -> dict[Configuration, int]:
        return {cell: index for index, cell in enumerate(self.configurations)}

    def index_of(self, configuration: Mapping[str, Any]) -> int | None:
        """Return the position of the candidate with these values, or None."""
        if isinstance(configuration, Configuration) and configuration in self._exact:
            return self._exact[configuration]  # most are; rounding below takes ten times as long
        if not self.names <= configuration.keys():
            return None
        return self._index.get(_key({name: configuration[name] for name in self.names}))

    def values_at(
        self, configurations: Sequence[Configuration], values: Array | None
    ) -> Array | None:
        """Select the values (k,) of `configurations`; None if one of them is not a candidate."""
        places = None if values is None else self.places_of(configurations)
        return None if values is None or places is None else values[places]

    def places_of(self, configurations: Sequence[Configuration]) -> Positions | None:
        """Return the positions (k,) of `configurations`; None if one of them is not a candidate."""
        places = [self.index_of(one) for one in configurations]
        known = [place for place in places if place is not None]
        return np.array(known, dtype=np.intp) if len(known) == len(places) else None

    def vector_of(self, configuration: Mapping[str, Any]) -> Array | None:
        """Return a configuration's vector (d,), or None outside the space."""
        index = self.index_of(configuration)
        if index is not None:
            return np.asarray(self.vectors[index], dtype=float)
        return (
            None if self.encode is None else encode_values(configuration, self.names, self.encode)
        )

    def encode_with_features(
        self, configuration: Configuration, features: Callable[[Configuration], Array]
    ) -> Array | None:
        """Return a configuration's vector (d,) with other features, or None outside the space."""
        if not isinstance(self.encode, _VaryingEncoding):
            return None
        encode = self.encode
        if encode.features is not None:
            encode = dataclasses.replace(encode, features=features)
        return encode_values(configuration, self.names, encode)

    def untried(self, seen: Collection[Configuration]) -> Positions:
        """Return the ascending positions of candidates not in `seen`."""
        is_free = np.ones(len(self.configurations), dtype=bool)
        is_free[[index for index in map(self.index_of, seen) if index is not None]] = False
        return np.flatnonzero(is_free)

    def nearest(self, vector: Array, among: Positions) -> int:
        """Return the position of the nearest candidate, or the first if several tie."""
        width = self.design_width
        distances = ((self.vectors[among, :width] - vector[:width]) ** 2).sum(axis=1)
        return int(among[int(np.argmin(distances))])

    def realise(self, vector: Array, among: Positions) -> Configuration:
        """Return the nearest candidate, or the nearest legal configuration if this is a sample."""
        return (
            self.configurations[self.nearest(vector, among)]
            if self.decode is None
            else self.decode(vector)
        )

    def agreeing(self, fixed: Mapping[str, Any]) -> CandidateSet:
        """Return the candidates with these values, or all if there are none."""
        known = {name: value for name, value in fixed.items() if name in self.names}
        if not known:
            return self
        if self.is_complete:
            pairs = zip(self.configurations, self.vectors, strict=True)
            kept = {cell: row for cell, row in pairs if known.items() <= cell.items()}
        else:
            moved = (Configuration({**cell, **known}) for cell in self.configurations)
            kept = {cell: row for cell in moved if (row := self.vector_of(cell)) is not None}
        if not kept:
            return self
        return dataclasses.replace(
            self, configurations=tuple(kept), vectors=np.array(list(kept.values()), dtype=float)
        )


def sobol(width: int, count: int, rng: np.random.Generator) -> Array:
    """Return points (count, width) of a scrambled Sobol sequence in [0, 1)."""
    from scipy.stats import qmc  # noqa: PLC0415 - takes 0.7 s, which other commands need not wait

    engine = qmc.Sobol(width, scramble=True, rng=rng)
    # Sobol sets are balanced at powers of two; a prefix still beats random points.
    return np.asarray(engine.random_base2(max(0, count - 1).bit_length()), dtype=float)[:count]


def _key(configuration: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(
        float(f"{value:.12g}") if isinstance(value, float) else value
        for _, value in sorted(configuration.items())
    )
