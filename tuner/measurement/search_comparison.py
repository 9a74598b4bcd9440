"""Comparison of samplers by their best values so far and their winners.

The unit is a repeat, as evaluations of one winner say nothing about other searches; with a single
repeat, it is a round.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence

from tuner.measurement import comparison
from tuner.metrics.objective import Objective
from tuner.values.sampler_comparison import SamplerDifference, SamplerRun

Pair = tuple[float, float]
"""Objective values of two winners, in the objective's unit."""


def best_so_far(values: Iterable[float | None], objective: Objective) -> tuple[float | None, ...]:
    """Return the best value after each trial, or None before the first value."""
    found: list[float | None] = []
    best: float | None = None
    for value in values:
        if value is not None:
            best = value if best is None else objective.better(best, value)
        found.append(best)
    return tuple(found)


def differences(runs: Sequence[SamplerRun], objective: Objective) -> tuple[SamplerDifference, ...]:
    """Compare each pair of samplers by their re-evaluated winners, over two or more units."""
    samplers = list(dict.fromkeys(run.sampler for run in runs))
    found = []
    for first, second in itertools.combinations(samplers, 2):
        pairs = _pairs(_of(runs, first), _of(runs, second), objective)
        if len(pairs) >= comparison.MIN_PAIRS:
            found.append(_difference(first, second, pairs, objective))
    return tuple(found)


def _of(runs: Sequence[SamplerRun], sampler: str) -> list[SamplerRun]:
    return sorted((run for run in runs if run.sampler == sampler), key=lambda run: run.repeat)


def _pairs(
    first: Sequence[SamplerRun], second: Sequence[SamplerRun], objective: Objective
) -> list[Pair]:
    by_repeat: list[list[Pair]] = []
    for one, other in zip(first, second, strict=True):
        if one.remeasured and other.remeasured:
            values = map(objective.value, one.remeasured)
            others = map(objective.value, other.remeasured)
            by_repeat.append(list(zip(values, others, strict=True)))
    if len(first) == 1:
        return by_repeat[0] if by_repeat else []
    mean = statistics.geometric_mean
    return [(mean(a for a, _ in rounds), mean(b for _, b in rounds)) for rounds in by_repeat]


def _difference(
    first: str, second: str, pairs: Sequence[Pair], objective: Objective
) -> SamplerDifference:
    ratio, interval = comparison.ratio_interval([a for a, _ in pairs], [b for _, b in pairs])
    outcome = objective.judge(interval)
    ends = f"95 % interval {interval.low:.3g} to {interval.high:.3g}, {len(pairs)} pairs"
    if interval.is_vague:
        ends = f"{len(pairs)} pairs that differ this much are too few"
    text = f"The winners of {first} are {outcome} than those of {second}"
    if outcome == "no difference shown":
        text = f"No difference shown between the winners of {first} and {second}"
    return SamplerDifference(
        first=first,
        second=second,
        outcome=outcome,
        ratio=ratio,
        interval=interval,
        text=f"{text} (ratio {ratio:.3g}, {ends}).",
    )
