"""Benchmark table: evaluations of every configuration in a grid."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tuner.measurement import blocks as block_means
from tuner.measurement import measurement_warnings
from tuner.measurement.summary import littles_law_error
from tuner.metrics import prices, tail_latency
from tuner.metrics.objective import Objective, find_objective
from tuner.metrics.prices import DEFAULT, Prices
from tuner.values.configuration import Configuration
from tuner.values.histogram import LatencyHistogram
from tuner.values.interval import Interval
from tuner.values.measurement import Block, HostNoise, Measurement
from tuner.values.trial import OK, Cause, Outcome

Status = Literal["ok"] | Cause
FAILED: frozenset[Status] = frozenset({"crash", "limits", "errors"})
"""Causes that a table records as failed rather than infeasible."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvaluation:
    """One recorded evaluation of one candidate."""

    number: int
    cell: Configuration
    sweep: int
    """Pass, counted from 0; later ones repeat the best candidates."""
    started_at: float
    outcome: Outcome
    startup_s: float
    loaded_s: float
    errors: int = 0
    blocks: tuple[Block, ...] = ()
    histogram: LatencyHistogram | None = None
    """Distribution of latencies; None unless the outcome is `ok`."""
    noise: HostNoise = dataclasses.field(default_factory=HostNoise)

    def is_disturbed(self, cores: int) -> bool:
        """Whether the host disturbed this evaluation."""
        return measurement_warnings.is_disturbed(self.noise, loaded_s=self.loaded_s, cores=cores)


def _with_goodput(measured: Measurement, share: float) -> Measurement:
    ends = find_objective("throughput").interval(measured)
    return dataclasses.replace(
        measured,
        goodput=share * measured.throughput_per_s,
        goodput_interval=Interval(
            low=ends.low and share * ends.low, high=ends.high and share * ends.high
        ),
    )


def _interval(histogram: LatencyHistogram, share: float) -> Interval:
    low, high = tail_latency.interval_ranks(len(histogram), share)
    return Interval(
        low=None if low is None else histogram.at_rank_ms(low),
        high=None if high is None else histogram.at_rank_ms(high),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableHeader:
    """Description of a table: what was recorded, where, and how."""

    name: str
    model: str
    concurrency: int
    client_batch: int
    engine: str
    spawner: str
    objective: str
    space: Mapping[str, Any]
    """Search space as in a search-space file, with grids."""
    default: Configuration
    host: Mapping[str, Any]
    measurement: Mapping[str, Any]
    passes: int
    seed: int
    notes: tuple[str, ...] = ()
    rate_per_s: float | None = None
    """Rate of due requests; None in a closed loop."""
    deadline_ms: float | None = None
    """Deadline of these requests; if None, replays may choose one."""
    is_finished: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkTable:
    """Header and evaluations of one table."""

    head: TableHeader
    evaluations: tuple[RecordedEvaluation, ...]
    deadline_ms: float | None = None
    paid: Prices = DEFAULT

    @functools.cached_property
    def by_cell(self) -> Mapping[Configuration, Sequence[RecordedEvaluation]]:
        """Each candidate's evaluations in order of time, without disturbed ones if others exist."""
        found: dict[Configuration, list[RecordedEvaluation]] = collections.defaultdict(list)
        for evaluation in sorted(self.evaluations, key=lambda one: one.number):
            found[evaluation.cell].append(evaluation)
        return {
            cell: [one for one in every if not one.is_disturbed(self.cores)] or every
            for cell, every in found.items()
        }

    @functools.cached_property
    def cores(self) -> int:
        """Number of cores of the machine on which the table was recorded."""
        return int(self.head.host["host"]["cores"])

    @functools.cached_property
    def _measurements(self) -> dict[int, tuple[RecordedEvaluation, Measurement | None]]:
        return {}

    def measurement_of(self, evaluation: RecordedEvaluation) -> Measurement | None:
        """Return an evaluation's measurement, cached."""
        known = self._measurements.get(evaluation.number)
        if known is None:
            known = self._measurements[evaluation.number] = (
                evaluation,
                self._make_measurement(evaluation),
            )
        # A perturbed copy has the same number as the recorded evaluation.
        return known[1] if known[0] is evaluation else self._make_measurement(evaluation)

    def minimised_value(self, evaluation: RecordedEvaluation, objective: Objective) -> float | None:
        """Return an evaluation's minimised objective, or None if unknown."""
        measured = self.measurement_of(evaluation)
        value = math.nan if measured is None else objective.to_minimise(measured)
        return value if math.isfinite(value) else None

    def _make_measurement(self, evaluation: RecordedEvaluation) -> Measurement | None:
        histogram, blocks, head = evaluation.histogram, evaluation.blocks, self.head
        if histogram is None or not blocks:
            return None
        requests = sum(block.requests for block in blocks)
        seconds = sum(block.seconds for block in blocks)
        mean_ms = sum(block.requests * block.mean_ms for block in blocks) / requests
        spread_ms = histogram.quantile_ms(0.95) - histogram.quantile_ms(0.05)
        spread_ms = max(block_means.FINEST_MS, spread_ms)
        rate = (requests + evaluation.errors) / seconds
        measured = Measurement(
            requests=requests,
            errors=evaluation.errors,
            seconds=seconds,
            mean_ms=mean_ms,
            mean_interval=block_means.mean_interval(blocks, mean_ms),
            p50_ms=histogram.quantile_ms(0.5),
            p50_interval=_interval(histogram, 0.5),
            p95_ms=histogram.quantile_ms(0.95),
            p95_interval=_interval(histogram, 0.95),
            p99_ms=histogram.quantile_ms(0.99),
            p99_interval=_interval(histogram, 0.99),
            throughput_per_s=requests / seconds,
            little_error=None
            if head.rate_per_s is not None
            else littles_law_error(rate, mean_ms / 1e3, head.concurrency),
            rate_per_s=head.rate_per_s,
            warmup_s=max(0.0, evaluation.loaded_s - seconds),
            blocks=blocks,
            noise=evaluation.noise,
            client_batch=head.client_batch,
            spread_ms=spread_ms,
            spread_interval=block_means.spread_interval(blocks, spread_ms),
            histogram=histogram,
        )
        if self.deadline_ms is not None:
            measured = _with_goodput(measured, histogram.share_within(self.deadline_ms))
        held = prices.allocated_by(evaluation.cell, cores=self.cores)
        cost = prices.cost_of(measured, held, loaded_s=evaluation.loaded_s, prices=self.paid)
        return dataclasses.replace(measured, cost=cost)


def outcome_of(status: Status, reason: str) -> Outcome:
    """Return the outcome for a recorded status."""
    if status == "ok":
        return OK
    kind: Literal["infeasible", "failed"] = "failed" if status in FAILED else "infeasible"
    return Outcome(status=kind, cause=status, reason=reason)


def status_of(outcome: Outcome) -> Status:
    """Return the status to record for an outcome."""
    return "ok" if outcome.status == "ok" else outcome.cause or "errors"
