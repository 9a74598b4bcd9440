"""Benchmark of samplers on benchmark tables: hundreds of searches, same seeds, known truth."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.lab import prepared_table, replay, replay_search
from tuner.lab.prepared_table import PreparedTable
from tuner.lab.tables import sampler_results, scoring, table_files
from tuner.lab.tables.sampler_results import SHARES
from tuner.measurement import noninferiority
from tuner.metrics import objective as objectives
from tuner.metrics import prices
from tuner.metrics.benchmark import BenchmarkRecord, NonInferiority, SamplerResult, TableBenchmark
from tuner.sampling import registry
from tuner.settings.measurement import MeasurementSettings

BUDGETS = (15, 30, 50)
REFERENCE = "structured"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TableBenchmarkSpec:
    """Specification of a benchmark of samplers on tables."""

    tables: tuple[pathlib.Path, ...]
    samplers: tuple[str, ...]
    reference: str = REFERENCE
    trials: int = 50
    seeds: tuple[int, ...] = tuple(range(20))
    initial: int | None = None
    measurement: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Given fields of `MeasurementSettings`: objective, constraints, deadline, prices."""
    jobs: int | None = None


def compare(
    order: TableBenchmarkSpec,
    *,
    name: str,
    say: Callable[[str], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> BenchmarkRecord:
    """Replay all searches.

    Args:
        say: called with a line about each sampler's result.
        check: called after every search; may raise.

    Raises:
        UsageError: a sampler is unknown or not installed, or a metric is not recorded.
    """
    for sampler in order.samplers:
        registry.create(sampler, seed=0, initial=1)
    grounds = [prepare_table(folder, order.measurement) for folder in order.tables]
    tables = tuple(_table_benchmark(ground, order, say, check) for ground in grounds)
    return BenchmarkRecord(
        name=name,
        samplers=order.samplers,
        reference=order.reference,
        trials=order.trials,
        seeds=len(order.seeds),
        margin=noninferiority.MARGIN,
        tables=tables,
        over_tables=over_tables(tables),
        notes=(),
    )


def prepare_table(folder: pathlib.Path, measurement: Mapping[str, Any]) -> PreparedTable:
    """Prepare a table with the given measurement settings."""
    table = table_files.read(folder)
    recorded = {"objective": table.head.objective, "slo_ms": table.head.deadline_ms}
    asked = MeasurementSettings(**{**recorded, **measurement})
    if asked.objective != asked.first:
        raise UsageError(
            f"--objective {asked.objective}: expected a single one, such as {asked.first}"
        )
    table = dataclasses.replace(table, deadline_ms=asked.slo_ms, paid=prices.read(asked.prices))
    return prepared_table.prepare_table(table, asked.first, asked.limits)


def samplers_of(samplers: Sequence[str], reference: str) -> tuple[str, ...]:
    """Return the distinct samplers, reference first, or raise UsageError for fewer than two."""
    every = tuple(dict.fromkeys((reference, *samplers)))
    if len(every) < 2:
        raise UsageError(
            f"--samplers: expected samplers other than the reference {reference!r}, such as random"
        )
    return every


def budgets_of(trials: int) -> tuple[int, ...]:
    """Return the usual budgets up to `trials`, or only `trials` if it is below all of them."""
    return tuple(budget for budget in BUDGETS if budget <= trials) or (trials,)


def over_tables(tables: Sequence[TableBenchmark]) -> tuple[NonInferiority, ...]:
    """Test the reference across several tables, each contributing one mean difference."""
    if len(tables) < 2:
        return ()
    by_pair: dict[tuple[str, int], list[float]] = {}
    for table in tables:
        for one in table.noninferiority:
            by_pair.setdefault((one.peer, one.budget), []).append(one.difference)
    return noninferiority.judge(
        [(peer, budget, np.array(each)) for (peer, budget), each in by_pair.items()]
    )


def _table_benchmark(
    ground: PreparedTable,
    order: TableBenchmarkSpec,
    say: Callable[[str], None],
    check: Callable[[], None],
) -> TableBenchmark:
    notes = [*ground.table.head.notes]
    contestants = []
    for sampler in order.samplers:
        left_out = _why_not(ground, sampler)
        if left_out is not None:
            notes.append(left_out)
            continue
        contestants.append(_sampler_result(ground, order, sampler, check))
        say(f"{ground.table.head.name}: {_describe(contestants[-1])}")
    if not ground.is_predicted and "structured" in order.samplers:
        notes.append("The benchmark table is not predicted, so structured searches as gp does.")
    head, truth = ground.table.head, ground.truth
    objective = objectives.find_objective(ground.objective)
    cells = len(ground.problem.candidates.configurations)
    good = {share: len(truth.good(share)) for share in SHARES}
    default_regret = truth.regret(ground.problem.default)
    return TableBenchmark(
        name=head.name,
        model=head.model,
        concurrency=head.concurrency,
        client_batch=head.client_batch,
        rate_per_s=head.rate_per_s,
        engine=head.engine,
        objective=ground.objective,
        unit=objective.unit,
        candidates=cells,
        optimum=objective.from_minimised(truth.optimum),
        optimum_se=truth.optimum_se,
        default_regret=default_regret if np.isfinite(default_regret) else None,
        good_candidates=good,
        tolerances={share: truth.tolerance(share) for share in SHARES},
        random_median={share: scoring.random_median(cells, good[share]) for share in SHARES},
        contestants=tuple(contestants),
        noninferiority=_judge(contestants, order),
        notes=tuple(notes),
    )


def _sampler_result(
    ground: PreparedTable, order: TableBenchmarkSpec, sampler: str, check: Callable[[], None]
) -> SamplerResult:
    replayed = replay_search.ReplaySpec(
        sampler=sampler,
        trials=order.trials,
        seeds=order.seeds,
        initial=order.initial,
    )
    found = replay.replay(ground, replayed, workers=order.jobs, report=lambda _: check())
    return sampler_results.sampler_result(
        sampler, found.runs, ground.truth, default=ground.problem.default
    )


def _judge(
    contestants: Sequence[SamplerResult], order: TableBenchmarkSpec
) -> tuple[NonInferiority, ...]:
    reference = next((one for one in contestants if one.sampler == order.reference), None)
    if reference is None:
        return ()
    return noninferiority.judge(
        [
            (peer.sampler, budget, sampler_results.differences(reference, peer, budget))
            for peer in contestants
            if peer is not reference
            for budget in budgets_of(order.trials)
        ]
    )


def _why_not(ground: PreparedTable, sampler: str) -> str | None:
    if sampler == "prediction" and not ground.is_predicted:
        return "The sampler prediction is left out: the benchmark table is not predicted."
    return None


def _describe(one: SamplerResult) -> str:
    last = one.regret.mean[-1]
    return f"{one.sampler}, mean regret {last:.1%} after {len(one.regret.mean)} trials"
