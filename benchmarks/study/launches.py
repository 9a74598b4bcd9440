"""Launches of one unit: configurations and loads that are measured in alternating rounds.

In: a unit. Out: its row, a figure per launch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from units import CONCURRENCIES, SMALL, Unit

from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.evaluator import Evaluator
from tuner.launching import machine
from tuner.launching.engine_process import LuthierLauncher
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.space.environment import Environment
from tuner.space.space import SearchSpace
from tuner.study import problem
from tuner.values.configuration import Configuration, Value

CLUSTERED = (5, 20)
"""Concurrencies at which the study shows single round trips."""
SAMPLED = 10
"""Random configurations of the study's table 1, beside the default."""
SAMPLED_AT = ((1, 1), (5, 1), SMALL, (20, 1), (60, 1))
"""Environments of that table: concurrency and items per request."""
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
REPLICAS = (1, 2, 3, 4, 6, 8)
OBJECTIVES_MS = (2, 5, 10, 20, 50, 100, 200)
VARIANTS = ("resnet8", "resnet14", "resnet20")
VARIED_AT = (1, 20)
MOST_KEPT = 1_500
"""Single round trips that are kept of a launch."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One launch, repeated in every round."""

    key: Mapping[str, Value]
    """What tells it from the others of its unit; kept with its figures."""
    concurrency: int
    client_batch: int = 1
    configuration: Configuration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often and how long each point of a kind is measured."""

    rounds: int
    seconds: float = 2.0
    warmup_s: float = 0.5
    requests: int | None = None
    """Requests of each launch, instead of seconds."""


PLANS: Mapping[str, Plan] = {
    "clusters": Plan(rounds=1),
    "growth": Plan(rounds=5),
    "sample": Plan(rounds=3, seconds=0.6, warmup_s=0.1),
    "variants": Plan(rounds=5, seconds=1.0, warmup_s=0.2),
    "batch": Plan(rounds=2, requests=50_000),
    "replicas": Plan(rounds=2, requests=10_000),
    "slo": Plan(rounds=2, requests=10_000, warmup_s=2.0),
}


def points(unit: Unit, space: SearchSpace, environment: Environment) -> list[Point]:
    """Return the launches of one round.

    Args:
        unit: a unit of one of `PLANS`.
        space: the model's search space, bound to this machine.
        environment: what it is bound to.
    """
    default = space.default()

    def varied(knob: str, values: Sequence[Value], **more: Value) -> list[Point]:
        fixed = {name.replace("__", "."): value for name, value in more.items()}
        return [
            Point(
                key={knob: value},
                concurrency=unit.concurrency,
                configuration=Configuration({**default, **fixed, knob: value}),
            )
            for value in values
        ]

    def loads(concurrencies: Sequence[int]) -> list[Point]:
        return [
            Point(key={"concurrency": n}, concurrency=n, configuration=default)
            for n in concurrencies
        ]

    makers: Mapping[str, Callable[[], list[Point]]] = {
        "clusters": lambda: loads(CLUSTERED),
        "growth": lambda: loads(CONCURRENCIES),
        "sample": lambda: _sampled(space, environment, unit.seed),
        "variants": lambda: [
            dataclasses.replace(point, concurrency=n, key={**point.key, "concurrency": n})
            for n in VARIED_AT
            for point in varied("model.variant", VARIANTS)
        ],
        "batch": lambda: varied(
            "batching.max_size", BATCH_SIZES, batching__timeout_us=int(unit.form)
        ),
        "replicas": lambda: varied("replica.count", REPLICAS, replica__cpu=unit.form),
        "slo": lambda: varied(
            "batching.slo_ms",
            OBJECTIVES_MS,
            batching__policy="aimd",
            batching__max_size=BATCH_SIZES[-1],
        ),
    }
    return makers[unit.kind]()


def _sampled(space: SearchSpace, environment: Environment, seed: int) -> list[Point]:
    cells = [cell for cell in space.candidates(environment) if cell != space.default()]
    chosen = np.random.default_rng(seed).choice(len(cells), SAMPLED, replace=False)
    configurations = [space.default(), *(cells[int(place)] for place in chosen)]
    return [
        Point(
            key={"configuration": number, "concurrency": n, "client_batch": items},
            concurrency=n,
            client_batch=items,
            configuration=one,
        )
        for n, items in SAMPLED_AT
        for number, one in enumerate(configurations)
    ]


def launched(unit: Unit, plan: Plan) -> dict[str, Any]:
    """Measure every point in every round; rounds alternate their order."""
    spec = problem.find_spec(unit.model)
    most = max(CONCURRENCIES) if unit.kind == "sample" else unit.concurrency
    target = TargetSettings(model=unit.model, concurrency=most, spawner=unit.spawner)
    file = problem.find_space(target, spec)
    assert file is not None, "it is a bundled model"
    environment = problem.environment_of(target, machine.read(), spec)
    evaluator = Evaluator(
        model=unit.model,
        concurrency=unit.concurrency,
        settings=MeasurementSettings(
            requests=plan.requests, seconds=plan.seconds, warmup_s=plan.warmup_s
        ),
        launcher=LuthierLauncher(unit.model, unit.spawner),
    )
    rows = []
    with evaluator:
        served = evaluator.start()
        environment = problem.with_gpu(environment, file.space, device=served.device)
        space = problem.bind_space(file.space, environment, limits=served.limits)
        every = points(unit, space, environment)
        sent = 0
        for round_ in range(plan.rounds):
            for point in every if round_ % 2 == 0 else every[::-1]:
                if point.client_batch != sent:
                    sent = point.client_batch
                    load = dataclasses.replace(target, client_batch=sent)
                    evaluator.send(problem.payloads_of(load, spec, served, seed=0))
                evaluator.concurrency = point.concurrency
                launch = evaluator.evaluate(point.configuration)
                rows.append(_row(point, launch, keeps_records=unit.kind == "clusters"))
    return {"launches": rows}


def _row(point: Point, launch: Evaluation, *, keeps_records: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "key": dict(point.key),
        "configuration": dict(point.configuration),
        "status": launch.outcome.status,
    }
    measured = launch.measurement
    if measured is None:
        return {**row, "reason": launch.outcome.reason}
    names = ("mean_ms", "p50_ms", "p95_ms", "p99_ms", "spread_ms", "throughput_per_s", "seconds")
    row |= {name: round(getattr(measured, name), 4) for name in names}
    row |= {"requests": measured.requests, "errors": measured.errors}
    if keeps_records and launch.records is not None:
        records = launch.records
        is_kept = (records.finished_s > measured.warmup_s) & (records.status == 200)
        begun_s = records.started_s[is_kept][:MOST_KEPT]
        took_ms = 1e3 * (records.finished_s[is_kept][:MOST_KEPT] - begun_s)
        row["begun_s"] = [round(float(value), 4) for value in begun_s - measured.warmup_s]
        row["took_ms"] = [round(float(value), 3) for value in took_ms]
    return row
