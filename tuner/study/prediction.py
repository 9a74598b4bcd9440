"""Prediction of every candidate's mean latency, from a short profile or by rules of thumb.

A profile describes Luthier alone. Of another engine's knobs only the roles are known, and of the
model only the latency of the default: `estimate` makes a profile of typical costs from that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.errors import TunerError
from tuner.evaluation import profiler
from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.simulation import closed_form, discrete
from tuner.evaluation.simulation.closed_form import Workload
from tuner.evaluation.simulation.profile import BatchCost, CostProfile
from tuner.metrics import prices
from tuner.metrics.metric_constraints import MetricConstraint
from tuner.metrics.objective import COSTS
from tuner.metrics.prices import DEFAULT, Prices, allocated_by
from tuner.sampling import registry
from tuner.settings.search import SearchSettings
from tuner.settings.study import StudySettings
from tuner.space import footprint, roles
from tuner.space.environment import Environment
from tuner.study.problem import ProblemStatement
from tuner.values.configuration import Configuration, Value

SIMULATED = 40
"""Number of the most promising candidates that `simulate` simulates."""
OBJECTIVES = COSTS | {
    "mean",
    "p50",
    "p95",
    "p99",
    "throughput",
    "goodput",
    "time-per-item",
    "consistency",
}
"""Objectives that latency and reserved resources predict, unlike energy."""
PREDICTED, UNPREDICTED = "structured", "gp"
"""Sampler that uses a prediction, and the sampler that replaces it without one."""
_WITHOUT = {
    PREDICTED: "the search uses its measurements alone, as with --sampler gp",
    "prediction": "without a prediction, the sampler prediction tries configurations at random",
}
ITEM_SHARE = 0.8
"""Share of a batch's time that grows with its size, of a model whose costs are unknown."""
THREAD_POWER = 0.8
"""Power of the thread count by which a batch of such a model is faster."""
ITEM_S = (1e-5, 10.0)
"""Range of the time of one item."""
OVER_MEAN = 2.0
"""Usual upper bound of p95 and p99, as a multiple of the mean."""
Array = NDArray[np.float64]


def is_wanted(settings: StudySettings) -> bool:
    """Whether the sampler uses a prediction and one is possible."""
    return registry.takes(settings.search.sampler, "guess") and why_none(settings) is None


def why_none(settings: StudySettings) -> str | None:
    """Return why a sampler gets no profile, or None if it gets or needs none."""
    if not registry.takes(settings.search.sampler, "guess"):
        return None
    if settings.target.is_of_other_engine:
        why = "the batching of another engine is unknown"
    elif settings.target.scenario is not None:
        why = "many models on shared replicas are not predicted"
    elif settings.is_open:
        why = "a profile describes a closed loop, not how requests queue in an open loop"
    elif settings.measurement.first not in OBJECTIVES:
        why = f"a profile does not cover the objective {settings.measurement.first}"
    else:
        return None
    if estimates(settings):
        return f"no profile: {why}; predictions follow from the default's latency and knob roles"
    instead = _WITHOUT.get(settings.search.sampler, _WITHOUT[PREDICTED])
    return f"no prediction: {why}; {instead}"


def adjust_settings(settings: StudySettings) -> StudySettings:
    """Return the settings, with more initial trials if there is no prediction."""
    predicts = is_wanted(settings) or estimates(settings)
    search = settings.search if predicts else without_prediction(settings.search)
    return dataclasses.replace(settings, search=search)


def without_prediction(search: SearchSettings) -> SearchSettings:
    """Return the search settings for a search without a prediction.

    With a prediction, four initial evaluations suffice; without one, the search more often stays
    in the valley where it began.
    """
    if search.initial is not None or search.sampler != PREDICTED:
        return search
    initial = dataclasses.replace(search, sampler=UNPREDICTED).first_trials
    return dataclasses.replace(search, initial=initial)


def profile_of(evaluator: Evaluator, problem: ProblemStatement) -> CostProfile | None:
    """Profile every thread count in the search space; return None on failure."""
    environment, cells = problem.environment, problem.candidates.configurations
    largest = max(
        int(cell.get("batching.max_size", problem.default.get("batching.max_size", 1)))
        for cell in cells
    )
    try:
        return profiler.profile_model(
            evaluator,
            most=min(environment.items, largest),
            client_batch=environment.client_batch,
            threads={int(cell.get("replica.threads", 1)) for cell in cells},
        )
    except TunerError:
        return None


def with_prediction(
    problem: ProblemStatement,
    profile: CostProfile | None,
    objective: str = "mean",
    *,
    paid: Prices = DEFAULT,
    limits: Sequence[MetricConstraint] = (),
) -> ProblemStatement:
    """Add predictions from a profile; a predicted cost is reserved resources times latency."""
    if profile is None:
        return problem
    load = workload_of(problem.environment)
    latency = closed_form.all_ms(profile, load, problem.candidates.configurations)
    return _predicted(problem, latency, objective, paid=paid, limits=limits)


