"""Benchmark table prepared for replays."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import yaml

from tuner.errors import InvalidTable, UsageError
from tuner.lab.tables.ground_truth import GroundTruth, ground_truth
from tuner.lab.tables.machine_course import MachineCourse
from tuner.lab.tables.table import BenchmarkTable, RecordedEvaluation
from tuner.lab.tables.table_evaluator import EvaluationTimes
from tuner.metrics import objective as objectives
from tuner.metrics.metric_constraints import MetricConstraint
from tuner.sampling.candidates import CandidateSet
from tuner.settings.measurement import SHORT_S, USUAL_S, MeasurementSettings
from tuner.settings.workload import RATE
from tuner.space import distributions, files, knob_schema, roles
from tuner.space.derived_features import features
from tuner.space.environment import Environment, Machine
from tuner.space.knobs import knob_info
from tuner.study.problem import ProblemStatement
from tuner.values.configuration import Configuration
from tuner.values.study_record import OUR_ENGINE


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PreparedTable:
    """Benchmark table with its problem statement, ground truth and course of the machine."""

    table: BenchmarkTable
    problem: ProblemStatement
    truth: GroundTruth
    objective: str
    limits: tuple[MetricConstraint, ...] = ()
    """Constraints that a solution's true values must satisfy."""

    @property
    def is_predicted(self) -> bool:
        """Whether the default's latency predicts the others; every recorded objective follows it."""
        return self.table.head.rate_per_s is None

    @functools.cached_property
    def course(self) -> MachineCourse:
        """Course of the recorded machine."""
        return MachineCourse.of(self.table)

    @functools.cached_property
    def templates(self) -> Mapping[Configuration, Sequence[RecordedEvaluation]]:
        """Evaluations to replay, by candidate: those with the objective, or all if most lack it."""
        told = self.truth.left
        return {
            cell: [one for one in every if one.number in told] or every
            for cell, every in self.table.by_cell.items()
        }

    @functools.cached_property
    def times(self) -> EvaluationTimes:
        """How long an evaluation of a study takes by default, or with restarts as recorded."""
        measurement = MeasurementSettings(objective=self.objective, slo_ms=self.table.deadline_ms)
        warmup_s = measurement.warmup_s
        if self.table.head.engine != OUR_ENGINE:  # it settles after each restart
            warmup_s = max(warmup_s, float(self.table.head.measurement["warmup_s"]))
        is_of_means = measurement.is_of_means and not self.limits
        return EvaluationTimes(
            seconds=SHORT_S if is_of_means else USUAL_S,
            warmup_s=warmup_s,
            compared_s=0.0 if is_of_means else USUAL_S,
        )

    @functools.cached_property
    def trial_s(self) -> float:
        """Median duration of a replayed trial."""
        took_s = [
            one.startup_s + sum(self.times.of(_latency_s(one)))
            for one in self.table.evaluations
            if one.blocks
        ]
        return statistics.median(took_s)


def _latency_s(evaluation: RecordedEvaluation) -> float:
    return statistics.fmean(block.mean_ms for block in evaluation.blocks) / 1e3


def prepare_table(
    table: BenchmarkTable, objective: str | None = None, limits: Sequence[MetricConstraint] = ()
) -> PreparedTable:
    """Prepare a table, by default with its own objective.

    Raises:
        InvalidTable: a candidate has too few evaluations, the space is unreadable, or the objective
            needs an open loop.
        UsageError: a metric is not recorded, or no candidate satisfies the constraints.
    """
    name = objective or table.head.objective
    if name == RATE:
        text = f"its load was a closed loop, which has no objective {RATE}"
        raise InvalidTable(table.head.name, "", text)
    if min((len(each) for each in table.by_cell.values()), default=0) < 2:
        raise InvalidTable(
            table.head.name,
            "",
            "a candidate has fewer than two evaluations; continue with `tune record`",
        )
    problem = make_problem(table)
    found = _truth(table, name, problem)
    for limit in limits:
        found = _within(found, limit, table, problem)
    return PreparedTable(
        table=table,
        problem=problem,
        truth=found,
        objective=name,
        limits=tuple(limits),
    )


def _truth(table: BenchmarkTable, objective: str, problem: ProblemStatement) -> GroundTruth:
    found = ground_truth(table, objectives.find_objective(objective), problem.candidates)
    if not len(found.candidates):
        raise UsageError(f"{table.head.name}: its evaluations lack {objective}")
    return found


def _within(
    found: GroundTruth,
    limit: MetricConstraint,
    table: BenchmarkTable,
    problem: ProblemStatement,
) -> GroundTruth:
    name = limit.of.objective
    if name is None or limit.metric == "items_per_s":
        raise UsageError(f"--constraint {limit.text!r}: the benchmark table lacks {limit.metric}")
    objective = objectives.find_objective(name)
    of_metric = _truth(table, name, problem)
    values = np.exp(of_metric.log_mean)
    if not objective.is_minimised:
        values = 1e3 / values
    kept = {
        cell
        for cell, value in zip(of_metric.candidates, values, strict=True)
        if not limit.log_excess(float(value)) > 0
    }
    places = [place for place, cell in enumerate(found.candidates) if cell in kept]
    if not places:
        raise UsageError(
            f"--constraint {limit.text!r}: no configuration of the benchmark table satisfies it"
        )
    return dataclasses.replace(
        found,
        candidates=tuple(found.candidates[place] for place in places),
        log_mean=found.log_mean[places],
        se=found.se[places],
        unsuccessful=found.unsuccessful | {cell for cell in found.candidates if cell not in kept},
    )


def make_problem(table: BenchmarkTable) -> ProblemStatement:
    """Build the problem statement for the recorded candidates."""
    head = table.head
    known = knob_schema.SERVING if head.engine == OUR_ENGINE else knob_schema.OF_ANY
    text = yaml.safe_dump(dict(head.space), sort_keys=False)
    host = head.host["host"]
    environment = Environment(
        concurrency=head.concurrency,
        client_batch=head.client_batch,
        rate_per_s=head.rate_per_s,
        machine=Machine(cores=host["cores"], memory_mb=host["memory_mb"]),
    )
    space = files.parse(text, file=f"{head.name}/table.yaml", vocabulary=known)
    canonical = roles.translator(space.knobs)
    return ProblemStatement(
        text=text,
        space=space,
        environment=environment,
        default=head.default,
        candidates=CandidateSet.of(
            tuple(table.by_cell), space.encode, lambda cell: features(canonical(cell), environment)
        ),
        distributions=distributions.distributions(space),
        knobs=tuple(map(knob_info, space.searched_knobs)),
        notes=head.notes,
    )
