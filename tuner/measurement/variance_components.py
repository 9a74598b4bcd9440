"""Variance components of measurements: blocks and evaluations.

On the log scale, block mean = configuration + evaluation + block: one-way random effects, pooled
over configurations and estimated by analysis of variance (Searle, Casella and McCulloch, Variance
Components, chapter 3).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from tuner.values.measurement import Measurement


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VarianceComponents:
    """Standard deviations on the log scale."""

    block_sd: float
    evaluation_sd: float | None
    """Sd between evaluations; None without repeats, 0 if blocks explain it all."""

    def trial_sd(self, blocks: int) -> float:
        """Return the sd of a mean of `blocks` blocks; without repeats, from blocks alone."""
        return math.sqrt((self.evaluation_sd or 0.0) ** 2 + self.block_sd**2 / blocks)


def components(configurations: Iterable[Sequence[Sequence[float]]]) -> VarianceComponents | None:
    """Split the spread of block means, nested in evaluations and configurations.

    Returns None if no evaluation has two blocks.
    """
    within_sum = between_sum = coefficient = 0.0
    within_degrees = between_degrees = 0
    for evaluations in configurations:
        logs = [np.log(np.asarray(blocks, dtype=float)) for blocks in evaluations if len(blocks)]
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
    evaluation_sd: float | None = None
    if between_degrees:
        per_evaluation = coefficient / between_degrees
        between = between_sum / between_degrees
        evaluation_sd = math.sqrt(max(0.0, (between - within) / per_evaluation))
    return VarianceComponents(block_sd=math.sqrt(within), evaluation_sd=evaluation_sd)


def components_of(configurations: Iterable[Sequence[Measurement]]) -> VarianceComponents | None:
    """Return the components, given each configuration's measurements."""
    return components(
        [[block.mean_ms for block in evaluation.blocks] for evaluation in evaluations]
        for evaluations in configurations
    )


def useful_seconds(noise: VarianceComponents, *, start_s: float, block_s: float) -> float:
    """Return the most cost-effective trial length; infinite without spread between evaluations.

    A trial of t seconds costs start + t and has variance evaluation_sd^2 + block_sd^2 x block_s /
    t; the product is lowest at (block_sd / evaluation_sd) x sqrt(block_s x start).
    """
    if not noise.evaluation_sd:
        return math.inf
    return noise.block_sd / noise.evaluation_sd * math.sqrt(block_s * start_s)