def _predicted(
    problem: ProblemStatement,
    latency: Array,
    objective: str,
    *,
    paid: Prices,
    limits: Sequence[MetricConstraint],
) -> ProblemStatement:
    guess = latency
    if objective in COSTS:
        cores = problem.environment.machine.cores
        guess = guess * [
            _cost_per_s(cell, objective, cores, paid) for cell in problem.candidates.configurations
        ]
    within = _within(latency, workload_of(problem.environment), limits)
    return dataclasses.replace(
        problem, prediction=guess, latency=latency, predicted_feasible=within
    )


def estimates(settings: StudySettings) -> bool:
    """Whether predictions follow from the latency of the default, for lack of a profile."""
    return (
        registry.takes(settings.search.sampler, "guess")
        and settings.target.scenario is None
        and not settings.is_open
        and settings.measurement.first in OBJECTIVES
    )


def estimate(
    problem: ProblemStatement,
    default_ms: float,
    objective: str = "mean",
    *,
    limits: Sequence[MetricConstraint] = (),
) -> ProblemStatement:
    """Add predictions of a typical model, whose default has this mean latency in ms."""
    paid = problem.estimated_at or DEFAULT
    canonical = roles.translator(problem.space.knobs)
    cells = [canonical(cell) for cell in problem.candidates.configurations]
    default = canonical(problem.default)
    load = workload_of(problem.environment)
    threads = {int(cell.get("replica.threads", 1)) for cell in (*cells, default)}

    def latency_ms(item_s: float, cell: Mapping[str, Value]) -> float:
        cores = min(float(load.cores), float(cell.get("engine.cpu", load.cores)))
        return closed_form.mean_ms(
            _typical(item_s, threads, load.client_batch),
            dataclasses.replace(load, cores=cores),
            cell,
        )

    low, high = map(math.log, ITEM_S)
    for _ in range(30):
        middle = (low + high) / 2
        is_slower = latency_ms(math.exp(middle), default) > default_ms
        low, high = (low, middle) if is_slower else (middle, high)
    latency = np.array([latency_ms(math.exp(low), cell) for cell in cells])
    return _predicted(problem, latency, objective, paid=paid, limits=limits)


def _typical(item_s: float, threads: Collection[int], client_batch: int) -> CostProfile:
    """Return the profile of a model of typical costs."""
    batches = []
    for count in threads:
        for size in (1, 2, 4, 8, 16, 32, 64):
            cpu_s = item_s * (1 - ITEM_SHARE + ITEM_SHARE * size)
            batches.append(
                BatchCost(
                    threads=count,
                    size=size,
                    service_s=cpu_s / count**THREAD_POWER,
                    cpu_s=cpu_s * count ** (1 - THREAD_POWER),
                    gateway_s=None,
                    client_s=None,
                )
            )
    return CostProfile(batches=tuple(batches), client_batch=client_batch, seconds=0.0)


def with_prediction_of(
    settings: StudySettings, problem: ProblemStatement, profile: CostProfile | None
) -> ProblemStatement:
    """Add predictions as a study's settings require, or raise UsageError for a bad price file."""
    measurement = settings.measurement
    paid = prices.read(measurement.prices)
    if profile is None:
        return dataclasses.replace(problem, estimated_at=paid if estimates(settings) else None)
    return with_prediction(
        problem, profile, measurement.first, paid=paid, limits=measurement.limits
    )


def _within(
    latency: Array, load: Workload, limits: Sequence[MetricConstraint]
) -> NDArray[np.bool_] | None:
    per_s = 1e3 * load.concurrency / latency
    predicted = {
        "mean_ms": latency,
        "p50_ms": latency,
        "p95_ms": latency * OVER_MEAN,
        "p99_ms": latency * OVER_MEAN,
        "throughput_per_s": per_s,
        "items_per_s": per_s * load.client_batch,
    }
    told = [limit for limit in limits if limit.metric in predicted]
    if not told:
        return None
    kept = np.ones(len(latency), dtype=bool)
    for limit in told:
        value = predicted[limit.metric]
        kept &= value <= limit.bound if limit.is_upper else value >= limit.bound
    return kept


def _cost_per_s(candidate: Configuration, objective: str, cores: int, paid: Prices) -> float:
    used, memory_mib, _ = footprint.footprint(candidate, cores=cores)
    used = max(used, allocated_by(candidate, cores=cores).cores)
    if objective == "cpu":
        return used
    if objective == "memory":
        return memory_mib or 1.0
    return paid.of(cpu_s=used, memory_mib_s=memory_mib, gpu_s=0.0)


def simulate(
    problem: ProblemStatement, profile: CostProfile
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the candidates' mean latencies (m,), the most promising ones by event simulation.

    For the others, the closed form is multiplied by the median ratio. Searches do not use this: on
    recorded tables it is no better at finding the best, and takes 1,000 times as long
    (docs/decisions/0012).
    """
    load, cells = workload_of(problem.environment), problem.candidates.configurations
    guess = closed_form.all_ms(profile, load, cells)
    promising = np.argsort(guess, kind="stable")[:SIMULATED]
    found = np.array([discrete.mean_ms(profile, load, cells[place]) for place in promising])
    guess *= float(np.median(found / guess[promising]))
    guess[promising] = found
    return guess


def workload_of(environment: Environment) -> Workload:
    """Return the workload that the performance models assume."""
    return Workload(
        concurrency=environment.concurrency,
        client_batch=environment.client_batch,
        cores=environment.machine.cores,
    )
