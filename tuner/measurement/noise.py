"""How much measurements of one configuration differ, split into what blocks and what launches bring.

In: means of blocks, nested in launches, nested in configurations. Out: two standard deviations with
95 % intervals, on the log scale: 0.05 reads as 5 %. From them: how uncertain one trial is, and how
long it should be.

Model: log(block mean) = configuration + launch + block, one-way random effects within each
configuration, pooled over configurations because it is the relative noise that they share.
Estimated by analysis of variance (Searle, Casella and McCulloch, Variance Components, chapter 3);
the interval between launches is Williams' and Tukey's (1962, Biometrika 49:278), which is somewhat
too wide rather than too narrow. Drift over time is not a part of the model: launches that lie hours
apart show it as spread between launches.
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
    """Standard deviations on the log scale, and the degrees of freedom behind them."""

    block_sd: float
    block_interval: Interval
    block_degrees: int
    launch_sd: float | None
    """None where no configuration was launched twice; 0 where launches differ no more than their blocks explain."""
    launch_interval: Interval
    launch_degrees: int

    def trial_sd(self, blocks: int) -> float:
        """Of the mean of one launch measured in so many blocks; without repeats only what blocks show."""
        return math.sqrt((self.launch_sd or 0.0) ** 2 + self.block_sd**2 / blocks)


def components(configurations: Iterable[Sequence[Sequence[float]]]) -> NoiseComponents | None:
    """Split the spread of block means.

    Args:
        configurations: for each its launches, for each launch the means of its blocks (any positive
            unit).

    Returns:
        The components; None where no launch has two blocks.
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
        # The between-launch variance enters E[between_sum] with this weight (unequal numbers of
        # blocks).
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
    """`components` of measurements: for each configuration its launches."""
    return components(
        [[block.mean_ms for block in launch.blocks] for launch in launches]
        for launches in configurations
    )


def sd_interval(variance: float, degrees: int) -> Interval:
    """95 % interval of a standard deviation, by chi-squared."""
    low, high = (float(special.chdtri(degrees, share)) for share in (0.025, 0.975))
    return Interval(
        low=math.sqrt(degrees * variance / low), high=math.sqrt(degrees * variance / high)
    )


def excess_interval(
    between: float, within: float, between_degrees: int, within_degrees: int, per_launch: float
) -> Interval:
    """Williams and Tukey: the chi-square interval of `between`, less what F says that `within` explains.

    Args:
        between: mean square whose expectation is that of `within` plus `per_launch` times the variance.
        within: mean square of what lies below.
        between_degrees: of freedom.
        within_degrees: of freedom.
        per_launch: weight of the variance.
    """
    ends = []
    for share in (0.975, 0.025):
        ratio = float(special.fdtri(between_degrees, within_degrees, share))
        chi2 = float(special.chdtri(between_degrees, 1 - share))
        excess = between_degrees * (between - within * ratio) / (per_launch * chi2)
        ends.append(math.sqrt(max(0.0, excess)))
    return Interval(low=ends[0], high=ends[1])


def useful_seconds(noise: NoiseComponents, *, start_s: float, block_s: float) -> float:
    """Length of a trial that tells most for its cost; beyond it more launches tell more than longer ones.

    A trial of t seconds costs start + t and has the variance launch_sd^2 + block_sd^2 x block_s /
    t; their product is least at t = (block_sd / launch_sd) x sqrt(block_s x start).

    Args:
        noise: the components.
        start_s: what a launch costs beside its measurement.
        block_s: length of the blocks that the components were estimated from.

    Returns:
        Seconds; infinite where launches are not known to differ.
    """
    if not noise.launch_sd:
        return math.inf
    return noise.block_sd / noise.launch_sd * math.sqrt(block_s * start_s)
