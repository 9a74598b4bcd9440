"""Course of the recorded machine: how slow it was at every moment of a recording.

What a block's mean, its p99 and an evaluation's CPU time per request differ by from what is usual
for their configuration is the machine's, whatever was running. Laid out in time, in steps of
`STEP_S`, it is the machine on which a replay takes place: pauses between sessions are cut out, and
the end continues with the beginning.

Of few requests, a block's mean varies by chance, and more for slow configurations. This part is
taken out of the course, and what is replayed has its own (`chance_sd`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tuner.lab.tables import effects
from tuner.lab.tables.table import BenchmarkTable, RecordedEvaluation
from tuner.measurement.host import log_cpu_per_request
from tuner.sampling.arrays import Array

STEP_S = 0.1
MAX_PAUSE_S, KEPT_PAUSE_S = 10.0, 1.0
"""Pause between blocks that is cut out, and what is left of it."""
QUICK_PART = 0.3
"""Share of the evaluations that count as quick."""
NORMAL_SPREAD = 3.29
"""p95 - p5 of a normal distribution, in standard deviations."""
Steps = NDArray[np.int64]


class Slowdown(NamedTuple):
    """Logarithms of how slow the machine was, against what is usual for the configuration."""

    mean: float
    """Of mean latency."""
    tail: float
    """Of the p99."""
    cpu: float
    """Of CPU time per request."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MachineCourse:
    """Slowdown of the machine at each of n steps, and in each recorded evaluation."""

    mean: Array  # (n,)
    tail: Array  # (n,)
    cpu: Array  # (n,)
    taken: Array  # (n,) share of the machine that others took, as far as known
    by_evaluation: Mapping[int, Slowdown]

    @classmethod
    def of(cls, table: BenchmarkTable) -> Self:
        """Take the course out of a table, at least one of whose evaluations worked."""
        worked = sorted(
            (one for one in table.evaluations if one.blocks), key=lambda one: one.started_at
        )
        numbers = {cell: number for number, cell in enumerate({one.cell: None for one in worked})}
        cells = np.array([numbers[one.cell] for one in worked])
        at_s = np.array([one.started_at for one in worked])

        def apart(values: list[float]) -> tuple[Array, Array]:
            logs = np.array(values)
            known = np.isfinite(logs)
            left, machine = np.zeros(len(logs)), np.zeros(len(logs))
            if known.any():
                _, again = np.unique(cells[known], return_inverse=True)
                found = effects.fit(again, at_s[known], logs[known])
                left[known], machine[known] = found.left, found.machine
            return left, machine

        blocks = [_BlockLogs.of(one) for one in worked]
        chances = np.array([one.chance**2 / len(one.mean) for one in blocks])
        own_mean, mean = apart([one.level for one in blocks])
        own_tail, tail = apart([float(one.tail.mean()) for one in blocks])
        own_cpu, cpu = apart([_log_cpu(table, one) for one in worked])
        mean = _without_chance(mean, chances)
        within = _as_of_quick_ones(
            [_without_chance(one.mean - one.mean.mean(), one.chance**2) for one in blocks],
            np.array([one.level for one in blocks]),
        )
        taken = np.array([_taken(one, table.cores) for one in worked])
        ends_s, of_block, steps = _layout(worked)
        values = np.concatenate([mean[n] + part for n, part in enumerate(within)])
        tails = np.concatenate(
            [tail[n] + one.tail - one.tail.mean() for n, one in enumerate(blocks)]
        )
        place = np.minimum(np.searchsorted(ends_s, steps), len(ends_s) - 1)
        seconds = worked[0].blocks[0].seconds
        return cls(
            mean=values[place] + _finer(place, within, seconds),
            tail=tails[place] + _finer(place, [one.tail for one in blocks], seconds),
            cpu=cpu[of_block[place]],
            taken=taken[of_block[place]],
            by_evaluation={
                one.number: Slowdown(float(own_mean[n]), float(own_tail[n]), float(own_cpu[n]))
                for n, one in enumerate(worked)
            },
        )

    @property
    def seconds(self) -> float:
        """Length of the course."""
        return STEP_S * len(self.mean)

    def steps(self, begin_s: float, seconds: float) -> Steps:
        """Return the steps (k,), at least one, of so many seconds from a time on."""
        first, count = round(begin_s / STEP_S), max(1, round(seconds / STEP_S))
        return np.arange(first, first + count) % len(self.mean)


