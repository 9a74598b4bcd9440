"""Prediction of every candidate's mean latency, by rules of thumb.

Of the model only the latency of one configuration is known, of the default if that works: `estimate`
chooses the size of a model of usual proportions by it. Of another engine's knobs only the roles are known.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.evaluation.simulation import closed_form
from tuner.evaluation.simulation.closed_form import Workload
from tuner.evaluation.simulation.model_costs import ModelCosts
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
OF_RATES = frozenset({"throughput", "goodput"})
"""Objectives that are minimised as the time between two responses."""
ITEM_S = (1e-5, 10.0)
"""Range of the time of one item."""
OVER_MEAN = 2.0
"""Usual upper bound of p95 and p99, as a multiple of the mean."""
Array = NDArray[np.float64]


def estimates(settings: StudySettings) -> bool:
    """Whether the sampler uses predictions and they are possible."""
    return registry.takes(settings.search.sampler, "guess") and why_none(settings) is None


def why_none(settings: StudySettings) -> str | None:
    """Return why a sampler gets no predictions, or None if it gets or needs none."""
    if not registry.takes(settings.search.sampler, "guess"):
        return None
    if settings.target.scenario is not None:
        why = "many models on shared replicas are not predicted"
    elif settings.is_open:
        why = "the rules of thumb describe a closed loop, not how requests queue in an open loop"
    elif settings.measurement.first not in OBJECTIVES:
        why = f"the objective {settings.measurement.first} does not follow from the latency"
    else:
        return None
    instead = _WITHOUT.get(settings.search.sampler, _WITHOUT[PREDICTED])
    return f"no prediction: {why}; {instead}"


def adjust_settings(settings: StudySettings) -> StudySettings:
    """Return the settings, with more initial trials if there is no prediction."""
    if estimates(settings):
        return settings
    return dataclasses.replace(settings, search=without_prediction(settings.search))


def without_prediction(search: SearchSettings) -> SearchSettings:
    """Return the search settings for a search without a prediction.

    With a prediction, the default and the predicted best suffice; without one, the search more often stays
    in the valley where it began.
    """
    if search.initial is not None or search.sampler != PREDICTED:
        return search
    initial = dataclasses.replace(search, sampler=UNPREDICTED).first_trials
    return dataclasses.replace(search, initial=initial)


def enable_estimate(settings: StudySettings, problem: ProblemStatement) -> ProblemStatement:
    """Let the default's latency predict the others, if the settings want and allow it.

    Raises:
        UsageError: the price file is invalid.
    """
    if not estimates(settings):
        return problem
    return dataclasses.replace(problem, estimated_at=prices.read(settings.measurement.prices))


def estimate(
    problem: ProblemStatement,
    mean_ms: float,
    objective: str = "mean",
    *,
    of: Configuration | None = None,
    limits: Sequence[MetricConstraint] = (),
) -> ProblemStatement:
    """Add predictions of a usual model, of which one configuration has this mean latency in ms.

    It is the default, unless `of` is another. Evaluations of earlier studies are predicted too,
    unless the objective is a cost.
    """
    paid = problem.estimated_at or DEFAULT
    canonical = roles.translator(problem.space.knobs)
    load = workload_of(problem.environment)
    anchor = canonical(Configuration({**problem.default, **(of or {})}))
    low, high = map(math.log, ITEM_S)
    for _ in range(30):
        middle = (low + high) / 2
        is_slower = _latency_ms(math.exp(middle), load, anchor) > mean_ms
        low, high = (low, middle) if is_slower else (middle, high)
    item_s = math.exp(low)
    cells = map(canonical, problem.candidates.configurations)
    latency = np.array([_latency_ms(item_s, load, cell) for cell in cells])
    if problem.warm_start is not None and objective not in COSTS:
        own = _per(objective, problem.environment)
        guesses = [
            math.log(_latency_ms(item_s, workload_of(one.environment), one.knobs))
            - math.log(_per(objective, one.environment) / own)
            + one.shift
            for one in problem.earlier
        ]
        known = dataclasses.replace(problem.warm_start, prediction=np.array(guesses))
        problem = dataclasses.replace(problem, warm_start=known)
    guess = latency
    if objective in COSTS:
        cores = problem.environment.machine.cores
        guess = guess * [
            _cost_per_s(cell, objective, cores, paid) for cell in problem.candidates.configurations
        ]
    within = _within(latency, load, limits)
    return dataclasses.replace(
        problem, prediction=guess, latency=latency, predicted_feasible=within
    )


def _per(objective: str, environment: Environment) -> int:
    """Return by how many in flight the objective divides the latency."""
    if objective == "time-per-item":
        return environment.items
    return environment.concurrency if objective in OF_RATES else 1


def _latency_ms(item_s: float, load: Workload, cell: Mapping[str, Value]) -> float:
    cores = min(float(load.cores), float(cell.get("engine.cpu", load.cores)))
    load = dataclasses.replace(load, cores=cores)
    return closed_form.mean_ms(ModelCosts(item_s=item_s), load, cell)


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


def workload_of(environment: Environment) -> Workload:
    """Return the workload that the performance models assume."""
    return Workload(
        concurrency=environment.concurrency,
        client_batch=environment.client_batch,
        cores=environment.machine.cores,
    )
