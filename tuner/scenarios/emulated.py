"""A scenario in virtual time: the real scheduler, emulated workers, and what became of every request.

In: a scenario, a scheduler. Out: `Emulation`. The clock jumps from event to event, so that thousands of models
and hours of traffic take as long as the scheduler needs to plan them; how long that is, is measured.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from serving.errors import InvalidSettings
from serving.scheduling.clockwork.scheduler import ClockworkScheduler
from serving.scheduling.seam import Event, Kind, Plan, Scheduler
from serving.settings import ServingSettings
from serving.values import ModelId
from tuner.errors import WrongUse
from tuner.scenarios import arrivals, results
from tuner.scenarios.values import MOST_ARRIVALS, Group, Scenario
from tuner.simulation.pool import EmulatedModel, EmulatedPool, EmulatedWorker, Outcome, Request

ROUNDING_S = 1e-9
CHECKED_EVERY = 1024
"""Requests."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the workers did, all together."""

    loads: int
    load_share: float
    """Of the workers' time."""
    exec_share: float
    batches: Mapping[int, int]
    """Items -> batches."""
    missed_windows: int
    most_pages: int
    """Memory that any of them had in use."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Emulation(results.Result):
    """One run in virtual time."""

    work: Work
    planning_s: float
    """What the scheduler took, on one core."""

    @property
    def planned_per_s(self) -> float:
        """Requests that one core can plan."""
        return self.requests / self.planning_s if self.planning_s else float("inf")


class Timed:
    """A scheduler, and how long it takes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.took_s = 0.0

    @property
    def waiting_items(self) -> int:
        """Items in the queue."""
        return self._scheduler.waiting_items

    def waiting_of(self, model: ModelId) -> int:
        """Those of a model."""
        return self._scheduler.waiting_of(model)

    def on(self, event: Event, now_s: float) -> None:
        """Take note of an event."""
        began_s = time.perf_counter()
        self._scheduler.on(event, now_s)
        self.took_s += time.perf_counter() - began_s

    def plan(self, now_s: float) -> Plan:
        """What is to be done now."""
        began_s = time.perf_counter()
        plan = self._scheduler.plan(now_s)
        self.took_s += time.perf_counter() - began_s
        return plan


@dataclasses.dataclass(frozen=True, slots=True)
class _Checked:
    """Traffic, and a look at whether to go on."""

    traffic: arrivals.Traffic
    check: Callable[[], None]
    count: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def __iter__(self) -> Iterator[Request]:
        for request in self.traffic:
            self._counted()
            yield request

    def answered(self, request: Request, now_s: float) -> Request | None:
        """What a client sends next."""
        self._counted()
        return self.traffic.answered(request, now_s)

    def _counted(self) -> None:
        number = next(self.count)
        if not number % CHECKED_EVERY:
            self.check()
        if number > MOST_ARRIVALS:
            raise WrongUse(
                f"scenario {self.traffic.scenario.name}: more than {MOST_ARRIVALS:,} requests; give it less time "
                "(seconds), or fewer clients"
            )


def settings_of(scenario: Scenario) -> ServingSettings:
    """Of the serving core.

    Raises:
        WrongUse: a setting is not known, or out of its range.
    """
    try:
        policy = ServingSettings().changed({"scheduling.policy": "clockwork"})
        return policy.changed(scenario.settings, source=f"scenario {scenario.name}")
    except InvalidSettings as error:
        raise WrongUse(str(error)) from error


def clockwork(scenario: Scenario) -> Scheduler:
    """The scheduler that a pool has."""
    return ClockworkScheduler.of(settings_of(scenario))


def run(
    scenario: Scenario,
    make: Callable[[Scenario], Scheduler] = clockwork,
    *,
    check: Callable[[], None] = lambda: None,
) -> tuple[Emulation, list[Outcome]]:
    """One run, and what became of each request, in the order in which they came.

    Args:
        scenario: what is emulated.
        make: gives a new scheduler.
        check: is called now and then; may raise.
    """
    timed = Timed(make(scenario))
    models = [model for group in scenario.groups for model in _models(group)]
    workers = [
        EmulatedWorker(number, pages=scenario.pages, loads_apart=scenario.loads_apart)
        for number in range(scenario.workers)
    ]
    rng = random.Random(scenario.seed)  # noqa: S311 - an emulation's luck
    half_s = 0.5 * scenario.emulated.lag_s
    pool = EmulatedPool(
        timed,
        models,
        workers,
        jitter=lambda: rng.choice(scenario.emulated.jitter),
        lag_s=lambda: half_s + (rng.expovariate(1.0 / half_s) if half_s else 0.0),
    )
    timed.took_s = 0.0
    outcomes = pool.run(_Checked(arrivals.traffic(scenario), check))
    return _result(scenario, outcomes, workers, timed), outcomes


def _models(group: Group) -> Iterator[EmulatedModel]:
    profile = group.profile
    if profile is None:
        raise WrongUse(
            f"group {group.name!r} has no profile: an emulation needs one (docs/scenarios.md); with --serve it "
            "is measured"
        )
    for name in group.names:
        yield EmulatedModel(
            id=ModelId(name, "1"),
            pages=profile.pages,
            load_s=profile.load_s,
            batch_s=profile.batch_s,
        )


def _result(
    scenario: Scenario, outcomes: Sequence[Outcome], workers: Sequence[EmulatedWorker], timed: Timed
) -> Emulation:
    found = results.counted(scenario, [_end(outcome) for outcome in outcomes])
    time_s = found.seconds * len(workers)
    return Emulation(
        **{field.name: getattr(found, field.name) for field in dataclasses.fields(found)},
        work=Work(
            loads=sum(worker.counts[Kind.LOAD] for worker in workers),
            load_share=sum(worker.busy_s[Kind.LOAD] for worker in workers) / time_s,
            exec_share=sum(worker.busy_s[Kind.INFER] for worker in workers) / time_s,
            batches=dict(
                sorted(sum((worker.batches for worker in workers), collections.Counter()).items())
            ),
            missed_windows=sum(worker.too_late for worker in workers),
            most_pages=max(worker.most_pages for worker in workers),
        ),
        planning_s=timed.took_s,
    )


def _end(outcome: Outcome) -> results.End:
    request = outcome.request
    return results.End(
        stream=request.stream,
        at_s=request.at_s,
        deadline_s=request.objective_s,
        done_s=outcome.done_s,
        refused=None if outcome.refused is None else outcome.refused.value,
        at_once=outcome.done_s <= request.at_s + ROUNDING_S,
    )
