"""A small latency surface with a known best cell, as an Optuna objective: what samplers are tried on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from tuner.sampling.candidates import CandidateSet
from tuner.sampling.encoding import Cube
from tuner.values.configuration import Configuration

DISTRIBUTIONS: dict[str, BaseDistribution] = {
    "replica.count": IntDistribution(1, 6),
    "batching.max_size": CategoricalDistribution((1, 2, 4, 8, 16, 32)),
    "replica.cpu": FloatDistribution(0.0, 1.0, step=0.2),
}
CUBE = Cube.of(DISTRIBUTIONS)


def latency_ms(values: Mapping[str, Any]) -> float:
    """A valley in replicas and batch size, oblique, a little tilted in CPU; 10 ms at its bottom."""
    count = (values["replica.count"] - 1) / 5
    batch = math.log2(values["batching.max_size"]) / 5
    cpu = values["replica.cpu"]
    bowl = 2 * (count - 0.8) ** 2 + 1.5 * (batch - 0.4) ** 2 + 0.3 * (cpu - 0.2) ** 2
    return 10 * math.exp(bowl + 0.5 * (count - 0.8) * (batch - 0.4))


def is_out_of_memory(values: Mapping[str, Any]) -> bool:
    """An oblique wall: more than a third of the cells lie behind it."""
    return bool(values["replica.count"] + math.log2(values["batching.max_size"]) > 6.1)


def noisy_ms(values: Mapping[str, Any], rng: np.random.Generator) -> float:
    """A launch: the latency with 5 % of noise."""
    return latency_ms(values) * math.exp(0.05 * rng.normal())


LATENCIES = sorted(
    latency_ms(dict(zip(DISTRIBUTIONS, row, strict=True)))
    for row in itertools.product(
        *(CUBE.axes[name].values() for name in DISTRIBUTIONS),
    )
)
"""Of all 216 cells, ascending."""


def rank(latency: float) -> int:
    """How many other cells are as good or better: ties are against it."""
    return sum(other < latency + 1e-9 for other in LATENCIES) - 1


def candidates(*, every: int = 1) -> CandidateSet:
    """The cells, or every n-th of them: a space with holes, which no distribution can express."""
    cells = CandidateSet.enumerate_cube(CUBE).configurations[::every]
    return CandidateSet.of(cells, CUBE.encode)


def small_candidates() -> CandidateSet:
    """Twelve cells of one knob."""
    cube = Cube.of({"a": IntDistribution(1, 12)})
    return CandidateSet.of([Configuration({"a": value}) for value in range(1, 13)], cube.encode)


def lucky_rank(cells: int, trials: int, searches: int, *, share: float = 1e-3) -> float:
    """Mean rank of the best of so many cells drawn at random, that no more than `share` of all samples of
    `searches` searches go below: what has to be beaten by who claims to search.

    Args:
        cells: of the surface.
        trials: different cells that each search draws.
        searches: over which ranks are averaged.
        share: of samples.
    """
    above = np.cumprod(
        1 - trials / (cells - np.arange(cells - trials + 1))
    )  # that no rank up to it is drawn
    drawn = np.random.default_rng(0).random((20_000, searches))
    return float(np.quantile(np.searchsorted(-above, -drawn).mean(axis=1), share))
