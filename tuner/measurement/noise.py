"""Variance components of measurements: blocks and evaluations. Pure.

On the log scale, block mean = configuration + evaluation + block: one-way random effects, pooled
over configurations, by analysis of variance (Searle, Casella and McCulloch, Variance Components,
chapter 3). The interval between evaluations is Williams' and Tukey's, slightly too wide (1962,
Biometrika 49:278). Drift over hours appears as spread between evaluations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import special

from tuner.values import UNKNOWN, Interval, Measurement


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseComponents:
    """Standard deviations on the log scale, with degrees of freedom."""

    block_sd: float
    block_interval: Interval
    block_degrees: int
    launch_sd: float | None
    """None without repeated evaluations; 0 if blocks explain all."""
    launch_interval: Interval
    launch_degrees: int

    def trial_sd(self, blocks: int) -> float:
        """Return the sd of a mean of so many blocks; without repeats, from blocks alone."""
        return math.sqrt((self.launch_sd or 0.0) ** 2 + self.block_sd**2 / blocks)


def components(configurations: Iterable[Sequence[Sequence[float]]]) -> NoiseComponents | None:
    """Split the spread of block means, nested in evaluations and configurations.

    None if no evaluation has two blocks.
    """
    within_sum = between_sum = coefficient = 0.0
    within_degrees = between_degrees = 0
    for launches in configurations:
        logs = [np.log(np.asarray(blocks, dtype=float)) for blocks in launches if len(blocks)]
        if not logs:
            continue
        counts = np.array([len(log) for log in logs], dtype=float)
        means = np.array([log.mean() for log in logs])
        overall = float(counts @ means / counts.sum())
        within_sum += sum(
            float(((log - mean) ** 2).sum()) for log, mean in zip(logs, means, strict=True)
        )
        within_degrees += int(counts.sum()) - len(logs)
        between_sum += float(counts @ (means - overall) ** 2)
        between_degrees += len(logs) - 1
        # Weight of the evaluation variance in E[between_sum], for unequal block numbers.
        coefficient += float(counts.sum() - (counts**2).sum() / counts.sum())
    if within_degrees == 0:
        return None
    within = within_sum / within_degrees
    launch_sd, launch_interval = None, UNKNOWN
    if between_degrees:
        per_launch = coefficient / between_degrees
        between = between_sum / between_degrees
        launch_sd = math.sqrt(max(0.0, (between - within) / per_launch))
        launch_interval = excess_interval(
            between, within, between_degrees, within_degrees, per_launch
        )
    return NoiseComponents(
        block_sd=math.sqrt(within),
        block_interval=sd_interval(within, within_degrees),
        block_degrees=within_degrees,
        launch_sd=launch_sd,
        launch_interval=launch_interval,
        launch_degrees=between_degrees,
    )


def components_of(configurations: Iterable[Sequence[Measurement]]) -> NoiseComponents | None:
    """Return `components` of each configuration's measurements."""
    return components(
        [[block.mean_ms for block in launch.blocks] for launch in launches]
        for launches in configurations
    )


def sd_interval(variance: float, degrees: int) -> Interval:
    """Return the 95 % interval of a standard deviation, by chi-squared."""
    low, high = (float(special.chdtri(degrees, share)) for share in (0.025, 0.975))
    return Interval(
        low=math.sqrt(degrees * variance / low), high=math.sqrt(degrees * variance / high)
    )


def excess_interval(
    between: float, within: float, between_degrees: int, within_degrees: int, per_launch: float
) -> Interval:
    """Return Williams' and Tukey's interval of the excess standard deviation.

    `between` is a mean square with expectation `within` plus `per_launch` times the variance.
    """
    ends = []
    for share in (0.975, 0.025):
        ratio = float(special.fdtri(between_degrees, within_degrees, share))
        chi2 = float(special.chdtri(between_degrees, 1 - share))
        excess = between_degrees * (between - within * ratio) / (per_launch * chi2)
        ends.append(math.sqrt(max(0.0, excess)))
    return Interval(low=ends[0], high=ends[1])


def useful_seconds(noise: NoiseComponents, *, start_s: float, block_s: float) -> float:
    """Return the most cost-effective trial length; infinite without evaluation spread.

    A trial of t seconds costs start + t and has variance launch_sd^2 + block_sd^2 x block_s / t;
    the product is least at t = (block_sd / launch_sd) x sqrt(block_s x start). `start_s` is an
    evaluation's cost besides its measurement.
    """
    if not noise.launch_sd:
        return math.inf
    return noise.block_sd / noise.launch_sd * math.sqrt(block_s * start_s)
