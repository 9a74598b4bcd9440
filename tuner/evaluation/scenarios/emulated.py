"""Emulation of a scenario in virtual time: the real scheduler on emulated workers."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping

from serving.errors import InvalidSettings
from serving.scheduling.clockwork.scheduler import ClockworkScheduler
from serving.scheduling.interface import ActionType, Scheduler
from serving.settings import ServingSettings
from serving.values import ModelId
from tuner.errors import UsageError
from tuner.evaluation.scenarios import arrivals, results
from tuner.evaluation.scenarios.values import MAX_ARRIVALS, ModelGroup, Scenario
from tuner.evaluation.simulation.pool import (
    EmulatedModel,
    EmulatedOutcome,
    EmulatedPool,
    EmulatedRequest,
    EmulatedWorker,
)

ROUNDING_S = 1e-9
CHECKED_EVERY = 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUsage:
    """Work of all workers in a run."""

    loads: int
    load_share: float
    exec_share: float
    batches: Mapping[int, int]
    missed_windows: int
    most_pages: int
    """Largest number of pages that one worker used."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Emulation(results.ScenarioResult):
    """Result of one run in virtual time."""

    work: WorkerUsage
    planning_s: float
    """CPU time that the scheduler took."""

    @property
    def planned_per_s(self) -> float:
        """Number of requests per second that the scheduler can plan on one core."""
        return self.requests / self.planning_s if self.planning_s else float("inf")


@dataclasses.dataclass(frozen=True, slots=True)
class _Checked:
    traffic: arrivals.ScenarioArrivals
    check: Callable[[], None]
    count: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def __iter__(self) -> Iterator[EmulatedRequest]:
        for request in self.traffic:
            self._count_request()
            yield request

    def next_request(self, request: EmulatedRequest, now_s: float) -> EmulatedRequest | None:
        self._count_request()
        return self.traffic.next_request(request, now_s)

    def _count_request(self) -> None:
        number = next(self.count)
        if not number % CHECKED_EVERY:
            self.check()
        if number > MAX_ARRIVALS:
            raise UsageError(
                f"scenario {self.traffic.scenario.name}: more than {MAX_ARRIVALS:,} "
                "requests; reduce its time (seconds) or its clients"
            )


def settings_of(scenario: Scenario) -> ServingSettings:
    """Return the engine's settings, or raise UsageError if one is unknown or invalid."""
    try:
        policy = ServingSettings().with_changes({"scheduling.policy": "clockwork"})
        return policy.with_changes(scenario.settings, source=f"scenario {scenario.name}")
    except InvalidSettings as error:
        raise UsageError(str(error)) from error


def clockwork(scenario: Scenario) -> Scheduler:
    """Return the scheduler that plans a scenario."""
    return ClockworkScheduler.of(settings_of(scenario))


def run(
    scenario: Scenario,
    make: Callable[[Scenario], Scheduler] = clockwork,
    *,
    check: Callable[[], None] = lambda: None,
) -> tuple[Emulation, list[EmulatedOutcome]]:
    """Run a scenario; return its result and the outcomes in order of arrival.

    `check` is called regularly.
    """
    models = [model for group in scenario.groups for model in _models(group)]
    workers = [
        EmulatedWorker(number, pages=scenario.pages, concurrent_loads=scenario.concurrent_loads)
        for number in range(scenario.workers)
    ]
    rng = random.Random(scenario.seed)  # noqa: S311 - an emulation's luck
    half_s = 0.5 * scenario.emulated.message_latency_s
    pool = EmulatedPool(
        make(scenario),
        models,
        workers,
        jitter=lambda: rng.choice(scenario.emulated.jitter),
        message_latency_s=lambda: half_s + (rng.expovariate(1.0 / half_s) if half_s else 0.0),
    )
    outcomes = pool.run(_Checked(arrivals.draw_arrivals(scenario), check))
    return _result(scenario, pool), outcomes


def _models(group: ModelGroup) -> Iterator[EmulatedModel]:
    profile = group.profile
    if profile is None:
        raise UsageError(
            f"group {group.name!r} has no profile, which an emulation needs "
            "(docs/scenarios.md); --serve measures it"
        )
    for name in group.names:
        yield EmulatedModel(
            id=ModelId(name, "1"),
            pages=profile.pages,
            load_s=profile.load_s,
            batch_s=profile.batch_s,
        )


def _result(scenario: Scenario, pool: EmulatedPool) -> Emulation:
    workers = pool.workers
    found = results.summarise(scenario, [_end(outcome) for outcome in pool.outcomes])
    time_s = found.seconds * len(workers)
    return Emulation(
        **{field.name: getattr(found, field.name) for field in dataclasses.fields(found)},
        work=WorkerUsage(
            loads=sum(worker.counts[ActionType.LOAD] for worker in workers),
            load_share=sum(worker.busy_s[ActionType.LOAD] for worker in workers) / time_s,
            exec_share=sum(worker.busy_s[ActionType.INFER] for worker in workers) / time_s,
            batches=dict(
                sorted(sum((worker.batches for worker in workers), collections.Counter()).items())
            ),
            missed_windows=sum(worker.too_late for worker in workers),
            most_pages=max(worker.max_pages for worker in workers),
        ),
        planning_s=pool.planning_s,
    )


def _end(outcome: EmulatedOutcome) -> results.RequestOutcome:
    request = outcome.request
    return results.RequestOutcome(
        stream=request.stream,
        at_s=request.at_s,
        deadline_s=request.objective_s,
        done_s=outcome.done_s,
        refused=None if outcome.refused is None else outcome.refused.value,
        at_once=outcome.done_s <= request.at_s + ROUNDING_S,
    )