@dataclasses.dataclass(frozen=True, slots=True)
class _BlockLogs:
    mean: Array  # (k,)
    tail: Array  # (k,)
    level: float
    """Logarithm of the evaluation's mean, of all its requests."""
    chance: float
    """Standard deviation of a block's mean by chance."""

    @classmethod
    def of(cls, evaluation: RecordedEvaluation) -> Self:
        blocks = evaluation.blocks
        requests = np.array([block.requests for block in blocks], dtype=float)
        means = np.array([block.mean_ms for block in blocks])
        return cls(
            np.log(means),
            np.log([block.p99_ms for block in blocks]),
            math.log(float(requests @ means / requests.sum())),
            chance_sd(evaluation) / math.sqrt(float(requests.mean())),
        )


def chance_sd(evaluation: RecordedEvaluation) -> float:
    """Return the standard deviation of a request's latency in an evaluation, as a share of the mean."""
    histogram, blocks = evaluation.histogram, evaluation.blocks
    if histogram is None or not blocks:
        return 0.0
    mean_ms = sum(block.requests * block.mean_ms for block in blocks) / sum(
        block.requests for block in blocks
    )
    apart_ms = histogram.quantile_ms(0.95) - histogram.quantile_ms(0.05)
    return float(apart_ms / NORMAL_SPREAD / mean_ms)


def _without_chance(deviations: Array, variance: Array | float) -> Array:
    """Shrink deviations (n,) to the spread that is left without chance."""
    whole = float(np.mean(deviations**2))
    left = np.maximum(0.0, 1 - np.asarray(variance) / whole) if whole > 0 else 0.0
    return np.asarray(deviations * np.sqrt(left))


def _as_of_quick_ones(within: list[Array], levels: Array) -> list[Array]:
    """Limit the deviations of each evaluation's blocks to the usual spread of quick evaluations.

    Configurations that a CPU quota slows down stop and go, whatever the machine does.
    """
    sds = np.array([max(float(one.std()), 1e-9) for one in within])
    usual = float(np.median(sds[levels <= np.quantile(levels, QUICK_PART)]))
    return [part * min(1.0, usual / sd) for part, sd in zip(within, sds, strict=True)]


def _taken(evaluation: RecordedEvaluation, cores: int) -> float:
    noise = evaluation.noise
    return ((noise.neighbour_cpu_s or 0.0) + (noise.steal_s or 0.0)) / (cores * evaluation.loaded_s)


def _log_cpu(table: BenchmarkTable, evaluation: RecordedEvaluation) -> float:
    measured = table.measurement_of(evaluation)
    found = None if measured is None else log_cpu_per_request(measured)
    return math.nan if found is None else found


def _layout(worked: list[RecordedEvaluation]) -> tuple[Array, Steps, Array]:
    """Return when each block's turn ends (b,), its evaluation (b,), and the steps' middles (n,)."""
    middles, owners, now_s, before_s = [], [], 0.0, None
    for number, one in enumerate(worked):
        begun_s = one.started_at + one.startup_s
        for block in one.blocks:
            at_s = begun_s + block.start_s + block.seconds / 2
            if before_s is not None:
                pause_s = max(at_s - before_s, block.seconds)
                now_s += pause_s if pause_s <= MAX_PAUSE_S else KEPT_PAUSE_S
            before_s = at_s
            middles.append(now_s)
            owners.append(number)
    found = np.array(middles)
    ends_s = np.append((found[1:] + found[:-1]) / 2, found[-1] + STEP_S)
    return ends_s, np.array(owners), np.arange(STEP_S / 2, ends_s[-1], STEP_S)


def _finer(place: Steps, within: list[Array], seconds: float) -> Array:
    """Return what steps (n,) of one longer block differ by, as blocks of one evaluation do.

    Successive blocks differ by white noise, which is larger in shorter ones; the mean over a block
    stays what was recorded.
    """
    parts = max(1, round(seconds / STEP_S))
    changes = np.concatenate([np.diff(one) for one in within])
    if parts == 1 or not len(changes):
        return np.zeros(len(place))
    sd = math.sqrt(parts * float(np.mean(changes**2)) / 2)
    noise = np.random.default_rng(0).normal(0, sd, len(place))
    sums = np.bincount(place, weights=noise) / np.maximum(np.bincount(place), 1)
    return np.asarray(noise - sums[place])
