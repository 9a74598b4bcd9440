"""Search with one seed in a replay, on the table's recorded machine."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from tuner.lab.prepared_table import PreparedTable
from tuner.lab.tables import table_evaluator as drawing
from tuner.lab.tables.table_evaluator import Perturbations, TableEvaluator
from tuner.metrics.metric_constraints import MetricConstraint
from tuner.sampling.arrays import Array
from tuner.settings.search import SearchSettings
from tuner.store.study_store import StudyStore
from tuner.study import prediction, warm_start
from tuner.study.budget import Budget
from tuner.study.problem import ProblemStatement
from tuner.study.racing import PARTS, Racing
from tuner.study.search import Search
from tuner.study.warm_start import SourceStudy
from tuner.values.configuration import Configuration

PredictionKind = Literal["estimate", "none", "shuffled", "inverted", "constant", "misleading"]
PREDICTIONS: tuple[PredictionKind, ...] = get_args(PredictionKind)
"""Kinds of prediction: the estimate from the default's latency, none, or a wrong one.

`misleading` is the truth, but for the best candidates and as many that lose `DECOY_LOSS`, which
change places.
"""
DECOYS, DECOY_LOSS = 1 / 40, 0.25
"""Share of the candidates that a misleading prediction takes for the best, and what they lose."""
OF_TAILS = frozenset({"p95", "p99", "consistency"})
"""Objectives that move with the tail of the latencies."""
_APART = 1_000_003
_STREAM, _NODE = 7, 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySpec:
    """Specification of a replay."""

    sampler: str
    trials: int
    seeds: tuple[int, ...]
    max_s: float | None = None
    """Time after which no further trial begins."""
    initial: int | None = None
    guess: PredictionKind = "estimate"
    after: PreparedTable | None = None
    after_trials: int = 30
    pairs: int = 0
    """Most pairs of a study's verdict."""
    studies_s: tuple[float, ...] = ()
    """Times at which the search of a study of its own would end; infinite is the end of the replay."""
    perturbations: Perturbations = dataclasses.field(default_factory=Perturbations)
    nodes: int = 1
    """Machines that evaluate at once; each moves as the recorded one did at some time."""


def estimate(
    ground: PreparedTable,
    kind: PredictionKind,
    seed: int,
    problem: ProblemStatement,
    mean_ms: float,
    objective: str,
    *,
    of: Configuration | None = None,
    limits: Sequence[MetricConstraint],
) -> ProblemStatement:
    """Add predictions as `prediction.estimate` does, then make them wrong in the requested way."""
    problem = prediction.estimate(problem, mean_ms, objective, of=of, limits=limits)
    if kind == "estimate" or problem.prediction is None:
        return problem
    logs = np.log(problem.prediction)
    if kind == "shuffled":
        logs = np.random.default_rng([_STREAM, seed, 1]).permutation(logs)
    elif kind == "inverted":
        logs = logs.max() + logs.min() - logs
    elif kind == "constant":
        logs = np.full_like(logs, logs.mean())
    elif kind == "misleading":
        logs = misleading(logs, ground)
    return dataclasses.replace(
        problem, prediction=np.exp(logs), latency=None, predicted_feasible=None
    )


def misleading(logs: Array, ground: PreparedTable) -> Array:
    """Return logs (m,) of the truth, of predictions where it is unknown, with decoys.

    They correlate well with the truth, but the best candidates and the decoys have changed places.
    """
    truth = ground.truth
    found = [ground.problem.candidates.index_of(cell) for cell in truth.candidates]
    places = np.array(found, dtype=np.intp)
    logs = logs + np.median(truth.log_mean - logs[places])
    logs[places] = truth.log_mean
    count = max(1, round(DECOYS * len(places)))
    best = np.argsort(truth.log_mean, kind="stable")[:count]
    apart = np.abs(truth.log_mean - truth.log_mean[truth.best] - math.log1p(DECOY_LOSS))
    decoys = np.argsort(apart, kind="stable")[:count]
    logs[places[best]], logs[places[decoys]] = truth.log_mean[decoys], truth.log_mean[best]
    return logs


