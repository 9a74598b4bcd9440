"""A contest of samplers as `tune compare --table` would have it, without a search."""

from __future__ import annotations

import numpy as np

from tuner.lab.table_benchmark import budgets_of, over_tables
from tuner.lab.tables import sampler_results
from tuner.lab.tables.sampler_results import SHARES
from tuner.measurement import noninferiority
from tuner.metrics.benchmark import BenchmarkRecord, SamplerResult, TableBenchmark, TimeToTolerance

SAMPLERS = ("structured", "random", "tpe", "botorch", "hill-climb")


def record(
    *, tables: int = 2, trials: int = 50, seeds: int = 20, samplers: tuple[str, ...] = SAMPLERS
) -> BenchmarkRecord:
    """Each later sampler learns more slowly; on no table does the last one get within 3 %."""
    made = tuple(_table(place, trials, seeds, samplers) for place in range(tables))
    return BenchmarkRecord(
        name="compare-toy",
        samplers=samplers,
        reference=samplers[0],
        trials=trials,
        seeds=seeds,
        margin=noninferiority.MARGIN,
        tables=made,
        over_tables=over_tables(made),
        notes=(),
    )


def _table(place: int, trials: int, seeds: int, samplers: tuple[str, ...]) -> TableBenchmark:
    contestants = tuple(
        _contestant(name, rank, place, trials, seeds) for rank, name in enumerate(samplers)
    )
    return TableBenchmark(
        name=f"toy-{20 * (place + 1)}",
        model="toy",
        concurrency=20 * (place + 1),
        client_batch=1,
        engine="luthier",
        objective="mean",
        unit="ms",
        candidates=240,
        optimum=12.5,
        optimum_se=0.004,
        default_regret=1.8,
        good_candidates={0.10: 20, 0.05: 9, 0.03: 4},
        tolerances={share: share for share in SHARES},
        random_median={0.10: 8, 0.05: 18, 0.03: 38},
        contestants=contestants,
        noninferiority=noninferiority.judge(
            [
                (peer.sampler, budget, sampler_results.differences(contestants[0], peer, budget))
                for peer in contestants[1:]
                for budget in budgets_of(trials)
            ]
        ),
        notes=("A note.",),
    )


def _contestant(name: str, rank: int, place: int, trials: int, seeds: int) -> SamplerResult:
    rng = np.random.default_rng([rank, place])
    pace = rng.gamma(8, (3 + 2 * rank) / 8, size=(seeds, 1))
    floor = 0.04 * (rank == len(SAMPLERS) - 1)
    regrets = 1.8 * np.exp(-np.arange(1, trials + 1) / pace) + floor
    seconds = np.cumsum(rng.uniform(2.5, 3.5, size=(seeds, trials)), axis=1)
    return SamplerResult(
        sampler=name,
        regrets=tuple(map(tuple, regrets.tolist())),
        seconds=tuple(map(tuple, seconds.tolist())),
        regret=sampler_results.quartiles(regrets),
        within=tuple(_within(regrets, seconds, share) for share in SHARES),
        failures=0.4 * rank,
        sampler_ms=10.0 * rank + 5,
    )


def _within(regrets: np.ndarray, seconds: np.ndarray, share: float) -> TimeToTolerance:
    firsts = [float(np.argmax(row <= share)) + 1 if row[-1] <= share else np.inf for row in regrets]
    took = [
        row[int(first) - 1] if np.isfinite(first) else np.inf
        for row, first in zip(seconds, firsts, strict=True)
    ]
    return TimeToTolerance.over(share, firsts, took)
