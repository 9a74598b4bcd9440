"""What is launched for each figure: configurations and loads, as values.

In: the name of a figure, the default configuration of a model. Out: `Point`s. The figures that
compare searches (c, d, e) have no points: `searches` makes them. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tuner.values.configuration import Value

CONCURRENCIES = (1, 5, 10, 20, 30, 40, 50, 60)
"""Those of the study."""
CLUSTERED = (5, 20)
"""Concurrencies at which the study shows single round trips."""
SEARCHED = 20
"""The concurrency of its figures of one search, and of the Clipper review."""
QUERIES = 100_000
"""Of one launch of the Clipper review."""
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
REPLICAS = (1, 2, 3, 4, 6, 8)
OBJECTIVES_MS = (2, 5, 10, 20, 50, 100, 200)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One launch, repeated in every round."""

    key: Mapping[str, float]
    """What tells it from the others of its figure; kept with its data."""
    concurrency: int
    configuration: Mapping[str, Value]
    is_sampled: bool = False
    """Whether single round trips are kept."""


def points(figure: str, default: Mapping[str, Value]) -> tuple[Point, ...]:
    """The launches of one round.

    Args:
        figure: a, b, batch, replicas or slo.
        default: the configuration that a point varies.
    """
    if figure == "a":
        return tuple(
            Point(key={"concurrency": n}, concurrency=n, configuration=default, is_sampled=True)
            for n in CLUSTERED
        )
    if figure == "b":
        return tuple(
            Point(key={"concurrency": n}, concurrency=n, configuration=default)
            for n in CONCURRENCIES
        )
    if figure == "batch":
        return _varied("batching.max_size", BATCH_SIZES, default)
    if figure == "replicas":
        return _varied("replica.count", REPLICAS, default)
    follows = {**default, "batching.policy": "aimd", "batching.max_size": max(BATCH_SIZES)}
    return _varied("batching.slo_ms", OBJECTIVES_MS, follows)


def _varied(knob: str, values: tuple[int, ...], default: Mapping[str, Value]) -> tuple[Point, ...]:
    return tuple(
        Point(key={knob: value}, concurrency=SEARCHED, configuration={**default, knob: value})
        for value in values
    )