def with_warm_start(
    problem: ProblemStatement, ground: PreparedTable, order: ReplaySpec, seed: int
) -> ProblemStatement:
    """Return the problem with a warm start from a search on the other table."""
    if order.after is None:
        return problem
    before = dataclasses.replace(
        order, after=None, trials=order.after_trials, perturbations=Perturbations(), studies_s=()
    )
    evaluator = make_evaluator(order.after, before.perturbations, seed + _APART)
    search = search_of(order.after, before, seed, evaluator)
    for _ in range(order.after_trials):
        search.step()
    study = SourceStudy(
        name=order.after.table.head.name,
        environment=order.after.problem.environment,
        evaluations=tuple(
            (trial.configuration, trial.objective)
            for trial in search.trials
            if trial.objective is not None
        ),
        winner=search.recommend(keeps_default=False),
    )
    return warm_start.with_warm_start(problem, [study], objective=ground.objective)


def make_evaluators(ground: PreparedTable, order: ReplaySpec, seed: int) -> list[TableEvaluator]:
    """Make the evaluators of all machines for one seed."""
    whole = make_evaluator(ground, order.perturbations, seed)
    found = [whole]
    for number in range(1, order.nodes):
        rng = np.random.default_rng([_STREAM, seed, _NODE, number])
        found.append(dataclasses.replace(whole, rng=rng, node=str(number)))
    for one in found if order.perturbations.node_sd else ():
        one.slowness = float(one.rng.normal(0.0, order.perturbations.node_sd))
    return found


def make_evaluator(
    ground: PreparedTable, perturbations: Perturbations, seed: int
) -> TableEvaluator:
    """Make the evaluator for one seed, with its perturbations."""
    rng = np.random.default_rng([_STREAM, seed])
    walled: frozenset[Configuration] = frozenset()
    if perturbations.injects_oom:
        kept = (ground.problem.default, ground.truth.candidates[ground.truth.best])
        walled = drawing.with_oom(ground.problem.candidates, kept, rng)
    return TableEvaluator(
        table=ground.table,
        course=ground.course,
        templates=ground.templates,
        corrections=ground.truth.corrections,
        times=ground.times,
        rng=rng,
        own_tails=ground.truth.left if ground.objective in OF_TAILS else None,
        noise_sd=perturbations.noise_sd,
        with_oom=walled,
        stands_for_all=ground.problem.default if perturbations.is_null else None,
    )


def search_of(
    ground: PreparedTable, order: ReplaySpec, seed: int, evaluator: TableEvaluator
) -> Search:
    """Create the search for one seed, with an in-memory store."""
    settings = SearchSettings(
        sampler=order.sampler, trials=order.trials, initial=order.initial, seed=seed
    )
    problem = with_warm_start(ground.problem, ground, order, seed)
    if ground.is_predicted and order.guess != "none":
        problem = dataclasses.replace(problem, estimated_at=ground.table.paid)
    else:
        settings = prediction.without_prediction(settings)
    search = Search(
        store=StudyStore.in_memory(f"seed-{seed}"),
        problem=problem,
        evaluator=evaluator,
        budget=Budget(
            trials=order.trials,
            initial=settings.first_trials,
            max_time_s=float("inf"),
            load_s=0.0,
            pairs=0,
        ),
        objective=ground.objective,
        limits=ground.limits,
        stop_ei=0.0,
        keep_in=None,
        racing=_racing(ground),
        predict=functools.partial(estimate, ground, order.guess, seed),
    )
    search.prepare(settings)
    return search


def _racing(ground: PreparedTable) -> Racing | None:
    if ground.limits or ground.table.head.rate_per_s is not None:
        return None
    return Racing(
        blocks=PARTS,
        block_s=ground.times.seconds / PARTS,
        concurrency=ground.table.head.concurrency,
        client_batch=ground.table.head.client_batch,
    )
